"""What can go wrong with the store, as one line for the user."""

import sqlite3

from engine.errors import EngineError

# Raised again at the next look, so that waiting helps.
BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
BROKEN = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


class StoreError(EngineError):
    """The store cannot be used; the app goes on without it."""

    title = "chats are not kept"


class BrokenStore(StoreError):
    """The file is no database, or a damaged one."""


class ChatHeld(StoreError):
    """A chat is open in another process."""

    title = "open elsewhere"


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's error number without its details; 0 where Python raised by itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def words_of(error: Exception) -> str:
    """Why a read or write failed, for a notice."""
    if isinstance(error, sqlite3.Error):
        code = primary_code(error)
        if code in BUSY:
            return "Another process keeps the database locked."
        if code == sqlite3.SQLITE_FULL:
            return "The disk is full."
        if code in BROKEN:
            return f"The database is damaged ({error})."
    if isinstance(error, EngineError):
        return str(error)
    return f"{error}."
