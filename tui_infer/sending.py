"""What Enter in a prompt does: a command of the app is obeyed, everything else goes to the model."""

from functools import partial
from typing import TYPE_CHECKING

from tui_infer.session import SessionState
from tui_infer.slash import Say, as_typed, obey, read

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp


def send(app: "TuiInferApp", session: SessionState, text: str) -> bool:
    """Send a prompt, or do what its command says; whether the prompt is done with."""
    said = read(text)
    if not isinstance(said, Say):
        done = obey(app, said)
        if done:
            app.state.remember(text.strip())
        return done
    typed = text.strip("\n")
    return app.drafts.send(session, said.text, typed, partial(_deliver, app, session, typed))


def _deliver(app: "TuiInferApp", session: SessionState, typed: str, text: str) -> bool:
    """What the model is to get, with the files that it names; ``typed`` is for the history."""
    if session.editing is not None:
        return app.turns.resend(session, text, typed)
    return app.several.send(session, text, typed)


def take_back(app: "TuiInferApp", session: SessionState) -> str:
    """The last queued prompt as it has to be typed; empty where none waits."""
    text = app.several.take_back(session)
    return as_typed(text) if text else ""
