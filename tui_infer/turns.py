"""What can be done with the turns of a chat: ask again, edit, go on, branch. Plain data, no Textual.

Every act goes behind the token ids that the engine has computed already, so that their blocks are found in
the cache; where these are not known, or belong to another model, the texts are rendered anew. Nothing that
was said is lost: ``versions`` keeps it.
"""

import secrets
from dataclasses import replace
from typing import Literal, get_args

from msgspec.structs import replace as with_values

from engine.commands import Message
from engine.request import SamplingParams
from tui_infer.sanitize import one_line, sanitize
from tui_infer.session import SessionState, Turn
from tui_infer.state import AppState
from tui_infer.versions import count, ids_before, put_away, show
from tui_infer.workspace import TITLE_LENGTH

Act = Literal["edit", "again", "new", "branch", "go_on", "earlier", "later"]
ACTS: tuple[Act, ...] = get_args(Act)
Seed = Literal["same", "new"] | int

SEEDS = 2**31  # new ones are drawn below, so that they can be typed again
LENGTH_NOTE = "length limit reached"
ANSWERS = "This chat is still answering. Esc stops it."
EDITS = "A prompt is being edited. Enter sends it, Esc leaves the chat as it was."


# --- what is possible ------------------------------------------------------------------------------


def why_not(state: AppState, session: SessionState, position: int, act: Act) -> str:
    """Why an act cannot be done with a turn; empty where it can."""
    if not 0 <= position < len(session.turns):
        return "Nothing was said here yet." if not session.turns else "There is no such message."
    keeps = act in ("branch", "earlier", "later")  # makes no request for this chat
    if why := state.read_only or ("" if keeps else session.read_only):
        return why
    turn = session.turns[position]
    if turn is session.answer or (session.busy and act != "branch"):
        return ANSWERS
    if session.editing is not None and act != "branch":
        return EDITS
    match act:
        case "again":
            return _why_not_again(session, session.turns[position | 1])
        case "go_on":
            return _why_not_on(state, session, turn)
        case "earlier" | "later":
            return _why_no_version(turn, act)
    return ""


def _why_not_again(session: SessionState, answer: Turn) -> str:
    if answer.seed is None and session.params.seed is None and session.params.temperature > 0:
        return "The seed of this answer is not known; a new seed makes another one."
    return ""


def _why_no_version(turn: Turn, act: Act) -> str:
    if not turn.others:
        return "There is only this version of the message."
    if turn.place == 0 and act == "earlier":
        return f"This is the first of {count(turn)} versions."
    if turn.place == len(turn.others) and act == "later":
        return f"This is the last of {count(turn)} versions."
    return ""


def _why_not_on(state: AppState, session: SessionState, turn: Turn) -> str:
    if turn.role == "user":
        return "Only an answer can go on."
    if turn is not session.turns[-1]:
        return "Only the last answer can go on; a branch made here ends with this one."
    if turn.status == "done" and turn.note != LENGTH_NOTE:
        return "The answer is complete: the model ended it."
    if not turn.token_ids:
        return "Nothing was said yet that could go on."
    if turn.asked is None or session.history_ids[turn.asked :] != turn.token_ids:
        return "Its tokens are not those of the model that runs now; the answer can be made again."
    most = state.status.max_model_len if state.status is not None else 0
    if 0 < most <= len(session.history_ids):
        return f"The context is full: {len(session.history_ids):,} of {most:,} tokens."
    return ""


# --- again -----------------------------------------------------------------------------------------


def regenerate(state: AppState, session: SessionState, position: int, seed: Seed = "same") -> str:
    """Answer a prompt again, drawn with the seed of the answer that is there, with a new one or with this
    one; that answer, and what follows it, stays as an earlier version. Returns why not, or an empty string.
    """
    answer_at = position | 1 if session.turns else 0
    if why := why_not(state, session, answer_at, "again" if seed == "same" else "new"):
        return why
    answer = session.turns[answer_at]
    if seed == "same":
        seed_of = answer.seed if answer.seed is not None else session.params.seed
    else:
        seed_of = secrets.randbelow(SEEDS) if seed == "new" else seed
    asked, before = answer.asked, ids_before(session, answer_at - 1)
    prompt = session.turns[answer_at - 1].text
    versions = put_away(session, answer_at)
    if asked is not None:
        session.history_ids = session.history_ids[:asked]
        messages: list[Message] = []
    else:
        messages = _from(session, before, prompt, answer_at - 1)
    fresh = session.begin_answer(state.newest_step)
    fresh.others, fresh.place, fresh.asked = versions, len(versions), asked
    state.texts.cut(session.id, answer_at)
    _send(state, session, messages, seed=seed_of)
    return ""


def _from(session: SessionState, before: int | None, prompt: str, position: int) -> list[Message]:
    """What has to be said to ask ``prompt`` as this turn; the history is cut to what stands before."""
    if before is None:
        session.forget_tokens()
    else:
        session.history_ids = session.history_ids[:before]
    return session.messages_at(position, prompt)


