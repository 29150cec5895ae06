"""The row of chats: number, state, letter, title."""

from rich.cells import cell_len
from rich.style import Style
from textual import events

from tui_infer.session import SessionState
from tui_infer.state import AppState
from tui_infer.themes import session_color
from tui_infer.widgets.bar import Part, PartsBar, fit
from tui_infer.widgets.chat.hovered import Hovered
from tui_infer.widgets.chat.marks import MARKS

MIN_TITLE = 4
MAX_TITLE = 22


class SessionBar(PartsBar):
    """All chats in order; titles shrink until they fit, and the row moves so that the focused one shows."""

    def __init__(self, state: AppState) -> None:
        super().__init__()
        self._state = state
        self._hovered = ""

    def parts(self, width: int) -> list[Part]:
        sessions = list(self._state.sessions.values())
        new = Part(" + new ", self.ink("foreground", 0.55), "app.new_chat")
        room = width - cell_len(new.text) - 1
        title_width = max(MIN_TITLE, min(MAX_TITLE, room // len(sessions) - 9))
        tabs = [self._tab(number, session, title_width) for number, session in enumerate(sessions, 1)]
        widths = [sum(cell_len(part.text) for part in tab) for tab in tabs]
        first, last = _window(widths, list(self._state.sessions).index(self._state.focused), room - 4)
        dim = self.ink("foreground", 0.5)
        row: list[Part] = [Part("‹" if first else " ", dim)]
        for tab in tabs[first:last]:
            row += tab
        if last < len(tabs):
            row.append(Part(f" ›{len(tabs) - last} ", dim))
        return [*row, new]

    def on_mouse_move(self, event: events.MouseMove) -> None:
        x, actions = event.x, {f"app.focus_chat({session!r})": session for session in self._state.sessions}
        for text, _, action in self.parts(self.size.width):
            x -= cell_len(text)
            if x < 0:
                self._hover(actions.get(action, ""))
                return
        self._hover("")

    def on_leave(self, event: events.Leave) -> None:
        self._hover("")

    def _hover(self, session: str) -> None:
        if session != self._hovered:
            self._hovered = session
            self.post_message(Hovered(session))

    def _tab(self, number: int, session: SessionState, title_width: int) -> list[Part]:
        color = session_color(self.app.current_theme, session.color)
        mark, mark_color = MARKS[session.status]
        here = session.id == self._state.focused
        shown = here or session.id in self._state.layout.shown
        action = f"app.focus_chat({session.id!r})"
        _, background = self.background_colors
        ground = (
            Style(bgcolor=background.blend(self.colors[-1], 0.14, alpha=1.0).rich_color) if here else Style()
        )
        title = fit(session.title, title_width)
        name = self.ink("foreground", 1.0 if here else (0.85 if shown else 0.6), bold=here or session.unread)
        star = "*" if session.unread else ""
        return [
            Part(f" {number} ", self.ink("foreground", 0.85 if here else 0.6) + ground, action),
            Part(f"{mark} ", self.ink(mark_color) + ground, action),
            Part(
                f"{session.letter} ", self.ink("foreground", bold=True) + Style(color=color) + ground, action
            ),
            Part(f"{title}{star} ", name + ground, action),
        ]


def _window(widths: list[int], focused: int, room: int) -> tuple[int, int]:
    """Range of tabs, as wide as ``room`` allows, with the focused one in it."""
    if sum(widths) <= room + 4:
        return 0, len(widths)
    first = last = focused
    used = widths[focused]
    last += 1
    while True:
        if first > 0 and used + widths[first - 1] <= room:
            first -= 1
            used += widths[first]
        elif last < len(widths) and used + widths[last] <= room:
            used += widths[last]
            last += 1
        else:
            return first, last
