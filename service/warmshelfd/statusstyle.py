"""The one style of the status page: light and dark, wide and narrow, without a font or a picture of its own."""

from __future__ import annotations

_RULES = """
:root{color-scheme:light dark;--back:#fff;--card:#f6f8fa;--ink:#1b1f24;--dim:#57606a;--line:#d0d7de;--link:#0550ae;
--base:#2463c4;--adapter:#1a7f5a;--warm:#b35900;--gone:#8250df;--bad:#c02530;--calm:#6e7781}
@media(prefers-color-scheme:dark){:root{--back:#0d1117;--card:#161b22;--ink:#e6edf3;--dim:#9aa4ae;--line:#30363d;
--link:#79b8ff;--base:#5b9bff;--adapter:#3fb98a;--warm:#e3a04a;--gone:#b793f5;--bad:#ff7b72;--calm:#8b949e}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:78rem;
background:var(--back);color:var(--ink)}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:0 0 .5rem}small{font-weight:normal;color:var(--dim)}
p{margin:.4rem 0}a{color:var(--link)}header p{color:var(--dim)}
a:focus-visible,.scroll:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-99rem}.skip:focus{position:static}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.9rem 1rem;margin:1rem 0}
.scroll{overflow-x:auto;max-height:32rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:600;color:var(--dim);position:sticky;top:0;background:var(--card)}
th,td{padding:.25rem 1rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}
td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:12rem}
[aria-label=failed] td:last-child,[aria-label=findings] td{white-space:normal;overflow-wrap:anywhere;min-width:12rem}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:.3rem 1.5rem;margin:.6rem 0 0}
dt{color:var(--dim);font-size:.85rem}dd{margin:0}
.bar{display:block;width:100%;height:2.5rem;background:var(--back);border:1px solid var(--line);border-radius:4px}
.phases{width:16rem;height:1rem;background:var(--back);border-radius:2px}
rect{stroke:var(--back);stroke-width:1;vector-effect:non-scaling-stroke}
progress{width:10rem;vertical-align:middle}
.legend{font-size:.85rem;color:var(--dim)}.legend span{display:inline-block;margin-right:.9rem}
.legend span:before,.badge:before{content:"";display:inline-block;width:.7em;height:.7em;border-radius:2px;
margin-right:.4em;background:currentColor}
.badge:before{border-radius:50%}.badge{font-size:.9rem;font-weight:600;color:var(--calm)}
h1 .badge{margin-left:.5rem}
.badge.ready,.badge.ok{color:var(--adapter)}.badge.failed,.badge.problem{color:var(--bad)}
.badge.loading,.badge.starting,.badge.warning{color:var(--warm)}
.badge.evicting,.badge.draining,.badge.cancelled{color:var(--gone)}
rect.base{fill:var(--base)}rect.adapter{fill:var(--adapter)}rect.idle{fill-opacity:.45}
rect.reserved,rect.reserve{fill:var(--warm)}rect.unnamed,rect.seal{fill:var(--gone)}
rect.inspect{fill:var(--calm)}rect.read{fill:var(--base)}rect.verify{fill:var(--adapter)}rect.pin{fill:var(--bad)}
.legend .base:before,.legend .read:before{background:var(--base)}
.legend .adapter:before,.legend .verify:before{background:var(--adapter)}
.legend .held:before{background:linear-gradient(90deg,var(--base) 50%,var(--adapter) 50%)}
.legend .idle:before{background:linear-gradient(90deg,var(--base) 50%,var(--adapter) 50%);opacity:.45}
.legend .reserved:before,.legend .reserve:before{background:var(--warm)}
.legend .unnamed:before,.legend .seal:before{background:var(--gone)}
.legend .free:before{background:var(--back);border:1px solid var(--line)}
.legend .inspect:before{background:var(--calm)}.legend .pin:before{background:var(--bad)}
nav{margin-top:.6rem}nav a{margin-right:1.2rem}
@media(max-width:40rem){body{padding:.6rem}section{padding:.7rem;margin:.7rem 0}.phases{width:9rem}
td:first-child{min-width:9rem}th,td{padding-right:.7rem}}
"""

STYLE = "".join(_RULES.splitlines())
"""On one line: the page's policy knows it by its hash."""
