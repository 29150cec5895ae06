"""A chat as it stood after a past step."""

from tui_infer.session import SessionState, Turn


def turns_at(session: SessionState, step: int) -> list[Turn]:
    """The exchanges of a chat as they stood after ``step``; what is whole is the session's own turn."""
    shown: list[Turn] = []
    for asked, answer in zip(session.turns[::2], session.turns[1::2]):
        trace = answer.trace
        if trace is None:  # of an engine before this one
            shown += [asked, answer]
            continue
        if not trace.was_there(step):
            break
        made, chars = trace.tokens_at(step), trace.chars_at(step, len(answer.text))
        if made >= max(len(trace.steps), len(answer.token_ids)) and answer.status != "open":
            shown += [asked, answer]
            continue
        part = Turn("assistant", answer.text[:chars], answer.token_ids[:made], status="open", trace=trace)
        part.version = -2 - chars  # versions of whole turns are not below zero
        shown += [asked, part]
    return shown


def request_at(session: SessionState, step: int) -> int | None:
    """The chat's newest request after ``step``."""
    turns = turns_at(session, step)
    trace = turns[-1].trace if turns else None
    return trace.request_at(step) if trace is not None else None
