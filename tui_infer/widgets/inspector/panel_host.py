"""What the user makes of the panels: which are shown and where, which is in front or has the focus."""

from collections.abc import Iterable

from textual import events

from tui_infer.arrangement import Arrangement
from tui_infer.widgets.inspector.block_host import BlockHost
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.places import same_column


class PanelHost(BlockHost):
    """Base of the inspector: hides, enlarges and moves its panels; ``arrangement`` remembers it. With
    ``tabbed`` one of them takes the whole area, under a row of tabs.
    """

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

    @property
    def available(self) -> list[str]:
        """Panels that have something to show."""
        raise NotImplementedError

    @property
    def tabbed(self) -> bool:
        return self._tabbed

    @tabbed.setter
    def tabbed(self, tabbed: bool) -> None:
        if tabbed != self._tabbed:
            self._tabbed = tabbed
            self.rearrange()

    def _panel(self, name: str) -> Panel:
        return self.query_one(f"#{name}", Panel)

    def _panels(self) -> Iterable[Panel]:
        return self.query_children(Panel)

    @property
    def _alone(self) -> bool:
        """One panel has the whole area, under a row that names the others."""
        return self._tabbed or self.arrangement.enlarged

    def _current(self) -> str:
        return self.arrangement.in_front(self.available)

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
            self._panel(arrangement.current).focus(scroll_visible=False)

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
        column = same_column(name, self.arrangement.shown(self.available), self.size.width)
        if self.arrangement.move(name, step, column):
            self.rearrange()

    def reset(self) -> None:
        self.arrangement.reset()
        self.rearrange()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if isinstance(event.widget, Panel) and event.widget.id:
            self.arrangement.current = event.widget.id
            event.widget.redraw()
            self.refresh()

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        if isinstance(event.widget, Panel):
            event.widget.redraw()
