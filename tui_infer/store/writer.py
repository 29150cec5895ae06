"""The one thread that writes: jobs in their order, each a short transaction, never on the event loop."""

import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from tui_infer.store.errors import BUSY, StoreError, primary_code

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

BUSY_TIMEOUT_MS = 1000  # SQLite's own waiting for a lock, in each attempt
PAUSES_S = (0.05, 0.1, 0.2, 0.5)  # between attempts


class Writer:
    """Runs jobs on a connection of its own. A job that fails leaves the database as it was; ``check`` comes
    before each, and raises where it would be in vain.
    """

    def __init__(self, connection: sqlite3.Connection, check: Callable[[], None] = lambda: None) -> None:
        self._connection = connection
        self._check = check
        self._jobs: SimpleQueue[tuple[Job[Any], Future[Any]] | None] = SimpleQueue()
        self._closed = False
        # A daemon: a disk that hangs must not keep a finished app from ending.
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    def submit(self, job: Job[T]) -> "Future[T]":
        """Queue a job; the future's callbacks are called on the writer's thread. It cannot be cancelled: a
        job is done although nobody waits for it any more.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        if self._closed:
            future.set_exception(StoreError("The store is closed."))
        else:
            self._jobs.put((job, future))
        return future

    def close(self, timeout_s: float) -> bool:
        """Do what is queued and end; False where that took longer than ``timeout_s``."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, future = entry
            try:
                self._check()
                result = in_transaction(self._connection, job)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
        self._connection.close()


def in_transaction(connection: sqlite3.Connection, job: Job[T]) -> T:
    """Run a job in a transaction, again a few times while another process has the lock.

    Raises:
        sqlite3.Error: it did not work; nothing of it is in the database.
    """
    for pause_s in (*PAUSES_S, None):
        try:
            return _once(connection, job)
        except sqlite3.OperationalError as error:
            if pause_s is None or primary_code(error) not in BUSY:
                raise
            time.sleep(pause_s)
    raise AssertionError  # the last attempt returns or raises


def _once(connection: sqlite3.Connection, job: Job[T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = job(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it
            connection.execute("ROLLBACK")
        raise
    return result
