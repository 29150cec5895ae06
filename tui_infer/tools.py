"""What drives the engine beyond chats: run until, synthetic load, graph against eager."""

import re
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, strftime
from typing import TYPE_CHECKING

from textual.timer import Timer

from engine.commands import RunUntil
from tui_infer.ab import MOST_STEPS, STEPS, AbRun
from tui_infer.load import LoadShape
from tui_infer.load import parse as parse_load
from tui_infer.run_until import parse as parse_until
from tui_infer.screens.until import Until

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

TICK_S = 0.05
AB_LOAD = LoadShape(4, prompt=32, tokens=1024)


class Tools:
    """Each method returns why it cannot, or an empty string, as slash commands do."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app
        self._timer: Timer | None = None
        self._own_load = False  # the load was started for a measurement

    def _not_ready(self) -> str:
        state = self._app.state
        if getattr(state, "read_only", ""):
            return "This is a recording: no engine runs."
        return "" if state.phase == "ready" else "The engine is not ready yet."

    # --- run until ---------------------------------------------------------------------------------

    def until(self, words: Sequence[str]) -> str:
        """``/until eviction A``; without words the dialog."""
        if problem := self._not_ready():
            return problem
        if not words:
            self.ask_until()
            return ""
        command = parse_until(words, self._app.state.letters)
        if isinstance(command, str):
            return command
        self._app.state.run_until(command)
        return ""

    def ask_until(self) -> None:
        state = self._app.state
        if problem := self._not_ready():
            state.notice("Run until", problem, "warning")
            return

        def chosen(command: RunUntil | None) -> None:
            if command is not None:
                state.run_until(command)

        self._app.push_screen(Until(state.current.letter, state.focused, max(0, state.newest_step)), chosen)

    # --- synthetic load ----------------------------------------------------------------------------

    def load(self, words: Sequence[str]) -> str:
        """``/load N prompt=64 tokens=256 rate=2``; 0 stops."""
        shape = parse_load(words)
        if isinstance(shape, str):
            return shape
        if not shape.sessions:
            return self._load_stopped()
        if problem := self._not_ready():
            return problem
        self._own_load = False
        self._start_load(shape)
        started = self._app.state.load.shape or shape  # cut to what the engine takes
        self._app.state.notice("Synthetic load started", started.words())
        return ""

    def _load_stopped(self) -> str:
        load = self._app.state.load
        if not load.active:
            return "No synthetic load is running."
        self.stop_load()
        answers = f"{load.finished} answer{'s' if load.finished != 1 else ''}"
        self._app.state.notice("Synthetic load stopped", f"Its sessions made {answers} to the end.")
        return ""

    def _start_load(self, shape: LoadShape) -> None:
        state = self._app.state
        assert state.status is not None
        state.load.start(shape, state.status, monotonic())
        if self._timer is None:
            self._timer = self._app.set_interval(TICK_S, self._tick)
        state.engine_changed()

    def _tick(self) -> None:
        load = self._app.state.load
        load.tick(monotonic())
        shape = load.shape
        if self._timer is not None and (shape is None or not shape.rate):
            self._timer.stop()
            self._timer = None

    def stop_load(self) -> None:
        self._own_load = False
        self._app.state.load.stop()
        self._app.state.engine_changed()

    # --- graph against eager -----------------------------------------------------------------------

    def compare(self, words: Sequence[str] = ()) -> str:
        """``/ab [steps]``: start; while one runs, stop it."""
        state = self._app.state
        if state.ab is not None and state.ab.running and not words:
            state.ab.stop("stopped by hand")
            self.follow()
            return ""
        steps = words[0] if words else str(STEPS)
        if len(words) > 1 or not re.fullmatch(r"[0-9]{1,9}", steps) or not 1 <= int(steps) <= MOST_STEPS:
            return f"It takes the number of steps of each mode, 1 to {MOST_STEPS}, or nothing."
        if problem := self._not_ready():
            return problem
        if state.ab is not None and state.ab.running:
            return "One is under way; /ab stops it."
        assert state.status is not None
        if not state.status.graph_sizes:
            return f"There are no graphs to compare with: {state.status.mode_reason or state.mode_reason}."
        if state.paused:
            return f"The engine is paused; {state.keys['pause']} lets it run."
        run = AbRun(int(steps), state.mode, state.set_mode)
        if state.active or state.load.active:
            chats = f"{state.active} chat{'s' if state.active != 1 else ''}" if state.active else ""
            synthetic = f"{state.load.active} synthetic" if state.load.active else ""
            run.what = " and ".join(filter(None, (chats, synthetic)))
        else:
            run.what = f"{AB_LOAD.sessions} synthetic"
        state.ab = run
        run.begin()
        self.follow()
        self._app.main.dock.show_card()
        return ""

    def close_card(self) -> None:
        state = self._app.state
        if state.ab is not None:
            state.ab.stop("closed")
        state.ab = None
        self.follow()
        state.engine_changed()

    def take_card(self, how: str) -> None:
        """The card as text: to the clipboard, or to a new file in the current folder."""
        state = self._app.state
        if state.ab is None:
            return
        if how == "copy":
            self._app.copy_to_clipboard(state.ab.text(), "A/B")
            return
        path = Path(f"ab-{strftime('%Y%m%d-%H%M%S')}.txt")
        try:
            path.write_text(state.ab.text(), encoding="utf-8")
        except OSError as error:
            state.notice("A/B not written", f"{path.resolve()}: {error.strerror}", "error")
        else:
            state.notice("A/B", f"written to {path.resolve()}")

    # --- with every frame --------------------------------------------------------------------------

    def follow(self) -> None:
        """Keep a measurement supplied with work, and take that work away behind it."""
        state = self._app.state
        measuring = state.ab is not None and state.ab.running
        if measuring and state.phase != "ready":
            assert state.ab is not None
            state.ab.stop("the engine stopped")
            measuring = False
        if measuring and not state.active and not state.load.active:
            self._own_load = True
            self._start_load(AB_LOAD)
        elif not measuring and self._own_load:
            self.stop_load()

    def quit(self) -> None:
        """Leave no request behind and the mode as it was."""
        if self._app.state.ab is not None:
            self._app.state.ab.stop("quit")
        self._app.state.load.stop()
