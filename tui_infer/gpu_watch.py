"""The card that the engine runs on, read once a second while it runs."""

from typing import TYPE_CHECKING

from textual.timer import Timer

from engine.records import EngineStatus
from tui_infer.nvml import GpuMonitor, GpuReading

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

PERIOD_S = 1.0


class GpuWatch:
    """Reads the card while somebody sees or records it. ``reading`` is the newest."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app
        self.reading = GpuReading()
        self._monitor = GpuMonitor(None)
        self._status: EngineStatus | None = None  # of the engine whose card is read
        self._timer: Timer | None = None

    def begin(self) -> None:
        """The app is up."""
        self._timer = self._app.set_interval(PERIOD_S, self._read, name="gpu", pause=True)

    def follow(self, topics: set[str]) -> None:
        """See whether the engine runs, and on which card."""
        if "engine" not in topics or self._timer is None or self._app.replay is not None:
            return
        status = self._app.state.status if self._app.state.phase == "ready" else None
        if status is None:
            self._timer.pause()
        elif status.device_uuid is None:
            self.take(GpuMonitor(None).read())
            self._timer.pause()
        elif status is not self._status:  # a switch or a pause is no other card: its past is kept
            self._status = status
            self._monitor.close()
            self._monitor = GpuMonitor(status.device_uuid)
            self._read()
            self._timer.resume()
        else:
            self._timer.resume()

    def _read(self) -> None:
        """The driver takes milliseconds to answer, so it is asked on a thread."""
        app, monitor = self._app, self._monitor

        def read() -> None:
            reading = monitor.read()
            app.call_from_thread(self.take, reading)

        if app.main.dock.visible or app.recordings.on:
            app.run_worker(read, thread=True, group="gpu", exclusive=True)

    def take(self, reading: GpuReading) -> None:
        """The card was read."""
        self.reading = reading
        self._app.recordings.reading(reading)
        self._app.frames.redraw_inspector()
