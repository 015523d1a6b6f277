"""What it means that a connection ends before anything was said over it: mostly, that two sides disagree on TLS. Pure.

Only gRPC's own text tells it. Where that says something else one day, callers wait
as long as for a daemon that is not there, and read what gRPC says.
"""

from __future__ import annotations

CLOSED_SECONDS = 1.0
"""How long a daemon that never answered may close each connection: one that starts or ends does so for a moment."""

_FAILED, _CLOSED = "handshake failed", "socket closed"


def hint(said: str, *, has_tls: bool, has_cert: bool) -> str:
    """Return what may be wrong, given what gRPC said of a failed connection over TCP; "" if that tells nothing."""
    said = said.lower()
    if _FAILED in said:
        return _of_handshake(said)
    return _of_closing(has_tls=has_tls, has_cert=has_cert) if _CLOSED in said else ""


def _of_handshake(said: str) -> str:
    if "wrong_version_number" in said:
        return "it does not speak TLS: leave out --tls-ca (tls=)"
    if "certificate_verify_failed" in said or "hostname" in said:
        return "its certificate is not trusted, or has another name: see --tls-ca (tls=)"
    return "TLS cannot be agreed on"


def _of_closing(*, has_tls: bool, has_cert: bool) -> str:
    if not has_tls:
        return "it closes the connection: if it demands TLS, give --tls-ca (tls=)"
    if not has_cert:
        return "it closes the connection: if it demands a certificate, give --tls-cert and --tls-key (tls=)"
    return "it closes the connection: it may not trust the certificate that --tls-cert (tls=) names"


def is_settled(text: str, seconds: float) -> bool:
    """Say whether trying again is of no use, after so long in which no try succeeded."""
    text = text.lower()
    return _FAILED in text or (_CLOSED in text and seconds > CLOSED_SECONDS)
