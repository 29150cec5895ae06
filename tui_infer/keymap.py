"""The keys in effect: the defaults of ``keys`` under what the user bound by id. Knows no Textual.

Keys have Textual's names. What people write otherwise is understood: ``^n``, ``Ctrl+N``, ``esc``, ``?``.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from tui_infer import keys as known
from tui_infer.keys import Key

APP, PANELS, MESSAGES, PAST, JUMPS = "app", "panel", "message", "past", "jump"
_MODIFIERS = ("alt", "ctrl", "shift", "super", "hyper", "meta")
_NAMED = {
    "escape", "enter", "tab", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown",
    "up", "down", "left", "right", "space",
}  # fmt: skip
_ALIASES = {
    "esc": "escape", "return": "enter", "pgup": "pageup", "pgdn": "pagedown", "page_up": "pageup",
    "page_down": "pagedown", "del": "delete", "ins": "insert", "control": "ctrl", "ctl": "ctrl",
    "option": "alt", "opt": "alt",
}  # fmt: skip
_SHORT_NAMES = {
    "solidus": "slash", "reverse_solidus": "backslash", "commercial_at": "at", "hyphen_minus": "minus",
    "plus_sign": "plus", "low_line": "underscore",
}  # fmt: skip
_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
# What arrives as another key, whatever was meant.
_SAME_BYTE = {
    "ctrl+i": "Tab", "ctrl+m": "Enter", "ctrl+h": "Backspace", "ctrl+left_square_bracket": "Esc",
}  # fmt: skip
# What the panels do with keys that are not bound by id.
_OF_A_PANEL = {
    *"123456789kKfFcwygd", "enter", "space", "escape", "up", "down", "left", "right", "home", "end",
    "pageup", "pagedown", "comma", "full_stop",
}  # fmt: skip
# The number of a step is typed there.
_OF_THE_TIMELINE = {*"0123456789", "enter", "backspace", "escape"}
# What a prompt cannot do without: the app's keys act before it sees them.
_OF_THE_PROMPT = {
    "enter": "sends it", "space": "is typed", "backspace": "deletes", "delete": "deletes",
    "up": "moves in it", "down": "moves in it", "left": "moves in it", "right": "moves in it",
    "home": "moves in it", "end": "moves in it", "ctrl+j": "is its new line",
}  # fmt: skip


class KeymapProblem(ValueError):
    """A line of ``[keys]`` that cannot be used: ``id`` of the line, the reason, and the way out."""

    def __init__(self, id: str, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.id = id
        self.hint = hint


def _name_of(character: str) -> str:
    name = unicodedata.name(character).lower().replace("-", "_").replace(" ", "_")
    return _SHORT_NAMES.get(name, name)


_PUNCTUATION_NAMES = {_name_of(character) for character in _PUNCTUATION}


def contexts() -> dict[str, list[Key]]:
    """All keys with an id by where they act, as the lists in ``keys`` are named; the app's act everywhere."""
    found = {APP: [*known.KEYS, known.PALETTE, known.QUIT]}
    for name, keys in vars(known).items():
        if name.endswith("_KEYS") and isinstance(keys, list) and all(isinstance(key, Key) for key in keys):
            found[name.removesuffix("_KEYS").lower()] = keys
    return found


def all_keys() -> Iterator[Key]:
    """All keys that can be bound by id."""
    for keys in contexts().values():
        yield from keys


def check_keymap(bound: Mapping[str, str]) -> dict[str, str]:
    """``[keys]`` of the settings with Textual's names: keys by id, with commas between several.

    Raises:
        KeymapProblem: an unknown id or key, a key that cannot work there, or one that two ids want.
    """
    ids = {key.id for key in all_keys()}
    checked: dict[str, str] = {}
    for id, keys in bound.items():
        if id not in ids:
            close = get_close_matches(id, ids, 4, 0.5)
            hint = (
                f"Did you mean {' or '.join(close)}?" if close else "'tui-infer config --keys' lists the ids."
            )
            raise KeymapProblem(id, f"{id!r} is no id of a key", hint)
        where = next(name for name, group in contexts().items() if id in (key.id for key in group))
        checked[id] = ",".join(_checked(id, key, where) for key in _split(id, keys))
    _refuse_clashes(checked)
    return checked


def effective(bound: Mapping[str, str]) -> dict[str, str]:
    """The keys of every id, with commas between several. ``bound`` is what ``check_keymap`` returned."""
    return {key.id: bound.get(key.id, key.keys) for key in all_keys()}


def short_key(key: str) -> str:
    """A key as people write it: F1, ^n, Esc, Alt+1, ⇧↑, [."""
    *modifiers, name = key.split("+")
    if not modifiers and len(name) == 1:
        return name
    marks = {"up": "↑", "down": "↓", "left": "←", "right": "→", "pageup": "PgUp", "pagedown": "PgDn"}
    shown = {"escape": "Esc", **marks}.get(name) or _character(name) or name
    if modifiers == ["ctrl"] and len(shown) == 1:
        return f"^{shown}"
    if modifiers == ["shift"] and name in {*marks, "tab"}:
        return f"⇧{shown if name in marks else 'Tab'}"
    words = [*modifiers, shown]
    return "+".join(word.capitalize() if len(word) > 1 and word.islower() else word for word in words)


