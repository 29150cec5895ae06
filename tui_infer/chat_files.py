"""Chats as JSON: everything that the app knows of them, out to a file and back without loss."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NoReturn

import msgspec

from engine.errors import EngineError
from engine.request import SamplingParams
from engine.version import __version__
from tui_infer.message_lists import chat_of_messages, is_message_list
from tui_infer.sanitize import one_line, sanitize
from tui_infer.session import NEW_TITLE, SessionState, Tail, Turn, TurnStats, TurnStatus
from tui_infer.workspace import title_of

FORMAT, VERSION = "tui-infer chats", 1
MOST_BYTES = 64 << 20
MOST_CHATS = 500
INTERRUPTED = "it was being written when the chat was exported"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Measure = Annotated[float, msgspec.Meta(ge=0, le=1e18)]  # 1e999 is a number of JSON, and no time


class NotImported(EngineError):
    """A file holds no chats that can be taken in."""

    title = "not imported"


class StatsRecord(msgspec.Struct, frozen=True):
    """``TurnStats``: counts are tokens, times seconds."""

    prompt_tokens: Count
    output_tokens: Count
    cached_tokens: Count
    ttft_s: Measure | None = None
    decode_tokens_per_s: Measure | None = None


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn; ``asked`` and ``end`` are positions in the chat's ``history_ids``. ``others`` are its other
    versions, with all that followed them, and the shown one stands at ``place`` among them.
    """

    role: Literal["user", "assistant"]
    text: str
    token_ids: list[TokenId] = []
    status: TurnStatus = "done"
    note: str = ""
    asked: Count | None = None
    end: Count | None = None
    seed: Seed | None = None
    stats: StatsRecord | None = None
    others: list["TailRecord"] = []
    place: Count = 0


class TailRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a chat from a turn on; ``ids`` follow the first ``base`` of its history."""

    turns: list[TurnRecord]
    ids: list[TokenId] = []
    base: Count | None = None


class ChatRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One chat. ``model`` is the folder of the model that the token ids belong to."""

    title: str = NEW_TITLE
    titled: bool = False
    model: str = ""
    system: str = ""
    params: SamplingParams = SamplingParams()
    draft: str = ""
    turns: list[TurnRecord] = []
    history_ids: list[TokenId] = []


