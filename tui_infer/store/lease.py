"""Which process has which chats: each app that runs holds a lock on a file, and its chats carry its name.

The lock dies with its holder, however that ends, and is not fooled by process numbers that are given again or
that mean nothing in another container.
"""

import contextlib
import fcntl
import os
import uuid
from pathlib import Path

from tui_infer.store.errors import StoreError


class Lease:
    """The lock of this process; ``run`` is its name in the database."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreError where files cannot be locked."""
        self.run = uuid.uuid4().hex
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(_path(folder, self.run), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(f"No lock can be had in {folder}: {error.strerror}.") from error

    def release(self) -> None:
        """Let others have the chats."""
        with contextlib.suppress(OSError):
            _path(self.folder, self.run).unlink()
        with contextlib.suppress(OSError):
            os.close(self._file)


def is_held(folder: Path, run: str) -> bool:
    """Whether the process of this name lives. The file of a dead one is removed."""
    path = _path(folder, run)
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        with contextlib.suppress(OSError):
            path.unlink()
        return False
    finally:
        os.close(file)


def _path(folder: Path, run: str) -> Path:
    return folder / f"{run}.lock"
