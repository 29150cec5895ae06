"""Recording from within the app: start, stop, and what the user is told."""

import asyncio
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from engine.commands import AnyCommand
from engine.records import AnyEvent
from tui_infer.nvml import GpuReading
from tui_infer.recording.format import SUFFIX, RecordingError
from tui_infer.recording.found import own_folder
from tui_infer.recording.recorder import Recorder
from tui_infer.recording.writer import RecordingWriter

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

TITLE = "Recording"


class RecordControl:
    """One recording at a time. While there is none, the app's events and commands pass nothing of this."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app
        self._recorder: Recorder | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._send = app.state.send
        self._closing: list[RecordingWriter] = []
        app.state.subscribe("sessions", self._chats_changed)
        app.state.subscribe("engine", self._engine_changed)
        app.state.subscribe("rewritten", self._rewritten)

    @property
    def on(self) -> bool:
        return self._recorder is not None

    @property
    def path(self) -> Path | None:
        """The file being written."""
        return self._recorder.writer.path if self._recorder else None

    def start(self, path: Path | None = None, *, texts: bool = True) -> str:
        """Begin a file, in the app's own folder where no path is given; why not, or an empty string."""
        if self._recorder is not None:
            return f"{self.path} is being recorded; stop that first."
        try:
            self.begin(RecordingWriter(path or _new_path(), texts=texts))
        except RecordingError as error:
            return str(error)
        self._app.state.notice(TITLE, f"To {self.path}. /record stops it.")
        return ""

    def begin(self, writer: RecordingWriter) -> None:
        """Record into a writer that is there already. Needs the running loop."""
        app = self._app
        self._loop = asyncio.get_running_loop()
        writer.on_error = self._writer_failed
        if writer.error:
            self._failed(writer, writer.error)
            return
        self._recorder = recorder = Recorder(writer)
        recorder.begin(app.state, app.gpu.reading)
        self._send = app.state.send
        app.state.send = self._sent
        app.client.on_event = self._heard
        self._show(True)

    def stop(self) -> str:
        """Close the file, without waiting for the disk; why not, or an empty string."""
        recorder = self._recorder
        if recorder is None:
            return "Nothing is being recorded."
        self._detach()
        recorder.end()
        self._closing.append(recorder.writer)
        play = f"tui-infer replay {shlex.quote(str(recorder.writer.path))}"
        self._app.state.notice(TITLE, f"Stopped. This plays it: {play}")
        return ""

    def toggle(self) -> None:
        """Start or stop."""
        if problem := self.stop() if self.on else self.start():
            self._app.state.notice(TITLE, problem, "warning")

    @property
    def writer(self) -> RecordingWriter | None:
        """What takes the entries now."""
        return self._recorder.writer if self._recorder else None

    def reading(self, gpu: GpuReading) -> None:
        """The card was read."""
        if self._recorder is not None:
            self._recorder.reading(gpu)

    def finish(self) -> str:
        """The app is over: close what is open and wait until it is on the disk; what went wrong there."""
        if self._recorder is not None:
            self._closing.append(self._recorder.writer)
            self._recorder.end()
            self._recorder = None
        for writer in self._closing:
            writer.close()
        return " ".join(writer.error for writer in self._closing if writer.error)

    # --- listening -------------------------------------------------------------------------------

    def _heard(self, event: AnyEvent) -> None:
        if self._recorder is not None:
            self._recorder.heard(event)
        self._app.state.apply(event)

    def _sent(self, command: AnyCommand) -> None:
        if self._recorder is not None:
            self._recorder.sent(command)
        self._send(command)

    def _chats_changed(self, session: str) -> None:
        if self._recorder is not None:
            self._recorder.chats(self._app.state)

    def _rewritten(self, session: str) -> None:
        if self._recorder is not None and session in self._app.state.sessions:
            self._recorder.content(self._app.state.sessions[session])

    def _engine_changed(self, session: str) -> None:
        if self._recorder is not None:
            self._recorder.phase(self._app.state)

    def _detach(self) -> None:
        self._recorder = None
        self._app.state.send = self._send
        self._app.client.on_event = self._app.state.apply
        self._show(False)

    def _show(self, on: bool) -> None:
        self._app.state.recording = on
        self._app.state.announce("title")

    def _writer_failed(self, why: str) -> None:
        """On the writer's thread."""
        recorder = self._recorder
        if self._loop is not None and not self._loop.is_closed() and recorder is not None:
            self._loop.call_soon_threadsafe(self._failed, recorder.writer, why)

    def _failed(self, writer: RecordingWriter, why: str) -> None:
        if self._recorder is not None and self._recorder.writer is writer:
            self._detach()
        self._app.state.notice(TITLE, f"{why} The recording ended there; the chats go on.", "error")


def _new_path() -> Path:
    """A new name in the app's own folder.

    Raises:
        RecordingError: the folder cannot be made.
    """
    folder = own_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordingError(
            f"The folder {folder} cannot be made: {error.strerror}.", "Name a file: /record FILE."
        ) from None
    stem = time.strftime("%Y-%m-%d-%H%M%S")
    path, number = folder / f"{stem}{SUFFIX}", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}{SUFFIX}"
    return path
