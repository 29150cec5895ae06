"""From the store back into the app: chats, layout, prompts; and chats whose model is gone."""

from pathlib import Path

from tui_infer.sanitize import one_line
from tui_infer.session import SessionState
from tui_infer.store.layout import apply_layout, order_of
from tui_infer.store.lazy import Source, StoredSession, session_of
from tui_infer.store.rows import ChatRow
from tui_infer.store.store import Claimed
from tui_infer.workspace import Workspace

GONE = "Its model is gone"


def restore(
    space: Workspace, claimed: Claimed, source: Source, defaults: tuple[str, str]
) -> tuple[list[StoredSession], str]:
    """Open the chats of the last run in place of the blank one.

    Returns them in the order of ``claimed.chats``, and the inspector's mode, empty where the settings decide.
    """
    space.prompts[:] = claimed.prompts
    sessions = [session_of(row, source) for row in claimed.chats]
    models = {row.meta.model: _exists(row.meta.model) for row in claimed.chats}
    if sessions:
        space.sessions.clear()
        order = order_of(claimed.layouts)
        places = {session.key: number for number, session in enumerate(sessions)}
        for session in sorted(sessions, key=lambda one: (order.get(one.key, len(order)), places[one.key])):
            space.open_stored(session)
        for row, session in zip(claimed.chats, sessions):
            if not models[row.meta.model]:
                session.read_only = gone_words(row.meta.model_name, row.meta.model)
    inspector = apply_layout(space, claimed.layouts[0], defaults) if claimed.layouts else ""
    if space.focused not in space.sessions:
        space.focus(next(iter(space.sessions)))
    return sessions, inspector


def reopen(space: Workspace, row: ChatRow, source: Source, model_path: str) -> StoredSession:
    """Open one more chat of the store while the app runs."""
    session = session_of(row, source)
    if row.meta.model and row.meta.model != model_path:
        session.forget_tokens()
        if not _exists(row.meta.model):
            session.read_only = gone_words(row.meta.model_name, row.meta.model)
    space.open_stored(session)
    return session


def adopt(session: SessionState) -> bool:
    """Let a chat whose model is gone go on with the one that runs; False where it need not.

    Its token ids mean nothing to that, so the next prompt is sent with the whole conversation as text.
    """
    if not session.read_only.startswith(GONE):
        return False
    session.read_only = ""
    session.forget_tokens()
    session.model = ""
    return True


def gone_words(name: str, path: str) -> str:
    """Why nothing can be sent, and the way out."""
    where = one_line(f"{name} ({path})" if name else path, 200)
    return f"{GONE}: {where} is not there. /adopt lets the model that runs now go on with this chat."


def _exists(model: str) -> bool:
    try:
        return not model or Path(model).exists()
    except (OSError, ValueError):
        return False
