"""The inspector: panels that show what the engine does, drawn from one view at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.geometry import NULL_OFFSET, NULL_SPACING, Region, Size
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.message import Message
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from tui_infer.arrangement import PANELS, Arrangement
from tui_infer.event_log import EventLog
from tui_infer.keys import PANEL_KEYS, bindings_of
from tui_infer.widgets.inspector.ab import AbPanel, ab_rows
from tui_infer.widgets.inspector.batch import BatchPanel
from tui_infer.widgets.inspector.block_detail import BlockCard, with_card
from tui_infer.widgets.inspector.block_host import BlockHost
from tui_infer.widgets.inspector.events import EventsPanel
from tui_infer.widgets.inspector.frame import Frame, activity_of, glow_since
from tui_infer.widgets.inspector.gpu import GpuPanel, gpu_rows
from tui_infer.widgets.inspector.ink import Ink
from tui_infer.widgets.inspector.kvmap import MAP_NOTES, KVPanel
from tui_infer.widgets.inspector.lines import Line, fit, to_strip, width_of
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.plan import TWO_COLUMNS, plan_rows
from tui_infer.widgets.inspector.series import StepSeries
from tui_infer.widgets.inspector.step import StepPanel
from tui_infer.widgets.inspector.table import TablePanel
from tui_infer.widgets.inspector.view import InspectorView, graph_failures
from tui_infer.widgets.inspector.window import ROUND, rows_needed

QUIET_AFTER_S = 1.2
LEFT, RIGHT = ("batch", "step", "ab", "gpu"), ("kv", "table", "events")


@dataclass(frozen=True, slots=True)
class Needs:
    """What decides over the rows of the panels; it changes with the engine, not with its steps."""

    gpu_rows: int = 1
    graphs: bool = False
    failures: bool = False
    reason: int = 0
    blocks: int = 0
    ab_rows: int = 0

    @classmethod
    def of(cls, view: InspectorView) -> "Needs":
        status = view.status
        return cls(
            gpu_rows=gpu_rows(status, view.gpu),
            graphs=bool(status and status.graph_sizes),
            failures=bool(status and graph_failures(status)),
            reason=len(view.mode_reason),
            blocks=view.mirror.num_blocks,
            ab_rows=ab_rows(view.ab),
        )


class PanelLayout(Layout):
    """Panels at the places that the inspector planned; styles are not asked, so nothing can overflow."""

    name = "panels"

    def arrange(
        self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True
    ) -> ArrangeResult:
        assert isinstance(parent, Inspector)
        places = parent.place(size)
        if parent.opened_block is not None:
            places = with_card(places, size)
            parent.map.opens = parent.map.opens or list(places) == ["kv", "card"]
        return [
            WidgetPlacement(
                places.get(child.id or "", Region()), NULL_OFFSET, NULL_SPACING, child, child.id == "card"
            )
            for child in children
        ]


class Inspector(BlockHost):
    """The panels, one above the other or in two columns where it is wide.

    The user hides, enlarges and moves them: ``arrangement`` remembers it. With ``tabbed`` one of them takes
    the whole area, under a row of tabs.

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
        super().__init__(id=id, classes=classes)
        self.arrangement = arrangement or Arrangement()
        self._tabbed = False
        self._view: InspectorView | None = None
        self._ink: Ink | None = None
        self._series = StepSeries()
        self._log = EventLog()
        self._seen: tuple[int, int] = (-1, -1)
        self._moved_at = monotonic()
        self._quiet_timer: Timer | None = None
        self._needs = Needs()
        self._panel_layout = PanelLayout()

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
        step = self.query_one("#step", Panel)
        self._series.update(view.history, step.size.width - 9, single=activity in ("paused", "past"))
        glow = glow_since(view, activity, quiet=self._quiet)
        if view.log is None:
            self._log.block_size = view.mirror.block_size
            self._log.follow(view.history)
        frame = Frame(view, self._ink, self._series, activity, glow, self.highlighted, own_log=self._log)
        for panel in self._panels():
            if panel.size.height:
                panel.draw(frame)

    def _panels(self) -> Iterable[Panel]:
        return self.query_children(Panel)

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

    # --- what the user makes of them -----------------------------------------------------------

    def forget_typed(self) -> bool:
        """Give up the number that is being typed in the map; False where there is none."""
        return self.is_mounted and self.map.forget_typed()

    @property
    def tabbed(self) -> bool:
        return self._tabbed

    @tabbed.setter
    def tabbed(self, tabbed: bool) -> None:
        if tabbed != self._tabbed:
            self._tabbed = tabbed
            self.rearrange()

    @property
    def available(self) -> list[str]:
        """Panels that have something to show."""
        there = {panel.id for panel in self._panels()}
        return [name for name in PANELS if name in there and (name != "ab" or self._needs.ab_rows)]

    @property
    def has_panel_focus(self) -> bool:
        return any(panel.has_focus for panel in self._panels())

    def rearrange(self) -> None:
        """Place the panels anew."""
        self._clear_arrangement_cache()  # which a refresh leaves to what is above
        self.refresh(layout=True)
        self.call_after_refresh(self._draw)

    def focus_panel(self, name: str = "") -> None:
        """Give a panel the focus, in front of the others; without a name the one that had it last."""
        arrangement = self.arrangement
        arrangement.hidden.discard(name)
        arrangement.current = name or arrangement.in_front(self.available)
        if arrangement.current:
            self.rearrange()
            self.query_one(f"#{arrangement.current}", Panel).focus(scroll_visible=False)

    def step_panel(self, step: int) -> None:
        """The next or previous panel gets the focus; the first of them where none has it."""
        if self.has_panel_focus:
            self.arrangement.step(self.available, step)
        self.focus_panel(self.arrangement.in_front(self.available))

    def enlarge(self, name: str) -> None:
        self.arrangement.enlarge(name)
        self.focus_panel(name)

    def leave_enlarged(self) -> bool:
        """From an enlarged panel back to all; False when none was, or where a tab shows no more anyway."""
        if not self.arrangement.enlarged or self._tabbed or not self.has_panel_focus:
            return False
        self.arrangement.enlarged = False
        self.rearrange()
        return True

    def toggle(self, name: str) -> None:
        """Hide a panel or show it again."""
        had_focus = self.has_panel_focus
        self.arrangement.toggle(name)
        self.rearrange()
        if had_focus:
            self.focus_panel(self.arrangement.in_front(self.available))

    def move(self, name: str, step: int) -> None:
        """Change places with the neighbour in the same column."""
        column = self.arrangement.shown(self.available)
        if self._is_wide(self.size.width):
            column = [other for other in column if (other in LEFT) == (name in LEFT)]
        if self.arrangement.move(name, step, column):
            self.rearrange()

    def reset(self) -> None:
        self.arrangement.reset()
        self.rearrange()

    def _current(self) -> str:
        return self.arrangement.in_front(self.available)

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

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if isinstance(event.widget, Panel) and event.widget.id:
            self.arrangement.current = event.widget.id
            event.widget.redraw()
            self.refresh()

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        if isinstance(event.widget, Panel):
            event.widget.redraw()

    # --- tabs ----------------------------------------------------------------------------------

    @property
    def _alone(self) -> bool:
        """One panel has the whole area, under a row that names the others."""
        return self._tabbed or self.arrangement.enlarged

    def _tabs(self) -> list[tuple[str, str]]:
        """(panel, label) of each tab."""
        names = self.arrangement.shown(self.available)
        return [(name, self.query_one(f"#{name}", Panel).NAME) for name in names]

    def _tab_gap(self, width: int) -> int:
        labels = sum(len(label) for _, label in self._tabs())
        return 2 if labels + 2 * len(self._tabs()) <= width else 1

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y or not self._alone or self._ink is None:
            return Strip.blank(width, self.rich_style)
        ink, front, gap = self._ink, self._current(), self._tab_gap(width)
        line: Line = []
        for name, label in self._tabs():
            style = ink.lit(ink.title if self.has_panel_focus else ink.dim) if name == front else ink.dim
            line.append((f" {label} " if gap == 2 else f"{label} ", style))
        line = fit(line, width)
        return to_strip([*line, (" " * (width - width_of(line)), ink.base)], width)

    def on_click(self, event: events.Click) -> None:
        if event.widget is not self or event.y or not self._alone:
            return
        x, gap = event.x, self._tab_gap(self.size.width)
        for name, label in self._tabs():
            x -= len(label) + gap
            if x < 0:
                self.focus_panel(name)
                return

    # --- placing -------------------------------------------------------------------------------

    def place(self, size: Size) -> dict[str, Region]:
        """Where each panel goes in an area of this size; panels without a place are not shown."""
        width, height = size
        if self._alone:
            name = self._current()
            if not name or height < 2:
                return {}
            panel = self.query_one(f"#{name}", Panel)
            panel.opens = panel.closes = True
            return {name: Region(0, 1, width, height - 1)}
        shown = self.arrangement.shown(self.available)
        left, right = ([name for name in shown if name in side] for side in (LEFT, RIGHT))
        wide = self._is_wide(width) and left and right
        column = width // 2 if wide else width
        needs = self._needs
        most = {
            "batch": 6 + needs.failures if needs.graphs else 5 if needs.reason > column - 24 else 4,
            "table": 4 if height >= 50 else 3,
            "gpu": needs.gpu_rows,
            "ab": needs.ab_rows,
        }
        if wide:
            beside = Region(column, 0, width - column, height)
            return {
                **self._column(left, Region(0, 0, column, height), most, ("step",)),
                **self._column(right, beside, most, ("kv", "table", "events")),
            }
        return self._column(shown, Region(0, 0, width, height), most, ("kv", "step"))

    def _is_wide(self, width: int) -> bool:
        return width >= TWO_COLUMNS

    def _column(
        self, names: Sequence[str], area: Region, most: dict[str, int], greedy: Sequence[str]
    ) -> dict[str, Region]:
        rows: dict[str, int] = {}
        for wide, step in ((wide, step) for wide in (True, False) for step in ROUND):
            map_rows = rows_needed(self._needs.blocks, max(1, area.width - 4), wide=wide, step=step)
            most = most | {"kv": max(6, map_rows + MAP_NOTES)}
            rows = plan_rows(names, area.height, most, greedy=greedy, keep=self.arrangement.current)
            if rows.get("kv", 0) >= map_rows + MAP_NOTES:
                break
        places: dict[str, Region] = {}
        y = area.y
        shown = [name for name in names if name in rows]
        for name in shown:
            closes = name == shown[-1]
            height = rows[name] + 1 + closes
            places[name] = Region(area.x, y, area.width, height)
            y += height
            panel = self.query_one(f"#{name}", Panel)
            panel.opens, panel.closes = name == shown[0], closes
        return places
