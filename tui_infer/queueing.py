"""The queue of a chat: prompts that were sent while an answer was under way. Plain data, no Textual.

An answer that ends by itself sends the next one. Behind an answer that was stopped or failed, and in a chat
that comes from the store, the queue stands still until the user says so: nothing is sent by surprise.
"""

from typing import TYPE_CHECKING

from tui_infer.sanitize import sanitize
from tui_infer.session import SessionState

if TYPE_CHECKING:
    from tui_infer.workspace import Workspace

MOST_QUEUED = 100
FULL = (
    f"{MOST_QUEUED} prompts are waiting in this chat already; ↑ in an empty prompt takes the last one back."
)


def waiting(session: SessionState) -> bool:
    """Whether the queue stands still and waits for the user."""
    return bool(session.queue) and (session.queue_paused or not session.busy)


def enqueue(space: "Workspace", session: SessionState, text: str) -> str:
    """Put a prompt behind the answer under way; returns why it cannot, or an empty string."""
    text = sanitize(text).strip("\n")
    if not text.strip():
        return "There is no text."
    if len(session.queue) >= MOST_QUEUED:
        return FULL
    session.queue.append(text)
    space.announce("sessions", session.id)
    return ""


def send_next(space: "Workspace", session: SessionState) -> bool:
    """Send the oldest queued prompt, or while an answer streams let the queue go on behind it.

    False where there is nothing to send or the chat cannot take it; the queue is then as it was.
    """
    if not session.queue or space.read_only or session.read_only:
        return False
    if session.busy:
        session.queue_paused = False
        space.announce("sessions", session.id)
        return True
    from tui_infer.slash import as_typed  # commands know the app, and the app knows the state

    text = session.queue.pop(0)  # before it is sent: whoever saves the chat then must not find it twice
    if not space.submit(session.id, text, typed=as_typed(text)):
        session.queue.insert(0, text)
        return False
    session.queue_paused = False
    return True


def answered(space: "Workspace", session: SessionState) -> None:
    """The answer of a chat ended: go on with its queue, if it ended by itself."""
    answer = session.last_answer
    if session.busy or session.queue_paused or answer is None or answer.status != "done":
        return
    send_next(space, session)


def take(space: "Workspace", session: SessionState, index: int = -1) -> str:
    """Take a prompt out of the queue, the last one unless told otherwise; empty where there is none."""
    if not -len(session.queue) <= index < len(session.queue):
        return ""
    text = session.queue.pop(index)
    session.queue_paused = session.queue_paused and bool(session.queue)
    space.announce("sessions", session.id)
    return text


def clear(space: "Workspace", session: SessionState) -> int:
    """Empty the queue; returns how many prompts were in it."""
    count = len(session.queue)
    session.queue.clear()
    session.queue_paused = False
    space.announce("sessions", session.id)
    return count
