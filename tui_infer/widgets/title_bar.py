"""The top line: what runs, on what, and how."""

from rich.cells import cell_len
from rich.style import Style
from textual.color import Color

from tui_infer.contrast import readable
from tui_infer.engine_words import computed_by, place
from tui_infer.run_until import describe
from tui_infer.sanitize import one_line
from tui_infer.state import AppState
from tui_infer.themes import inspector_colors
from tui_infer.widgets.bar import Part, PartsBar, fit

LEAST_MODEL = 8  # cells of the model's name before another fact goes


class TitleBar(PartsBar):
    """``tui-infer · model · cuda:0 bf16 · flash-attn · graph`` and, at the right, what the engine does.

    On a CPU it is ``tui-infer · model · cpu int4 · C``.
    """

    def __init__(self, state: AppState) -> None:
        super().__init__()
        self._state = state

    def parts(self, width: int) -> list[Part]:
        right = self._right()
        room = width - sum(cell_len(part.text) for part in right) - 1
        left = self._left(room)
        gap = room + 1 - sum(cell_len(part.text) for part in left)
        return [*left, Part(" " * max(0, gap), self.ink("foreground", 0.45)), *right]

    def _left(self, room: int) -> list[Part]:
        """Name, model, place, attention and mode."""
        dim, plain = self.ink("foreground", 0.45), self.ink("foreground", 0.85)
        name = " replay" if self._state.replay else " tui-infer"
        parts = [Part(name, self.ink("primary", bold=True))]
        shown = _shown(self._state, room - cell_len(parts[0].text))
        for text in shown:
            parts += [Part(" · ", dim), Part(text, plain)]
        if shown and not self._state.on_cpu:
            colors = inspector_colors(self.app.current_theme)
            color = colors.graph if self._state.mode == "graph" else colors.eager
            ink = readable(Color.parse(color), self.background_colors[1]).rich_color
            parts[-1] = Part(shown[-1], plain + Style(color=ink, bold=True), "app.toggle_mode")
        return _fit_parts(parts, room)

    def _right(self) -> list[Part]:
        state = self._state
        parts: list[Part] = []
        if state.moment is not None:
            past = f"◀ the past: step {state.moment.step:,} "
            return [
                Part(past, self.ink("warning", bold=True)),
                Part(f"{state.keys['past']} now ", self.ink("primary"), "app.look_back"),
            ]
        if state.unsaved:
            parts.append(Part("✗ not saved ", self.ink("error", bold=True)))
        if state.recording:
            parts.append(Part("● REC ", self.ink("error", bold=True), "app.toggle_recording"))
        if state.replay:
            return [Part(f"{state.replay} ", self.ink("accent", bold=True), "app.toggle_pause")]
        if state.layout.zoomed:
            parts.append(Part(" zoom ", self.ink("accent")))
        if state.phase == "failed":
            title = one_line(state.failure.title if state.failure else "engine stopped", 30)
            parts.append(Part(f"✗ {title} ", self.ink("error", bold=True), "app.restart_engine"))
        elif state.phase == "loading":
            parts.append(Part("◐ loading ", self.ink("warning")))
        elif state.until is not None:
            words = f"▶ until {describe(state.until, state.letters)} "
            parts.append(Part(words, self.ink("warning", bold=True), "app.toggle_pause"))
        elif state.paused and state.pause_reason:
            words = f"‖ {fit(state.pause_reason, max(12, self.size.width - 40))} "
            parts.append(Part(words, self.ink("warning", bold=True), "app.toggle_pause"))
        elif state.paused:
            parts.append(Part("‖ paused ", self.ink("warning", bold=True), "app.toggle_pause"))
        elif state.active:
            parts.append(Part(f"● {state.active} active ", self.ink("success", bold=True)))
        elif state.load.active:
            pass
        else:
            parts.append(Part("○ idle ", self.ink("foreground", 0.6)))
        if state.load.active and state.phase == "ready" and state.until is None and not state.pause_reason:
            parts.append(Part(f"+ {state.load.active} synthetic ", self.ink("foreground", 0.6)))
        return parts


def _shown(state: AppState, room: int) -> list[str]:
    """Model, device with the numbers of its weights, attention and mode, as far as they fit; nothing before
    the engine is ready.

    A long model name gives way first, then attention and device; the mode is the last to go. A CPU has no
    other mode than eager: there it is what computes that goes first, and the device last.
    """
    status = state.status
    if status is None:
        return []
    facts = [one_line(status.model_name), place(status), computed_by(status)]
    mode: list[str] = [] if state.on_cpu else [state.mode]
    model = cell_len(facts[0])
    for count in (3, 2, 1) if mode else (3, 2):
        kept = [*facts[:count], *mode]
        over = max(0, sum(cell_len(text) + 3 for text in kept) - room)
        if model - over >= min(model, LEAST_MODEL):
            return [fit(facts[0], model - over), *kept[1:]]
    return mode or [facts[1]]


def _fit_parts(parts: list[Part], width: int) -> list[Part]:
    """Parts cut at ``width`` cells; the last one that shows ends with an ellipsis."""
    kept: list[Part] = []
    for part in parts:
        room = width - sum(cell_len(other.text) for other in kept)
        if room <= 0:
            break
        kept.append(part._replace(text=fit(part.text, room)))
    return kept
