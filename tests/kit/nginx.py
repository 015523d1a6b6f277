"""A real nginx where one is installed, serving a directory."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kit.processes import eventually

_CONFIG = """
daemon off; master_process off; pid {root}/pid; error_log {root}/error.log;
events {{}}
http {{
  access_log off; gzip on; gzip_types *; gzip_min_length 1; sendfile on;
  client_body_temp_path {root}/t; proxy_temp_path {root}/t; fastcgi_temp_path {root}/t;
  uwsgi_temp_path {root}/t; scgi_temp_path {root}/t;
  server {{ listen 127.0.0.1:{port}; root {files}; }}
}}
"""


def nginx_path() -> str | None:
    return shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


@contextlib.contextmanager
def nginx(binary: str, files: Path) -> Iterator[str]:
    """Serve a directory and give the server's URL."""
    with tempfile.TemporaryDirectory() as root, socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
        found.close()
        config = Path(root) / "nginx.conf"
        config.write_text(_CONFIG.format(root=root, port=port, files=files))
        process = subprocess.Popen([binary, "-p", root, "-c", str(config)], stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: _answers(port), "nginx serves")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False
