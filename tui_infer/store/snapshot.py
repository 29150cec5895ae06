"""What changed in a chat since it was saved last, found by looking at it. Plain data, no threads."""

from dataclasses import dataclass
from typing import NamedTuple

from tui_infer.session import SessionState, Tail, Turn, TurnStats
from tui_infer.store.chat_write import ChatWrite, PieceWrite, TurnWrite
from tui_infer.store.lazy import StoredSession
from tui_infer.store.rows import ChatMeta, Draft, Place, pack_ids, pack_tails, stats_text


class _Tail(NamedTuple):
    tail: Tail
    base: int | None
    turns: int


class _SavedTurn(NamedTuple):
    """A turn as the store has it; ``pieces`` are those of an open one, ``tails`` its other versions."""

    turn: Turn
    version: int
    status: str
    asked: int | None
    end: int | None
    stats: TurnStats | None
    chars: int
    tokens: int
    seed: int | None
    place: int
    tails: "tuple[_Tail, ...]"
    pieces: int

    def same(self, turn: Turn, *, places: bool) -> bool:
        """Whether nothing happened to it; without ``places`` its places in the history do not count."""
        return (
            self.turn is turn
            and (self.version, self.status, self.chars) == (turn.version, turn.status, len(turn.text))
            and self.tokens == len(turn.token_ids)
            and self.stats is turn.stats
            and (self.seed, self.place, len(self.tails)) == (turn.seed, turn.place, len(turn.others))
            and (not places or (self.asked, self.end) == (turn.asked, turn.end))
            and (not places or self.tails == _tails_of(turn))
        )

    def grows_into(self, turn: Turn) -> bool:
        """Whether nothing happened but that an answer under way became longer."""
        return (
            self.turn is turn
            and self.status == turn.status == "open"
            and (self.asked, self.end) == (turn.asked, turn.end)
            and self.stats is turn.stats
            and (self.seed, self.place, self.tails) == (turn.seed, turn.place, _tails_of(turn))
            and self.chars <= len(turn.text)
            and self.tokens <= len(turn.token_ids)
        )


@dataclass(slots=True)
class Saved:
    """What the store has of one chat, as far as this process knows: nothing, before it was saved or read."""

    meta: ChatMeta | None = None
    draft: Draft | None = None
    archived: bool = False
    history: list[int] | None = None
    turns: list[_SavedTurn] | None = None


def is_loaded(session: SessionState) -> bool:
    """Whether the chat's turns are in memory, as they came from the store or were made here."""
    return not isinstance(session, StoredSession) or (session.loaded and session.readable)


def meta_of(session: SessionState, place: Place, model_name: str) -> ChatMeta:
    return ChatMeta(
        title=session.title,
        titled=session.titled,
        system=session.system,
        params=session.params,
        model=session.model,
        model_name=model_name,
        letter=session.letter,
        color=session.color,
        unread=session.unread,
        place=place,
        queue=tuple(session.queue),
        reread=session.reread,
    )


def take(
    session: SessionState, saved: Saved, meta: ChatMeta, draft: Draft, *, archived: bool = False
) -> tuple[ChatWrite | None, Saved]:
    """What to write of a chat, or None, and what the store has once that is written.

    Turns that were not read from the store are not looked at.
    """
    new = Saved(meta, draft, archived, saved.history, saved.turns)
    turns: list[TurnWrite] = []
    pieces: list[PieceWrite] = []
    history: bytes | None = None
    tokens: int | None = None
    length: int | None = None
    if is_loaded(session) and not _only_forgotten(session, saved):
        before = saved.turns or []
        new.turns = [
            _take_turn(turn, position, before[position] if position < len(before) else None, turns, pieces)
            for position, turn in enumerate(session.turns)
        ]
        if saved.turns is None or len(new.turns) != len(saved.turns):
            length = len(new.turns)
        if session.history_ids != saved.history:
            new.history = list(session.history_ids)
            history = pack_ids(new.history)
        if history is not None or turns or pieces:
            tokens = session.context_tokens
    said = bool(turns or pieces or length is not None)
    if not said and history is None and (meta, draft, archived) == (saved.meta, saved.draft, saved.archived):
        return None, new
    write = ChatWrite(
        key=session.key,
        meta=meta,
        archived=archived,
        touched=said or (saved.draft is not None and draft != saved.draft),
        draft=draft if draft != saved.draft else None,
        history=history,
        tokens=tokens,
        length=length,
        turns=tuple(turns),
        pieces=tuple(pieces),
    )
    return write, new


def _only_forgotten(session: SessionState, saved: Saved) -> bool:
    """Whether the chat is as it was, but for token ids that mean nothing to the model that runs.

    They stay in the store until the chat goes on: with its own model again they are of use, if that is still
    to begin with the same system prompt.
    """
    meta = saved.meta
    if meta is None or meta.reread or (meta.system, meta.model) != (session.system, session.model):
        return False
    return (
        bool(saved.history)
        and not session.history_ids
        and saved.turns is not None
        and len(saved.turns) == len(session.turns)
        and all(was.same(turn, places=False) for was, turn in zip(saved.turns, session.turns))
    )


def _take_turn(
    turn: Turn, position: int, saved: _SavedTurn | None, turns: list[TurnWrite], pieces: list[PieceWrite]
) -> _SavedTurn:
    if saved is not None and saved.same(turn, places=True):
        return saved
    now = _as_saved(turn)
    tails = saved.tails if saved is not None and saved.turn is turn else None
    if saved is not None and saved.grows_into(turn):
        text, ids = turn.text[saved.chars :], turn.token_ids[saved.tokens :]
        if not text and not ids:
            return now._replace(pieces=saved.pieces)
        pieces.append(PieceWrite(position, saved.pieces, text, pack_ids(ids)))
        return now._replace(pieces=saved.pieces + 1)
    turns.append(
        TurnWrite(
            position,
            turn.role,
            turn.text,
            pack_ids(turn.token_ids),
            stats_text(turn.stats),
            turn.status,
            turn.note,
            turn.asked,
            turn.end,
            turn.seed,
            turn.place,
            None if now.tails == tails else pack_tails(turn.others),
        )
    )
    return now


def _as_saved(turn: Turn) -> _SavedTurn:
    return _SavedTurn(
        turn,
        turn.version,
        turn.status,
        turn.asked,
        turn.end,
        turn.stats,
        len(turn.text),
        len(turn.token_ids),
        turn.seed,
        turn.place,
        _tails_of(turn),
        0,
    )


def _tails_of(turn: Turn) -> tuple[_Tail, ...]:
    return tuple(_Tail(tail, tail.base, len(tail.turns)) for tail in turn.others)


def as_read(session: SessionState, saved: Saved) -> Saved:
    """What the store has of a chat whose turns have just come from it: exactly these."""
    turns = [_as_saved(turn) for turn in session.turns]
    return Saved(saved.meta, saved.draft, saved.archived, list(session.history_ids), turns)
