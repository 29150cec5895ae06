"""The rows under the session bar while the engine is not ready: what it does, or why it stopped."""

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip

from tui_infer.sanitize import one_line
from tui_infer.state import AppState
from tui_infer.widgets.bar import Part, PartsBar, fit
from tui_infer.widgets.chat.wrap import wrap

METER = 24


class Banner(PartsBar):
    """One row with the stage and a meter while loading; title, reason and way out after a failure."""

    DEFAULT_CSS = """
    Banner { display: none; padding: 0; background: $surface; }
    Banner.-failed { background: $error 12%; }
    """

    def __init__(self, state: AppState) -> None:
        super().__init__()
        self._state = state
        self._rows: list[list[Part]] = []

    def update(self, width: int) -> None:
        """Bring height and text in line with the state; hidden when the engine is ready."""
        failed = self._state.phase == "failed"
        self.display = self._state.phase != "ready"
        self.set_class(failed, "-failed")
        self._rows = self._failure(width) if failed else [self._progress(width)]
        self.styles.height = len(self._rows)
        self.refresh()

    def parts(self, width: int) -> list[Part]:
        return self._rows[0] if self._rows else []

    def render_line(self, y: int) -> Strip:
        base = self.ink("foreground")
        if y >= len(self._rows):
            return Strip.blank(self.size.width, base)
        segments = [Segment(text, base + style) for text, style, _ in self._rows[y]]
        return Strip(segments).crop_extend(0, self.size.width, base)

    def _progress(self, width: int) -> list[Part]:
        progress = self._state.progress
        plain, dim = self.ink("foreground"), self.ink("foreground", 0.55)
        parts = [Part(" ◐ ", self.ink("warning")), Part(one_line(progress.stage, 60), plain)]
        if progress.fraction is not None:
            done = min(METER, max(0, round(progress.fraction * METER)))
            parts += [
                Part("  " + "━" * done, self.ink("primary")),
                Part("━" * (METER - done), self.ink("foreground", 0.2)),
                Part(f" {progress.fraction:4.0%}", plain),
            ]
        room = width - sum(cell_len(part.text) for part in parts) - 3
        if progress.detail and room > 8:
            parts.append(Part("  " + fit(one_line(progress.detail), room), dim))
        return parts

    def _failure(self, width: int) -> list[list[Part]]:
        failure = self._state.failure
        if failure is None:
            return []
        error, key = self.ink("error", bold=True), self.ink("primary", bold=True)
        plain, dim = self.ink("foreground"), self.ink("foreground", 0.7)
        text = one_line(f"{failure.message} {failure.hint}", 600)
        rows = [[Part(f" ✗ {one_line(failure.title, 60)}", error)]]
        for line in wrap([(text, plain)], max(10, width - 4))[:4]:
            rows.append([Part("   ", plain), *(Part(piece, style) for piece, style in line)])
        restart = [Part("   ", plain), Part(self._state.keys["restart"], key, "app.restart_engine")]
        rows.append([*restart, Part(" restarts the engine; your chats are kept", dim)])
        if self._state.status is None:  # it never ran: another try of the same model may fail the same way
            other = f"{self._state.keys['model']} or /model NAME loads another model"
            rows.append([Part(fit(f"   {other}", width), dim)])
        return rows
