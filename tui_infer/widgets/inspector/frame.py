"""What every panel draws from: the view, and what the inspector worked out once for all of them."""

from dataclasses import dataclass
from typing import Literal

from engine.records import StepRecord
from tui_infer.event_log import EventLog
from tui_infer.widgets.inspector.ink import Ink
from tui_infer.widgets.inspector.series import StepSeries
from tui_infer.widgets.inspector.view import InspectorView, SessionTag

Activity = Literal["loading", "dead", "ready", "idle", "paused", "live", "past"]

NO_GLOW = 1 << 62
GLOW_S = 0.35
GLOW_STEPS = 48


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture: ``glow_since`` is the step from which on a changed block glows, ``highlight`` the session
    that the mouse points at.
    """

    view: InspectorView
    ink: Ink
    series: StepSeries
    activity: Activity
    glow_since: int
    highlight: str = ""
    own_log: EventLog | None = None

    @property
    def log(self) -> EventLog | None:
        """What happened, up to now; the panel cuts it at the step that is shown."""
        return self.view.log or self.own_log

    @property
    def latest(self) -> StepRecord | None:
        return self.view.history.latest

    @property
    def fade_since(self) -> int:
        """The step from which on a changed block has not lost its glow wholly."""
        latest = self.latest
        if latest is None or self.glow_since > latest.index:
            return self.glow_since
        return max(0, self.glow_since - (latest.index - self.glow_since + 1))  # -1 is a block never used

    @property
    def waiting_text(self) -> str:
        """What a panel says while it has nothing to show."""
        if self.activity == "dead":
            return "the engine stopped"
        return "waiting for the engine" if self.activity == "loading" else "no step yet"

    @property
    def stands_idle(self) -> bool:
        """Paused with nothing in the batch: what the last step computed has ended."""
        return self.activity == "paused" and at_rest(self.view)

    def tag(self, request: int) -> SessionTag | None:
        return self.view.tags.get(request)


def activity_of(view: InspectorView) -> Activity:
    """What the engine is doing."""
    latest = view.history.latest
    if view.at is not None:
        return "past"
    if view.dead:
        return "dead"
    if view.status is None:
        return "loading"
    if view.paused:
        return "paused"
    if latest is None:
        return "ready"
    return "idle" if at_rest(view) else "live"


def at_rest(view: InspectorView) -> bool:
    """Whether nothing is left of what the last step computed, and nobody waited then."""
    latest = view.history.latest
    if latest is None:
        return True
    finished = set(latest.finished)
    if latest.waiting == 0 and all(row.request in finished for row in latest.rows):
        return True
    # A long prefill is one long step: while somebody holds blocks the engine is at work, not idle. Where
    # nobody does, what the last step computed was cancelled since.
    return view.mirror.counts().used == 0


def glow_since(view: InspectorView, activity: Activity, *, quiet: bool) -> int:
    """First step whose changes glow: the last moments while running, the last step while time stands."""
    latest = view.history.latest
    if latest is None or activity in ("dead", "loading"):
        return NO_GLOW
    if activity in ("paused", "past"):
        return latest.index
    # Steps of a millisecond change hundreds of blocks in a blink: then only the newest changes glow.
    recent = max(view.history.first_since(latest.t - GLOW_S), latest.index - GLOW_STEPS)
    return NO_GLOW if quiet else min(recent, latest.index)
