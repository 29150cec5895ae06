"""The list of all chats: those of the store and those that only this run has, searched or not."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tui_infer.session import SessionState, Turn
from tui_infer.state import AppState
from tui_infer.store.rows import ChatRow
from tui_infer.store.search import Hit, has_all, hit_in, words_of
from tui_infer.store.store import Store


@dataclass(frozen=True, slots=True)
class Entry:
    """A chat in the list. ``session`` is its id where it is open here; ``held`` says that it is elsewhere."""

    key: str
    title: str
    model: str
    turns: int
    tokens: int
    updated: float | None
    archived: bool = False
    held: bool = False
    session: str = ""
    hit: Hit | None = None


class ChatList:
    """Finds chats. Without a store there are only those that are open."""

    def __init__(self, state: AppState, store: Store | None) -> None:
        self._state = state
        self._store = store

    async def find(self, query: str) -> list[Entry]:
        """All chats that have these words, or all, the ones used last first."""
        words = words_of(query)
        if self._store is None:
            return list(self._open_entries(words, set()))
        live = [entry.hit for entry in self._open_entries(words, set(), answers=True)]
        under_way = {hit.key: hit for hit in live if hit is not None and hit.position is not None}
        rows, hits = await asyncio.to_thread(self._read, self._store, words, under_way)
        entries = [self._entry(row, hits.get(row.key)) for row in rows]
        new = self._open_entries(words, {row.key for row in rows})
        return [*new, *entries]

    @staticmethod
    def _read(
        store: Store, words: Sequence[str], under_way: dict[str, Hit]
    ) -> tuple[list[ChatRow], dict[str, Hit]]:
        """What the store has, and the hits in it and in answers that it may not have yet."""
        if not words:
            return store.chats(), {}
        hits = {hit.key: hit for hit in store.search(words)} | under_way
        return store.chats(hits), hits

    def _entry(self, row: ChatRow, hit: Hit | None) -> Entry:
        live = self.live(row.key)
        return Entry(
            key=row.key,
            title=live.title if live is not None else row.meta.title,
            model=row.meta.model_name,
            turns=row.turns,
            tokens=row.tokens,
            updated=row.updated,
            archived=row.archived and live is None,
            held=row.held and live is None,
            session=live.id if live is not None else "",
            hit=hit,
        )

    def _open_entries(self, words: Sequence[str], but: set[str], *, answers: bool = False) -> Iterator[Entry]:
        """Open chats as they are in memory, the newest first; with ``answers`` only those under way."""
        for session in reversed(self._state.sessions.values()):
            if session.key in but or (answers and not session.busy):
                continue  # before its turns are looked at, which may have to be read
            if not (session.turns or session.titled or session.draft.strip()):
                continue
            hit = _hit(session, words, session.turns[-1:] if answers else session.turns)
            if words and hit is None:
                continue
            status = self._state.status
            model = status.model_name if status is not None and session.model == status.model_path else ""
            yield Entry(
                key=session.key,
                title=session.title,
                model=model,
                turns=len(session.turns),
                tokens=session.context_tokens,
                updated=None,
                session=session.id,
                hit=hit,
            )

    def live(self, key: str) -> SessionState | None:
        """The chat of this key, where it is open here."""
        return next((one for one in self._state.sessions.values() if one.key == key), None)


def _hit(session: SessionState, words: Sequence[str], turns: Sequence[Turn]) -> Hit | None:
    """Where an open chat has all the words: in the newest of these turns, else in its title."""
    if not words:
        return None
    found = [turn for turn in turns if has_all(turn.text, words)]
    if found:
        position = next(at for at, turn in enumerate(session.turns) if turn is found[-1])
        return hit_in(session.key, len(found), position, found[-1].text, words)
    return Hit(session.key, 0) if has_all(session.title, words) else None
