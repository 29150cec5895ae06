"""What the key bar says while a message of a chat is marked, or lines of it."""

from collections.abc import Callable
from typing import NamedTuple

from rich.cells import cell_len
from rich.style import Style

from tui_infer.widgets.bar import Part
from tui_infer.widgets.chat.messages import Messages

WIDE = 100
# Labels in the order in which they are kept where room lacks.
KEPT = ("copy", "again", "edit", "branch", "version", "quote", "code", "lines", "go on", "new seed")
LINES = [
    (("message-extend-up", "message-extend-down"), "extend"),
    (("message-before", "message-after"), "move"),
    (("message-copy",), "copy"),
    (("message-quote",), "quote"),
    (("message-lines",), "none"),
]

Keys = dict[str, tuple[str, str]]  # of a binding's id: how its key is shown, and its action


class _Hint(NamedTuple):
    """Keys with one label; each with whether it does anything, and what a click does."""

    keys: tuple[tuple[str, bool, str], ...]
    label: str

    @property
    def possible(self) -> bool:
        return any(possible for _, possible, _ in self.keys)


def message_parts(messages: Messages, keys: Keys, ink: Callable[..., Style], width: int) -> list[Part]:
    """What can be done with the marked message; what cannot is dimmed, and left out where room lacks."""
    on, text, off = ink("footer-key-foreground", bold=True), ink("foreground", 0.7), ink("foreground", 0.3)
    at, turn = messages.cursor or 0, messages.turn
    name = "prompt" if turn is not None and turn.role == "user" else "answer"
    name, hints = f" {name} {at // 2 + 1} ", _hints(messages, keys)
    if messages.lines is not None:
        first, last = sorted(messages.lines)
        count = last - first + 1
        name, hints = f" {count} line{'s' if count > 1 else ''} ", _line_hints(keys)
    start, end = Part(name, ink("secondary", bold=True)), [Part(" Esc", on), Part(" back ", text)]
    shown = [(hint, hint.label if width >= WIDE else hint.label.split()[0]) for hint in hints]
    cells = [sum(cell_len(key) + 1 for key, *_ in hint.keys) + cell_len(label) + 2 for hint, label in shown]
    room = width - sum(cell_len(part.text) for part in [start, *end])
    kept = set(range(len(shown)))
    for index in sorted(kept, key=lambda index: (hints[index].possible, -_rank(hints[index].label))):
        if sum(cells[other] for other in kept) > room:
            kept.discard(index)
    parts = [start]
    for index in sorted(kept):
        hint, label = shown[index]
        parts += [Part(f" {key}", on if possible else off, action) for key, possible, action in hint.keys]
        parts.append(Part(f" {label} ", text if hint.possible else off, hint.keys[0][2]))
    return parts + end


def _rank(label: str) -> int:
    return KEPT.index(label) if label in KEPT else 0


def _hints(messages: Messages, keys: Keys) -> list[_Hint]:
    """The hints of the marked message; keys with the same label are one."""
    found: dict[str, tuple[tuple[str, bool, str], ...]] = {}
    for id, label, what, possible in messages.hints():
        if id in keys:
            found[label] = (*found.get(label, ()), (keys[id][0], possible, f"app.turn({what!r})"))
    return [_Hint(own, label) for label, own in found.items()]


def _line_hints(keys: Keys) -> list[_Hint]:
    hints = [_Hint(tuple((keys[id][0], True, "") for id in ids if id in keys), label) for ids, label in LINES]
    return [hint for hint in hints if hint.keys]
