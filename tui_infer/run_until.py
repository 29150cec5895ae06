"""Run until: the conditions at which the engine can be stopped, as a user names them. Plain data."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from engine.commands import RunUntil, RunUntilKind


class Condition(NamedTuple):
    """``word`` is typed, ``words`` are shown; ``of_chat`` says that it can be asked of one chat alone."""

    word: str
    kind: RunUntilKind
    words: str
    of_chat: bool = True


CONDITIONS = (
    Condition("eviction", "eviction", "a cached block is evicted"),
    Condition("allocation", "allocation", "a block is allocated"),
    Condition("prefix", "prefix_hit", "a prefix hit"),
    Condition("preemption", "preemption", "a chat is preempted"),
    Condition("graph", "graph_change", "the graph size changes", of_chat=False),
    Condition("eager", "eager", "a decode step runs eager", of_chat=False),
    Condition("finished", "finished", "an answer ends"),
    Condition("step", "step", "step N was run", of_chat=False),
)
BY_WORD: Mapping[str, Condition] = {condition.word: condition for condition in CONDITIONS}
USAGE = f"It takes {', '.join(c.word for c in CONDITIONS[:-1])} or step N, and a chat's letter if you like."


def parse(words: Sequence[str], letters: Mapping[str, str]) -> RunUntil | str:
    """What ``/until eviction A`` asks for, or what is wrong with it; ``letters`` gives a chat's session."""
    condition = BY_WORD.get(words[0].lower()) if words else None
    if condition is None:
        return USAGE
    rest = list(words[1:])
    if condition.kind == "step":
        number = rest[0].replace(",", "") if rest else ""
        if len(rest) != 1 or not re.fullmatch(r"[0-9]{1,18}", number):
            return "step takes the number of a step."
        return RunUntil("step", step=int(number))
    if not rest:
        return RunUntil(condition.kind)
    session = letters.get(rest[0].upper())
    if len(rest) > 1 or session is None:
        return f"There is no chat “{' '.join(rest)}”."
    if not condition.of_chat:
        return f"{condition.word} is not of one chat alone."
    return RunUntil(condition.kind, session=session)


def describe(command: RunUntil, letters: Mapping[str, str]) -> str:
    """``an answer ends, of A``; ``step 612 was run``."""
    if command.kind == "step":
        return f"step {command.step:,}"
    words = next(condition.words for condition in CONDITIONS if condition.kind == command.kind)
    letter = next((letter for letter, session in letters.items() if session == command.session), "")
    return f"{words}, of {letter}" if letter else words


def with_letters(reason: str, sessions: Iterable[tuple[str, str]]) -> str:
    """The engine's reason with its session ids as the letters of the chats; ``sessions`` are such pairs."""
    letters = dict(sessions)
    return re.sub(r"\b(?:chat|load)-\d+\b", lambda found: letters.get(found[0], found[0]), reason)
