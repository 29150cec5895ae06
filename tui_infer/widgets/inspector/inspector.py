"""The inspector: panels that show what the engine does, drawn from one view at a time."""

from time import monotonic

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.layout import Layout
from textual.message import Message
from textual.strip import Strip
from textual.timer import Timer

from tui_infer.arrangement import PANELS, Arrangement
from tui_infer.event_log import EventLog
from tui_infer.keys import PANEL_KEYS, bindings_of
from tui_infer.widgets.inspector.ab import AbPanel
from tui_infer.widgets.inspector.batch import BatchPanel
from tui_infer.widgets.inspector.block_detail import BlockCard, with_card
from tui_infer.widgets.inspector.events import EventsPanel
from tui_infer.widgets.inspector.frame import Frame, activity_of, glow_since
from tui_infer.widgets.inspector.gpu import GpuPanel
from tui_infer.widgets.inspector.ink import Ink
from tui_infer.widgets.inspector.kvmap import KVPanel
from tui_infer.widgets.inspector.lines import to_strip
from tui_infer.widgets.inspector.panel_host import PanelHost
from tui_infer.widgets.inspector.places import Needs, PanelLayout, plan_columns
from tui_infer.widgets.inspector.series import StepSeries
from tui_infer.widgets.inspector.step import StepPanel
from tui_infer.widgets.inspector.table import TablePanel
from tui_infer.widgets.inspector.tabs import Tabs
from tui_infer.widgets.inspector.view import InspectorView

QUIET_AFTER_S = 1.2


