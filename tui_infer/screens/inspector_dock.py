"""Where the inspector stands: beside the chats, in place of them, or nowhere."""

from typing import TYPE_CHECKING

from tui_infer.event_log import KINDS
from tui_infer.nvml import GpuReading
from tui_infer.state import AppState
from tui_infer.time_travel import view_at
from tui_infer.widgets.inspector.events import EventsPanel
from tui_infer.widgets.inspector.view import InspectorView
from tui_infer.workspace import tag_of

if TYPE_CHECKING:
    from tui_infer.screens.main import MainScreen

CHATS_WIDTH = 40  # columns that chats keep beside the inspector
WIDE = 100  # columns from which the inspector is beside the chats unless it is told otherwise
MODES = ("hidden", "side", "full")


class InspectorDock:
    """Brings the main screen's inspector up, takes it away, and hands it what it shows.

    ``chosen`` is the mode as it was chosen, ``auto`` or one of ``MODES``, whatever the terminal's width makes
    of it.
    """

    def __init__(self, screen: "MainScreen", state: AppState, chosen: str) -> None:
        self._screen = screen
        self._state = state
        self.chosen = chosen

    @property
    def mode(self) -> str:
        """``hidden``, ``side`` or ``full``, with ``auto`` resolved by the terminal's width."""
        if self.chosen == "auto":
            return "side" if self._screen.size.width >= WIDE else "hidden"
        if self.chosen == "side" and not self._side_fits:
            return "hidden"
        return self.chosen

    @property
    def visible(self) -> bool:
        return self.mode != "hidden"

    @property
    def width(self) -> int:
        """Columns of the inspector beside the chats: about a third of the terminal's."""
        return max(38, min(60, self._screen.size.width * 36 // 100))

    @property
    def _side_fits(self) -> bool:
        """Whether the chats keep a readable width beside the inspector."""
        return self._screen.size.width - self.width >= CHATS_WIDTH

    # --- modes -------------------------------------------------------------------------------------

    def set(self, mode: str) -> None:
        """Bring the inspector where it shall be, or take it away."""
        self.chosen = mode
        self._screen.refresh_state({("sessions", "")})
        if mode == "full":
            self._screen.inspector.focus_panel()
        else:
            self._screen.fit_panes()
        self._show_now()

    def cycle(self) -> None:
        """The next mode of those that fit."""
        modes = [mode for mode in MODES if mode != "side" or self._side_fits]
        self.set(modes[(modes.index(self.mode) + 1) % len(modes)])

    def come_up(self) -> None:
        """Show a hidden inspector."""
        if not self.visible:
            self.set("side" if self._side_fits else "full")

    def make_room(self) -> None:
        """Let the chats be seen again where the inspector stands in their place."""
        if self.mode == "full":
            self.set("side")

    # --- panels ------------------------------------------------------------------------------------

    def leave_panel(self) -> bool:
        """One way back: from the enlarged panel to all, from the full screen to the side where it fits, from
        a panel to the prompt, or to the timeline in the past; False when there was none.
        """
        inspector = self._screen.inspector
        if self.visible and (
            inspector.forget_typed() or inspector.close_block() or inspector.leave_enlarged()
        ):
            return True
        if self.mode == "full":
            self.set("side")
            return True
        if inspector.has_panel_focus:
            self._screen.fit_panes()
            self._screen.focus_timeline()
            return True
        return False

    def change_panel(self, what: str, name: str) -> None:
        """What the palette does to the panels; a hidden inspector comes up to show it."""
        self.come_up()
        inspector = self._screen.inspector
        match what:
            case "toggle":
                inspector.toggle(name)
            case "enlarge":
                inspector.enlarge(name)
            case "focus":
                inspector.focus_panel(name)
            case "up" | "down":
                inspector.move(name, -1 if what == "up" else 1)
            case "reset":
                inspector.reset()

    def only_events(self, kind: str, session: str) -> None:
        """Filter the event log, and bring it into view."""
        self.change_panel("focus", "events")
        self._screen.inspector.query_one(EventsPanel).only(
            kind=next((known for known in KINDS if known == kind), None), session=session
        )

    def step_panel(self, step: int) -> None:
        """Go to the inspector's next panel; a hidden inspector comes up."""
        self.come_up()
        self._screen.inspector.step_panel(step)

    def show_card(self) -> None:
        """Bring the comparison of graph and eager into view."""
        arrangement = self._state.arrangement
        arrangement.hidden.discard("ab")
        self.come_up()
        arrangement.current = "ab"
        self._show_now()
        self._screen.inspector.rearrange()

    # --- what it shows -----------------------------------------------------------------------------

    def _show_now(self) -> None:
        self._screen.show_inspector(self._screen.app.gpu.reading)  # type: ignore[attr-defined]

    def show(self, gpu: GpuReading) -> None:
        """Hand the inspector the state of this moment, if anybody sees it."""
        if self.visible and self._screen.inspector.is_mounted:
            self._screen.inspector.show(self._view(gpu))

    def _view(self, gpu: GpuReading) -> InspectorView:
        state = self._state
        view = InspectorView(
            status=state.status,
            history=state.history,
            mirror=state.mirror,
            tags=dict(state.tags),
            focused=tag_of(state.current),
            focused_request=state.current.request,
            gpu=gpu,
            mode=state.mode,
            mode_reason=state.mode_reason,
            paused=state.paused,
            dead=state.phase == "failed",
            queued=sum(session.status == "queued" for session in state.sessions.values()),
            log=state.log,
            ab=state.ab,
            detail=state.detail,
            pieces=state.texts.pieces,
        )
        return view_at(view, state.moment, state.current) if state.moment is not None else view