def _send(state: AppState, session: SessionState, messages: list[Message], *, seed: int | None) -> None:
    """Ask, after all who follow the chat were told that its turns are others."""
    params = session.params if seed is None else with_values(session.params, seed=seed)
    state.announce("rewritten", session.id)
    state.ask(session, messages, params)


# --- edit ------------------------------------------------------------------------------------------


def start_edit(state: AppState, session: SessionState, position: int) -> str:
    """Make the prompt of a turn the draft, which Enter sends in its place; the draft is kept meanwhile."""
    prompt_at = position & ~1
    if why := why_not(state, session, prompt_at, "edit"):
        return why
    session.edit_stash, session.draft = session.draft, session.turns[prompt_at].text
    session.editing, session.recall = prompt_at, None
    state.announce("sessions", session.id)
    return ""


def abandon_edit(state: AppState, session: SessionState) -> bool:
    """Leave the chat as it was, with the draft from before; False where nothing is edited."""
    if session.editing is None:
        return False
    session.draft, session.edit_stash, session.editing = session.edit_stash, "", None
    state.announce("sessions", session.id)
    return True


def resend(state: AppState, session: SessionState, text: str) -> str:
    """Ask what was edited in place of the prompt that it was, which stays with all that followed as an
    earlier version. Returns why not, or an empty string; the draft from before is the chat's again.
    """
    position, text = session.editing, sanitize(text).strip("\n")
    if position is None or position >= len(session.turns):
        session.editing = None
        return "No prompt is being edited."
    if why := state.read_only or session.read_only or (ANSWERS if session.busy else ""):
        return why
    if not text.strip():
        return "There is no text. Esc leaves the chat as it was."
    before = ids_before(session, position)
    versions = put_away(session, position)
    messages = _from(session, before, text, position)
    session.begin(text, state.newest_step)
    prompt = session.turns[position]
    prompt.others, prompt.place = versions, len(versions)
    session.draft, session.edit_stash, session.editing = session.edit_stash, "", None
    state.texts.cut(session.id, position)
    _send(state, session, messages, seed=None)
    return ""


# --- versions, branches, more ----------------------------------------------------------------------


def show_version(state: AppState, session: SessionState, position: int, place: int) -> str:
    """Show another version of a turn and of what follows, counted from 0. Returns why not, or nothing."""
    turn = session.turns[position]
    if why := why_not(state, session, position, "earlier" if place < turn.place else "later"):
        return why
    if not 0 <= place < count(turn):
        return f"There are {count(turn)} versions."
    if place != turn.place:
        show(session, position, place)
        state.texts.cut(session.id, position)
        state.announce("rewritten", session.id)
        state.announce("turns", session.id)
        state.announce("sessions", session.id)
    return ""


def newest_versions(session: SessionState) -> int | None:
    """The last turn that has versions."""
    return next((at for at in range(len(session.turns) - 1, -1, -1) if session.turns[at].others), None)


def branch(
    state: AppState, session: SessionState, position: int, *, focus: bool = True
) -> SessionState | str:
    """A new chat, focused unless told otherwise, with the turns up to this one, which finds their blocks in
    the cache. At a prompt it ends before it and has it as its draft. Returns why not where that is so.
    """
    if why := why_not(state, session, position, "branch"):
        return why
    prompt = session.turns[position] if session.turns[position].role == "user" else None
    turns = session.turns[: position if prompt is not None else position + 1]
    end = _end_of(session, len(turns)) if not session.reread else None
    new = state.new_session(focus=focus)
    new.turns = [copied(turn, places=end is not None) for turn in turns]
    new.history_ids = session.history_ids[:end] if end is not None else []
    new.params, new.system, new.model = session.params, session.system, session.model
    new.read_only = session.read_only
    new.draft = prompt.text if prompt is not None else ""
    new.title, new.titled = one_line(f"↳ {session.title.removeprefix('↳ ')}", TITLE_LENGTH), True
    for topic in ("rewritten", "turns", "sessions"):
        state.announce(topic, new.id)
    return new


def _end_of(session: SessionState, length: int) -> int | None:
    """How many of the token ids belong to the first turns; None where that is not known."""
    for answer in session.turns[:length][::-2]:
        if answer.end is not None:
            return answer.end
        if answer.text:
            return None
    return 0


def copied(turn: Turn, *, places: bool) -> Turn:
    """The turn for another chat: its versions stay where they are."""
    trace = turn.trace
    if trace is not None:
        trace = replace(trace, steps=trace.steps[:], ends=trace.ends[:], before=trace.before[:])
    return replace(
        turn,
        token_ids=list(turn.token_ids),
        trace=trace,
        asked=turn.asked if places else None,
        end=turn.end if places else None,
        others=[],
        place=0,
    )


def go_on(state: AppState, session: SessionState) -> str:
    """Let the last answer go on where it was cut. Returns why not, or an empty string."""
    if why := why_not(state, session, len(session.turns) - 1, "go_on"):
        return why
    answer = session.turns[-1]
    params: SamplingParams = session.params
    if answer.seed is not None:
        params = with_values(params, seed=answer.seed)
    session.resume_answer(state.newest_step)
    state.announce("rewritten", session.id)
    state.ask(session, [], params, answered=session.begun)
    return ""
