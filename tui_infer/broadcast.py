"""One prompt for several chats: who gets it, who cannot, and how that is said. Plain data, no Textual."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tui_infer.queueing import enqueue
from tui_infer.session import SessionState
from tui_infer.workspace import Workspace

_LETTERS = re.compile(r"\s*([A-Za-z]+(?:\s*,\s*[A-Za-z]+)*)\s+(\S.*)", re.DOTALL)

Outcome = Literal["sent", "queued"]


class Refusal(NamedTuple):
    """A chat that could not take a prompt, by its letter, and why."""

    letter: str
    why: str


@dataclass(slots=True)
class Delivery:
    """What became of a prompt for several chats, by their letters."""

    sent: list[str] = field(default_factory=list)
    queued: list[str] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    @property
    def taken(self) -> bool:
        """Whether any chat took it."""
        return bool(self.sent or self.queued)

    def problem(self) -> str:
        """The chats that did not take it and why, one sentence each; empty where all did."""
        return " ".join(f"{letter}: {why}" for letter, why in self.refused)

    def words(self) -> str:
        """Who has it now."""
        parts = [f"sent to {_listed(self.sent)}"] if self.sent else []
        if self.queued:
            parts.append(f"queued in {_listed(self.queued)}")
        return ", ".join(parts)


def deliver(space: Workspace, session: SessionState, text: str, typed: str = "") -> Outcome | str:
    """Send a prompt to one chat, or queue it behind the answer under way; else returns why it cannot."""
    if why := space.read_only or session.read_only:
        return why
    if not text.strip():
        return "There is no text."
    if session.busy:
        return enqueue(space, session, text) or "queued"
    return "sent" if space.submit(session.id, text, typed=typed) else "It was not accepted."


def broadcast(space: Workspace, chats: Iterable[str], text: str, typed: str = "") -> Delivery:
    """Send a prompt to every one of these chats once, in their order; ids of chats that are gone are skipped.

    A chat that cannot take it keeps nobody else from it.
    """
    delivery = Delivery()
    for chat in dict.fromkeys(chats):
        session = space.sessions.get(chat)
        if session is None:
            continue
        match deliver(space, session, text, typed):
            case "sent":
                delivery.sent.append(session.letter)
            case "queued":
                delivery.queued.append(session.letter)
            case why:
                delivery.refused.append(Refusal(session.letter, why))
    return delivery


def addressed(space: Workspace, said: str) -> tuple[list[str], str] | str:
    """``A,C TEXT`` as ids of chats and the text; else what is wrong with it."""
    match = _LETTERS.fullmatch(said)
    if match is None:
        return "It takes letters of chats and a text: /to A,C What is a cache?"
    letters = {session.letter: session.id for session in space.sessions.values()}
    wanted = [letter.strip().upper() for letter in match[1].split(",")]
    if unknown := [letter for letter in wanted if letter not in letters]:
        return f"There is no chat {_listed(unknown)}; open {_are(letters)}."
    return [letters[letter] for letter in wanted], match[2].rstrip()


def _are(letters: Iterable[str]) -> str:
    names = list(letters)
    return f"{'is' if len(names) == 1 else 'are'} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]
