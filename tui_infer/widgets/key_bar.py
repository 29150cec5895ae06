"""The bottom line: the keys that matter now."""

from rich.cells import cell_len
from textual.screen import Screen

from tui_infer.keymap import short_key
from tui_infer.widgets.bar import Bar, Part
from tui_infer.widgets.chat.messages import Messages
from tui_infer.widgets.inspector.panel import Panel

# (binding id, label, label on a narrow screen), the most important first; what does not fit is left out,
# the help screen has all
SHOWN = [
    ("help", "help", "help"),
    ("palette", "commands", "palette"),
    ("new", "new", "new"),
    ("messages", "copy, edit", "copy"),
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
# what every panel of the inspector takes, after its own keys, with the ids by which they are bound
PANEL_HINTS = [
    ("Esc", "back", "cancel"),
    ("Tab", "next", "next"),
    ("1-9", "panel", ""),
    ("z", "enlarge", "panel-enlarge"),
    ("x", "hide", "panel-hide"),
    ("⇧↑↓", "move", "panel-up"),
    ("u", "all", "panel-all"),
]
BESIDE_OTHERS = ("help", "palette", "new", "all")  # the most important where several chats are shown
WIDE = 100
ORDER = ["help", "mode", "pause", "step", "past", "until", "layout", "inspector", "panel"]
ORDER += ["zoom", "next", "all", "compare", "messages", "new", "cancel", "palette"]


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
        if isinstance(panel, Messages) and panel.turn is not None:
            return self._message_hints(panel, width)
        if not isinstance(panel, Panel):
            return []
        key_style, text_style = self.ink("footer-key-foreground", bold=True), self.ink("foreground", 0.7)
        parts = [Part(f" {panel.NAME} ", self.ink("secondary", bold=True))]
        used = cell_len(parts[0].text)
        own = {key for key, _ in panel.hints}
        own |= {"1-9"} if "0-9" in own else set()  # its digits are not the inspector's
        keys = bound_keys(self.screen)
        common = [(_as_bound(key, id, keys), label) for key, label, id in PANEL_HINTS if key not in own]
        hints = [
            (" ".join(_bound(word, keys) for word in key.split(" ")), label) for key, label in panel.hints
        ]
        for key, label in [*hints, *common]:
            cells = cell_len(key) + cell_len(label) + 3
            if used + cells > width:
                break
            parts += [Part(f" {key}", key_style), Part(f" {label} ", text_style)]
            used += cells
        return parts

    def _message_hints(self, messages: Messages, width: int) -> list[Part]:
        """What can be done with the marked message; what cannot is dimmed, and left out where room lacks."""
        on, text = self.ink("footer-key-foreground", bold=True), self.ink("foreground", 0.7)
        off = self.ink("foreground", 0.3)
        keys = bound_keys(self.screen)
        shown = [
            (keys[id][0], label if width >= WIDE else label.split()[0], possible, f"app.turn({what!r})")
            for id, label, what, possible in messages.hints()
            if id in keys
        ]
        at, turn = messages.cursor or 0, messages.turn
        name = "prompt" if turn is not None and turn.role == "user" else "answer"
        parts = [Part(f" {name} {at // 2 + 1} ", self.ink("secondary", bold=True))]
        end = [Part(" Esc", on), Part(" back ", text)]
        room = width - sum(cell_len(part.text) for part in [*parts, *end])
        cells = [cell_len(key) + cell_len(label) + 3 for key, label, *_ in shown]
        kept = set(range(len(shown)))
        for index in sorted(kept, key=lambda index: (shown[index][2], -index)):
            if sum(cells[other] for other in kept) > room:
                kept.discard(index)
        for index in sorted(kept):
            key, label, possible, action = shown[index]
            parts += [Part(f" {key}", on if possible else off, action)]
            parts += [Part(f" {label} ", text if possible else off, action)]
        return parts + end


def _bound(word: str, keys: dict[str, tuple[str, str]]) -> str:
    """The key that an id stands for; another word as it is."""
    return keys[word][0] if word in keys else word


def _as_bound(key: str, id: str, keys: dict[str, tuple[str, str]]) -> str:
    """A key of the panels as it is bound now; the two that move a panel are one hint."""
    if id == "panel-up":
        both = [keys[name][0] for name in (id, "panel-down") if name in keys]
        return key if both in ([], ["⇧↑", "⇧↓"]) else "/".join(both)
    return keys[id][0] if id in keys else key


def bound_keys(screen: Screen) -> dict[str, tuple[str, str]]:
    """For each binding id of the app, how its first key is shown, and its action."""
    keys: dict[str, tuple[str, str]] = {}
    for active in screen.app.active_bindings.values():
        binding = active.binding
        if binding.id and binding.id not in keys:
            action = binding.action if "." in binding.action else f"app.{binding.action}"
            keys[binding.id] = (short_key(binding.key), action)
    return keys
