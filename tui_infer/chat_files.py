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
from tui_infer.session import NEW_TITLE, SessionState, Turn, TurnStats, TurnStatus
from tui_infer.workspace import title_of

FORMAT, VERSION = "tui-infer chats", 1
MOST_BYTES = 64 << 20
MOST_CHATS = 500
INTERRUPTED = "it was being written when the chat was exported"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class NotImported(EngineError):
    """A file holds no chats that can be taken in."""

    title = "not imported"


class StatsRecord(msgspec.Struct, frozen=True):
    """``TurnStats``: counts are tokens, times seconds."""

    prompt_tokens: Count
    output_tokens: Count
    cached_tokens: Count
    ttft_s: float | None = None
    decode_tokens_per_s: float | None = None


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn; ``asked`` and ``end`` are positions in the chat's ``history_ids``."""

    role: Literal["user", "assistant"]
    text: str
    token_ids: list[Count] = []
    status: TurnStatus = "done"
    note: str = ""
    asked: Count | None = None
    end: Count | None = None
    stats: StatsRecord | None = None


class ChatRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One chat. ``model`` is the folder of the model that the token ids belong to."""

    title: str = NEW_TITLE
    titled: bool = False
    model: str = ""
    system: str = ""
    params: SamplingParams = SamplingParams()
    draft: str = ""
    turns: list[TurnRecord] = []
    history_ids: list[Count] = []


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
        stats=None
        if stats is None
        else StatsRecord(
            stats.prompt_tokens,
            stats.output_tokens,
            stats.cached_tokens,
            stats.ttft_s,
            stats.decode_tokens_per_s,
        ),
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
    for position, turn in enumerate(record.turns):
        if turn.role != ("assistant" if position % 2 else "user"):
            raise NotImported(
                f"Chat {number}: turn {position + 1} is {turn.role}'s; turns alternate, and the user begins."
            )
    if len(record.turns) % 2:
        raise NotImported(f"Chat {number}: its last prompt has no answer, not even an empty one.")
    session = SessionState(
        id="",
        letter="",
        color=0,
        title=one_line(record.title) or NEW_TITLE,
        titled=record.titled,
        model=record.model,
        system=sanitize(record.system),
        params=record.params,
        draft=sanitize(record.draft),
        history_ids=list(record.history_ids),
    )
    before = 0
    for position, turn in enumerate(record.turns, 1):
        for where in (turn.asked, turn.end):
            if where is not None and not before <= where <= len(record.history_ids):
                raise NotImported(
                    f"Chat {number}: turn {position} stands at token {where:,} of its history, which has "
                    f"{len(record.history_ids):,}, after one at {before:,}."
                )
            before = before if where is None else where
        session.turns.append(_turn(turn))
    for turn_state in session.turns[:-1]:
        if turn_state.status == "open":
            turn_state.close("cancelled", INTERRUPTED)
    if session.answer is not None:
        session.close_answer("cancelled", INTERRUPTED)
    session.status = "idle"
    return session


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
    )


def _titled(session: SessionState) -> SessionState:
    session.title = title_of(session)
    return session
