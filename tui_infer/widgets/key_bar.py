"""The bottom line: the keys that matter now."""

from typing import NamedTuple

from rich.cells import cell_len
from textual.screen import Screen

from tui_infer.keymap import short_key
from tui_infer.widgets.bar import Part, PartsBar
from tui_infer.widgets.chat.messages import Messages
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.message_bar import message_parts

# (binding id, label, label on a narrow screen), as they stand in the bar
SHOWN = [
    ("cancel", "stop", "stop"),
    ("help", "help", "help"),
    ("mode", "graph/eager", "mode"),
    ("pause", "pause", "pause"),
    ("step", "step", "step"),
    ("past", "look back", "past"),
    ("until", "until", "until"),
    ("layout", "layout", "layout"),
    ("inspector", "inspector", "inspect"),
    ("panel", "panels", "panels"),
    ("zoom", "zoom", "zoom"),
    ("next", "next chat", "next"),
    ("all", "to all", "to all"),
    ("compare", "compare", "compare"),
    ("parameters", "parameters", "params"),
    ("messages", "copy, edit", "copy"),
    ("new", "new", "new"),
    ("palette", "commands", "palette"),
]
# What is kept where room lacks, the most important first; the help screen has all.
FIRST = ["help", "palette", "new"]
CHATS = ["messages", "parameters", "compare"]
ENGINE = ["mode", "pause", "step", "past", "layout", "inspector"]
LAST = ["zoom", "panel", "until", "all", "next"]
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
WIDE = 100


class Chats(NamedTuple):
    """What of the chats the bar has to know: how many are open, how many panes get what is sent where these
    are several, how many are shown, and the letter of the focused one while it can be stopped.
    """

    open: int = 1
    shown: int = 1
    receivers: int = 0
    answering: str = ""


class KeyBar(PartsBar):
    """Keys and what they do, as they are bound; a click does the same. Before them, how many chats get what
    is sent, where these are several.
    """

    _chats = Chats()

    def follow(self, chats: Chats) -> None:
        """The chats are others now, or do something else."""
        if chats != self._chats:
            self._chats = chats
            self.refresh()

    def _receivers_part(self, keys: dict[str, tuple[str, str]]) -> list[Part]:
        receivers = self._chats.receivers
        if not receivers or "all" not in keys:
            return []
        key, action = keys["all"]
        text = f" ⇉ to all {receivers} shown, {key} ends it "
        return [Part(text, self.ink("warning", bold=True, reverse=True), action)]

    def _wanted(self, width: int) -> list[str]:
        """Ids of keys, the most important first."""
        chats = self._chats
        now = ["cancel"] if chats.answering else []
        if chats.open > 1:
            now += ["help", "palette", "next"]
        if chats.shown > 1:
            now += ["new", "all"]
        # on a narrow screen what chats need comes before what the engine can be told
        rest = [*CHATS, *ENGINE] if width < WIDE else [*CHATS[:2], *ENGINE, *CHATS[2:]]
        return list(dict.fromkeys([*now, *FIRST, *rest, *LAST]))

    def parts(self, width: int) -> list[Part]:
        if hints := self._panel_hints(width):
            return hints
        key_style, text_style = self.ink("footer-key-foreground", bold=True), self.ink("foreground", 0.7)
        keys = bound_keys(self.screen)
        labels = {name: wide if width >= WIDE else narrow for name, wide, narrow in SHOWN}
        if self._chats.open > 1 and self._chats.answering:
            labels["cancel"] += f" {self._chats.answering}"
        several = self._receivers_part(keys)
        used = sum(cell_len(part.text) for part in several)
        chosen: dict[str, list[Part]] = {}
        for name in self._wanted(width):
            if name not in keys or (several and name == "all"):
                continue
            key, action = keys[name]
            parts = [Part(f" {key}", key_style, action), Part(f" {labels[name]} ", text_style, action)]
            cells = sum(cell_len(part.text) for part in parts)
            if used + cells > width:
                break
            chosen[name] = parts
            used += cells
        return [*several, *(part for name, *_ in SHOWN for part in chosen.get(name, []))]

    def _panel_hints(self, width: int) -> list[Part]:
        """Keys of the panel that has the focus; they are pressed, not clicked."""
        panel = self.screen.focused
        if isinstance(panel, Messages) and panel.turn is not None:
            return message_parts(panel, bound_keys(self.screen), self.ink, width)
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
