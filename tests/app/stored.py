"""Stores in tests: chats to put into one, an app over one, and looks into the file."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from textual.pilot import Pilot

from engine.commands import AnyCommand
from tests.app.driving import focused_pane
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.session import SessionState, Turn, TurnStats
from tui_infer.state import AppState
from tui_infer.store.keeper import Keeper
from tui_infer.store.rows import Draft, Place
from tui_infer.store.snapshot import Saved, meta_of, take
from tui_infer.store.store import Store, open_store

MODEL = "/models/smollm2"


def chat(*texts: str, **values: object) -> SessionState:
    """A chat of prompts and answers in turn, with three token ids for each answer."""
    session = SessionState(id="", letter=str(values.pop("letter", "A")), color=0, **values)  # type: ignore[arg-type]
    for number, text in enumerate(texts):
        if number % 2 == 0:
            session.turns.append(Turn("user", text))
            continue
        session.history_ids += [7, 8]
        asked = len(session.history_ids)
        session.history_ids += [1, 2, 70_000]
        session.turns.append(
            Turn(
                "assistant",
                text,
                token_ids=[1, 2, 70_000],
                stats=TurnStats(5, 3, 0, 0.25, 60.5),
                asked=asked,
                end=len(session.history_ids),
                seed=2**62,
            )
        )
    session.model = session.model or (MODEL if session.history_ids else "")
    if session.title == "new chat" and texts:
        session.title = texts[0][:40]
    return session


def opened(folder: Path) -> Store:
    """The store of a folder, which has to be in order."""
    store, notices = open_store(folder)
    assert store is not None, notices
    assert notices == []
    return store


def put(store: Store, *sessions: SessionState, archived: bool = False) -> None:
    """Write whole chats, and wait until they are there."""
    for session in sessions:
        meta = meta_of(session, None, "SmolLM2")
        write, _ = take(session, Saved(), meta, Draft(session.draft), archived=archived)
        assert write is not None
        store.write(write).result(10)


class NoScreen:
    """What a keeper asks the screen, without one."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}

    def place(self, session: SessionState) -> Place:
        return self.places.get(session.key)

    def inspector(self) -> str:
        return "auto"

    def store_drafts(self) -> None:
        pass


@contextmanager
def kept(folder: Path) -> Iterator[tuple[AppState, Keeper, list[AnyCommand]]]:
    """A state whose chats are kept, and what it sends; nothing is saved before it is told so."""
    sent: list[AnyCommand] = []
    state = AppState(sent.append)
    store = opened(folder)
    keeper = Keeper(store, state, NoScreen(), lambda delay, call: None)
    keeper.restore(("auto", "auto"))
    try:
        yield state, keeper, sent
    finally:
        store.close()


def saved(keeper: Keeper) -> None:
    """Save, and wait until it is on the disk."""
    keeper.save()
    keeper.store.settle().result(10)
    keeper._drain()


def rows(folder: Path, query: str, *values: object) -> list[tuple]:
    """What a query finds in the file, whoever has it open."""
    connection = sqlite3.connect(folder / "chats.db")
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


@asynccontextmanager
async def running_kept(
    client: ScriptedClient, folder: Path, size: tuple[int, int] = (100, 30), settings: Settings | None = None
) -> AsyncIterator[tuple[TuiInferApp, Pilot[int]]]:
    """The app over the store of a folder; at the end everything is saved, as a quit does it."""
    app = TuiInferApp(client, settings=settings or Settings(), store=opened(folder))
    try:
        async with app.run_test(size=size, notifications=True) as pilot:
            await wait_until(lambda: focused_pane(app) is not None, what="the first pane")
            try:
                yield app, pilot
            finally:
                await client.close()
    finally:
        assert app.archive.finish() == ""
