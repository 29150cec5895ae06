"""What can follow what is being typed: commands, their arguments, files. Plain data, no Textual.

``offer`` reads one line up to the cursor. It never changes a text: a choice says what would stand in place of
the word at the cursor.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tui_infer.mentions import MENTION_START
from tui_infer.sanitize import one_line
from tui_infer.slash import SlashCommand

MOST_CHOICES = 200


class Choice(NamedTuple):
    """What would be written, what the list shows of it, and whether the command is complete with it."""

    text: str
    label: str
    help: str = ""
    final: bool = False


class Paths(NamedTuple):
    """Files are to be chosen from; ``typed`` is the path so far. ``mention`` quotes as ``@`` does."""

    start: int
    typed: str
    mention: bool = False


class Offer(NamedTuple):
    """Choices in place of characters from ``start`` up to the cursor; ``typed`` stands there now.

    ``usage`` says how a command goes on where there is nothing to choose from.
    """

    start: int
    typed: str
    choices: tuple[Choice, ...] = ()
    usage: str = ""


@dataclass(frozen=True)
class World:
    """What the app has to choose from. ``letters`` are those of the open chats with their titles,
    ``parameters`` and ``presets`` names with what they are now.
    """

    commands: Mapping[str, SlashCommand]
    themes: Sequence[str] = ()
    letters: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    presets: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    search_key: str = "^r"


# What an argument can be, given the words before it; None where it is a file.
Argument = Callable[[World, Sequence[str]], Iterable[Choice] | None]


def offer(line: str, world: World, *, first: bool = True) -> Offer | Paths | None:
    """What goes on at the end of ``line``; commands only on the ``first`` line of a prompt."""
    if first and line.startswith("/") and not line.startswith("//"):
        return _of_command(line, world)
    if match := MENTION_START.search(line):
        return Paths(match.start(), match[1] or match[2] or "", mention=True)
    return None


def _of_command(line: str, world: World) -> Offer | Paths | None:
    name, blank, rest = line[1:].partition(" ")
    if not blank:
        return _names(line, world)
    command = world.commands.get(name.lower())
    if command is None:
        return None
    argument = ARGUMENTS.get(command.name)
    words = rest.split(" ")
    typed, before = words[-1], [word for word in words[:-1] if word]
    start = len(line) - len(typed)
    if argument is None:
        if mention := MENTION_START.search(line):
            return Paths(mention.start(), mention[1] or mention[2] or "", mention=True)
    else:
        if command.name in OR_FILES and ("/" in typed or typed[:1] in (".", "~")):
            return Paths(start, typed)
        choices = argument(world, before)
        if choices is None:
            return Paths(start, typed)
        if found := _matching(choices, typed):
            return Offer(start, typed, found, _usage(command))
    return Offer(start, typed, usage=_usage(command)) if not rest.strip() and command.arguments else None


def _usage(command: SlashCommand) -> str:
    return f"/{command.name} {command.description}"


def _names(line: str, world: World) -> Offer | None:
    choices = [
        Choice(f"/{command.name}{' ' if command.arguments else ''}", f"/{command.name}", command.description)
        for command in world.commands.values()
    ]
    found = _matching(choices, line, within=len(line) > 2)
    return Offer(0, line, found) if found else None


def _matching(choices: Iterable[Choice], typed: str, *, within: bool = True) -> tuple[Choice, ...]:
    """Those that begin with what is typed, then those that have it within; none where one is complete."""
    known, wanted = list(choices), typed.lower()
    first = [choice for choice in known if choice.label.lower().startswith(wanted)]
    inner = wanted.lstrip("/")
    rest = (
        [choice for choice in known if choice not in first and inner in choice.label.lower()]
        if within
        else []
    )
    found = (*first, *rest)[:MOST_CHOICES]
    if any(choice.text == typed for choice in found) and not typed.startswith("/"):
        return ()
    return found


# --- arguments -------------------------------------------------------------------------------------


def _one_of(pick: Callable[[World], Mapping[str, str]]) -> Argument:
    """One name, and nothing behind it."""

    def argument(world: World, before: Sequence[str]) -> Iterable[Choice]:
        known = pick(world)
        return [] if before else [Choice(name, name, said, final=True) for name, said in known.items()]

    return argument


def _words(*words: str) -> Argument:
    """One of these words."""
    return _one_of(lambda world: dict.fromkeys(words, ""))


def _files(world: World, before: Sequence[str]) -> None:
    return None


def _exported(world: World, before: Sequence[str]) -> Iterable[Choice] | None:
    if before:
        return None
    return [
        Choice("chat ", "chat", "this chat as .md or .json; “all” behind the name for every chat"),
        Choice("steps ", "steps", "the engine's steps as .csv or .json"),
        Choice("screenshot ", "screenshot", "what is shown as .svg"),
    ]


OR_FILES = {"model"}  # a path will do as well as a name

VALUES = {
    "seed": ("none",),
    "stop": ("none",),
    "stop_token_ids": ("none",),
    "ignore_eos": ("true", "false"),
}


def _parameters(world: World, before: Sequence[str]) -> Iterable[Choice]:
    """Names with what they are now; behind a name its finite values."""
    last = before[-1].lower().replace("-", "_") if before else ""
    if last in world.parameters and (len(before) < 2 or "=" in before[-2] or _is_value(before)):
        now = world.parameters[last]
        values = dict.fromkeys((*VALUES.get(last, ()), now))
        return [Choice(value, value, "as it is now" if value == now else "") for value in values]
    return [Choice(f"{name} ", name, f"is {now}") for name, now in world.parameters.items()]


def _is_value(before: Sequence[str]) -> bool:
    """Whether the word before the last one is a value: names and values take turns."""
    plain = [word for word in before if "=" not in word]
    return len(plain) % 2 == 1


def _letters(world: World, before: Sequence[str]) -> Iterable[Choice]:
    if before:
        return []
    return [Choice(f"{letter} ", letter, one_line(title, 60)) for letter, title in world.letters.items()]


def _until(world: World, before: Sequence[str]) -> Iterable[Choice]:
    if not before:
        return [Choice(word, word, help) for word, help in world.conditions.items()]
    if before[0].lower() == "step":
        return []
    return [Choice(letter, letter, one_line(title, 60)) for letter, title in world.letters.items()]


def _load(world: World, before: Sequence[str]) -> Iterable[Choice]:
    if not before:
        return [Choice("0", "0", "stop it", final=True)]
    given = {word.partition("=")[0] for word in before}
    return [Choice(f"{name}=", f"{name}=") for name in ("prompt", "tokens", "rate") if name not in given]


ARGUMENTS: dict[str, Argument] = {
    "mode": _words("graph", "eager"),
    "layout": _words("1", "2", "4"),
    "queue": _words("next", "clear", "drop"),
    "bench": _words("ab"),
    "theme": _one_of(lambda world: dict.fromkeys(world.themes, "")),
    "preset": _one_of(lambda world: world.presets),
    "retry": _words("new", "seed"),
    "copy": _words("code"),
    "model": _one_of(lambda world: world.models),
    "chat": _one_of(lambda world: world.letters),
    "to": _letters,
    "set": _parameters,
    "until": _until,
    "load": _load,
    "export": _exported,
    "import": _files,
    "record": _files,
}
