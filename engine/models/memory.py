"""How much memory there is to take, before anything is taken. Torch is needed for a GPU only."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import OutOfMemory

if TYPE_CHECKING:
    import torch


def available_bytes(device: "torch.device") -> int | None:
    """Free bytes of a device; None where nothing says so.

    On the CPU the smaller of what the kernel calls available and what the container still allows.
    """
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    return host_available_bytes()


def host_available_bytes() -> int | None:
    """Free bytes of the machine's memory, or of the container's share; None where nothing says so."""
    limits = [limit for limit in (_meminfo_available(), _cgroup_left()) if limit is not None]
    if limits:
        return min(limits)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def require(need: int, device: "torch.device", what: str, hint: str) -> None:
    """Refuse what cannot fit.

    Raises:
        OutOfMemory: with both numbers.
    """
    have = available_bytes(device)
    if have is not None and need > have:
        raise OutOfMemory(f"{what} needs {size_text(need)}; {device} has {size_text(have)} free.", hint)


def size_text(num_bytes: int) -> str:
    """Bytes for people, in binary units."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"


def _meminfo_available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _cgroup_left() -> int | None:
    """What the control group (version 2) still allows; file cache it can drop counts as free."""
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text("ascii").strip()
        if limit == "max":
            return None
        used = int((root / "memory.current").read_text("ascii"))
        stat = dict(line.split() for line in (root / "memory.stat").read_text("ascii").splitlines())
        return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None
