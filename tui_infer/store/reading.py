"""Reading chats: lists of them, and the turns of one."""

import json
import sqlite3
from collections.abc import Sequence

from tui_infer.session import Turn
from tui_infer.store.rows import (
    Body,
    ChatMeta,
    ChatRow,
    Draft,
    params_of,
    place_of,
    queue_of,
    stats_of,
    unpack_ids,
    unpack_tails,
)

COLUMNS = (
    "chats.key, chats.title, chats.titled, chats.system, chats.params, chats.model, chats.model_name,"
    " chats.letter, chats.color, chats.unread, chats.place, chats.queue, chats.archived, chats.turns,"
    " chats.tokens, chats.created, chats.updated, chats.run IS NOT NULL AND chats.run <> :run,"
    " chats.reread, coalesce(drafts.text, ''), drafts.editing, coalesce(drafts.stash, '')"
)
FROM = " FROM chats LEFT JOIN drafts ON drafts.chat = chats.id "


def row_of(values: tuple) -> ChatRow:
    """A chat of the values of ``COLUMNS``."""
    (key, title, titled, system, params, model, model_name, letter, color, unread, place, queue, archived,
     turns, tokens, created, updated, held, reread, *draft) = values  # fmt: skip
    meta = ChatMeta(
        title=title,
        titled=bool(titled),
        system=system,
        params=params_of(params),
        model=model,
        model_name=model_name,
        letter=letter,
        color=color,
        unread=bool(unread),
        place=place_of(place),
        queue=queue_of(queue),
        reread=bool(reread),
    )
    return ChatRow(key, meta, bool(archived), bool(held), turns, tokens, created, updated, Draft(*draft))


def list_chats(
    connection: sqlite3.Connection, run: str, most: int, keys: Sequence[str] | None = None
) -> list[ChatRow]:
    """The chats in which something was said last, open and archived; with ``keys`` of these."""
    which = "" if keys is None else "WHERE chats.key IN (SELECT value FROM json_each(:keys)) "
    query = f"SELECT {COLUMNS}{FROM}{which}ORDER BY chats.updated DESC, chats.id DESC LIMIT :most"
    values = {"run": run, "most": most} | ({} if keys is None else {"keys": json.dumps(keys)})
    return [row_of(row) for row in connection.execute(query, values)]


def chats_of(connection: sqlite3.Connection, run: str) -> list[ChatRow]:
    """The chats that a run has open, in the order in which they were made."""
    query = f"SELECT {COLUMNS}{FROM}WHERE chats.run = :run ORDER BY chats.created, chats.id"
    return [row_of(values) for values in connection.execute(query, {"run": run})]


def count_chats(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM chats").fetchone()[0])


def read_chat(connection: sqlite3.Connection, run: str, key: str) -> ChatRow | None:
    query = f"SELECT {COLUMNS}{FROM}WHERE chats.key = :key"
    values = connection.execute(query, {"run": run, "key": key}).fetchone()
    return None if values is None else row_of(values)


def read_body(connection: sqlite3.Connection, key: str) -> Body:
    """The turns of a chat and its token history, all as of one moment."""
    connection.execute("BEGIN")
    try:
        pieces = connection.execute(
            "SELECT position, pieces.text, pieces.token_ids FROM pieces JOIN chats ON chats.id = pieces.chat"
            " WHERE chats.key = ? ORDER BY position, number",
            (key,),
        ).fetchall()
        rows = connection.execute(
            "SELECT role, text, token_ids, stats, status, note, asked, ended, seed, turns.place, position"
            " FROM turns JOIN chats ON chats.id = turns.chat WHERE chats.key = ? ORDER BY position",
            (key,),
        ).fetchall()
        tails = connection.execute(
            "SELECT position, tails FROM versions JOIN chats ON chats.id = versions.chat WHERE chats.key = ?",
            (key,),
        ).fetchall()
        history = connection.execute(
            "SELECT ids FROM histories JOIN chats ON chats.id = histories.chat WHERE chats.key = ?", (key,)
        ).fetchone()
    finally:
        connection.execute("COMMIT")
    others = {position: unpack_tails(packed) for position, packed in tails}
    turns = []
    for role, text, token_ids, stats, status, note, asked, end, seed, place, position in rows:
        grown = [piece for piece in pieces if piece[0] == position]
        turns.append(
            Turn(
                role=role,
                text=text + "".join(piece[1] for piece in grown),
                token_ids=unpack_ids(token_ids + b"".join(piece[2] for piece in grown)),
                stats=stats_of(stats),
                status=status,
                note=note,
                asked=asked,
                end=end,
                seed=seed,
                place=place,
                others=others.get(position, []),
            )
        )
    return Body(turns, unpack_ids(history[0]) if history else [])
