"""Which panels of the inspector are shown, in which order, and which is in front. Plain data, no Textual."""

from collections.abc import Iterable
from dataclasses import dataclass, field

PANELS = ("batch", "step", "ab", "kv", "table", "events", "gpu")


@dataclass
class Arrangement:
    """What the user made of the panels; it lives as long as the app.

    ``current`` is the panel that has the focus or had it last: the tab in front, and the last to go where
    rows are few. ``enlarged`` says that it takes the whole inspector.
    """

    order: list[str] = field(default_factory=lambda: list(PANELS))
    hidden: set[str] = field(default_factory=set)
    current: str = ""
    enlarged: bool = False

    def shown(self, available: Iterable[str]) -> list[str]:
        """Panels that are not hidden, in their order; never none, so that the way back stays in sight."""
        there = set(available)
        names = [name for name in self.order if name in there]
        return [name for name in names if name not in self.hidden] or names[:1]

    def in_front(self, available: Iterable[str]) -> str:
        """The current panel, or the first one where that is not shown."""
        shown = self.shown(available)
        return self.current if self.current in shown else shown[0] if shown else ""

    def toggle(self, name: str) -> bool:
        """Hide a panel or show it again; whether it is shown now. The last one stays."""
        if name in self.hidden:
            self.hidden.discard(name)
            return True
        if any(other not in self.hidden for other in self.order if other not in (name, "ab")):
            self.hidden.add(name)
            self.enlarged = self.enlarged and self.current != name
        return name not in self.hidden

    def enlarge(self, name: str) -> bool:
        """Give a panel the whole inspector, or take it back; whether it has it now."""
        self.enlarged = not (self.enlarged and self.current == name)
        self.hidden.discard(name)
        self.current = name
        return self.enlarged

    def step(self, available: Iterable[str], step: int) -> str:
        """Make the next or previous panel the current one, round the ends; its name."""
        shown = self.shown(available)
        if not shown:
            return ""
        if self.current in shown:
            self.current = shown[(shown.index(self.current) + step) % len(shown)]
        else:
            self.current = shown[0 if step > 0 else -1]
        return self.current

    def move(self, name: str, step: int, beside: Iterable[str]) -> bool:
        """Change places with the next or previous panel of ``beside``; False at the end of it."""
        column = [other for other in self.order if other in set(beside)]
        if name not in column or not 0 <= column.index(name) + step < len(column):
            return False
        here, there = self.order.index(name), self.order.index(column[column.index(name) + step])
        self.order[here], self.order[there] = self.order[there], self.order[here]
        return True

    def reset(self) -> None:
        """All panels in their usual order."""
        self.order = list(PANELS)
        self.hidden.clear()
        self.enlarged = False
