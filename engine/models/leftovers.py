"""What processes that were killed while writing have left in a cache folder."""

import contextlib
import os
import shutil
import time
from pathlib import Path

DAY_S = 86400.0


def leftover_name(name: str) -> str:
    """Of a file or folder in the making, beside the place where ``name`` will be."""
    return f".{name}.{os.getpid()}.tmp"


def remove_leftovers(folder: Path) -> None:
    """Drop what has a ``leftover_name`` whose process is gone, or that is older than a day.

    A process of another machine or container that shares the folder looks gone: what it writes is lost, as
    if the disk had been full, and it writes again at its next start.
    """
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if not _is_running(path) or time.time() - path.stat().st_mtime > DAY_S:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def _is_running(path: Path) -> bool:
    """Whether the process in a name runs; True where that cannot be told."""
    number = path.name.split(".")[-2]
    if os.name != "posix" or not number.isdecimal() or int(number) <= 0:
        return True  # elsewhere signal 0 is no question
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # another user's
    return True
