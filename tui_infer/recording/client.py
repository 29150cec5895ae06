"""ReplayClient: a recording behind the interface of an engine's client."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from engine.client import Client
from engine.commands import AnyCommand
from engine.config import EngineConfig
from engine.records import Paused, Steps
from tui_infer.recording.format import AnyEntry, Heard
from tui_infer.recording.reader import Recording

SPEEDS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
LEAST_WAIT_S, MOST_WAIT_S = 1 / 60, 0.25  # between looks at the clock, which the title shows
SPREAD_S = 0.15  # most that a step of a batch comes later than the batch did
TURN_S = 0.02  # of delivering at a stretch; then the app draws and takes keys

OnEntry = Callable[[AnyEntry], None]


class ReplayClient(Client):
    """Plays a recording. Events go to ``on_event`` as an engine's would, all other entries to ``on_entry``.

    Commands change nothing: what they led to is in the file. A position is the number of entries delivered,
    and how many records of the next one; so playback can stop behind any step.

    Attributes:
        time: seconds into the recording.
        step: number of the last step that was delivered; None before the first.
        playing: whether time goes on.
        speed: seconds of recording a second.
        begin_s: where playing begins, in seconds; what comes before is there at once.
        on_entry: takes entries that are no events.
        on_clear: called before playback starts again from the beginning.
        on_moved: called after anything was delivered, or when playing or speed changed.
    """

    log_path = None

    def __init__(
        self,
        recording: Recording,
        *,
        playing: bool = True,
        speed: float = 1.0,
        begin_at: int | None = None,
        begin_s: float = 0.0,
    ) -> None:
        super().__init__(EngineConfig())
        self.recording = recording
        self.time = self._begin_s = begin_s
        self.step: int | None = None
        self.playing = playing
        self.speed = speed
        self.on_entry: OnEntry = lambda entry: None
        self.on_clear: Callable[[], None] = lambda: None
        self.on_moved: Callable[[], None] = lambda: None
        self._begin_at = begin_at
        self._next = 0
        self._part = 0
        self._changed = asyncio.Event()
        self._seeking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    # --- what a client does ----------------------------------------------------------------------

    def launch(self) -> None:
        if self.state == "idle":
            self.state = "loading"

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.launch()
        if self._task is None:
            self._task = self._loop.create_task(self._play())
        self._hand_over()

    def send(self, command: AnyCommand) -> None:
        """Nothing: a recording cannot be told anything."""

    async def restart(self, config: EngineConfig | None = None) -> None:
        """Play from the beginning."""
        await self.seek_time(self._begin_s)
        self.play(True)

    def kill(self) -> None:
        self.state = "closed"

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- playing ---------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether everything was delivered."""
        return self._next >= len(self.recording.entries)

    def play(self, playing: bool) -> None:
        """Let time go on, or stop it; at the end there is nothing more to play."""
        self.playing = playing and not self.ended
        self._changed.set()
        self.on_moved()

    def set_speed(self, speed: float) -> None:
        """Seconds of recording a second, within what is offered."""
        self.speed = max(SPEEDS[0], min(SPEEDS[-1], speed))
        self._changed.set()
        self.on_moved()

    def change_speed(self, by: int) -> None:
        """The next faster or slower of ``SPEEDS``."""
        at = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - self.speed))
        self.set_speed(SPEEDS[max(0, min(len(SPEEDS) - 1, at + by))])

    async def _play(self) -> None:
        if self._begin_at is not None:
            await self.seek_step(self._begin_at)
        last = time.monotonic()
        while True:
            self._changed.clear()
            if not self.playing or self._seeking.locked():
                await self._changed.wait()
                last = time.monotonic()
                continue
            now = time.monotonic()
            self.time += (now - last) * self.speed
            last = now
            self._deliver_until(self.time, now + TURN_S)
            if self.ended:
                continue
            due = (self.recording.entries[self._next].t - self.time) / self.speed
            with contextlib.suppress(TimeoutError):
                wait = max(LEAST_WAIT_S, min(due, MOST_WAIT_S))
                await asyncio.wait_for(self._changed.wait(), wait)

    def _deliver_until(self, t: float, deadline: float) -> None:
        """Deliver what is due at ``t``, as far as there is time; the clock then waits for the rest."""
        entries = self.recording.entries
        while not self.ended and entries[self._next].t <= t:
            due = self._records_due(entries[self._next], t)
            if due == 0:
                break
            self._deliver_next(due)
            if time.monotonic() >= deadline and not self.ended:
                self.time = min(t, entries[self._next].t)
                break
        if self.ended:
            self.playing = False
            self.time = self.recording.duration
        self.on_moved()

    def _records_due(self, entry: AnyEntry, t: float) -> int | None:
        """How many of an entry's steps were made by ``t``, None for all: steps come in batches of a tenth of
        a second, which at slow speed would be seen.
        """
        if not (isinstance(entry, Heard) and isinstance(entry.event, Steps) and entry.event.records):
            return None
        records = entry.event.records
        latest = records[0].t + t - entry.t
        if t - entry.t >= SPREAD_S or records[-1].t <= latest:
            return None
        return sum(record.t <= latest for record in records[self._part :])

    def _deliver_next(self, most_steps: int | None = None) -> int:
        """Deliver the next entry, or of its step records only ``most_steps``; returns how many records."""
        entry = self.recording.entries[self._next]
        if isinstance(entry, Heard) and isinstance(entry.event, Steps):
            return self._deliver_steps(entry.event, most_steps)
        self._next += 1
        if isinstance(entry, Heard):
            self._deliver(entry.event)
        else:
            self.on_entry(entry)
        return 0

    def _deliver_steps(self, steps: Steps, most: int | None) -> int:
        start = self._part
        end = len(steps.records) if most is None else min(len(steps.records), start + most)
        records = steps.records[start:end]
        dropped = steps.dropped if start == 0 else 0
        self._part = end
        if end == len(steps.records):
            self._next, self._part = self._next + 1, 0
        if records:
            self.step = records[-1].index
        whole = len(records) == len(steps.records)
        self._deliver(steps if whole else Steps(records, dropped))
        return len(records)

    # --- moving ----------------------------------------------------------------------------------

    def step_once(self) -> bool:
        """Stop, and deliver up to the next step and no further; False at the end."""
        self.play(False)
        delivered = 0
        while not self.ended and not delivered:
            self.time = max(self.time, self.recording.entries[self._next].t)
            delivered = self._deliver_next(1)
        self.on_moved()
        return delivered > 0

    async def seek_step(self, step: int) -> None:
        """Go to right behind step ``step``, or to the nearest one that there is.

        Where the engine was stopped behind that step, it is shown stopped.
        """
        async with self._seeking:
            if self.step is not None and step < self.step:
                self._rewind()
            await self._forward(lambda: self._records_to(step))
            for _ in range(self._entries_to_pause()):
                self._deliver_next()
            self._arrived()

    async def seek_time(self, t: float) -> None:
        """Go to ``t`` seconds."""
        t = max(0.0, min(t, self.recording.duration))
        async with self._seeking:
            if t < self.time:
                self._rewind()
            entries = self.recording.entries
            await self._forward(lambda: 0 if entries[self._next].t > t else None)
            self.time = max(self.time, t)
            self._arrived()

    def _entries_to_pause(self) -> int:
        """How many entries follow up to a pause, with no step before it."""
        if self._part or self.step is None:
            return 0
        for count, entry in enumerate(self.recording.entries[self._next :], 1):
            if isinstance(entry, Heard) and isinstance(entry.event, Steps) and entry.event.records:
                return 0
            if isinstance(entry, Heard) and isinstance(entry.event, Paused) and entry.event.paused:
                return count
        return 0

    def _records_to(self, step: int) -> int | None:
        """How many records of the next entry lie before or at ``step``; 0 is none, None is all of it."""
        if self.step is not None and self.step >= step:
            return 0
        entry = self.recording.entries[self._next]
        if not (isinstance(entry, Heard) and isinstance(entry.event, Steps)):
            return None
        records = entry.event.records[self._part :]
        if not records or records[-1].index < step:
            return None
        return sum(record.index <= step for record in records)

    async def _forward(self, allowed: Callable[[], int | None]) -> None:
        """Deliver as much of each next entry as ``allowed`` says, until that is nothing."""
        deadline = time.monotonic() + TURN_S
        while not self.ended:
            most = allowed()
            if most == 0:
                return
            self.time = max(self.time, self.recording.entries[self._next].t)
            self._deliver_next(most)
            if time.monotonic() >= deadline:
                await asyncio.sleep(0)
                deadline = time.monotonic() + TURN_S

    def _rewind(self) -> None:
        self._next = self._part = 0
        self.time = 0.0
        self.step = None
        self.state = "loading"
        self.on_clear()

    def _arrived(self) -> None:
        if self.ended:
            self.playing = False
        self._changed.set()
        self.on_moved()
