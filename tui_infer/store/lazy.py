"""A chat of the store whose turns are read when somebody first looks at them."""

from collections.abc import Callable

from tui_infer.session import SessionState, Turn
from tui_infer.store.rows import Body, ChatRow

Source = Callable[[str], Body]
Loaded = Callable[[SessionState], None]


class StoredSession(SessionState):
    """A ``SessionState`` of the store. ``turns`` and ``history_ids`` are read at the first use of either.

    Where they cannot be read the chat is empty and read-only, and ``readable`` is False: it must not be saved
    over what the disk has.
    """

    _source: Source | None = None
    _forget = False
    on_loaded: Loaded | None = None  # told once, before anything is done with the turns
    readable = True

    @property
    def loaded(self) -> bool:
        """Whether the turns are in memory."""
        return self._source is None

    @property
    def turns(self) -> list[Turn]:
        self._load()
        return self._turns

    @turns.setter
    def turns(self, turns: list[Turn]) -> None:
        self._load()
        self._turns = turns

    @property
    def history_ids(self) -> list[int]:
        self._load()
        return self._history_ids

    @history_ids.setter
    def history_ids(self, ids: list[int]) -> None:
        self._load()
        self._history_ids = ids

    def bring(self) -> None:
        self._load()

    def forget_tokens(self) -> None:
        if self.loaded:
            super().forget_tokens()
        else:
            self._forget = True

    def _load(self) -> None:
        source, self._source = self._source, None
        if source is None:
            return
        try:
            body = source(self.key)
        except Exception as error:
            self.readable = False
            self.read_only = (
                f"Its text could not be read: {error} It is still on the disk; start again to retry."
            )
            return
        self._turns, self._history_ids = body.turns, body.history_ids
        if self.on_loaded is not None:
            self.on_loaded(self)
        if self._forget or self.reread:
            super().forget_tokens()


def session_of(row: ChatRow, source: Source) -> StoredSession:
    """A chat as it was: idle, and with its queue standing still. It has no id of this run yet."""
    meta = row.meta
    session = StoredSession(
        id="",
        letter=meta.letter,
        color=meta.color,
        title=meta.title,
        titled=meta.titled,
        draft=row.draft.text,
        editing=row.draft.editing,
        edit_stash=row.draft.stash,
        params=meta.params,
        system=meta.system,
        unread=meta.unread,
        key=row.key,
        model=meta.model,
        queue=list(meta.queue),
        queue_paused=bool(meta.queue),
        reread=meta.reread,
    )
    session._source = source
    return session
