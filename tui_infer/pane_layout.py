"""Which chats are shown, and how the panes share the area. Plain data, no Textual."""

from dataclasses import dataclass, field

LAYOUTS = ("1", "2", "4")
MIN_PANE_WIDTH = 38
MIN_PANE_HEIGHT = 9


@dataclass(slots=True)
class PaneLayout:
    """The panes' assignment to chats: stable, so that a chat stays where the eye found it.

    ``name`` is ``auto`` (as many panes as chats, up to four), ``1``, ``2`` or ``4``. ``slots`` are the
    ids of the chats that have panes, in order, where there is room for all; ``shown`` are those seen now. A
    window that shrinks and grows again shows the same ones as before.
    """

    name: str = "auto"
    zoomed: bool = False
    slots: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def wanted(self, chats: int) -> int:
        """Panes to show before the terminal's size has its say."""
        return min({"1": 1, "2": 2}.get(self.name, 4), chats)

    def cycle(self, chats: int) -> str:
        """1, 2, 2x2 and round again; from ``auto`` to what comes after the layout it shows."""
        shown = self.name if self.name in LAYOUTS else {1: "1", 2: "2"}.get(self.wanted(chats), "4")
        self.name = LAYOUTS[(LAYOUTS.index(shown) + 1) % len(LAYOUTS)]
        self.zoomed = False
        return self.name

    def focus(self, chat: str, before: str, chats: int) -> None:
        """A focused chat that no pane shows takes the pane of the one focused before."""
        if chat not in self.slots and before in self.slots and len(self.slots) >= self.wanted(chats):
            self.slots[self.slots.index(before)] = chat

    def forget(self, chat: str) -> None:
        """Take a deleted chat out of its pane."""
        self.slots = [slot for slot in self.slots if slot != chat]

    def choose(self, chats: list[str], focused: str, room: int) -> list[str]:
        """Ids of the chats to show: at most ``room``, the focused one always among them."""
        count = self.wanted(len(chats))
        if count > 1:  # one pane shows whom the user looks at, and forgets nobody's place
            slots = [slot for slot in self.slots if slot in chats]
            slots += [chat for chat in chats if chat not in slots]
            if focused in slots[count:]:
                slots.remove(focused)
                slots.insert(count - 1, focused)
            self.slots = slots[:count]
        most = 1 if self.zoomed else min(count, max(1, room))
        self.shown = [slot for slot in self.slots[:most] if slot in chats]
        if focused not in self.shown:
            self.shown[most - 1 :] = [focused]
        return list(self.shown)


def grid(count: int, width: int, height: int) -> tuple[int, int]:
    """Columns and rows for ``count`` panes in ``width`` x ``height`` cells, as far as they stay readable.

    Two panes stand side by side where both keep ``MIN_PANE_WIDTH`` columns, else above each other.
    The product may be less than ``count``: what does not fit is not shown.
    """
    columns = max(1, min(2, width // MIN_PANE_WIDTH))
    rows = max(1, min(2, height // MIN_PANE_HEIGHT))
    if count <= 1:
        return 1, 1
    if count == 2:
        return (2, 1) if columns == 2 else (1, rows)
    return columns, rows
