"""Playback from within the app: what the keys of the engine do when there is a recording in its place."""

import re
from typing import TYPE_CHECKING

from textual import events

from tui_infer.recording.client import SPEEDS, ReplayClient
from tui_infer.recording.format import AnyEntry, Reading
from tui_infer.recording.stage import Stage
from tui_infer.widgets.chat.prompt import Prompt

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

TITLE = "Recording"
READ_ONLY = (
    "This is a recording: it plays, but nobody answers. {pause} plays and stops, {step} goes one step, "
    "/seek 400 goes to step 400."
)
SEEK_FORMS = "It takes a step (400), steps from here (+50, -50), a time (1:20 or 80s), start or end."
SPEED_FORMS = f"It takes a number from {SPEEDS[0]:g} to {SPEEDS[-1]:g}."


class ReplayControl:
    """Connects a recording's client with the app's state, and does what a viewer asks for."""

    def __init__(self, app: "TuiInferApp", client: ReplayClient) -> None:
        self._app = app
        self._client = client
        self._said_end = False
        recording = client.recording
        self._stage = Stage(app.state, texts=recording.header.texts)
        names = app.state.keys
        app.state.read_only = READ_ONLY.format(pause=names["pause"], step=names["step"])
        app.state.clock = lambda: client.time
        client.on_entry = self._take_entry
        client.on_clear = self._clear
        client.on_moved = self._moved
        if recording.note:
            app.state.notice(TITLE, f"{recording.path.name}: {recording.note}.", "warning")
        self._moved()

    # --- what a viewer asks for ------------------------------------------------------------------

    def toggle_play(self) -> None:
        """Play or stop; at the end, play again from the start."""
        if self._client.ended:
            self.restart()
        else:
            self._client.play(not self._client.playing)

    def step_once(self) -> None:
        """Stop, and show one more step."""
        if not self._client.step_once():
            self._say_end()

    def restart(self) -> None:
        """Play from the beginning."""
        self._app.run_worker(self._client.restart(), group="seek", exclusive=True)

    def faster(self, by: int) -> None:
        """The next faster (1) or slower (-1) speed."""
        self._client.change_speed(by)

    def takes(self, event: events.Event) -> bool:
        """Plus and minus change the speed, while nothing stands in the prompt that has the focus."""
        if not isinstance(event, events.Key) or event.is_forwarded or event.character not in ("+", "-"):
            return False
        prompt = self._app.focused
        if not isinstance(prompt, Prompt) or prompt.text:
            return False
        self.faster(1 if event.character == "+" else -1)
        return True

    def speed(self, words: list[str]) -> str:
        """``/speed 4``; why not, or an empty string."""
        text = words[0].lower().rstrip("x×") if len(words) == 1 else ""
        if not re.fullmatch(r"\d{1,3}(\.\d+)?|\.\d+", text):
            return SPEED_FORMS
        if not SPEEDS[0] <= float(text) <= SPEEDS[-1]:
            return SPEED_FORMS
        self._client.set_speed(float(text))
        return ""

    def seek(self, words: list[str]) -> str:
        """``/seek 400``: go there and stand still, to be read; why not, or an empty string."""
        client, recording = self._client, self._client.recording
        text = "".join(words).lower().removeprefix("step").replace(",", "")
        if text in ("start", "end"):
            going = client.seek_time(0.0 if text == "start" else recording.duration)
        elif match := re.fullmatch(r"([+-])(\d{1,9})", text):
            here = client.step if client.step is not None else (recording.first_step or 1) - 1
            going = client.seek_step(here + int(match[2]) * (1 if match[1] == "+" else -1))
        elif re.fullmatch(r"\d{1,9}", text):
            going = client.seek_step(int(text))
        elif match := re.fullmatch(r"(?:(\d{1,4}):)?(\d{1,4}(?:\.\d+)?)s?", text):
            going = client.seek_time(60 * int(match[1] or 0) + float(match[2]))
        else:
            return SEEK_FORMS
        client.play(False)
        self._app.run_worker(going, group="seek", exclusive=True)
        return ""

    # --- from the client -------------------------------------------------------------------------

    def _take_entry(self, entry: AnyEntry) -> None:
        self._stage.apply(entry)
        if isinstance(entry, Reading):
            self._app.gpu.take(self._stage.gpu)

    def _clear(self) -> None:
        for session in self._app.state.sessions:
            self._app.main.forget(session)
        self._stage.clear()
        self._app.main.fit_panes()

    def _moved(self) -> None:
        text = self.words()
        if text != self._app.state.replay:
            self._app.state.replay = text
            self._app.state.announce("title")
        if not self._client.ended:
            self._said_end = False
        elif not self._said_end:
            self._said_end = True
            self._say_end()

    def words(self) -> str:
        """``▶ 2× step 400/1,034 0:12/0:45``."""
        client, recording = self._client, self._client.recording
        mark = "■ end" if client.ended else f"▶ {client.speed:g}×" if client.playing else "‖"
        last = recording.last_step
        steps = f" step {client.step or 0:,}/{last:,}" if last is not None else ""
        return f"{mark}{steps} {clock_text(client.time)}/{clock_text(recording.duration)}"

    def _say_end(self) -> None:
        recording = self._client.recording
        why = f" ({recording.note})" if recording.note else ""
        length = clock_text(recording.duration)
        again = self._app.state.keys["pause"]
        text = f"It ends here{why}: {recording.steps:,} steps, {length}. {again} plays it again."
        self._app.state.notice(TITLE, text)


def clock_text(seconds: float) -> str:
    """``1:05`` or ``1:02:09``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
