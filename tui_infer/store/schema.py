"""The tables and how older ones become today's.

A chat's small values lie in ``chats``, its long ones in tables of their own, because SQLite writes a row as a
whole. The answer under way grows in ``pieces``: what was saved of it is not written again until it is over.
"""

import sqlite3
from collections.abc import Sequence

from tui_infer.store.errors import StoreError

_FIRST = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    pid INTEGER NOT NULL,
    started REAL NOT NULL,
    layout TEXT NOT NULL DEFAULT ''
);
CREATE TABLE chats (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    run TEXT REFERENCES runs (id) ON DELETE SET NULL,
    archived INTEGER NOT NULL DEFAULT 0,
    title TEXT NOT NULL,
    titled INTEGER NOT NULL,
    system TEXT NOT NULL,
    params TEXT NOT NULL,
    model TEXT NOT NULL,
    model_name TEXT NOT NULL,
    letter TEXT NOT NULL,
    color INTEGER NOT NULL,
    unread INTEGER NOT NULL,
    place TEXT NOT NULL,
    queue TEXT NOT NULL,
    turns INTEGER NOT NULL DEFAULT 0,
    tokens INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    updated REAL NOT NULL
);
CREATE INDEX chats_by_run ON chats (run);
CREATE TABLE drafts (
    chat INTEGER PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
    text TEXT NOT NULL,
    editing INTEGER,
    stash TEXT NOT NULL
);
CREATE TABLE histories (
    chat INTEGER PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
    ids BLOB NOT NULL
);
CREATE TABLE turns (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chat INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    token_ids BLOB NOT NULL,
    stats TEXT NOT NULL,
    status TEXT NOT NULL,
    note TEXT NOT NULL,
    asked INTEGER,
    ended INTEGER,
    seed INTEGER,
    place INTEGER NOT NULL,
    indexed INTEGER NOT NULL DEFAULT 0,
    UNIQUE (chat, position)
);
CREATE INDEX turns_open ON turns (chat) WHERE status = 'open';
CREATE INDEX turns_not_indexed ON turns (id) WHERE indexed = 0;
CREATE TABLE versions (
    chat INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    tails BLOB NOT NULL,
    PRIMARY KEY (chat, position)
);
CREATE TABLE pieces (
    chat INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    number INTEGER NOT NULL,
    text TEXT NOT NULL,
    token_ids BLOB NOT NULL,
    PRIMARY KEY (chat, position, number)
) WITHOUT ROWID;
CREATE TABLE prompts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    text TEXT NOT NULL,
    sent REAL NOT NULL
);
"""

_REREAD = "ALTER TABLE chats ADD COLUMN reread INTEGER NOT NULL DEFAULT 0;"

# Each brings a database from the version of its place to the next. Written once, never changed.
MIGRATIONS: tuple[str, ...] = (_FIRST, _REREAD)

INDEX = "CREATE VIRTUAL TABLE IF NOT EXISTS turn_index USING fts5 (text, tokenize = 'trigram')"


def migrate(connection: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Bring the tables up to date, in one transaction each, so that a failed one changes nothing.

    Raises:
        StoreError: the tables are of a newer app, or of no app of this name.
    """
    wanted = len(migrations)
    for _ in range(wanted + 1):
        connection.execute("BEGIN IMMEDIATE")  # another process may be at it: it is waited for, then read
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            _refuse_strangers(connection, version, wanted)
            if version == wanted:
                connection.execute("ROLLBACK")
                return
            for statement in _statements(migrations[version]):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _refuse_strangers(connection: sqlite3.Connection, version: int, wanted: int) -> None:
    if version > wanted:
        raise StoreError(
            f"The chats were written by a newer tui-infer (format {version}; this one knows up to {wanted}).",
            "Update tui-infer, or give this one a folder of its own with TUI_INFER_DATA_DIR.",
        )
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
        raise StoreError(
            "The file is a database of another program.",
            "Move it away, or set TUI_INFER_DATA_DIR to another folder.",
        )


def _statements(script: str) -> list[str]:
    """The script's statements; ``executescript`` would end the transaction."""
    statements: list[str] = []
    part = ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            statements.append(part.strip())
            part = ""
    return [statement for statement in statements if statement != ";"]


def make_index(connection: sqlite3.Connection) -> bool:
    """Make the index for searching where this SQLite can; whether it could. Else texts are read through."""
    try:
        connection.execute(INDEX)
        connection.execute("SELECT rowid FROM turn_index LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        if any(
            words in str(error) for words in ("no such module", "no such tokenizer", "error in tokenizer")
        ):
            return False
        raise
    return True
