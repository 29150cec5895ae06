"""Synthetic load: background requests of random tokens that fill a batch. Plain data, no Textual."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.commands import AnyCommand, Cancel, Message, Submit
from engine.records import EngineStatus, Finished, Rejected, Started
from engine.request import SamplingParams
from tui_infer.widgets.inspector.view import SYNTHETIC_COLOR, SessionTag

PREFIX = "load-"
MOST = 256


@dataclass(frozen=True, slots=True)
class LoadShape:
    """``sessions`` requests at once, each of ``prompt`` random tokens and an answer of ``tokens``; ``rate``
    requests a second may start, 0 for as many as there are.
    """

    sessions: int
    prompt: int = 64
    tokens: int = 256
    rate: float = 0.0

    def words(self) -> str:
        """What runs and how to stop it."""
        many = self.sessions > 1
        who = f"{self.sessions} background sessions run" if many else "1 background session runs"
        names = f"s1 to s{self.sessions}" if many else "s1"
        pace = f" At most {self.rate:g} a second start." if self.rate else ""
        return (
            f"{who} beside the chats, {names} in the panels: a random prompt of {self.prompt:,} and an "
            f"answer of {self.tokens:,} tokens{' each' if many else ''}, again and again.{pace} "
            f"/load 0 stops {'them' if many else 'it'}."
        )


@dataclass
class SyntheticLoad:
    """Sessions that nobody reads: submitted through the same client, and again as soon as they have finished.

    ``remember`` is told the tag of each request, ``refused`` why a request was not taken; the load stops
    then. They never become chats: ``owns`` tells their events apart.
    """

    send: Callable[[AnyCommand], None]
    remember: Callable[[int, SessionTag], None]
    refused: Callable[[str], None]
    shape: LoadShape | None = None
    finished: int = 0  # requests that came to their end
    _epochs: dict[str, int] = field(default_factory=dict)
    _live: set[str] = field(default_factory=set)
    _queue: list[str] = field(default_factory=list)
    _next_s: float = 0.0
    _vocab: int = 1
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def active(self) -> int:
        """Sessions that are kept busy."""
        return self.shape.sessions if self.shape else 0

    @property
    def live(self) -> int:
        """Requests under way."""
        return len(self._live)

    def owns(self, session: str) -> bool:
        return session.startswith(PREFIX)

    def start(self, shape: LoadShape, status: EngineStatus, now_s: float) -> None:
        """Run this load in place of the one before; prompts and answers are cut to what the engine takes."""
        self.stop()
        room = status.max_model_len
        prompt = max(1, min(shape.prompt, room - 2))
        shape = replace(shape, prompt=prompt, tokens=max(1, min(shape.tokens, room - prompt - 1)))
        self.shape, self._vocab, self._next_s, self.finished = shape, status.vocab_size, now_s, 0
        self._queue = [f"{PREFIX}{number}" for number in range(1, shape.sessions + 1)]
        self.tick(now_s)

    def stop(self) -> None:
        """Cancel what is under way; nothing follows."""
        self.shape = None
        self._queue.clear()
        for session in sorted(self._live):
            self.send(Cancel(session, self._epochs[session]))
        self._live.clear()

    def lost(self) -> None:
        """The engine is gone, and with it all that was under way."""
        self._live.clear()
        self.stop()

    def tick(self, now_s: float) -> None:
        """Submit what is due at ``now_s`` (monotonic seconds)."""
        shape = self.shape
        while shape is not None and self._queue and now_s >= self._next_s:
            if shape.rate:
                self._next_s = max(self._next_s, now_s - 1.0) + 1 / shape.rate
            self._submit(self._queue.pop(0), shape)

    def apply(self, event: Started | Finished | Rejected, now_s: float) -> None:
        """Take in an event of one of these sessions; those of an earlier epoch change nothing."""
        session = event.session
        if event.epoch != self._epochs.get(session):
            return
        match event:
            case Started():
                self.remember(event.request, tag_of(session))
            case Rejected():
                self._live.discard(session)
                self.stop()
                self.refused(f"{event.message} {event.hint}".strip())
            case Finished():
                self._live.discard(session)
                self.finished += 1
                if self.shape is not None:
                    self._queue.append(session)
                    self.tick(now_s)

    def _submit(self, session: str, shape: LoadShape) -> None:
        epoch = self._epochs[session] = self._epochs.get(session, 0) + 1
        prompt: list[int | Message] = [self._random.randrange(self._vocab) for _ in range(shape.prompt)]
        self._live.add(session)
        params = SamplingParams(max_tokens=shape.tokens, ignore_eos=True)
        self.send(Submit(session=session, epoch=epoch, prompt=prompt, params=params))


def tag_of(session: str) -> SessionTag:
    """Small letter and number, in a colour that no chat has."""
    number = session.removeprefix(PREFIX)
    return SessionTag(f"s{number}", SYNTHETIC_COLOR, f"synthetic {number}", session)


def parse(words: Sequence[str]) -> LoadShape | str:
    """What ``/load N prompt=64 tokens=256 rate=2`` asks for, or what is wrong with it."""
    usage = "It takes a number of sessions (0 stops), then prompt=, tokens= and rate= if you like."
    if not words or not re.fullmatch(r"[0-9]{1,9}", words[0]):
        return usage
    sessions = int(words[0])
    if sessions > MOST:
        return f"{sessions} sessions are too many; {MOST} at most."
    values: dict[str, float] = {}
    for word in words[1:]:
        name, _, value = word.partition("=")
        try:
            number = float(value)
        except ValueError:
            return f"“{word}” is not understood. {usage}"
        least = 0.0 if name == "rate" else 1.0
        if name not in ("prompt", "tokens", "rate") or not least <= number < 1e6:
            return f"“{word}” is not understood. {usage}"
        values[name] = number
    return LoadShape(
        sessions,
        prompt=int(values.get("prompt", 64)),
        tokens=int(values.get("tokens", 256)),
        rate=values.get("rate", 0.0),
    )
