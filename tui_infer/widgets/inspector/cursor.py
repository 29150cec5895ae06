"""The cursor of the block map: which block it is on, and the number that is being typed."""

from dataclasses import dataclass

from tui_infer.widgets.inspector.window import MapWindow

MAX_DIGITS = 9


@dataclass
class MapCursor:
    """``block`` is None before the map was ever pointed at; ``typed`` are digits that Enter goes to."""

    block: int | None = None
    typed: str = ""

    def leave(self) -> None:
        self.block, self.typed = None, ""

    def moved(self, key: str, window: MapWindow) -> int | None:
        """The block to which a key moves; None for keys that do not. Rows and cells are the window's."""
        if self.block is None:
            return None
        row = window.columns * window.scale
        steps = {
            "left": -window.scale,
            "right": window.scale,
            "up": -row,
            "down": row,
            "pageup": -row * max(1, window.rows - 1),
            "pagedown": row * max(1, window.rows - 1),
        }
        last = window.num_blocks - 1
        if key == "home":
            return 0
        if key == "end":
            return last
        if key not in steps:
            return None
        target = self.block + steps[key]
        if key in ("up", "down") and not 0 <= target <= last:
            return self.block
        return max(0, min(target, last))

    def type(self, key: str, character: str | None) -> bool:
        """Take a digit, or take one back; False where the key is neither."""
        if character is not None and character.isascii() and character.isdigit():
            self.typed = (self.typed + character)[:MAX_DIGITS]
            return True
        if key == "backspace" and self.typed:
            self.typed = self.typed[:-1]
            return True
        return False

    def take_typed(self) -> int:
        """The number that was typed, which is then done with."""
        number, self.typed = int(self.typed), ""
        return number
