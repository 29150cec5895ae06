"""The context of a chat in tokens and blocks, and what the draft would add. Plain data, no Textual."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.records import EngineStatus
from tui_infer.session import SessionState
from tui_infer.token_count import Count

FRAME_TOKENS = 8  # what a chat template writes around a prompt, about

NOTHING = Count(0)

Level = Literal["plain", "warning", "error"]


@dataclass(frozen=True)
class Draft:
    """What sending the draft would add: ``files`` are those that it names, ``problem`` says why they cannot
    be in it.
    """

    count: Count = NOTHING
    files: int = 0
    problem: str = ""


NO_DRAFT = Draft()


class Meter(NamedTuple):
    """The same said at several lengths, the longest first, and how urgent it is."""

    texts: tuple[str, ...]
    level: Level = "plain"

    def within(self, cells: int) -> str:
        """The longest that fits; the last where none does."""
        return next((text for text in self.texts if len(text) <= cells), self.texts[-1] if self.texts else "")


def meter(
    session: SessionState, status: EngineStatus | None, draft: Draft = NO_DRAFT, held: int = 0
) -> Meter:
    """``1,204 / 2,048 tokens · 76 blocks · draft +31 tokens``; nothing for a chat without either. ``held``
    are the blocks that the chat has now: none at rest, while it waits, or after it had to give them up.

    A draft that does not fit is an error, one that leaves the answer less room than it may take a warning;
    the engine judges for itself.
    """
    used = session.context_tokens
    if not used and not draft.count.tokens and not draft.problem:
        return Meter(())
    most = status.max_model_len if status is not None else 0
    long, short = _used(used, most, held if session.busy else 0)
    added, added_short, level = _added(session, most, draft)
    texts = [
        f"{one} · {other}" if one and other else one or other
        for one, other in ((long, added), (short, added), (short, added_short), ("", added_short or short))
    ]
    return Meter(tuple(dict.fromkeys(texts)), level)


def _used(used: int, most: int, blocks: int) -> tuple[str, str]:
    if not used:
        return "", ""
    if not most:
        return f"{used:,} tokens", f"{used:,} tok"
    held = (f" · {blocks:,} block{'s' if blocks != 1 else ''}", f" · {blocks:,} blk") if blocks else ("", "")
    return f"{used:,} / {most:,} tokens{held[0]}", f"{used:,}/{most:,}{held[1]}"


def _added(session: SessionState, most: int, draft: Draft) -> tuple[str, str, Level]:
    """What is said of the draft, long and short."""
    if draft.problem:
        return draft.problem, "file!", "error"
    count = draft.count
    if not count.tokens:
        return "", "", "plain"
    files = f" with {draft.files} file{'s' if draft.files != 1 else ''}" if draft.files else ""
    sign = "+" if count.exact else "~"
    unit = "token" if count.tokens == 1 else "tokens"
    long, short = f"draft {sign}{count.tokens:,} {unit}{files}", f"{sign}{count.tokens:,}"
    if not most:
        return long, short, "plain"
    after = session.context_tokens + count.tokens + FRAME_TOKENS
    if after >= most:
        return f"{long}: too long for {most:,}", f"{short} too long", "error"
    room = most - after
    if room < session.params.max_tokens:
        return (
            f"{long}, leaves {room:,} of {session.params.max_tokens:,} for the answer",
            f"{short} leaves {room:,}",
            "warning",
        )
    return long, short, "plain"