class ChatFile(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    format: str = FORMAT
    version: int = VERSION
    app: str = __version__
    chats: list[ChatRecord] = []


# --- out -------------------------------------------------------------------------------------------


def record_of(session: SessionState) -> ChatRecord:
    """A chat as it is now; lists are copied, so that it may be encoded while the chat goes on."""
    return ChatRecord(
        title=session.title,
        titled=session.titled,
        model=session.model,
        system=session.system,
        params=session.params,
        draft=session.draft,
        turns=[_turn_record(turn) for turn in session.turns],
        history_ids=list(session.history_ids),
    )


def _turn_record(turn: Turn) -> TurnRecord:
    stats = turn.stats
    return TurnRecord(
        role=turn.role,
        text=turn.text,
        token_ids=list(turn.token_ids),
        status=turn.status,
        note=turn.note,
        asked=turn.asked,
        end=turn.end,
        seed=turn.seed,
        stats=None
        if stats is None
        else StatsRecord(
            stats.prompt_tokens,
            stats.output_tokens,
            stats.cached_tokens,
            stats.ttft_s,
            stats.decode_tokens_per_s,
        ),
        others=[
            TailRecord(turns=list(map(_turn_record, tail.turns)), ids=list(tail.ids), base=tail.base)
            for tail in turn.others
        ],
        place=turn.place,
    )


def chats_as_json(records: Sequence[ChatRecord]) -> str:
    """The file's text: one value a line as far as a person reads it, token ids on one line each."""
    value = msgspec.to_builtins(ChatFile(chats=list(records)))
    return _lines(value, 0) + "\n"


def _lines(value: Any, depth: int) -> str:
    """Indented JSON whose lists of numbers stay on one line."""
    blank = " " * (depth + 1)
    if isinstance(value, dict) and value:
        rows = [f"{blank}{json.dumps(key)}: {_lines(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * depth + "}"
    if isinstance(value, list | tuple) and value and not isinstance(value[0], int):
        return (
            "[\n"
            + ",\n".join(f"{blank}{_lines(item, depth + 1)}" for item in value)
            + "\n"
            + " " * depth
            + "]"
        )
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or _encodes(text) else json.dumps(value)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate: \ud800 in JSON brings it back
        return False
    return True


# --- in --------------------------------------------------------------------------------------------


def chats_of(data: bytes) -> list[SessionState]:
    """The chats of an exported file or of a list of messages in the OpenAI form, in their order.

    They have neither id nor letter yet; texts are sanitized.

    Raises:
        NotImported: no JSON (with line and column), not one of these forms, or what a chat cannot hold.
    """
    value = _parse(data)
    if is_message_list(value):
        try:
            return [_titled(chat_of_messages(value))]
        except EngineError as error:
            raise NotImported(error.message, error.hint) from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise NotImported(
            f'It is neither an export of this app ("format": "{FORMAT}") nor a list of messages.',
            'A list of messages is [{"role": "user", "content": "..."}, ...], alone or under "messages".',
        )
    if value.get("version") != VERSION:
        version = one_line(str(value.get("version")), 40)
        raise NotImported(f"Its version is {version}; this app reads version {VERSION}.", "Update tui-infer.")
    try:
        file = msgspec.convert(value, ChatFile)
    except RecursionError:
        raise NotImported("Its values are nested too deeply.") from None
    except msgspec.ValidationError as error:
        raise NotImported(f"A value in it cannot be right: {one_line(str(error), 300)}.") from None
    if not 1 <= len(file.chats) <= MOST_CHATS:
        raise NotImported(f"It has {len(file.chats):,} chats; 1 to {MOST_CHATS} can be imported at once.")
    return [_session(record, number) for number, record in enumerate(file.chats, 1)]


def _parse(data: bytes) -> Any:
    if len(data) > MOST_BYTES:
        raise NotImported(f"It is larger than {MOST_BYTES >> 20} MiB, which is the most that is imported.")
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise NotImported(
            f"It is no UTF-8 text: byte {error.start:,} is 0x{data[error.start]:02x}."
        ) from None
    except json.JSONDecodeError as error:
        raise NotImported(f"It is no JSON: line {error.lineno}, column {error.colno}: {error.msg}.") from None
    except RecursionError:
        raise NotImported("Its values are nested too deeply.") from None
    except ValueError as error:  # a number of thousands of digits
        raise NotImported(f"It is no JSON: {one_line(str(error))}.") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _session(record: ChatRecord, number: int) -> SessionState:
    """A chat of its record; an answer that was under way is a stopped one."""
    _check_turns(record.turns, 0, len(record.history_ids), f"Chat {number}")
    session = SessionState(
        id="",
        letter="",
        color=0,
        title=one_line(record.title) or NEW_TITLE,
        titled=record.titled,
        model=sanitize(record.model),
        system=sanitize(record.system),
        params=record.params,
        draft=sanitize(record.draft),
        history_ids=list(record.history_ids),
    )
    session.turns = [_turn(turn) for turn in record.turns]
    for turn in session.turns[:-1]:
        _close_all(turn)
    if session.answer is not None:
        session.close_answer("cancelled", INTERRUPTED)
    session.status = "idle"
    return session


def _check_turns(turns: Sequence[TurnRecord], first: int, tokens: int, where: str) -> None:
    """See that turns, the first of which stands at place ``first`` of a chat, can be those of one.

    Raises:
        NotImported: naming the turn.
    """
    before = 0
    for position, turn in enumerate(turns, first + 1):
        if turn.role != ("user" if position % 2 else "assistant"):
            raise NotImported(
                f"{where}: turn {position} is {turn.role}'s; turns alternate, and the user begins."
            )
        for at in (turn.asked, turn.end):
            if at is not None and not before <= at <= tokens:
                raise NotImported(
                    f"{where}: turn {position} stands at token {at:,} of its history, which has {tokens:,}, "
                    f"after one at {before:,}."
                )
            before = before if at is None else at
        if turn.place > len(turn.others):
            raise NotImported(f"{where}: turn {position} is version {turn.place} of {len(turn.others)}.")
        for number, tail in enumerate(turn.others, 1):
            of = f"{where}, version {number} of turn {position}"
            if not tail.turns:
                raise NotImported(f"{of}: it has no turns.")
            _check_turns(tail.turns, position - 1, (tail.base or 0) + len(tail.ids), of)
    if (first + len(turns)) % 2:
        raise NotImported(f"{where}: its last prompt has no answer, not even an empty one.")


def _close_all(turn: Turn) -> None:
    """No answer of a file is under way."""
    if turn.status == "open":
        turn.close("cancelled", INTERRUPTED)
    for tail in turn.others:
        for other in tail.turns:
            _close_all(other)


def _turn(record: TurnRecord) -> Turn:
    stats = record.stats
    return Turn(
        role=record.role,
        text=sanitize(record.text),
        token_ids=list(record.token_ids),
        stats=None
        if stats is None
        else TurnStats(
            stats.prompt_tokens,
            stats.output_tokens,
            stats.cached_tokens,
            stats.ttft_s,
            stats.decode_tokens_per_s,
        ),
        status=record.status,
        note=one_line(record.note, 600),
        asked=record.asked,
        end=record.end,
        seed=record.seed,
        others=[Tail(list(map(_turn, tail.turns)), list(tail.ids), tail.base) for tail in record.others],
        place=record.place,
    )


def _titled(session: SessionState) -> SessionState:
    session.title = title_of(session)
    return session
