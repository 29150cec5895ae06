"""Writing chats: what one save changes, as a value, and how it gets into the tables."""

import json
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tui_infer.sanitize import one_line
from tui_infer.session import NEW_TITLE
from tui_infer.store.rows import ChatMeta, Draft, params_text, place_text, unpack_ids

INTERRUPTED = "interrupted"  # note of an answer that was under way when its app ended


@dataclass(frozen=True, slots=True)
class TurnWrite:
    """A whole turn; pieces of it that are there go. ``tails`` are its other versions, None leaves them."""

    position: int
    role: str
    text: str
    token_ids: bytes
    stats: str
    status: str
    note: str
    asked: int | None
    end: int | None
    seed: int | None = None
    place: int = 0
    tails: bytes | None = None


@dataclass(frozen=True, slots=True)
class PieceWrite:
    """What came to the answer under way since it was saved last."""

    position: int
    number: int
    text: str
    token_ids: bytes


@dataclass(frozen=True, slots=True)
class ChatWrite:
    """What is to change of one chat. None, or nothing, is left as it is; ``length`` cuts the turns behind it.

    ``touched`` says that something was said, so that the chat moves to the top of the list.
    """

    key: str
    meta: ChatMeta
    archived: bool = False
    touched: bool = False
    draft: Draft | None = None
    history: bytes | None = None
    tokens: int | None = None
    length: int | None = None
    turns: tuple[TurnWrite, ...] = ()
    pieces: tuple[PieceWrite, ...] = ()


def write_chat(connection: sqlite3.Connection, write: ChatWrite, run: str, indexed: bool) -> None:
    """Bring one chat up to date; one that is not there is made. An archived one belongs to no run."""
    now = time.time()
    meta = write.meta
    values = {
        "key": write.key,
        "run": None if write.archived else run,
        "archived": write.archived,
        "title": meta.title,
        "titled": meta.titled,
        "system": meta.system,
        "params": params_text(meta.params),
        "model": meta.model,
        "model_name": meta.model_name,
        "letter": meta.letter,
        "color": meta.color,
        "unread": meta.unread,
        "place": place_text(meta.place),
        "queue": json.dumps(meta.queue),
        "reread": meta.reread,
        "updated": now,
    }
    found = connection.execute("SELECT id FROM chats WHERE key = ?", (write.key,)).fetchone()
    if found is None:
        values["created"] = now
        marks = ", ".join(f":{name}" for name in values)
        chat = connection.execute(
            f"INSERT INTO chats ({', '.join(values)}) VALUES ({marks})", values
        ).lastrowid
    else:
        chat = found[0]
        changed = [name for name in values if name != "key" and (write.touched or name != "updated")]
        setting = ", ".join(f"{name} = :{name}" for name in changed)
        connection.execute(f"UPDATE chats SET {setting} WHERE key = :key", values)
    if write.draft is not None:
        draft = (chat, write.draft.text, write.draft.editing, write.draft.stash)
        connection.execute("REPLACE INTO drafts (chat, text, editing, stash) VALUES (?, ?, ?, ?)", draft)
    if write.history is not None:
        connection.execute("REPLACE INTO histories (chat, ids) VALUES (?, ?)", (chat, write.history))
    if write.tokens is not None:
        connection.execute("UPDATE chats SET tokens = ? WHERE id = ?", (write.tokens, chat))
    if write.length is not None:
        connection.execute("UPDATE chats SET turns = ? WHERE id = ?", (write.length, chat))
        gone = connection.execute(
            "SELECT id FROM turns WHERE chat = ? AND position >= ?", (chat, write.length)
        ).fetchall()
        _forget_turns(connection, [row[0] for row in gone], indexed)
        for table in ("pieces", "versions"):
            connection.execute(f"DELETE FROM {table} WHERE chat = ? AND position >= ?", (chat, write.length))
    for turn in write.turns:
        _write_turn(connection, chat, turn, indexed)
    connection.executemany(
        "INSERT INTO pieces (chat, position, number, text, token_ids) VALUES (?, ?, ?, ?, ?)",
        [(chat, piece.position, piece.number, piece.text, piece.token_ids) for piece in write.pieces],
    )


