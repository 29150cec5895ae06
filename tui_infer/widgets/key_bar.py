"""The bottom line: the keys that matter now."""

from rich.cells import cell_len
from textual.screen import Screen

from tui_infer.widgets.bar import Bar, Part
from tui_infer.widgets.inspector.panel import Panel

# (binding id, label, label on a narrow screen), the most important first; what does not fit is left out,
# the help screen has all
SHOWN = [
    ("help", "help", "help"),
    ("palette", "commands", "palette"),
    ("new", "new", "new"),
    ("mode", "graph/eager", "mode"),
    ("pause", "pause", "pause"),
    ("step", "step", "step"),
    ("past", "look back", "past"),
    ("layout", "layout", "layout"),
    ("inspector", "inspector", "inspect"),
    ("cancel", "stop", "stop"),
    ("next", "next chat", "next"),
    ("zoom", "zoom", "zoom"),
    ("panel", "panels", "panels"),
    ("until", "until", "until"),
    ("all", "to all", "to all"),
    ("compare", "compare", "compare"),
]
# what every panel of the inspector takes, after its own keys
PANEL_HINTS = [
    ("Esc", "back"),
    ("Tab", "next"),
    ("z", "enlarge"),
    ("x", "hide"),
    ("⇧↑↓", "move"),
    ("u", "all"),
]
BESIDE_OTHERS = ("help", "palette", "new", "all")  # the most important where several chats are shown
WIDE = 100
ORDER = ["help", "mode", "pause", "step", "past", "until", "layout", "inspector", "panel"]
ORDER += ["zoom", "next", "all", "compare", "new", "cancel", "palette"]


class KeyBar(Bar):
    """Keys and what they do, as they are bound; a click does the same. Before them, how many chats get what
    is sent, where these are several.
    """

    _chats = 0
    _receivers = 0

    def set_receivers(self, shown: int, *, to_all: bool) -> None:
        """How many chats are shown, and whether all of them get what is sent."""
        if (shown, shown * to_all) != (self._chats, self._receivers):
            self._chats, self._receivers = shown, shown * to_all
            self.refresh()

    def _receivers_part(self, keys: dict[str, tuple[str, str]]) -> list[Part]:
        if not self._receivers or "all" not in keys:
            return []
        key, action = keys["all"]
        text = f" ⇉ to all {self._receivers} shown, {key} ends it "
        return [Part(text, self.ink("warning", bold=True, reverse=True), action)]

    def parts(self, width: int) -> list[Part]:
        key_style, text_style = self.ink("footer-key-foreground", bold=True), self.ink("foreground", 0.7)
        keys = bound_keys(self.screen)
        chosen: dict[str, list[Part]] = {}
        used = 0
        hints = self._panel_hints(width)
        if hints:
            return hints
        several = self._receivers_part(keys)
        used += sum(cell_len(part.text) for part in several)
        # beside another chat the switch matters as much as opening one
        first = [hint for hint in SHOWN if hint[0] in BESIDE_OTHERS and self._chats > 1]
        for name, wide, narrow in [*first, *(hint for hint in SHOWN if hint not in first)]:
            if name not in keys or (several and name == "all"):
                continue
            label = wide if width >= WIDE else narrow
            key, action = keys[name]
            parts = [Part(f" {key}", key_style, action), Part(f" {label} ", text_style, action)]
            cells = sum(cell_len(part.text) for part in parts)
            if used + cells > width:
                break
            chosen[name] = parts
            used += cells
        return [*several, *(part for name in ORDER for part in chosen.get(name, []))]

    def _panel_hints(self, width: int) -> list[Part]:
        """Keys of the panel that has the focus; they are pressed, not clicked."""
        panel = self.screen.focused
        if not isinstance(panel, Panel):
            return []
        key_style, text_style = self.ink("footer-key-foreground", bold=True), self.ink("foreground", 0.7)
        parts = [Part(f" {panel.NAME} ", self.ink("secondary", bold=True))]
        used = cell_len(parts[0].text)
        own = {key for key, _ in panel.HINTS}
        for key, label in [*panel.HINTS, *(hint for hint in PANEL_HINTS if hint[0] not in own)]:
            cells = cell_len(key) + cell_len(label) + 3
            if used + cells > width:
                break
            parts += [Part(f" {key}", key_style), Part(f" {label} ", text_style)]
            used += cells
        return parts


def bound_keys(screen: Screen) -> dict[str, tuple[str, str]]:
    """For each binding id of the app, how its first key is shown, and its action."""
    keys: dict[str, tuple[str, str]] = {}
    for active in screen.app.active_bindings.values():
        binding = active.binding
        if binding.id and binding.id not in keys:
            action = binding.action if "." in binding.action else f"app.{binding.action}"
            keys[binding.id] = (short_key(binding.key), action)
    return keys


def short_key(key: str) -> str:
    """A key as people write it: F1, ^n, Esc, Alt+1."""
    names = {"escape": "Esc", "shift+tab": "⇧Tab", "tab": "Tab", "enter": "Enter"}
    if key in names:
        return names[key]
    if key.startswith("ctrl+") and len(key) == 6:
        return f"^{key[5]}"
    return "+".join(word.capitalize() if len(word) > 1 else word for word in key.split("+"))
