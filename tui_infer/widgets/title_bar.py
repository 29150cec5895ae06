"""The top line: what runs, on what, and how."""

from rich.cells import cell_len

from tui_infer.sanitize import one_line
from tui_infer.state import AppState
from tui_infer.widgets.bar import Bar, Part, fit


class TitleBar(Bar):
    """``tui-infer · model · cuda:0 bf16 · flash-attn · graph`` and, at the right, what the engine does."""

    def __init__(self, state: AppState) -> None:
        super().__init__()
        self._state = state

    def parts(self, width: int) -> list[Part]:
        state = self._state
        dim, plain = self.ink("foreground", 0.45), self.ink("foreground", 0.85)
        left = [Part(" tui-infer", self.ink("primary", bold=True))]
        for text in _facts(state):
            left += [Part(" · ", dim), Part(text, plain)]
        right = self._right()
        room = width - sum(cell_len(part.text) for part in right) - 1
        left = _fit_parts(left, room)
        gap = room + 1 - sum(cell_len(part.text) for part in left)
        return [*left, Part(" " * max(0, gap), dim), *right]

    def _right(self) -> list[Part]:
        state = self._state
        parts: list[Part] = []
        if state.layout.zoomed:
            parts.append(Part(" zoom ", self.ink("accent")))
        if state.phase == "failed":
            title = one_line(state.failure.title if state.failure else "engine stopped", 30)
            parts.append(Part(f"✗ {title} ", self.ink("error", bold=True), "app.restart_engine"))
        elif state.phase == "loading":
            parts.append(Part("◐ loading ", self.ink("warning")))
        elif state.paused:
            parts.append(Part("‖ paused ", self.ink("warning", bold=True), "app.toggle_pause"))
        elif state.active:
            parts.append(Part(f"● {state.active} active ", self.ink("success", bold=True)))
        else:
            parts.append(Part("○ idle ", self.ink("foreground", 0.6)))
        return parts


def _facts(state: AppState) -> list[str]:
    status = state.status
    if status is None:
        return []
    dtype = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(status.dtype, status.dtype)
    return [status.model_name, f"{status.device} {dtype}", status.attention, state.mode]


def _fit_parts(parts: list[Part], width: int) -> list[Part]:
    """Parts cut at ``width`` cells; the last one that shows ends with an ellipsis."""
    kept: list[Part] = []
    for part in parts:
        room = width - sum(cell_len(other.text) for other in kept)
        if room <= 0:
            break
        kept.append(part._replace(text=fit(part.text, room)))
    return kept
