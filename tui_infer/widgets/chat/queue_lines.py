"""What waits behind the answer under way, above the prompt."""

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip

from tui_infer.queueing import waiting
from tui_infer.sanitize import one_line
from tui_infer.session import SessionState
from tui_infer.widgets.bar import Part, PartsBar, fit

MOST_ROWS = 3  # of prompts; the rest is counted
PAUSED = "‖ queue paused · Enter in an empty prompt sends the next · ↑ takes the last back"
PAUSED_SHORT = "‖ paused · Enter goes on · ↑ edits"
HINT = " ↑ takes it back"


class QueueLines(PartsBar):
    """A row for each queued prompt, at most ``MOST_ROWS``, and one that says when they wait for the user."""

    DEFAULT_CSS = """
    QueueLines { display: none; background: $surface; }
    """

    _shown: tuple[tuple[str, ...], bool] = ((), False)

    def bind(self, session: SessionState) -> None:
        """Show the queue of a chat; without one there is no row."""
        shown = (tuple(session.queue), waiting(session))
        if shown == self._shown:
            return
        self._shown = shown
        self.display = bool(session.queue)
        self.styles.height = len(self.rows(max(1, self.size.width)))
        self.refresh()

    def rows(self, width: int) -> list[list[Part]]:
        """The rows from top to bottom."""
        queue, paused = self._shown
        dim, text = self.ink("foreground", 0.5), self.ink("foreground", 0.8)
        rows: list[list[Part]] = []
        if paused:
            note = PAUSED if cell_len(PAUSED) < width else PAUSED_SHORT
            rows.append([Part(fit(f" {note}", width), self.ink("warning", bold=True))])
        shown = queue if len(queue) <= MOST_ROWS else queue[: MOST_ROWS - 1]
        for prompt in shown:
            label = " queued: "
            words = fit(one_line(prompt, 400), width - cell_len(label) - 1)
            rows.append([Part(label, dim), Part(words, text)])
        if len(shown) < len(queue):
            rows.append([Part(f" … and {len(queue) - len(shown)} more", dim)])
        used = sum(cell_len(part.text) for part in rows[-1]) if rows else width
        if not paused and used + len(HINT) < width:
            rows[-1].append(Part(HINT, dim))
        return rows

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.ink("foreground")
        rows = self.rows(width)
        segments = [Segment(text, base + style) for text, style, _ in (rows[y] if y < len(rows) else ())]
        return Strip(segments).crop_extend(0, width, base)
