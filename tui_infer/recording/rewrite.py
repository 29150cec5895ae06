"""A chat of a replay brought to what a recording says of its turns, with what is known of them kept."""

from collections.abc import Callable

from tui_infer.answer_trace import AnswerTrace
from tui_infer.recording.format import Content, Said
from tui_infer.sanitize import one_line
from tui_infer.session import SessionState, Turn
from tui_infer.state import AppState
from tui_infer.turns import copied
from tui_infer.versions import put_away, show


def rewrite(state: AppState, session: SessionState, content: Content, shown: Callable[[str], str]) -> None:
    """Make the chat what ``content`` says. Turns that are there stay, with their way through the steps;
    others that were shown become versions, a version comes back, and a branch knows its parent's: so that
    looking back finds what stood at each step.
    """
    step = state.newest_step
    turns = content.turns
    for at, said in enumerate(turns):
        if at < len(session.turns) and not _is(session.turns[at], said):
            first = session.turns[at]
            place = next((n for n, tail in enumerate(first.others) if _is(tail.turns[0], said)), None)
            if place is not None:
                show(session, at, place if place < first.place else place + 1)
        if at >= len(session.turns) or not _is(session.turns[at], said):
            others = put_away(session, at) if at < len(session.turns) else []
            turn = Turn(said.role, shown(said.text), list(said.token_ids), others=others, place=len(others))
            if said.status == "open" and content.request is None:  # else it runs, and its steps are gone
                turn.trace = AnswerTrace(step)
            else:
                turn.trace = _parents_trace(state, said)
            session.turns.append(turn)
        _take(session.turns[at], said, step)
    del session.turns[len(turns) :]
    session.epoch, session.status, session.request = content.epoch, content.status, content.request
    session.history_ids = list(content.history_ids)
    session.begun = len(session.answer.token_ids) if session.answer is not None else 0


def _parents_trace(state: AppState, said: Said) -> AnswerTrace | None:
    """Of an answer that stands in another chat too."""
    if not said.token_ids or said.end is None:
        return None
    for session in state.sessions.values():
        for turn in session.turns:
            if (turn.asked, turn.end, turn.token_ids) == (said.asked, said.end, said.token_ids):
                return copied(turn, places=True).trace
    return None


def _is(turn: Turn, said: Said) -> bool:
    """Whether this is the turn. Its text can have been left out of the recording; an answer that is asked for
    again begins without tokens.
    """
    same = turn.role == said.role and turn.token_ids == said.token_ids
    if not same or turn.role == "user":
        return same and (not said.text or turn.text == said.text)
    return bool(said.token_ids) or turn.status == said.status


def _take(turn: Turn, said: Said, step: int) -> None:
    if said.status == "open" and turn.status != "open" and turn.token_ids and turn.trace is not None:
        turn.trace.resume(step, len(turn.token_ids), len(turn.text))  # it goes on
    turn.stats = said.stats
    turn.asked, turn.end, turn.seed = said.asked, said.end, said.seed
    turn.close(said.status, one_line(said.note, 400))
