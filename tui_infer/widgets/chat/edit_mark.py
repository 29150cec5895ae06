"""The row above a prompt that says which message its text goes in place of."""

from tui_infer.session import SessionState
from tui_infer.widgets.bar import Part, PartsBar, fit


class EditMark(PartsBar):
    """Shown while a prompt of the chat is edited."""

    DEFAULT_CSS = """
    EditMark { display: none; background: $surface; }
    """

    _shown: tuple[int, int] | None = None

    def bind(self, session: SessionState) -> None:
        """Say what is edited in a chat; nothing, where nothing is."""
        at = session.editing
        shown = None if at is None else (at // 2 + 1, (len(session.turns) + 1) // 2)
        if shown != self._shown:
            self._shown = shown
            self.display = shown is not None
            self.refresh()

    def parts(self, width: int) -> list[Part]:
        if self._shown is None:
            return []
        number, total = self._shown
        behind = total - number
        later = f", and {behind} after it" if behind else ""
        long = (
            f" ✎ editing prompt {number} of {total} · Enter asks it instead{later} · Esc leaves it as it was"
        )
        short = f" ✎ editing prompt {number} of {total} · Esc leaves it"
        text = long if len(long) <= width else short
        return [Part(fit(text, width), self.ink("warning", bold=True))]
