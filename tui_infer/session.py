"""One chat as plain data: what was said, as text and as token ids, and where its answer stands."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from engine.commands import Message
from engine.records import Finished
from engine.request import SamplingParams, decode_rate
from tui_infer.answer_trace import AnswerTrace

Role = Literal["user", "assistant"]
TurnStatus = Literal["open", "done", "cancelled", "error"]
SessionStatus = Literal["idle", "queued", "prefill", "streaming", "cancelled", "error"]

BUSY: frozenset[str] = frozenset({"queued", "prefill", "streaming"})
NEW_TITLE = "new chat"
PALETTE_SIZE = 12


@dataclass(slots=True)
class TurnStats:
    """What the engine said of a finished answer; counts are tokens, times are seconds."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    ttft_s: float | None
    decode_tokens_per_s: float | None


@dataclass(slots=True)
class Turn:
    """One side of an exchange. ``version`` grows with every change, for caches; ``text`` is sanitized.

    ``asked`` and ``end`` belong to an answer: how many token ids of the chat's history stand before it (the
    prompt that it answers) and up to its end. A history only grows at its end, so that the ids before any
    answer are a prefix of it: what regenerating or branching there sends again, and finds in the cache.
    ``seed`` is what the answer was drawn with. ``others`` are the versions of the chat from this turn on that
    are not shown, in their order, and ``place`` is where among them the shown one stands.
    """

    role: Role
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    stats: TurnStats | None = None
    status: TurnStatus = "done"
    note: str = ""
    version: int = 0
    trace: AnswerTrace | None = None  # of an answer: its way through the engine's steps
    asked: int | None = None
    end: int | None = None
    seed: int | None = None
    others: list["Tail"] = field(default_factory=list)
    place: int = 0

    def append(self, text: str, token_ids: list[int]) -> None:
        self.text += text
        self.token_ids.extend(token_ids)
        self.version += 1

    def close(self, status: TurnStatus, note: str = "") -> None:
        self.status = status
        self.note = note
        self.version += 1


@dataclass(slots=True)
class Tail:
    """What stood in place of a turn, and all that followed, before the chat went another way there.

    ``ids`` is the chat's history behind its first ``base`` ids; without a ``base`` there is none.
    """

    turns: list[Turn]
    ids: list[int] = field(default_factory=list)
    base: int | None = None


