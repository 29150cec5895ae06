"""What the store keeps of a chat, as values, and how they lie in columns."""

import json
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.errors import EngineError
from engine.request import SamplingParams
from tui_infer.session import Role, Tail, Turn, TurnStats, TurnStatus

Place = tuple[int, float] | None  # turn and share of it at the top of the view; None at the end


@dataclass(frozen=True, slots=True)
class ChatMeta:
    """The small values of a chat. ``place`` is where its reader is; with ``reread`` the token history means
    nothing any more.
    """

    title: str
    titled: bool
    system: str
    params: SamplingParams
    model: str
    model_name: str
    letter: str
    color: int
    unread: bool
    place: Place
    queue: tuple[str, ...]
    reread: bool


@dataclass(frozen=True, slots=True)
class Draft:
    """What stands in a chat's prompt. While it edits turn ``editing``, ``stash`` is the draft from before."""

    text: str = ""
    editing: int | None = None
    stash: str = ""


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A chat as lists show it. ``tokens`` is the length of its history; times are Unix seconds.

    ``held`` says that another process has it open.
    """

    key: str
    meta: ChatMeta
    archived: bool
    held: bool
    turns: int
    tokens: int
    created: float
    updated: float
    draft: Draft = Draft()


@dataclass(slots=True)
class Body:
    """What a chat needs when it is shown: its turns and its token history."""

    turns: list[Turn]
    history_ids: list[int]


# --- token ids -------------------------------------------------------------------------------------


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as unsigned little-endian 32-bit numbers."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes) -> list[int]:
    packed = array("I", data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


# --- other versions of turns ------------------------------------------------------------------------


class _TurnPack(msgspec.Struct, array_like=True):
    role: Role
    text: str
    token_ids: bytes
    stats: str
    status: TurnStatus
    note: str
    asked: int | None
    end: int | None
    seed: int | None
    place: int
    others: "list[_TailPack]"


class _TailPack(msgspec.Struct, array_like=True):
    turns: list[_TurnPack]
    ids: bytes
    base: int | None


def pack_tails(tails: Sequence[Tail]) -> bytes:
    """The versions of a turn that are not shown, with all that belongs to them."""
    return msgspec.msgpack.encode([_tail_pack(tail) for tail in tails])


def unpack_tails(data: bytes) -> list[Tail]:
    """Raises msgspec.DecodeError."""
    return [_tail(pack) for pack in msgspec.msgpack.decode(data, type=list[_TailPack])]


def _tail_pack(tail: Tail) -> _TailPack:
    turns = [
        _TurnPack(
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
            [_tail_pack(other) for other in turn.others],
        )
        for turn in tail.turns
    ]
    return _TailPack(turns, pack_ids(tail.ids), tail.base)


def _tail(pack: _TailPack) -> Tail:
    turns = [
        Turn(
            role=turn.role,
            text=turn.text,
            token_ids=unpack_ids(turn.token_ids),
            stats=stats_of(turn.stats),
            status=turn.status,
            note=turn.note,
            asked=turn.asked,
            end=turn.end,
            seed=turn.seed,
            place=turn.place,
            others=[_tail(other) for other in turn.others],
        )
        for turn in pack.turns
    ]
    return Tail(turns, unpack_ids(pack.ids), pack.base)


# --- JSON ------------------------------------------------------------------------------------------


def params_text(params: SamplingParams) -> str:
    return msgspec.json.encode(params).decode()


def params_of(text: str) -> SamplingParams:
    """Sampling parameters of their JSON; a value that this app does not know or take is left out."""
    values = _object(text)
    known = {name: value for name, value in values.items() if name in SamplingParams.__struct_fields__}
    try:
        return msgspec.convert(known, SamplingParams)
    except (msgspec.ValidationError, EngineError):
        pass
    good: dict[str, object] = {}
    for name, value in known.items():
        try:
            msgspec.convert({name: value}, SamplingParams)
        except (msgspec.ValidationError, EngineError):
            continue
        good[name] = value
    return msgspec.convert(good, SamplingParams)


def stats_text(stats: TurnStats | None) -> str:
    if stats is None:
        return ""
    return json.dumps({name: getattr(stats, name) for name in TurnStats.__slots__})


def stats_of(text: str) -> TurnStats | None:
    values = _object(text)
    try:
        return msgspec.convert(values, TurnStats) if values else None
    except msgspec.ValidationError:
        return None


def place_text(place: Place) -> str:
    return "" if place is None else json.dumps(place)


def place_of(text: str) -> Place:
    try:
        turn, share = json.loads(text)
        return int(turn), float(share)
    except (ValueError, TypeError):
        return None


def queue_of(text: str) -> tuple[str, ...]:
    try:
        value = json.loads(text)
    except ValueError:
        return ()
    return tuple(prompt for prompt in value if isinstance(prompt, str)) if isinstance(value, list) else ()


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
