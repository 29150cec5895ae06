"""Log files: one for each start, the last few kept."""

import contextlib
import errno
import logging
import os
import time
from pathlib import Path

from engine.errors import ConfigError
from tui_infer.locations import log_dir

KEPT = 5
MAX_BYTES = 8 << 20  # an older log that grew beyond this goes at the next start


def new_log(kind: str) -> Path:
    """A path for this start's log of ``kind`` (``app``, ``engine``); older ones of that kind are removed.

    Raises:
        ConfigError: the folder cannot be made or written to.
    """
    folder = log_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no permission to write")
        older = sorted(folder.glob(f"{kind}-*.log"))
    except OSError as error:
        raise ConfigError(
            f"The log folder {folder} cannot be used: {error.strerror}.",
            "Set TUI_INFER_LOG_DIR to a folder that can be written to.",
        ) from error
    for path in older:
        with contextlib.suppress(OSError):
            if path in older[: 1 - KEPT] or path.stat().st_size > MAX_BYTES:
                path.unlink()
    return folder / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def log_to(path: Path) -> None:
    """Send the process's logging to a file, made at the first line; the terminal belongs to the app."""
    handler = logging.FileHandler(path, delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
