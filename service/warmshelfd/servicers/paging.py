"""Page sizes and tokens of listings."""

from __future__ import annotations

import base64
import binascii

from warmshelf.errors import InvalidPageToken, InvalidRequest

PAGE_SIZE_DEFAULT = 100
PAGE_SIZE_MAX = 1000
"""1,000 artifacts without config and module names stay well below one message."""

PAGE_BYTES_MAX = 2 << 20
"""A page ends before it is larger, so that clients with gRPC's default limit of 4 MiB take it."""

_TOKEN_BYTES_MAX = 1024


def page_size(asked: int) -> int:
    """Return how many to list; 0 lets us choose, and too many become the most there may be.

    Raises:
        InvalidRequest: it is negative.
    """
    if asked < 0:
        raise InvalidRequest(f"page_size is {asked}, it must not be negative", field="page_size")
    return min(asked or PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)


def to_token(after: str) -> str:
    """Return the token that goes on after this key; "" for none."""
    return base64.urlsafe_b64encode(after.encode()).decode() if after else ""


def from_token(token: str) -> str:
    """Return the key that a token goes on after.

    Raises:
        InvalidPageToken: ``to_token`` never made it.
    """
    try:
        if len(token) > _TOKEN_BYTES_MAX:
            raise ValueError
        after = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise InvalidPageToken(f"not a page token of this listing: {token[:32]!r}") from None
    return after
