"""Keeps the C library from giving large temporaries back to the system after every use. Torch-free.

A forward pass on a CPU allocates and frees the same megabytes in every layer. By default glibc maps
and unmaps them each time, and the system clears every page again when it is touched; that can cost
more than the arithmetic.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 512 << 20
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc refuses more


def keep_temporaries() -> bool:
    """Ask glibc to reuse freed memory; False where the C library has no such setting."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mmap = mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    return bool(mmap and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
