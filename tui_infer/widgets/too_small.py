"""What stands in place of everything where the terminal has too little room."""

from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from tui_infer.widgets.chat.prompt import Prompt

MIN_WIDTH, MIN_HEIGHT = 44, 13
HIDING = "-too-small"  # the screen's class while nothing else is shown


class TooSmall(Static):
    """Says how much room it needs; what had the focus has it again later."""

    def __init__(self) -> None:
        super().__init__("", id="too-small", markup=False)
        self._focused_before: Widget | None = None

    def fit(self, screen: Screen[None]) -> None:
        """Hide or show the screen, which has this size now."""
        width, height = screen.size
        too_small = 0 < width < MIN_WIDTH or 0 < height < MIN_HEIGHT
        if too_small:
            needs = f"It needs {MIN_WIDTH}×{MIN_HEIGHT}."
            self.update(f"Too small: {width}×{height}. {needs} Chats and drafts are kept.")
            if not screen.has_class(HIDING) and not isinstance(screen.focused, Prompt):
                self._focused_before = screen.focused
        screen.set_class(too_small, HIDING)
        if too_small:
            return
        before, self._focused_before = self._focused_before, None
        if before is not None and before.is_attached:
            screen.call_after_refresh(screen.set_focus, before, scroll_visible=False)
