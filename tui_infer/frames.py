"""Frames: what changed since the last one is drawn all at once, and no timer runs while nothing changes."""

from time import monotonic
from typing import TYPE_CHECKING, get_args

from textual.timer import Timer

from tui_infer.state import Topic

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

INSPECTOR_PERIOD_S = 0.1
SHARED_PERIOD_S = 0.2  # of the same, while the engine computes on the cores that drawing takes
SHARED_FRAME_S = 0.1  # between two draws of what streams, then
STREAMING = {"steps", "turns"}  # what changes by itself, many times a second


class Frames:
    """Hears every topic of the state, and brings what follows it up to date at most ``settings.fps`` times a
    second; the inspector less often.
    """

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app
        self._dirty: set[tuple[str, str]] = set()  # topics, each with the id of a chat
        self._drawn_s = 0.0
        self._inspector_due = False
        self._inspector_awaited = False  # by somebody who did something
        self._inspector_shown_s = 0.0
        self._timer: Timer | None = None
        for topic in get_args(Topic):
            self._watch(topic)

    def _watch(self, topic: Topic) -> None:
        def changed(session: str) -> None:
            self._dirty.add((topic, session))
            self.wake()

        self._app.state.subscribe(topic, changed)

    # --- when --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The app is up: frames may come, once somebody wakes them."""
        fps = self._app.settings.fps
        self._timer = self._app.set_interval(1 / fps, self.draw, name="frame", pause=True)

    def wake(self) -> None:
        """A frame is due."""
        if self._timer is not None:
            self._timer.resume()

    def redraw(self) -> None:
        """All of the screen is due, whatever changed."""
        self._dirty.add(("sessions", ""))
        self._dirty.add(("engine", ""))
        self.wake()

    def redraw_inspector(self) -> None:
        """The inspector is due: something that no topic tells has changed."""
        self._inspector_due = True
        self.wake()

    @property
    def _screen_is_up(self) -> bool:
        """Whether the main screen can be drawn: on a slow machine frames come before it."""
        return bool(self._app.screen_stack) and self._app.screen_stack[0].is_mounted

    @property
    def _shared(self) -> bool:
        """Whether the engine computes on the cores that drawing takes."""
        status = self._app.state.status
        return status is not None and status.device == "cpu" and self._app.replay is None

    @property
    def _waits(self) -> bool:
        """Whether what changed can wait for a later frame: only what streams by itself, on shared cores."""
        if not self._dirty or not self._shared or monotonic() - self._drawn_s >= SHARED_FRAME_S:
            return False
        return {topic for topic, _ in self._dirty} <= STREAMING

    @property
    def _inspector_period(self) -> float:
        """Seconds between two draws of the inspector."""
        state = self._app.state
        streams = not (self._inspector_awaited or state.paused or state.moment is not None)
        return SHARED_PERIOD_S if self._shared and streams else INSPECTOR_PERIOD_S

    # --- what --------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw what changed since the last frame, all of it at once."""
        if self._screen_is_up and not self._waits:
            main = self._app.main
            main.begin_frame()
            try:
                self._follow_state()
            finally:
                main.end_frame()

    def _follow_state(self) -> None:
        """Bring the widgets up to date; go to sleep when nothing changed."""
        app = self._app
        dirty, self._dirty = self._dirty, set()
        if dirty:
            self._drawn_s = monotonic()
            app.tools.follow()
            app.models.follow()
            app.toasts.follow()
            topics = {topic for topic, _ in dirty}
            app.gpu.follow(topics)
            app.archive.follow(topics)
            if not app.several.follow(dirty):
                app.main.refresh_state(dirty)
                self._inspector_due = True
                self._inspector_awaited = self._inspector_awaited or not topics <= STREAMING
        if self._inspector_due and monotonic() - self._inspector_shown_s >= self._inspector_period:
            self._inspector_due = self._inspector_awaited = False
            self._inspector_shown_s = monotonic()
            app.main.show_inspector(app.gpu.reading)
        if not dirty and not self._inspector_due and self._timer is not None:
            self._timer.pause()
