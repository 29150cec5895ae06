"""A chat as it stood after a past step."""

from collections.abc import Iterator, Sequence

from tui_infer.session import SessionState, Turn


def turns_at(session: SessionState, step: int) -> list[Turn]:
    """The exchanges of a chat as they stood after ``step``; what is whole is the session's own turn. Where
    the chat has gone another way since then, they are those of the version that there was.
    """
    return _turns_at(session.turns, step)


def _turns_at(turns: Sequence[Turn], step: int) -> list[Turn]:
    shown: list[Turn] = []
    for at in range(0, len(turns) - 1, 2):
        asked, answer = turns[at : at + 2]
        trace = answer.trace
        if trace is None:  # of an engine before this one
            shown += [asked, answer]
            continue
        if not trace.was_there(step):
            before = max(_there(asked, answer, step), key=_begun, default=None)
            return shown + (_turns_at(before, step) if before is not None else [])
        made, chars = trace.tokens_at(step), trace.chars_at(step, len(answer.text))
        if made >= max(len(trace.steps), len(answer.token_ids)) and answer.status != "open":
            shown += [asked, answer]
            continue
        part = Turn("assistant", answer.text[:chars], answer.token_ids[:made], status="open", trace=trace)
        part.version = -2 - chars  # versions of whole turns are not below zero
        shown += [asked, part]
    return shown


def _there(asked: Turn, answer: Turn, step: int) -> Iterator[list[Turn]]:
    """The other versions of an exchange, and of what followed, that there were after ``step``."""
    versions = [[asked, *tail.turns] for tail in answer.others] + [tail.turns for tail in asked.others]
    for turns in versions:
        if len(turns) > 1 and ((trace := turns[1].trace) is None or trace.was_there(step)):
            yield turns


def _begun(turns: Sequence[Turn]) -> int:
    trace = turns[1].trace
    return trace.asked if trace is not None else -2


def request_at(session: SessionState, step: int) -> int | None:
    """The chat's newest request after ``step``."""
    turns = turns_at(session, step)
    trace = turns[-1].trace if turns else None
    return trace.request_at(step) if trace is not None else None
