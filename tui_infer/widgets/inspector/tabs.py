"""The row of tabs over a panel that has the whole area."""

from collections.abc import Sequence

from tui_infer.widgets.inspector.ink import Ink
from tui_infer.widgets.inspector.lines import Line, fit, width_of


class Tabs:
    """``labels`` are (panel, label) in their order, beside each other in ``width`` cells."""

    def __init__(self, labels: Sequence[tuple[str, str]], width: int) -> None:
        self._labels = labels
        self._width = width
        letters = sum(len(label) for _, label in labels)
        self._gap = 2 if letters + 2 * len(labels) <= width else 1  # cells of a tab beside its label

    def line(self, ink: Ink, front: str, focused: bool) -> Line:
        """The whole row; ``front`` is the panel that is shown, lit where it has the focus."""
        line: Line = []
        for name, label in self._labels:
            style = ink.lit(ink.title if focused else ink.dim) if name == front else ink.dim
            line.append((f" {label} " if self._gap == 2 else f"{label} ", style))
        line = fit(line, self._width)
        return [*line, (" " * (self._width - width_of(line)), ink.base)]

    def at(self, x: int) -> str:
        """The panel whose tab is there; empty behind the last."""
        for name, label in self._labels:
            x -= len(label) + self._gap
            if x < 0:
                return name
        return ""