class Inspector(PanelHost):
    """The panels, one above the other or in two columns where it is wide.

    ``show`` may be called as often as the app likes; each call redraws the lines that changed. When no
    step follows, the inspector fades what glows by itself, once.
    """

    DEFAULT_CSS = """
    Inspector { background: $background; height: 1fr; width: 1fr; }
    """
    BINDINGS = [
        *bindings_of(PANEL_KEYS),
        *[Binding(f"{n}", f"pick({n})", f"panel {n}", show=False) for n in range(1, 10)],
    ]

    def __init__(
        self,
        id: str | None = None,
        classes: str | None = None,
        *,
        arrangement: Arrangement | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes, arrangement=arrangement)
        self._view: InspectorView | None = None
        self._ink: Ink | None = None
        self._series = StepSeries()
        self._log = EventLog()
        self._seen: tuple[int, int] = (-1, -1)
        self._moved_at = monotonic()
        self._quiet_timer: Timer | None = None
        self._needs = Needs()
        self._panel_layout = PanelLayout(self.place)

    @property
    def layout(self) -> Layout:
        """Textual looks layouts up by name in styles; this one is ours alone."""
        return self._panel_layout

    def compose(self) -> ComposeResult:
        yield BatchPanel(id="batch")
        yield StepPanel(id="step")
        yield AbPanel(id="ab")
        yield KVPanel(id="kv")
        yield TablePanel(id="table")
        yield EventsPanel(id="events")
        yield GpuPanel(id="gpu")
        yield BlockCard(id="card")

    class CardClosed(Message):
        """The user closed the card with graph against eager."""

    def on_mount(self) -> None:
        self.watch(self.app, "theme", self._theme_changed, init=False)

    # --- what the app calls --------------------------------------------------------------------

    def show(self, view: InspectorView) -> None:
        """Draw this view."""
        self._view = view
        seen = (view.history.version, view.mirror.version)
        if seen != self._seen:
            self._seen = seen
            self._moved_at = monotonic()
            self._await_quiet()
        needs = Needs.of(view)
        if needs != self._needs:
            self._needs = needs
            self._clear_arrangement_cache()  # which a refresh leaves to what is above
            self.refresh(layout=True)
        self._draw()

    @property
    def available(self) -> list[str]:
        """Panels that have something to show."""
        there = {panel.id for panel in self._panels()}
        return [name for name in PANELS if name in there and (name != "ab" or self._needs.ab_rows)]

    def forget_typed(self) -> bool:
        """Give up the number that is being typed in the map; False where there is none."""
        return self.is_mounted and self.map.forget_typed()

    # --- drawing -------------------------------------------------------------------------------

    @property
    def _quiet(self) -> bool:
        return monotonic() - self._moved_at >= QUIET_AFTER_S

    def _draw(self) -> None:
        view = self._view
        if view is None or not self.is_attached or not self.display or not self.size.area:
            return
        if self._ink is None:
            self._ink = Ink(self.app.current_theme)
            self.refresh()  # the tabs wait for it
        activity = activity_of(view)
        step = self._panel("step")
        self._series.update(view.history, step.size.width - 9, single=activity in ("paused", "past"))
        glow = glow_since(view, activity, quiet=self._quiet)
        if view.log is None:
            self._log.block_size = view.mirror.block_size
            self._log.follow(view.history)
        frame = Frame(view, self._ink, self._series, activity, glow, self.highlighted, own_log=self._log)
        for panel in self._panels():
            if panel.size.height:
                panel.draw(frame)

    def _await_quiet(self) -> None:
        if self._quiet_timer is None and self.is_attached:
            self._quiet_timer = self.set_timer(QUIET_AFTER_S + 0.05, self._maybe_quiet)

    def _maybe_quiet(self) -> None:
        self._quiet_timer = None
        if self._quiet:
            self._draw()
        else:
            left = QUIET_AFTER_S - (monotonic() - self._moved_at)
            self._quiet_timer = self.set_timer(max(0.05, left + 0.05), self._maybe_quiet)

    def _theme_changed(self) -> None:
        self._ink = None
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        # The panels learn their own new size first; drawing now would draw the old one.
        self.call_after_refresh(self._draw)

    # --- keys ----------------------------------------------------------------------------------

    def action_enlarge(self) -> None:
        self.enlarge(self._current())

    def action_hide(self) -> None:
        if self._current() == "ab":
            self.post_message(self.CardClosed())
        else:
            self.toggle(self._current())

    def action_reset(self) -> None:
        self.reset()

    def action_move(self, step: int) -> None:
        self.move(self._current(), step)

    def action_pick(self, number: int) -> None:
        shown = self.arrangement.shown(self.available)
        if number <= len(shown):
            self.focus_panel(shown[number - 1])

    # --- tabs ----------------------------------------------------------------------------------

    def _tabs(self) -> Tabs:
        names = self.arrangement.shown(self.available)
        return Tabs([(name, self._panel(name).NAME) for name in names], self.size.width)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y or not self._alone or self._ink is None:
            return Strip.blank(width, self.rich_style)
        return to_strip(self._tabs().line(self._ink, self._current(), self.has_panel_focus), width)

    def on_click(self, event: events.Click) -> None:
        if event.widget is not self or event.y or not self._alone:
            return
        name = self._tabs().at(event.x)
        if name:
            self.focus_panel(name)

    # --- placing -------------------------------------------------------------------------------

    def place(self, size: Size) -> dict[str, Region]:
        """Where the panels go in an area of this size, and the card of a block; others are not shown."""
        places: dict[str, Region] = {}
        for column in self._columns(size):
            names = list(column)
            for name in names:
                panel = self._panel(name)
                panel.opens, panel.closes = name == names[0], name == names[-1]
            places |= column
        if self.opened_block is not None:
            places = with_card(places, size)
            self.map.opens = self.map.opens or list(places) == ["kv", "card"]
        return places

    def _columns(self, size: Size) -> list[dict[str, Region]]:
        if not self._alone:
            shown = self.arrangement.shown(self.available)
            return plan_columns(shown, size, self._needs, keep=self.arrangement.current)
        width, height = size
        name = self._current()
        return [{name: Region(0, 1, width, height - 1)}] if name and height >= 2 else []