@dataclass(slots=True)
class SessionState:
    """One chat. ``history_ids`` are the token ids of the whole conversation: the prompt of the last request
    and what was generated for it, so that the next turn's prefix is found in the cache; they mean something
    to ``model`` only. ``key`` names the chat in the store, in all runs of the app; ``id`` only in this one.
    ``queue`` has the prompts that wait for the answer under way, and goes on by itself behind it unless
    ``queue_paused``; ``read_only`` says why none can be sent.
    """

    id: str
    letter: str
    color: int
    title: str = NEW_TITLE
    titled: bool = False
    turns: list[Turn] = field(default_factory=list)
    history_ids: list[int] = field(default_factory=list)
    draft: str = ""
    draft_selection: tuple[tuple[int, int], tuple[int, int]] | None = None  # rows, columns; None: its end
    params: SamplingParams = field(default_factory=SamplingParams)
    system: str = ""
    epoch: int = 0
    request: int | None = None
    status: SessionStatus = "idle"
    unread: bool = False
    recall: int | None = None
    stash: str = ""
    first_delta_s: float | None = None
    last_delta_s: float | None = None
    tokens_at_first: int = 0
    held: bool = False  # the engine was paused while the answer was under way
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    model: str = ""
    queue: list[str] = field(default_factory=list)
    queue_paused: bool = False
    read_only: str = ""
    editing: int | None = None  # the prompt, among the turns, in whose place the draft goes
    edit_stash: str = ""  # the draft from before
    begun: int = 0  # tokens that the answer under way had when it was told to go on
    reread: bool = False  # the token ids mean nothing any more once the answer under way has ended

    @property
    def busy(self) -> bool:
        return self.status in BUSY

    @property
    def answer(self) -> Turn | None:
        """The assistant's turn that is still open."""
        turn = self.turns[-1] if self.turns else None
        return turn if turn is not None and turn.role == "assistant" and turn.status == "open" else None

    @property
    def last_answer(self) -> Turn | None:
        return next((turn for turn in reversed(self.turns) if turn.role == "assistant"), None)

    @property
    def live_tokens_per_s(self) -> float | None:
        """Decode tokens over decode time so far, without pauses; None while that would mean nothing."""
        turn = self.answer
        return self._rate(turn) if turn is not None else None

    def _rate(self, turn: Turn) -> float | None:
        tokens = len(turn.token_ids) - self.tokens_at_first + 1
        return decode_rate(tokens, self.first_delta_s, self.last_delta_s)

    @property
    def context_tokens(self) -> int:
        """Tokens of the conversation that the engine has seen or produced."""
        turn = self.answer
        return len(self.history_ids) + (len(turn.token_ids) if turn is not None else 0)

    def messages(self, text: str) -> list[Message]:
        """What the next request has to render: with a token history only the new message, without one
        the whole conversation as far as it was answered.
        """
        new = Message(role="user", content=text)
        if self.history_ids:
            return [new]
        earlier = [Message(role="system", content=self.system)] if self.system else []
        for asked, answered in zip(self.turns[::2], self.turns[1::2]):
            if answered.text:
                earlier += [
                    Message(role="user", content=asked.text),
                    Message(role="assistant", content=answered.text),
                ]
        return [*earlier, new]

    def messages_at(self, position: int, text: str) -> list[Message]:
        """What has to be rendered for ``text`` in place of the prompt there, as ``messages`` does."""
        earlier = SessionState(
            self.id,
            self.letter,
            self.color,
            turns=self.turns[:position],
            history_ids=self.history_ids,
            system=self.system,
        )
        return earlier.messages(text)

    def begin(self, text: str, step: int = -1) -> None:
        """Open a new exchange; the epoch changes, so nothing of the one before can reach it. ``step`` is the
        newest step so far.
        """
        self.turns.append(Turn("user", text))
        self.begin_answer(step)

    def begin_answer(self, step: int = -1) -> Turn:
        """Open an answer to the last prompt."""
        self._new_request()
        self.turns.append(Turn("assistant", status="open", trace=AnswerTrace(step)))
        return self.turns[-1]

    def resume_answer(self, step: int = -1) -> None:
        """Open the last answer again; its tokens leave the history, and join it again with its end."""
        self._new_request()
        turn = self.turns[-1]
        turn.close("open")
        turn.end = None
        self.begun = len(turn.token_ids)
        del self.history_ids[turn.asked :]
        turn.trace = turn.trace or AnswerTrace(step)
        turn.trace.resume(step, self.begun, len(turn.text))

    def _new_request(self) -> None:
        self.epoch += 1
        self.request = None
        self.queue_paused = bool(self.queue)  # what was left standing goes on when the user says so
        self.status = "queued"
        self.first_delta_s = self.last_delta_s = None
        self.tokens_at_first = 0
        self.held = False
        self.begun = 0

    def bring(self) -> None:
        """Have the turns in memory; a chat of the store may not have read them yet, or may fail to."""

    def forget_tokens(self) -> None:
        """The token ids mean nothing any more: the next request renders the texts again."""
        self.history_ids = []
        self.reread = False
        _forget_places(self.turns)

    def receive(self, text: str, token_ids: list[int], now_s: float, *, by_hand: bool = False) -> None:
        """Add a delta to the open answer; ``now_s`` is monotonic and stands still while the engine is paused.
        Tokens of steps made ``by_hand`` in a pause are in no rate: they took the user's time.
        """
        turn = self.answer
        if turn is None:
            return
        turn.append(text, token_ids)
        if self.first_delta_s is None:
            self.first_delta_s = now_s
            self.tokens_at_first = len(turn.token_ids)
        elif by_hand:
            self.tokens_at_first += len(token_ids)
        self.held = self.held or by_hand
        self.last_delta_s = now_s
        self.status = "streaming"

    def close_answer(self, status: TurnStatus, note: str = "") -> None:
        """End the open answer; its tokens join the history, partial text stays."""
        turn = self.answer
        if turn is None:
            return
        turn.close(status, note)
        if turn.asked is not None or self.history_ids:  # else its tokens were forgotten meanwhile
            self.history_ids.extend(turn.token_ids)
        turn.end = len(self.history_ids) if turn.asked is not None else None
        if self.reread:
            self.forget_tokens()
        outcome: dict[TurnStatus, SessionStatus] = {"cancelled": "cancelled", "error": "error"}
        self.status = outcome.get(status, "idle")
        self.queue_paused = bool(self.queue) and (self.queue_paused or status != "done")

    def record_stats(self, event: Finished) -> None:
        """Attach the engine's numbers to the answer of this epoch, open or closed by hand. Its tokens a
        second count pauses, ours do not.
        """
        turn = self.last_answer
        if turn is None:
            return
        stats = TurnStats(
            prompt_tokens=event.prompt_tokens,
            output_tokens=event.output_tokens,
            cached_tokens=event.cached_tokens,
            ttft_s=event.ttft_s,
            decode_tokens_per_s=self._rate(turn) if self.held else event.decode_tokens_per_s,
        )
        turn.stats = _joined(turn.stats, stats, self.begun) if self.begun else stats
        turn.version += 1


def _joined(first: TurnStats | None, more: TurnStats, begun: int) -> TurnStats:
    """Of an answer of ``begun`` tokens that went on: its prompt and first token are those of its beginning,
    its rate is all decode tokens over all decode time. What is not known of the beginning is left out.
    """
    if first is None:
        return replace(more, ttft_s=None)
    tokens = [begun - 1, more.output_tokens - begun - 1]
    rates = [first.decode_tokens_per_s, more.decode_tokens_per_s]
    timed = [(count, rate) for count, rate in zip(tokens, rates) if rate and count > 0]
    seconds = sum(count / rate for count, rate in timed)
    return TurnStats(
        prompt_tokens=first.prompt_tokens,
        output_tokens=more.output_tokens,
        cached_tokens=first.cached_tokens,
        ttft_s=first.ttft_s,
        decode_tokens_per_s=sum(count for count, _ in timed) / seconds if seconds else None,
    )


def _forget_places(turns: Iterable[Turn]) -> None:
    """Of these turns and of all their other versions."""
    for turn in turns:
        turn.asked = turn.end = None
        for tail in turn.others:
            tail.ids, tail.base = [], None
            _forget_places(tail.turns)


def letter_of(index: int) -> str:
    """A, B, ... Z, AA, AB, ... for 0, 1, ... 25, 26, 27, ..."""
    letters = ""
    index += 1
    while index:
        index, digit = divmod(index - 1, 26)
        letters = chr(65 + digit) + letters
    return letters


def first_free(used: set[str]) -> int:
    """The lowest index whose letter no open chat has."""
    index = 0
    while letter_of(index) in used:
        index += 1
    return index
