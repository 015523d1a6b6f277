"""Values that somebody put where a node tells what it has resident."""

from __future__ import annotations

import zlib


def _packed(text: bytes) -> bytes:
    return b"a-1 " + zlib.compress(text)


POISON = (
    b"\xff\xfe\x00",
    b"a-1 not compressed",
    b"A_1 " + zlib.compress(b"name - - all"),
    _packed(b""),
    _packed(b"name - -"),
    _packed(b"name - - all\n"),
    _packed(b"name - 169.254.169.254 all"),
    _packed(b"name - 127.0.0.1:80:80 all"),
    _packed(b"name - metadata.internal:80 all"),
    _packed(b"name - [fe80::1%eth0]:80 all"),
    _packed(b"name - 10.0.0.1:0 all"),
    _packed(b"name\x1b[2J - - all"),
    _packed(b"name - - all\nacme/../../etc - 1 -"),
    _packed(b"name - - all\nacme/a sha1:00 1 -"),
    _packed(b"name - - all\nacme/a - -1 -"),
    _packed(b"name - - all\nacme/a - 9999999999999999999 -"),
    _packed(b"name - - all\nacme/a - 1 kp"),
    _packed(b"name - - all\nacme/b - 1 -\nacme/a - 1 -"),
    _packed(b"name - - all\nacme/a - 1 -\nacme/a - 1 -"),
    _packed(b"name - - all" + b"".join(b"\n%05d - 1 -" % number for number in range(10_001))),
    _packed(b"name - - all\n" + b"\xc3\xa4 - 1 -"),
    _packed(b"x" * (8 << 20)),
    _packed(b"name - - all")[:-3],
    b"a-1 " + b"x" * (2 << 20),
)
