"""What an empty chat and an empty prompt say: what can be done there."""

from tui_infer.session import SessionState
from tui_infer.state import AppState


def hint(state: AppState) -> list[str]:
    """The lines of a chat in which nothing was said."""
    key = state.keys
    play = f"{key['pause']} play   {key['step']} one step   + - speed"
    if state.read_only and state.phase == "ready":
        return ["nothing was said here yet", "", play]
    if state.read_only and state.phase == "loading":
        return ["the recording begins with the start of its engine", "", play]
    if state.moment is not None:
        return ["nothing was said here yet", "", f"{key['past']} returns to now"]
    match state.phase:
        case "loading":
            return ["the model is loading", "", "type now, it is sent when ready"]
        case "ready":
            more = f"{key['new']} another chat   {key['help']} all keys"
            return ["type a prompt, Enter sends it", "", more]
        case "failed":
            return ["the engine has stopped", "", f"{key['restart']} starts it again"]


def placeholder(state: AppState, session: SessionState | None, receivers: int) -> str:
    """The words in an empty prompt; ``receivers`` is how many chats get what is typed in any of them."""
    if session is not None and session.read_only:
        return f"Read only. {session.read_only}"
    if state.read_only:
        return "/seek STEP  /speed N"
    return f"Ask all {receivers} shown chats…" if receivers > 1 else "Ask something…"
