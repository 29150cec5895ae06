"""Versions of a chat from a turn on: what a new answer or a new prompt took the place of is kept beside it.

They hang on the turn in whose place they stood, so that a version carries the versions of its own turns.
Plain data, no Textual.
"""

from collections.abc import Sequence

from tui_infer.session import SessionState, SessionStatus, Tail, Turn, TurnStatus

_STATUS: dict[TurnStatus, SessionStatus] = {"cancelled": "cancelled", "error": "error"}


def ids_before(session: SessionState, position: int) -> int | None:
    """How many of the chat's token ids stand before a turn; None where that is not known."""
    turn = session.turns[position]
    if turn.role == "assistant":
        return turn.asked
    for answer in session.turns[:position][::-2]:
        if answer.end is not None:
            return answer.end
        if answer.text:
            return None
    return 0


def count(turn: Turn) -> int:
    """How many versions there are, the shown one included."""
    return len(turn.others) + 1


def num_hidden(turns: Sequence[Turn]) -> int:
    """Messages in all versions of these turns that are not shown."""
    tails = [tail for turn in turns for tail in turn.others]
    return sum(len(tail.turns) + num_hidden(tail.turns) for tail in tails)


def put_away(session: SessionState, position: int) -> list[Tail]:
    """Take a turn and all behind it out of the chat; returns all versions of it, in their order.

    The token history is left as it is: what comes next says how much of it holds.
    """
    turns = session.turns[position:]
    base = ids_before(session, position & ~1)
    if base is None and session.history_ids:
        base = 0  # all of it: nothing tells what of it stands before the turn
    tail = Tail(turns, session.history_ids[base:] if base is not None else [], base)
    first = turns[0]
    versions = [*first.others[: first.place], tail, *first.others[first.place :]]
    first.others, first.place = [], 0
    del session.turns[position:]
    return versions


def show(session: SessionState, position: int, place: int) -> None:
    """Show version ``place`` of a turn and of all behind it, in place of those that are shown."""
    versions = put_away(session, position)
    tail = versions.pop(place)
    first = tail.turns[0]
    first.others, first.place = versions, place
    session.turns += tail.turns
    if tail.base is None or tail.base > len(session.history_ids):
        session.forget_tokens()
    else:
        session.history_ids = session.history_ids[: tail.base] + tail.ids
    answer = session.last_answer
    session.status = _STATUS.get(answer.status, "idle") if answer is not None else "idle"
    for turn in tail.turns:
        turn.version += 1
