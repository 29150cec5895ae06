"""Finding words in all chats: literally, without regard to case, in any script.

Trigrams find three characters and more; shorter words, which Chinese and Japanese are full of, and turns that
are not in the index are read through. Nothing in a query has a meaning of its own.
"""

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from tui_infer.sanitize import sanitize

MOST_WORDS = 16
MOST_LENGTH = 500  # of a query, characters
SNIPPET = 160
BEFORE = 30


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a chat has the words: the newest turn that has all of them, or its title alone.

    ``start`` and ``end`` are characters of that turn's text; ``marks`` are the words' places in ``snippet``.
    """

    key: str
    turns: int
    position: int | None = None
    start: int = 0
    end: int = 0
    snippet: str = ""
    marks: tuple[tuple[int, int], ...] = ()


def words_of(query: str) -> tuple[str, ...]:
    """The words to look for, each once and folded."""
    return tuple(dict.fromkeys(sanitize(query)[:MOST_LENGTH].lower().split()))[:MOST_WORDS]


def has_all(text: str, words: Sequence[str]) -> bool:
    folded = text.lower()
    return all(word in folded for word in words)


def hit_in(key: str, turns: int, position: int, text: str, words: Sequence[str]) -> Hit:
    """The hit in one turn's text, with the line around the first of the words."""
    places = [match.span() for match in re.finditer(_pattern(words), text, re.IGNORECASE)]
    start, end = places[0] if places else (0, 0)
    first = max(0, start - BEFORE)
    cut = text[first : first + SNIPPET]
    left = "…" if first else ""
    line = re.sub(r"\s", " ", cut)  # one character for one, so that places hold
    marks = tuple(
        (a - first + len(left), min(b - first, len(cut)) + len(left))
        for a, b in places
        if first <= a < first + len(cut)
    )
    right = "…" if first + SNIPPET < len(text) else ""
    return Hit(key, turns, position, start, end, left + line + right, marks)


def search(connection: sqlite3.Connection, words: Sequence[str], *, indexed: bool, most: int) -> list[Hit]:
    """A hit for each chat that has all the words in one turn or in its title; the chats used last come first.

    ``connection`` needs ``prepare``.
    """
    if not words:
        return []
    folded = "\n".join(words)
    if indexed and any(len(word) > 2 for word in words):
        long = " AND ".join(f'"{word.replace(chr(34), chr(34) * 2)}"' for word in words if len(word) > 2)
        found = (
            "SELECT turns.chat AS chat, turns.position AS position, turns.text AS text FROM turn_index"
            " JOIN turns ON turns.id = turn_index.rowid WHERE turn_index MATCH :long AND turns.indexed = 1"
            " UNION ALL SELECT chat, position, text FROM turns WHERE indexed = 0"
        )
    else:
        long = ""
        found = "SELECT chat, position, text FROM turns"
    query = (
        f"SELECT chats.key, count(*), max(found.position), found.text, chats.updated FROM ({found}) AS found"
        " JOIN chats ON chats.id = found.chat WHERE has_all(found.text, :words)"
        " GROUP BY found.chat ORDER BY chats.updated DESC, chats.id DESC LIMIT :most"
    )
    hits: dict[str, Hit] = {}
    order: dict[str, float] = {}
    # A bare column beside max() is of the row that has the maximum.
    for key, turns, position, text, updated in connection.execute(
        query, {"long": long, "words": folded, "most": most}
    ):
        hits[key], order[key] = hit_in(key, turns, position, text, words), updated
    titles = "SELECT key, updated FROM chats WHERE has_all(title, :words) ORDER BY updated DESC LIMIT :most"
    for key, updated in connection.execute(titles, {"words": folded, "most": most}):
        hits.setdefault(key, Hit(key, 0))
        order[key] = updated
    return sorted(hits.values(), key=lambda hit: order[hit.key], reverse=True)[:most]


def prepare(connection: sqlite3.Connection) -> None:
    """Give SQL our way of comparing: its own knows the case of ASCII only."""
    connection.create_function(
        "has_all", 2, lambda text, words: has_all(text, words.split("\n")), deterministic=True
    )


def _pattern(words: Sequence[str]) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
