"""What the app itself costs while steps come in: CPU by the size of the pool, and the memory of its past."""

import asyncio
import gc
import itertools
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

from benchmarks.app_rounds import SIZE, ShownApp
from engine.client import Client
from engine.commands import AnyCommand
from engine.config import EngineConfig
from engine.records import AnyEvent, Ready, Started, StepRecord, Steps
from engine.wire import event_reader, frame
from tests.app.simulation import Simulation
from tui_infer.config import Settings
from tui_infer.state import AppState

BATCH_S = 0.1
STEPS_A_BATCH = 80  # 800 steps a second, as a card makes them in graph mode
PAST_STEPS = 500  # of chats, before the measurement and behind the filling of the pool
LONG = 3900  # tokens of a prompt that fills it
CHATS = 16


class PlayedClient(Client):
    """Sends what was made before it began, so that making it costs the app nothing."""

    def __init__(self, first: list[bytes], frames: list[bytes]) -> None:
        super().__init__(EngineConfig())
        self._reader = event_reader()
        self._first = first
        self._frames = frames

    def launch(self) -> None:
        self.state = "ready"

    async def start(self) -> None:
        self.launch()
        for data in self._first:
            self._emit(data)

    def send(self, command: AnyCommand) -> None:
        pass

    async def play(self) -> None:
        """All batches, ten a second."""
        began = time.perf_counter()
        for number, data in enumerate(self._frames, 1):
            self._emit(data)
            await asyncio.sleep(max(0.0, began + number * BATCH_S - time.perf_counter()))

    def _emit(self, data: bytes) -> None:
        assert self.on_event is not None
        for event in self._reader.feed(data):
            self.on_event(event)


async def cpu_share(num_blocks: int, seconds: float) -> dict[str, Any]:
    """Cores that the app uses with every panel open, 16 chats and ten batches of 80 steps a second."""
    simulation = Simulation(num_blocks=num_blocks, chats=CHATS)
    _fill(simulation)
    first = [frame(Ready(simulation.status())), frame(simulation.scheduler.snapshot(simulation.index))]
    first += [frame(event) for event in _owners(simulation, range(1, simulation.next_id))]
    frames = list(_batches(simulation, int(seconds / BATCH_S)))
    client = PlayedClient(first, frames)
    app = ShownApp(client, settings=Settings(inspector="side", layout="4"))
    async with app.run_test(size=SIZE) as pilot:
        for _ in range(CHATS - 1):
            app.state.new_session()
        app.main.fit_panes()
        await pilot.pause(1.0)
        began, cpu = time.perf_counter(), time.process_time()
        await client.play()
        share = (time.process_time() - cpu) / (time.perf_counter() - began)
        counts = app.state.mirror.counts()
        assert app.state.mirror.step == simulation.index
    return {
        "blocks": num_blocks,
        "steps_per_s": STEPS_A_BATCH / BATCH_S,
        "cpu_cores": round(share, 4),
        "blocks_used": counts.used,
        "blocks_cached": counts.cached,
    }


def history_memory(steps: int, beyond: int) -> list[dict[str, Any]]:
    """Bytes that the app's state keeps of ``steps`` steps of 16 chats, and after ``beyond`` more.

    ``records_bytes`` are the step records themselves, as they came over the wire; the rest are aggregates,
    checkpoints and the block map.
    """
    simulation = Simulation(num_blocks=8192, chats=CHATS)
    status = simulation.status()
    parts = [list(_batches(simulation, -(-count // STEPS_A_BATCH))) for count in (steps, beyond)]
    del simulation
    reader = event_reader()
    rows: list[dict[str, Any]] = []
    gc.collect()
    tracemalloc.start()
    try:
        state = AppState(lambda _: None)
        state.apply(Ready(status))
        for part in parts:
            for data in part:
                for event in reader.feed(data):
                    state.apply(event)
            rows.append(_kept(state, sum(row["steps_run"] for row in rows[-1:]) + len(part) * STEPS_A_BATCH))
    finally:
        tracemalloc.stop()
    return rows


def _kept(state: AppState, steps: int) -> dict[str, Any]:
    """What was allocated by the app and by its reader of the wire."""
    gc.collect()
    records = rest = 0
    for entry in tracemalloc.take_snapshot().statistics("filename"):
        name = entry.traceback[0].filename
        records += entry.size if name.endswith("engine/wire.py") else 0
        rest += entry.size if "/tui_infer/" in name else 0
    kept = len(state.history)
    return {
        "steps_run": steps,
        "steps_kept": kept,
        "total_bytes": records + rest,
        "records_bytes": records,
        "rest_bytes": rest,
        "bytes_a_step": round((records + rest) / kept),
    }


def _fill(simulation: Simulation) -> None:
    """Leave a pool that is nearly all cached, as it is after an hour, and chats on their way."""
    scheduler, pool = simulation.scheduler, simulation.pool
    chunk, scheduler.prefill_chunk = scheduler.prefill_chunk, CHATS * LONG
    while pool.counts().free > pool.num_blocks // 20:
        for chat in range(CHATS):
            simulation.past.pop(chat, None)
            simulation.submit(chat, LONG, 2)
            while scheduler.num_waiting > 1:
                simulation.step()
        while scheduler.has_work:
            simulation.step()
    scheduler.prefill_chunk = chunk
    simulation.past.clear()
    simulation.run(PAST_STEPS)


def _batches(simulation: Simulation, count: int) -> Iterator[bytes]:
    """Batches as the engine sends them, each with the requests that begin in it."""
    for _ in range(count):
        before = simulation.next_id
        records: list[StepRecord] = simulation.run(STEPS_A_BATCH)
        events: Iterator[AnyEvent] = itertools.chain(
            _owners(simulation, range(before, simulation.next_id)), [Steps(records)]
        )
        yield b"".join(map(frame, events))


def _owners(simulation: Simulation, requests: range) -> Iterator[AnyEvent]:
    """Tell which chat a request belongs to."""
    for request in requests:
        yield Started(f"chat-{simulation.chat_of[request] + 1}", 0, request, [])
