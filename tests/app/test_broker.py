"""One engine for several clients: what is whose, what all hear, and what becomes of a client that goes."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.commands import Cancel, Inspect, Message, Pause, RunUntil, Submit
from engine.config import EngineConfig
from engine.records import (
    AnyEvent,
    BlockDetail,
    BlockSnapshot,
    Delta,
    Failed,
    Finished,
    Paused,
    Ready,
    Started,
    Steps,
)
from engine.wire import frame
from tests.app.driving import ask, running, settled
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.web import broker as broker_module
from tui_infer.web.attached import AttachedClient
from tui_infer.web.broker import Broker


class Listener:
    """A client of the broker, with all that it heard."""

    def __init__(self, path: Path) -> None:
        self.heard: list[AnyEvent] = []
        self.gone = False
        self.client = AttachedClient(path, EngineConfig())
        self.client.on_event = self.heard.append
        self.client.on_gone = lambda: setattr(self, "gone", True)

    def of(self, kind: type) -> list[AnyEvent]:
        return [event for event in self.heard if isinstance(event, kind)]

    def submit(self, session: str, epoch: int = 1) -> None:
        self.client.send(Submit(session=session, epoch=epoch, prompt=[Message("user", "hello")]))


@asynccontextmanager
async def broker(client: ScriptedClient, folder: Path) -> AsyncIterator[Broker]:
    made = Broker(client, folder / "engine")
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def listener(broker: Broker) -> Listener:
    """A client that is connected and, unless the engine still loads, ready."""
    made = Listener(broker.path)
    count = len(broker.tabs)
    await made.client.start()
    await wait_until(lambda: len(broker.tabs) == count + 1)
    return made


async def test_two_clients_with_chats_of_one_name_get_their_own_answers(tmp_path: Path) -> None:
    client = ScriptedClient("one and another", rate=400)
    async with broker(client, tmp_path) as made:
        first, second = await listener(made), await listener(made)
        await wait_until(lambda: first.of(Ready) and second.of(Ready))
        first.submit("chat-1")
        await wait_until(lambda: first.of(Finished))
        assert not second.of(Started) + second.of(Delta) + second.of(Finished)
        second.submit("chat-1")
        await wait_until(lambda: second.of(Finished))
        for one in (first, second):
            assert [event.session for event in one.of(Started)] == ["chat-1"]  # type: ignore[union-attr]
            assert "".join(event.text for event in one.of(Delta)) == "one and another"  # type: ignore[union-attr]
        assert len({command.session for command in client.sent if isinstance(command, Submit)}) == 2
        await wait_until(lambda: first.of(Steps) and second.of(Steps))


async def test_a_client_that_comes_later_gets_the_engine_as_it_is(tmp_path: Path) -> None:
    client = ScriptedClient("word " * 400, rate=200)
    async with broker(client, tmp_path) as made:
        first = await listener(made)
        first.submit("chat-1")
        await wait_until(lambda: len(first.of(Steps)) > 2)
        first.client.send(Pause(True))
        await wait_until(lambda: first.of(Paused))
        second = await listener(made)
        await wait_until(lambda: second.of(Paused))
        assert [type(event) for event in second.heard[:4]] == [Ready, Steps, BlockSnapshot, Paused]
        before = [record.index for event in first.of(Steps) for record in event.records]  # type: ignore[union-attr]
        now = [record.index for event in second.of(Steps) for record in event.records]  # type: ignore[union-attr]
        assert now[: len(before)] == before
        snapshot = second.of(BlockSnapshot)[0]
        assert isinstance(snapshot, BlockSnapshot)
        assert snapshot.owners, "the running answer holds blocks"


async def test_the_answers_of_a_client_that_goes_are_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    client = ScriptedClient("word " * 400, rate=100)
    async with broker(client, tmp_path) as made:
        first, second = await listener(made), await listener(made)
        first.submit("chat-1", epoch=7)
        second.submit("chat-1")
        await wait_until(lambda: first.of(Delta) and second.of(Delta))
        await first.client.close()
        await wait_until(lambda: any(isinstance(command, Cancel) for command in client.sent))
        (cancel,) = [command for command in client.sent if isinstance(command, Cancel)]
        assert (cancel.session, cancel.epoch) == ("tab1:chat-1", 7)
        count = len(second.of(Delta))
        await wait_until(lambda: len(second.of(Delta)) > count)
        assert client.state == "ready", "the engine stays"
        assert not first.gone, "who leaves by itself is not told of it"


async def test_a_restart_by_one_client_reaches_all(tmp_path: Path) -> None:
    client = ScriptedClient("word " * 400, rate=100)
    async with broker(client, tmp_path) as made:
        first, second = await listener(made), await listener(made)
        second.submit("chat-1")
        await wait_until(lambda: second.of(Delta))
        await first.client.restart()
        await wait_until(lambda: len(first.of(Ready)) == 2 and len(second.of(Ready)) == 2)
        (told,) = second.of(Failed)
        assert isinstance(told, Failed)
        assert "Another tab" in told.message
        assert not first.of(Failed)
        assert (client.restarts, first.client.state, second.client.state) == (1, "ready", "ready")


async def test_a_client_can_have_another_model_loaded_for_all(tmp_path: Path) -> None:
    client = ScriptedClient("Yes.", rate=400)
    async with broker(client, tmp_path) as made:
        first, second = await listener(made), await listener(made)
        await wait_until(lambda: second.of(Ready))
        await first.client.restart(EngineConfig(model="shape:tiny", max_batch=3))
        await wait_until(lambda: len(first.of(Ready)) == 2 and len(second.of(Ready)) == 2)
        assert client.config == EngineConfig(model="shape:tiny", max_batch=3)
        model = second.of(Ready)[1].status.model  # type: ignore[union-attr]
        assert second.client.config.model == model, "a restart by the other one loads what runs now"


async def test_an_engine_that_dies_is_told_to_all_and_one_restart_brings_it_back(tmp_path: Path) -> None:
    client = ScriptedClient("Yes.", rate=400)
    async with broker(client, tmp_path) as made:
        first, second = await listener(made), await listener(made)
        await wait_until(lambda: second.of(Ready))
        client.fail()
        await wait_until(lambda: first.of(Failed) and second.of(Failed))
        late = await listener(made)
        await wait_until(lambda: late.of(Failed))
        assert [one.gone for one in (first, second)] == [False, False], "the connection outlives the engine"
        await second.client.restart()
        await wait_until(lambda: all(len(one.of(Ready)) for one in (first, second, late)))
        second.submit("chat-1")
        await wait_until(lambda: second.of(Finished))


async def test_a_client_that_comes_while_the_model_loads_hears_how_far_it_is(tmp_path: Path) -> None:
    client = ScriptedClient("Yes.", rate=400, hold=True)
    async with broker(client, tmp_path) as made:
        one = await listener(made)
        await wait_until(lambda: one.heard)
        assert not one.of(Ready)
        client.become_ready()
        await wait_until(lambda: one.of(Ready))


async def test_what_is_asked_of_a_block_or_a_chat_is_answered_to_who_asked(tmp_path: Path) -> None:
    client = ScriptedClient("Yes.", rate=400)
    async with broker(client, tmp_path) as made:
        first, second = await listener(made), await listener(made)
        await wait_until(lambda: second.of(Ready))
        second.client.send(Inspect(5))
        second.client.send(RunUntil("finished", "chat-1"))
        await wait_until(lambda: any(isinstance(command, RunUntil) for command in client.sent))
        assert RunUntil("finished", "tab2:chat-1") in client.sent
        client._emit(BlockDetail(5, 1, 1))
        client._emit(Paused(True, "finished of tab2:chat-1"))
        await wait_until(lambda: second.of(Paused) and first.of(Paused))
        assert second.of(BlockDetail)
        assert not first.of(BlockDetail)
        assert second.of(Paused) == [Paused(True, "finished of chat-1")]


async def test_who_speaks_another_language_or_reads_nothing_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "MOST_UNSENT", 1 << 16)
    client = ScriptedClient("Yes.", rate=400)
    async with broker(client, tmp_path) as made:
        good = await listener(made)
        for words in (b"GET / HTTP/1.1\r\n\r\n", frame(Inspect(1))[:-1] + b"\xff" * 40):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(made.path))
                await wait_until(lambda: len(made.tabs) == 2)
                stranger.sendall(words)
                await wait_until(lambda: len(made.tabs) == 1)
        with socket.socket(socket.AF_UNIX) as sleeper:
            sleeper.connect(str(made.path))
            await wait_until(lambda: len(made.tabs) == 2)
            for _ in range(4000):
                client._emit(Paused(False, "x" * 1000))
                await asyncio.sleep(0)
            await wait_until(lambda: len(made.tabs) == 1)
        good.submit("chat-1")
        await wait_until(lambda: good.of(Finished))


async def test_the_app_runs_on_a_shared_engine_and_ends_with_its_server(tmp_path: Path) -> None:
    engine = ScriptedClient("Paris.", rate=400)
    async with broker(engine, tmp_path) as made:
        client = AttachedClient(made.path, EngineConfig())
        async with running(client) as (app, pilot):  # type: ignore[arg-type]
            client.on_gone = lambda: app.exit(0)
            await ask(app, pilot, "The capital?")
            await settled(app)
            assert app.state.current.turns[1].text == "Paris."
            await made.close()
            await wait_until(lambda: not app.is_running or app._exit)
