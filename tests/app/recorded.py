"""Recordings for tests: of the simulated engine, and of the app on a real tiny one."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from engine.commands import Message, Submit
from engine.config import EngineConfig
from engine.inprocess import InProcessClient
from engine.records import Delta, Finished, ModeChanged, Ready, Started, StepRecord, Steps
from engine.request import SamplingParams
from tests.app.simulation import Simulation
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.recording.client import ReplayClient
from tui_infer.recording.dump import DUMP_SIZE
from tui_infer.recording.format import AnyEntry, ChatLook, Chats, End, Heard, Sent
from tui_infer.recording.reader import Recording, read_recording
from tui_infer.recording.writer import RecordingWriter

SECRET_PROMPT = "zanzibar umbrella question"
SECRET_ANSWER = "xylophone marmalade reply"
SECRET_TITLE = "quokka title"


def simulated_steps(count: int, **options: object) -> tuple[Simulation, list[StepRecord]]:
    sim = Simulation(**options)  # type: ignore[arg-type]
    return sim, sim.run(count)


def simulated_entries(steps: int = 60, batch: int = 7) -> list[AnyEntry]:
    """A chat that asks and is answered while the simulated engine makes steps, and its end."""
    sim, records = simulated_steps(steps, chats=3)
    look = ChatLook("chat-1", "A", 0, SECRET_TITLE, False)
    ids = list(range(40))
    words = SECRET_ANSWER.split(" ")
    entries: list[AnyEntry] = [
        Chats(0.0, [look], "chat-1"),
        Heard(0.0, Ready(sim.status())),
        Sent(
            0.1,
            Submit(
                "chat-1",
                1,
                [Message("user", SECRET_PROMPT)],
                SamplingParams(stop=("flamingo",)),
                history=[7, 8, 9],
            ),
        ),
        Heard(0.1, Started("chat-1", 1, 1, ids, [SECRET_PROMPT, *[" x"] * 39])),
    ]
    for number in range(0, steps, batch):
        t = 0.2 + number * 0.01
        entries.append(Heard(t, Steps(records[number : number + batch])))
        word = words[number // batch % len(words)]
        entries.append(Heard(t, Delta("chat-1", 1, f"{word} ", [number], [number])))
    entries.append(Heard(0.9 + steps * 0.01, ModeChanged("eager")))
    entries.append(Heard(1.0 + steps * 0.01, Finished("chat-1", 1, "stop", 40, 9, 0, 0.05, 60.0)))
    entries.append(End(1.0 + steps * 0.01))
    return entries


def written(path: Path, entries: Iterable[AnyEntry], *, texts: bool = True) -> Path:
    """A recording of these entries."""
    writer = RecordingWriter(path, texts=texts)
    for entry in entries:
        writer.put(entry)
    writer.close()
    assert not writer.error
    return path


@asynccontextmanager
async def recording_app(
    model: Path, path: Path, *, texts: bool = True, **engine: object
) -> AsyncIterator[tuple[TuiInferApp, Pilot[int]]]:
    """The app on a real engine in this process, recording from its start."""
    options = {"num_blocks": 40, "block_size": 8, "max_batch": 8, "max_model_len": 256, **engine}
    config = EngineConfig(model=str(model), device="cpu", dtype="float32", threads=1, **options)  # type: ignore[arg-type]
    settings = Settings(temperature=0.0, max_tokens=60, inspector="full", layout="4")
    client = InProcessClient(config)
    app = TuiInferApp(client, settings=settings, record=RecordingWriter(path, texts=texts))
    async with app.run_test(size=DUMP_SIZE, notifications=True) as pilot:
        await wait_until(lambda: app.state.phase == "ready", 60, what="the engine")
        try:
            yield app, pilot
        finally:
            app.recordings.finish()
            await client.close()


@asynccontextmanager
async def replaying(
    recording: Path | Recording,
    *,
    size: tuple[int, int] = DUMP_SIZE,
    playing: bool = False,
    speed: float = 1.0,
) -> AsyncIterator[tuple[TuiInferApp, Pilot[int], ReplayClient]]:
    """The app on a recording, standing still at its start."""
    read = recording if isinstance(recording, Recording) else read_recording(recording)
    client = ReplayClient(read, playing=playing, speed=speed)
    app = TuiInferApp(client, settings=Settings(inspector="full", layout="4"))
    async with app.run_test(size=size, notifications=True) as pilot:
        await wait_until(lambda: app.main.inspector.is_mounted, what="the screen")
        try:
            yield app, pilot, client
        finally:
            await client.close()


class FullDisk:
    """A file that takes so many bytes and then no more."""

    def __init__(self, file, room: int) -> None:  # type: ignore[no-untyped-def]
        self._file, self._room = file, room

    def write(self, data: memoryview) -> int:
        if self._room <= 0:
            raise OSError(28, "No space left on device")
        written = self._file.write(data[: self._room])
        self._room -= written
        return int(written)

    def close(self) -> None:
        self._file.close()
