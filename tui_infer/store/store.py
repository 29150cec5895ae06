"""The store as the app sees it."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tui_infer.store import chat_write, reading
from tui_infer.store.chat_write import ChatWrite
from tui_infer.store.database import FILE, move_aside, open_database, open_for_reading
from tui_infer.store.errors import BROKEN, BrokenStore, ChatHeld, StoreError, primary_code, words_of
from tui_infer.store.lease import Lease, is_held
from tui_infer.store.rows import Body, ChatRow
from tui_infer.store.search import Hit, prepare, search
from tui_infer.store.writer import Writer, in_transaction
from tui_infer.workspace import TITLE_LENGTH

T = TypeVar("T")

LOCKS = "runs"  # folder of the locks, beside the database
CLOSE_S = 2.5
KEPT_PROMPTS = 2000
PROMPT_CHARS = 4 << 20  # of all prompts of the history together, as they are read
MOST_LISTED = 1000


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a start takes over: open chats that no living process has, the layouts of the runs that had them
    (the newest first), prompts, and how many open chats another process holds.
    """

    chats: list[ChatRow]
    layouts: list[str]
    prompts: list[str]
    elsewhere: int


class Store:
    """One process's hold on the database: reads on the caller's thread, writes on one of its own."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreError (BrokenStore where the file is damaged)."""
        self.path = folder / FILE
        connection, self.indexed = open_database(self.path)
        try:
            self._lease = Lease(folder / LOCKS)
            self._bodies = _Reader(self.path)
            self._lists = _Reader(self.path)
        except (StoreError, sqlite3.Error) as error:
            connection.close()
            raise error if isinstance(error, StoreError) else StoreError(words_of(error)) from error
        self.run = self._lease.run
        self._file = _identity(self.path)
        self._connection = connection  # the writer's, once there is one
        self._writer: Writer | None = None
        self.claimed = Claimed([], [], [], 0)

    # --- start and end -----------------------------------------------------------------------------

    def claim(self) -> Claimed:
        """Take over the chats that were open and whose process is gone; answers that it left open are closed.

        Raises:
            StoreError: it cannot be read or written.
        """

        def take(connection: sqlite3.Connection) -> list[str]:
            runs = connection.execute("SELECT id, layout FROM runs ORDER BY started DESC").fetchall()
            dead = [(run, layout) for run, layout in runs if not is_held(self._lease.folder, run)]
            connection.executemany("DELETE FROM runs WHERE id = ?", [(run,) for run, _ in dead])
            layouts = [layout for _, layout in dead if layout]
            connection.execute(
                "INSERT INTO runs (id, pid, started, layout) VALUES (?, ?, ?, ?)",
                (self.run, os.getpid(), time.time(), layouts[0] if layouts else ""),
            )
            connection.execute("UPDATE chats SET run = ? WHERE run IS NULL AND archived = 0", (self.run,))
            chat_write.close_interrupted(connection, self.run, self.indexed)
            connection.execute(
                "DELETE FROM prompts WHERE id <= (SELECT max(id) FROM prompts) - ?", (KEPT_PROMPTS,)
            )
            return layouts

        try:
            layouts = in_transaction(self._connection, take)
            rows = reading.chats_of(self._connection, self.run)
            elsewhere = self._connection.execute(
                "SELECT count(*) FROM chats WHERE run <> ?", (self.run,)
            ).fetchone()[0]
            prompts = _prompts(self._connection)
        except sqlite3.Error as error:
            raise _as_store_error(error, self.path) from error
        self._writer = Writer(self._connection, self._check_file)
        if self.indexed:
            self._index_the_rest()
        self.claimed = Claimed(rows, layouts, prompts, elsewhere)
        return self.claimed

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Write what is queued, let go of the chats, end the thread; False where the disk was too slow."""
        done = True
        if self._writer is not None:
            self._writer.submit(
                lambda connection: connection.execute(
                    "UPDATE chats SET run = NULL WHERE run = ?", (self.run,)
                )
            )
            done = self._writer.close(timeout_s)
        else:
            self._connection.close()
        self._bodies.close()
        self._lists.close()
        self._lease.release()
        return done

    def _index_the_rest(self) -> None:
        """In small transactions, one after the other, until all is in the index."""

        def go_on(done: "Future[int]") -> None:
            if done.exception() is None and done.result():
                self._index_the_rest()

        self._submit(chat_write.index_the_rest).add_done_callback(go_on)

    # --- writing: queued, in order -----------------------------------------------------------------

    def _check_file(self) -> None:
        """SQLite goes on writing to a file that has no name any more, and all of it is gone at the end.

        Raises:
            StoreError: the file was deleted, moved or replaced.
        """
        if _identity(self.path) != self._file:
            raise StoreError(
                f"{self.path} was deleted or moved while the app runs.",
                "/export chat FILE.json all keeps them.",
            )

    def _submit(self, job: Callable[[sqlite3.Connection], T]) -> "Future[T]":
        if self._writer is None:
            raise StoreError("Nothing was claimed yet.")
        return self._writer.submit(job)

    def write(self, write: ChatWrite) -> "Future[None]":
        """Save what changed of a chat."""
        return self._submit(
            lambda connection: chat_write.write_chat(connection, write, self.run, self.indexed)
        )

    def write_layout(self, layout: str) -> "Future[object]":
        return self._submit(
            lambda connection: connection.execute(
                "UPDATE runs SET layout = ? WHERE id = ?", (layout, self.run)
            )
        )

    def add_prompts(self, prompts: Sequence[str]) -> "Future[object]":
        rows = [(prompt, time.time()) for prompt in prompts]
        return self._submit(
            lambda connection: connection.executemany("INSERT INTO prompts (text, sent) VALUES (?, ?)", rows)
        )

    def delete(self, key: str) -> "Future[None]":
        """Take a chat out of the store for ever; the future has ChatHeld where another process has it."""

        def job(connection: sqlite3.Connection) -> None:
            self._refuse_held(connection, key)
            chat_write.delete_chat(connection, key, self.indexed)

        return self._submit(job)

    def rename(self, key: str, title: str) -> "Future[None]":
        """Give a chat that is not open a title; an empty one goes back to the automatic title."""

        def job(connection: sqlite3.Connection) -> None:
            self._refuse_held(connection, key)
            chat_write.rename_chat(connection, key, title, TITLE_LENGTH)

        return self._submit(job)

    def open(self, key: str) -> "Future[ChatRow]":
        """Make a chat that nobody has ours; the future has ChatHeld where another process has it."""

        def job(connection: sqlite3.Connection) -> ChatRow:
            self._refuse_held(connection, key)
            connection.execute("UPDATE chats SET archived = 0, run = ? WHERE key = ?", (self.run, key))
            chat_write.close_interrupted(connection, self.run, self.indexed, key)
            row = reading.read_chat(connection, self.run, key)
            if row is None:
                raise StoreError("The chat is not in the store any more.")
            return row

        return self._submit(job)

    def settle(self) -> "Future[None]":
        """Done once everything that was queued before is written."""
        return self._submit(lambda _: None)

    def _refuse_held(self, connection: sqlite3.Connection, key: str) -> None:
        found = connection.execute(
            "SELECT runs.id, runs.pid FROM chats JOIN runs ON runs.id = chats.run WHERE chats.key = ?", (key,)
        ).fetchone()
        if found is not None and found[0] != self.run and is_held(self._lease.folder, found[0]):
            raise ChatHeld(
                f"Another tui-infer (process {found[1]}) has this chat open.",
                "Close it there, or quit that one.",
            )

    # --- reading: any thread -----------------------------------------------------------------------

    def body(self, key: str) -> Body:
        """Raises StoreError."""
        return self._bodies.read(lambda connection: reading.read_body(connection, key))

    def chats(self, keys: Iterable[str] | None = None, most: int = MOST_LISTED) -> list[ChatRow]:
        """The chats used last, open and archived, of all or of these. Raises StoreError."""
        chosen = None if keys is None else list(keys)
        return self._lists.read(lambda connection: reading.list_chats(connection, self.run, most, chosen))

    def count(self) -> int:
        """Chats in the store. Raises StoreError."""
        return self._lists.read(reading.count_chats)

    def search(self, words: Sequence[str], most: int = MOST_LISTED) -> list[Hit]:
        """Chats that have all these words. Raises StoreError."""
        return self._lists.read(lambda connection: search(connection, words, indexed=self.indexed, most=most))


class _Reader:
    """A connection for reading that threads take turns at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection = open_for_reading(path)
        prepare(self._connection)

    def read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                return job(self._connection)
            except sqlite3.Error as error:
                raise _as_store_error(error, self._path) from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def open_store(folder: Path) -> tuple[Store | None, list[tuple[str, str]]]:
    """The store, which has taken over what it can, and what the user has to know (title and text each).

    A broken file is moved aside, and a new one made. Where nothing can be had the app starts without: this
    never raises.
    """
    notices: list[tuple[str, str]] = []
    for _ in range(2):
        store: Store | None = None
        try:
            store = Store(folder)
            store.claim()
            return store, notices
        except BrokenStore as error:
            if store is not None:
                store.close()
            if notices:
                break
            try:
                moved = move_aside(folder / FILE)
            except StoreError as failure:
                notices.append(("Chats are not kept", str(failure)))
                return None, notices
            notices.append(
                ("Chats could not be read", f"{error} The file is now {moved}, as it was; chats begin anew.")
            )
        except StoreError as error:
            if store is not None:
                store.close()
            notices.append(("Chats are not kept", f"{error} This run keeps nothing."))
            return None, notices
    return None, notices


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a name stands for now."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _prompts(connection: sqlite3.Connection) -> list[str]:
    """The newest prompts, the oldest of them first."""
    prompts: list[str] = []
    room = PROMPT_CHARS
    for (text,) in connection.execute("SELECT text FROM prompts ORDER BY id DESC LIMIT ?", (KEPT_PROMPTS,)):
        room -= len(text)
        if room < 0:
            break
        prompts.append(text)
    return prompts[::-1]


def _as_store_error(error: sqlite3.Error, path: Path) -> StoreError:
    kind = BrokenStore if primary_code(error) in BROKEN else StoreError
    return kind(f"{path}: {words_of(error)}")
