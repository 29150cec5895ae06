"""Opening the file: its folder, its connections, and what becomes of a broken one."""

import os
import sqlite3
import time
from pathlib import Path

from tui_infer.store.errors import BROKEN, BrokenStore, StoreError, primary_code, words_of
from tui_infer.store.schema import make_index, migrate
from tui_infer.store.writer import BUSY_TIMEOUT_MS

FILE = "chats.db"
SIDE_FILES = ("-wal", "-shm")


def open_database(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection for writing, its tables up to date, and whether there is an index for searching.

    The file is for its owner only.

    Raises:
        BrokenStore: it is no database, or a damaged one.
        StoreError: it cannot be opened, or is not ours to change.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreError(
            f"{path} cannot be opened: {error.strerror}.",
            "Set TUI_INFER_DATA_DIR to a folder that can be written to.",
        ) from error
    connection: sqlite3.Connection | None = None
    try:
        connection = _connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
        migrate(connection)
        indexed = make_index(connection)
        connection.execute("SELECT count(*) FROM chats").fetchone()
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        kind = BrokenStore if primary_code(error) in BROKEN else StoreError
        raise kind(f"{path}: {words_of(error)}") from error
    except StoreError as error:
        connection.close()  # type: ignore[union-attr]
        raise StoreError(f"{path}: {error.message}", error.hint) from error
    return connection, indexed


def open_for_reading(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing. Readers and the writer do not wait for each other."""
    connection = _connect(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def move_aside(path: Path) -> Path:
    """Give a broken file and what belongs to it another name; the new name.

    Raises:
        StoreError: it cannot be renamed.
    """
    stem = f"{path.name}.broken-{time.strftime('%Y%m%d-%H%M%S')}"
    new, number = path.with_name(stem), 1
    while new.exists():
        number += 1
        new = path.with_name(f"{stem}-{number}")
    try:
        path.rename(new)
        for suffix in SIDE_FILES:
            side = path.with_name(path.name + suffix)
            if side.exists():
                side.rename(new.with_name(new.name + suffix))
    except OSError as error:
        raise StoreError(f"{path} is broken and cannot be moved aside: {error.strerror}.") from error
    return new


def _connect(path: Path) -> sqlite3.Connection:
    # Connections are handed to the thread that uses them, or guarded by a lock.
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA foreign_keys = ON")
    return connection
