"""The same chats in turn by the app with all panels open and by the bare client, over one engine process."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.client import EngineClient
from engine.commands import Message, Submit
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.records import AnyEvent, Failed, Finished, Ready, Rejected, StepRecord, Steps
from engine.request import SamplingParams
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.terminal import search_garbage_less

SIZE = (200, 60)  # room for four panes and every panel beside them
WARM_UP = 0.1  # share of a round's decode steps that does not count
LOAD_S, ROUND_S = 300.0, 120.0
TICK_S = 0.005
PROMPT = "Explain to a colleague, step by step and with examples, how part {number} of a computer works: " + (
    "what it is for, what it costs, how it fails, and what one would do without it. " * 4
)


class ShownApp(TuiInferApp):
    """The app as on a terminal: Textual without one would leave out the last stage, making the bytes."""

    CSS_PATH = Path(inspect.getfile(TuiInferApp)).parent / "screens" / "main.tcss"  # not beside this file

    @property
    def is_headless(self) -> bool:
        return False


@dataclass
class Listener:
    """What the engine sent since the last round began; passes events on where an app is there."""

    records: list[StepRecord] = field(default_factory=list)
    told: list[AnyEvent] = field(default_factory=list)
    finished: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: int = 0
    failure: str = ""
    app: TuiInferApp | None = None

    def begin(self, chats: int) -> None:
        self.records, self.finished, self.wanted = [], 0, chats
        self.done.clear()

    def __call__(self, event: AnyEvent) -> None:
        match event:
            case Steps():
                self.records += event.records
                self.told.append(event)
            case Ready():
                self.ready.set()
            case Finished():
                self.finished += 1
            case Failed() | Rejected():
                self.failure = event.message
                self.ready.set()
        if self.app is not None:
            self.app.state.apply(event)
        if self.failure or self.finished == self.wanted > 0:
            self.done.set()

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        await asyncio.wait_for(event.wait(), timeout_s)
        if self.failure:
            raise EngineError(self.failure)


@dataclass(frozen=True)
class Round:
    """One round: steps a second of the engine, and cores that this process used, client included.

    ``late_p99_ms``: by how much a timer of 5 ms came late in this process's loop, at the 99th percentile.
    """

    steps_per_s: float
    ms_p50: float
    graph_share: float
    cpu: float
    steps: int
    late_p99_ms: float = 0.0


async def compare(config: EngineConfig, chats: int, steps: int, rounds: int) -> dict[str, list[Round]]:
    """Take turns, the bare client first; one round of each before them does not count.

    Args:
        chats: chats that stream at once.
        steps: tokens of each answer, and so decode steps of a round.
    """
    search_garbage_less()  # as the app's process does
    listen = Listener()
    client = EngineClient(config, listen)
    await client.start()
    found: dict[str, list[Round]] = {"headless": [], "app": []}
    try:
        await listen.wait(listen.ready, LOAD_S)
        for number in range(rounds + 1):
            for name, play in (("headless", _headless), ("app", _with_app)):
                made = await play(client, listen, chats, steps)
                if number:
                    found[name].append(made)
    finally:
        await client.close()
    return found


async def _headless(client: EngineClient, listen: Listener, chats: int, steps: int) -> Round:
    async def ask() -> None:
        for number in range(chats):
            prompt: list[int | Message] = [Message("user", PROMPT.format(number=number))]
            client.send(Submit(f"chat-{number + 1}", 1, prompt, _params(steps)))

    return await _measure(listen, chats, ask)


async def _with_app(client: EngineClient, listen: Listener, chats: int, steps: int) -> Round:
    app = ShownApp(client, settings=Settings(inspector="side", layout="4"))
    client.on_event = listen  # which gives all of it to the app
    async with app.run_test(size=SIZE) as pilot:
        assert client.status is not None
        app.state.apply(Ready(client.status))
        for event in listen.told:  # the blocks as they are: earlier rounds left some in the prefix cache
            app.state.apply(event)
        sessions = [app.state.current, *(app.state.new_session() for _ in range(chats - 1))]
        app.main.fit_panes()
        await pilot.pause(0.5)
        listen.app = app

        async def ask() -> None:
            for number, session in enumerate(sessions):
                session.params = _params(steps)
                app.state.submit(session.id, PROMPT.format(number=number))

        try:
            return await _measure(listen, chats, ask)
        finally:
            listen.app = None


def _params(steps: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)


async def _measure(listen: Listener, chats: int, ask: Callable[[], Awaitable[None]]) -> Round:
    listen.begin(chats)
    began, cpu = time.perf_counter(), time.process_time()
    late: list[float] = []
    timer = asyncio.create_task(_watch_the_loop(late))
    try:
        await ask()
        await listen.wait(listen.done, ROUND_S)
    finally:
        timer.cancel()
    cores = (time.process_time() - cpu) / (time.perf_counter() - began)
    await asyncio.sleep(0.3)  # the last records come when the engine goes idle
    counted = [r for r in listen.records if r.kind == "decode" and r.decode_tokens == chats]
    counted = counted[int(len(counted) * WARM_UP) :]
    if len(counted) < 2:
        raise EngineError(f"{chats} chats never decoded together; ask for more steps.")
    milliseconds = sorted(record.ms.total for record in counted)
    return Round(
        steps_per_s=(counted[-1].index - counted[0].index) / (counted[-1].t - counted[0].t),
        ms_p50=milliseconds[len(milliseconds) // 2],
        graph_share=sum(record.mode == "graph" for record in counted) / len(counted),
        cpu=cores,
        steps=len(counted),
        late_p99_ms=sorted(late)[int(len(late) * 0.99)],
    )


async def _watch_the_loop(late: list[float]) -> None:
    """Until it is cancelled."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(TICK_S)
        late.append((time.perf_counter() - before - TICK_S) * 1e3)
