"""How much memory the process's control group allows. Both versions of cgroups."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

_MEMBERSHIP = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes a huge number where it has no limit."""


def memory_limit_bytes(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> int | None:
    """Return the smallest memory limit of the group and those above it; None without one."""
    limits = [limit for file in _limit_files(membership, root) if (limit := _read_limit(file)) is not None]
    return min(limits, default=None)


def memory_left_bytes(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> int | None:
    """Return what the group and those above it may still take before one is at its limit; None without a limit.

    Cached pages of files that nobody uses count as free: they are given back first.
    """
    lefts = [
        limit - _used(file.parent)
        for file in _limit_files(membership, root)
        if (limit := _read_limit(file)) is not None
    ]
    return max(min(lefts), 0) if lefts else None


def _used(group: Path) -> int:
    used = "".join(_read_lines(group / "memory.current") or _read_lines(group / "memory.usage_in_bytes"))
    stat = dict(line.split(maxsplit=1) for line in _read_lines(group / "memory.stat"))
    return int(used or 0) - int(stat.get("inactive_file", 0))


def _limit_files(membership: Path, root: Path) -> list[Path]:
    files: list[Path] = []
    for line in _read_lines(membership):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files += _upwards(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            files += _upwards(root / "memory", path, "memory.limit_in_bytes")
    return files


def _upwards(root: Path, path: str, name: str) -> list[Path]:
    """Return the file's path in the group and in each above it.

    Inside a container the group may be named as the host sees it; then only the
    root of what is mounted is there, and that is the container's own.
    """
    inner = PurePosixPath(path.lstrip("/"))
    return [root / part / name for part in (inner, *inner.parents)]


def _read_limit(file: Path) -> int | None:
    text = "".join(_read_lines(file))
    if not text.isdigit() or int(text) >= _NO_LIMIT_BYTES:
        return None
    return int(text)


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
