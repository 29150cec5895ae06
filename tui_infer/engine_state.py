"""The engine as the app knows it, and what a user can tell it. Plain data, no Textual."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.commands import Inspect, Pause, RunUntil, SetMode, StepOnce
from engine.records import BlockDetail, EngineStatus, Failed, Paused, Progress, StepMode
from tui_infer.ab import AbRun
from tui_infer.event_log import EventLog
from tui_infer.history import StepHistory
from tui_infer.keymap import KeyNames
from tui_infer.mirror import BlockMirror
from tui_infer.past import Moment, Past, Timeline
from tui_infer.run_until import with_letters
from tui_infer.running_clock import RunningClock
from tui_infer.sanitize import one_line
from tui_infer.widgets.inspector.view import graph_failures
from tui_infer.workspace import Workspace

STARTING = Progress("starting the engine")
CHOSEN = "eager mode was chosen"


# A base only: the methods made for ``AppState`` cover these fields; making more would slow down each start.
@dataclass(init=False, repr=False, eq=False)
class EngineState(Workspace):
    """What the engine is, how it runs and what its steps did; commands for it leave as those of the chats do.

    ``mode_reason`` says why steps run eager; it is empty in graph mode.
    """

    progress: Progress = STARTING
    status: EngineStatus | None = None
    failure: Failed | None = None
    mode: StepMode = "eager"
    mode_reason: str = ""
    paused: bool = False
    history: StepHistory = field(default_factory=StepHistory)
    mirror: BlockMirror = field(default_factory=BlockMirror)
    past: Past | None = None  # what is looked at instead of now
    moment: Moment | None = None  # where in it
    log: EventLog = field(default_factory=EventLog)
    ab: AbRun | None = None
    until: RunUntil | None = None  # what the engine runs until
    pause_reason: str = ""  # what it stopped at
    detail: BlockDetail | None = None
    keys: KeyNames = field(default_factory=KeyNames)  # as hints write them
    clock: Callable[[], float] = time.monotonic  # seconds, by which answers are timed
    running: RunningClock = field(default_factory=RunningClock)  # the same, without pauses
    _asked_modes: deque[StepMode] = field(default_factory=deque)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.timeline = Timeline(self.history, self.mirror)

    @property
    def on_cpu(self) -> bool:
        """Whether the engine's steps can be nothing but eager."""
        return self.status is not None and self.status.device == "cpu"

    @property
    def newest_step(self) -> int:
        return self.history.latest.index if self.history.latest is not None else -1

    @property
    def letters(self) -> dict[str, str]:
        """The session of each open chat, by its letter."""
        return {session.letter: session.id for session in self.sessions.values()}

    def engine_changed(self) -> None:
        """What is shown of the engine is another, by a tool of the app."""
        self._changed("engine")

    def inspect(self, block: int) -> None:
        """Ask the engine what it knows of a block; ``detail`` is its answer."""
        if self.phase == "ready":
            self.send(Inspect(block))

    # --- looking back ------------------------------------------------------------------------------

    def look_at(self, step: int) -> bool:
        """Show the state after a past step instead of now, from what is kept now; False where there is none.

        What is looked at stays as it is while the engine goes on; ``look_at`` a step beyond it takes in what
        came since.
        """
        past = self.past
        if past is None or not len(past) or step > past.records[-1].index:
            past = self.timeline.freeze()
        moment = past.moment(step)
        if moment is not None:
            self.past, self.moment = past, moment
        return moment is not None

    def look_at_now(self) -> None:
        self.past = self.moment = None

    # --- graph or eager ----------------------------------------------------------------------------

    def set_mode(self, mode: StepMode) -> None:
        """Ask for graph or eager steps; the engine answers with ``ModeChanged``."""
        self._asked_modes.append(mode)
        self.send(SetMode(mode=mode))

    def toggle_mode(self) -> None:
        """The other mode than the one last asked for: two quick presses come back to where they started."""
        now = self._asked_modes[-1] if self._asked_modes else self.mode
        self.set_mode("eager" if now == "graph" else "graph")

    def mode_words(self) -> str:
        """How decode steps run now and why, as a sentence or two."""
        status = self.status
        if status is None:
            return "The engine is not ready yet."
        if self.mode == "eager":
            words = f"Every step runs eager: {self.mode_reason}."
        else:
            sizes = ", ".join(f"{size}" for size in status.graph_sizes)
            words = f"Decode steps replay graphs, captured for {sizes} rows."
        failed = "".join(f" No graph for {name}: {reason}." for name, reason in graph_failures(status))
        return words + failed

    def _set_effective_mode(self, mode: StepMode, reason: str) -> None:
        self.mode = mode
        self.mode_reason = "" if mode == "graph" else reason or CHOSEN

    # --- pauses and single steps -------------------------------------------------------------------

    def _set_paused(self, paused: bool) -> None:
        """The engine stands or runs; answers under way are timed accordingly."""
        self.paused = paused
        if not paused:
            self.running.go_on(self.clock())
            return
        self.running.pause(self.clock())
        for session in self.sessions.values():
            session.held = session.held or session.busy

    def _paused(self, event: Paused) -> None:
        self._set_paused(event.paused)
        if event.paused:
            names = [(session, letter) for letter, session in self.letters.items()]
            names += [(tag.session, tag.letter) for tag in self.tags.values()]
            self.until = None
            self.pause_reason = with_letters(one_line(event.reason, 200), names)
            if event.reason and not self.read_only:  # of a recording they would pile up over the panels
                go_on = f"{self.keys['pause']} goes on, {self.keys['step']} makes one step."
                self.notice("Paused", f"{self.pause_reason}. {go_on}")
        else:
            self.pause_reason = ""
        self._changed("engine")

    def run_until(self, command: RunUntil) -> None:
        """Let the engine run until this condition; it answers with ``Paused``."""
        self.until, self.pause_reason = command, ""
        self.send(command)
        self._changed("engine")

    def toggle_pause(self) -> None:
        self.send(Pause(paused=not self.paused))

    def step_once(self) -> None:
        """Run one step; an engine that runs is paused first."""
        if not self.paused:
            self.send(Pause(paused=True))
        self.running.by_hand = True
        self.send(StepOnce())