class KeyNames:
    """How the keys in effect are written in hints: ``names["past"]`` is ``F9`` unless bound elsewhere."""

    def __init__(self, bound: Mapping[str, str] | None = None) -> None:
        self._keys = effective(bound or {})

    def __getitem__(self, id: str) -> str:
        return short_key(self._keys[id].split(",")[0])

    def fill(self, text: str) -> str:
        """A text in which each word that is an id stands for its key."""
        return " ".join(self[word] if word in self._keys else word for word in text.split(" "))

    def id_of(self, key: str, group: Iterable[Key]) -> str:
        """Which of these keys it is, under its name in Textual; empty where it is none."""
        return next((one.id for one in group if key in self._keys[one.id].split(",")), "")

    def all(self, id: str) -> str:
        """All keys of an id, with spaces between them."""
        return " ".join(short_key(key) for key in self._keys[id].split(","))


def _character(name: str) -> str:
    return next((character for character in _PUNCTUATION if _name_of(character) == name), "")


def _split(id: str, keys: str) -> list[str]:
    """``f5, ctrl+y`` in two; a comma alone is the key."""
    parts = [","] if keys.strip() == "," else [part.strip() for part in keys.split(",")]
    if not all(parts):
        raise KeymapProblem(id, f"{keys!r} names no key", 'Write one as "ctrl+y", or several as "ctrl+y,f5".')
    return parts


def _checked(id: str, text: str, where: str) -> str:
    """Textual's name of a key, if it can be bound to this id, which acts there."""
    key = _normal(id, text)
    if key in _SAME_BYTE:
        same = _SAME_BYTE[key]
        raise KeymapProblem(id, f"a terminal cannot tell {text!r} from {same}", "Take another key.")
    if where in (PANELS, JUMPS) and key in _OF_A_PANEL:
        raise KeymapProblem(id, f"the panels need {text!r} themselves", "Take another key.")
    if where in (PAST, JUMPS) and key in _OF_THE_TIMELINE:
        raise KeymapProblem(id, f"the timeline needs {text!r} itself", "Take another key.")
    if where == APP and key in _OF_THE_PROMPT:
        raise KeymapProblem(id, f"the prompt needs {text!r}: it {_OF_THE_PROMPT[key]}", "Take another key.")
    if where == APP and (len(key) == 1 or key in _PUNCTUATION_NAMES):
        raise KeymapProblem(
            id, f"the prompt needs {text!r}: it is typed", f"Take it with ctrl or alt, as alt+{text.strip()}."
        )
    return key


def _normal(id: str, text: str) -> str:
    """Textual's name of a key: modifiers in alphabetical order, signs by their names."""
    word = text.strip()
    if re.fullmatch(r"\^.", word):
        word = f"ctrl+{word[1]}"
    *before, last = re.split(r"(?<=[^+])\+", word) if len(word) > 1 else [word]
    modifiers = [_ALIASES.get(part.lower(), part.lower()) for part in before]
    name = last if len(last) == 1 else _ALIASES.get(last.lower(), last.lower())
    if len(name) == 1 and not name.isalnum() and name in _PUNCTUATION:
        name = _name_of(name)
    if modifiers and len(name) == 1 and modifiers != ["alt"]:
        name = name.lower()
    plain = len(name) == 1 and name.isalnum() and name.isascii()
    if (
        any(part not in _MODIFIERS for part in modifiers)
        or len(set(modifiers)) < len(modifiers)
        or not (plain or name in _NAMED | _PUNCTUATION_NAMES or re.fullmatch(r"f([1-9]|1\d|2[0-4])", name))
    ):
        raise KeymapProblem(
            id, f"{text!r} is no key", 'Keys are written as "f5", "ctrl+y", "alt+x", "shift+tab".'
        )
    if modifiers == ["shift"] and len(name) == 1 and name.isalpha():
        return name.upper()
    return "+".join([*sorted(modifiers), name])


def _refuse_clashes(bound: Mapping[str, str]) -> None:
    keys = effective(bound)
    app = dict(_pairs(contexts()[APP], keys))
    everywhere = dict(_pairs([known.PALETTE, known.QUIT, known.HELP], keys))
    panels, jumps = (dict(_pairs(contexts()[where], keys)) for where in (PANELS, JUMPS))
    on_main = {APP: {}, PANELS: app, MESSAGES: app, JUMPS: app | panels, PAST: app | jumps}
    for where, group in contexts().items():
        seen: dict[str, str] = dict(on_main.get(where, everywhere))  # other screens have keys of their own
        for key, id in _pairs(group, keys):
            other = seen.setdefault(key, id)
            # Two defaults that meet were meant to: the inner one acts.
            if other == id or not {id, other} & set(bound):
                continue
            mine, theirs = (id, other) if id in bound else (other, id)
            standing = "is bound to" if theirs in bound else "is the key of"
            raise KeymapProblem(
                mine,
                f"{short_key(key)} {standing} {theirs!r} too",
                f"Give {mine!r} or {theirs!r} another key.",
            )


def _pairs(group: list[Key], keys: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for item in group:
        for key in keys[item.id].split(","):
            yield key.strip(), item.id
