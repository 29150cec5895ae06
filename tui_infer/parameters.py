"""Parameters of chats: what differs from the usual, in a few cells, and how they change. No Textual."""

from collections.abc import Iterable

from engine.request import SamplingParams
from tui_infer.presets import Sampling
from tui_infer.sanitize import sanitize
from tui_infer.session import SessionState
from tui_infer.workspace import Workspace

# What the border of a pane calls a parameter.
SHORT = {
    "temperature": "T",
    "top_p": "top-p",
    "top_k": "top-k",
    "min_p": "min-p",
    "repetition_penalty": "rep",
    "presence_penalty": "pres",
    "frequency_penalty": "freq",
    "seed": "seed",
    "max_tokens": "max",
    "stop": "stop",
    "stop_token_ids": "stop ids",
    "ignore_eos": "no end",
    "logprobs": "logprobs",
}
NO_VALUE = {"stop", "stop_token_ids", "ignore_eos"}  # said by its name alone


def marks(session: SessionState, usual: Sampling) -> list[str]:
    """What of a chat differs from what new chats get: ``T 0.2``, ``seed 7``, ``system``."""
    found: list[str] = []
    if session.params is not usual.params:
        for name, short in SHORT.items():
            value = getattr(session.params, name)
            if value != getattr(usual.params, name):
                found.append(_mark(name, short, value))
    if session.system != usual.system:
        found.append("system" if session.system else "no system")
    return found


def _mark(name: str, short: str, value: object) -> str:
    if name in NO_VALUE:
        return short if value else f"no {short}"
    if value is None:
        return f"no {short}"
    return f"{short} {value:g}" if isinstance(value, float) else f"{short} {value}"


def usual(space: Workspace) -> Sampling:
    """What new chats get."""
    return Sampling(space.params, space.system)


def sampling_of(session: SessionState) -> Sampling:
    return Sampling(session.params, session.system)


def take(space: Workspace, sessions: Iterable[SessionState], sampling: Sampling) -> None:
    """Give chats other parameters, from their next prompt on."""
    for session in sessions:
        session.params = sampling.params
        set_system(session, sampling.system)
        space.announce("sessions", session.id)


def take_as_usual(space: Workspace, sampling: Sampling) -> None:
    """Give all new chats of this run other parameters."""
    space.params, space.system = sampling.params, sanitize(sampling.system).strip()
    space.announce("sessions")


def set_system(session: SessionState, text: str) -> bool:
    """Give a chat another system prompt; whether its conversation has to be read again with it.

    The token ids so far begin with the one before, so they are forgotten: at once, or, where an answer is
    under way, when that has ended.
    """
    text = sanitize(text).strip()
    if text == session.system:
        return False
    session.system = text
    if session.busy:
        session.reread = True
    else:
        session.forget_tokens()
    return bool(session.turns)


def changes(before: Iterable[Sampling], after: Sampling) -> list[str]:
    """What becomes another in any of them: ``temperature 0``, ``system prompt``."""
    now = texts_of(after.params)
    found: dict[str, str] = {}
    system = sanitize(after.system).strip()
    for sampling in before:
        was = texts_of(sampling.params)
        found |= {name: f"{name} {text}" for name, text in now.items() if was[name] != text}
        if sampling.system != system:
            found["system"] = "system prompt" if system else "no system prompt"
    return [found[name] for name in (*now, "system") if name in found]


def as_words(params: SamplingParams) -> list[str]:
    """Every parameter as ``/set`` takes it."""
    return [f"{name}={text}" for name, text in texts_of(params).items()]


def texts_of(params: SamplingParams) -> dict[str, str]:
    """Every parameter as it is typed, by its name; ``none`` where it is off."""
    return {name: _text(getattr(params, name)) for name in SHORT}


def _text(value: object) -> str:
    match value:
        case None | ():
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(str(item).replace("\n", "\\n") for item in value)
    return str(value)