def _write_turn(connection: sqlite3.Connection, chat: int | None, turn: TurnWrite, indexed: bool) -> None:
    """A turn as it is now; an open one comes into the index when it is over."""
    settled = indexed and turn.status != "open"
    values = (
        turn.role, turn.text, turn.token_ids, turn.stats, turn.status, turn.note, turn.asked, turn.end,
        turn.seed, turn.place, settled,
    )  # fmt: skip
    if turn.tails is not None:
        connection.execute("REPLACE INTO versions VALUES (?, ?, ?)", (chat, turn.position, turn.tails))
    found = connection.execute(
        "SELECT id, text, indexed FROM turns WHERE chat = ? AND position = ?", (chat, turn.position)
    ).fetchone()
    if found is None:
        number = connection.execute(
            "INSERT INTO turns (role, text, token_ids, stats, status, note, asked, ended, seed, place,"
            " indexed, chat, position) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, chat, turn.position),
        ).lastrowid
    else:
        number = found[0]
        connection.execute(
            "UPDATE turns SET role = ?, text = ?, token_ids = ?, stats = ?, status = ?, note = ?, asked = ?,"
            " ended = ?, seed = ?, place = ?, indexed = ? WHERE id = ?",
            (*values, number),
        )
        connection.execute("DELETE FROM pieces WHERE chat = ? AND position = ?", (chat, turn.position))
        if indexed and found[2] and not (settled and found[1] == turn.text):
            connection.execute("DELETE FROM turn_index WHERE rowid = ?", (number,))
        elif settled and found[2]:
            return  # the same text, in the index already
    if settled:
        connection.execute("INSERT INTO turn_index (rowid, text) VALUES (?, ?)", (number, turn.text))


def _forget_turns(connection: sqlite3.Connection, turns: Iterable[int], indexed: bool) -> None:
    for turn in turns:
        if indexed:
            connection.execute("DELETE FROM turn_index WHERE rowid = ?", (turn,))
        connection.execute("DELETE FROM turns WHERE id = ?", (turn,))


def delete_chat(connection: sqlite3.Connection, key: str, indexed: bool) -> None:
    """Take a chat and all that belongs to it out of the tables."""
    rows = connection.execute(
        "SELECT turns.id FROM turns JOIN chats ON chats.id = turns.chat WHERE chats.key = ?", (key,)
    ).fetchall()
    _forget_turns(connection, [row[0] for row in rows], indexed)
    connection.execute("DELETE FROM chats WHERE key = ?", (key,))


def rename_chat(connection: sqlite3.Connection, key: str, title: str, length: int) -> None:
    """Give a chat a title; an empty one makes it the start of its first prompt, ``length`` characters."""
    automatic = title or NEW_TITLE
    if not title:
        first = connection.execute(
            "SELECT turns.text FROM turns JOIN chats ON chats.id = turns.chat"
            " WHERE chats.key = ? AND turns.position = 0",
            (key,),
        ).fetchone()
        automatic = (one_line(first[0], length) if first else "") or NEW_TITLE
    connection.execute("UPDATE chats SET title = ?, titled = ? WHERE key = ?", (automatic, bool(title), key))


def index_the_rest(connection: sqlite3.Connection, most: int = 500) -> int:
    """Bring finished turns that an app without the index wrote into it; how many."""
    rows = connection.execute(
        "SELECT id, text FROM turns WHERE indexed = 0 AND status <> 'open' LIMIT ?", (most,)
    ).fetchall()
    for number, text in rows:
        connection.execute("DELETE FROM turn_index WHERE rowid = ?", (number,))
        connection.execute("INSERT INTO turn_index (rowid, text) VALUES (?, ?)", (number, text))
        connection.execute("UPDATE turns SET indexed = 1 WHERE id = ?", (number,))
    return len(rows)


def close_interrupted(
    connection: sqlite3.Connection, run: str, indexed: bool, key: str | None = None
) -> None:
    """Put the answers together that were under way when their app was killed: cut off, and over.

    Of all chats of ``run``, which has not begun with any, or of one chat.
    """
    rows = connection.execute(
        "SELECT chat, position, role, text, token_ids, stats, asked, seed, turns.place FROM turns"
        " JOIN chats ON chats.id = turns.chat WHERE turns.status = 'open' AND chats.run = ?"
        " AND chats.key = coalesce(?, chats.key)",
        (run, key),
    ).fetchall()
    for chat, position, role, text, token_ids, stats, asked, seed, place in rows:
        pieces = connection.execute(
            "SELECT text, token_ids FROM pieces WHERE chat = ? AND position = ? ORDER BY number",
            (chat, position),
        ).fetchall()
        whole = text + "".join(piece[0] for piece in pieces)
        made = token_ids + b"".join(piece[1] for piece in pieces)
        history = connection.execute("SELECT ids FROM histories WHERE chat = ?", (chat,)).fetchone()
        ids = (history[0] if history else b"") + made
        end = len(unpack_ids(ids)) if asked is not None else None
        connection.execute("REPLACE INTO histories (chat, ids) VALUES (?, ?)", (chat, ids))
        turn = TurnWrite(
            position, role, whole, made, stats, "cancelled", INTERRUPTED, asked, end, seed, place
        )
        _write_turn(connection, chat, turn, indexed)
        connection.execute("UPDATE chats SET tokens = ? WHERE id = ?", (len(unpack_ids(ids)), chat))
