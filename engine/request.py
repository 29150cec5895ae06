"""What a user asks for and what becomes of it. Torch-free."""

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from engine.errors import RequestError


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token is chosen and when to stop.

    Temperature 0 is greedy. ``top_p`` in (0, 1], ``top_k`` 0 switches it off, ``min_p`` is relative
    to the most likely token. Repetition looks at prompt and output, presence and frequency at the
    output only. ``seed`` None draws from the engine's own seed.

    Raises:
        RequestError: naming the field, the value and the accepted range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int = 0

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _in_range("top_k", self.top_k, 0, 2**31)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _in_range("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _in_range("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _in_range("max_tokens", self.max_tokens, 1, 2**31)
        _in_range("logprobs", self.logprobs, 0, 64)
        if self.seed is not None:
            _in_range("seed", self.seed, 0, 2**63 - 1)
        for token in self.stop_token_ids:
            _in_range("stop_token_ids", token, 0, 2**31)
        if not all(map(_encodes, self.stop)):
            raise RequestError("stop contains half of a surrogate pair, which is no character.")
        if any(not text for text in self.stop):
            raise RequestError("stop contains an empty string, which would stop before the first token.")

    @property
    def greedy(self) -> bool:
        """True when no noise is drawn."""
        return self.temperature == 0.0


def _in_range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    inside = (low < value if open_low else low <= value) and value <= high  # never for NaN
    if not inside:
        bounds = f"{'above' if open_low else 'from'} {_number(low)} to {_number(high)}"
        raise RequestError(f"{name}={value} is out of range; it must be {bounds}.")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


@dataclass(slots=True, eq=False)
class Request:
    """One prompt on its way through the engine; owned by the scheduler, read by everything else.

    ``num_computed`` counts the tokens (prompt and output) whose KV is in the cache.
    ``block_table[i]`` holds the physical block of tokens ``i * block_size`` and following.
    ``text_ends[i]`` counts the characters of ``text`` that were final after ``output_ids[i]``.
    ``begun`` counts the output tokens that it came with: an answer that was cut, and goes on.
    """

    id: int
    prompt_ids: list[int]
    params: SamplingParams
    session: str | None = None
    priority: int = 0
    arrival_s: float = 0.0
    seed: int = 0
    begun: int = 0

    output_ids: list[int] = field(default_factory=list)
    text: str = ""
    text_ends: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str = ""
    cached_tokens: int = 0
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    first_token_s: float | None = None
    last_token_s: float | None = None
    preemptions: int = 0
    logprobs: list[dict[int, float]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens together."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def add_token(self, token: int) -> None:
        """Append an output token; its text follows by ``add_text``, as far as it is certain."""
        self.output_ids.append(token)
        self.text_ends.append(len(self.text))

    def add_text(self, text: str) -> None:
        """Append text, which the newest token made certain."""
        if text:
            self.text += text
            if self.text_ends:
                self.text_ends[-1] = len(self.text)

    def token_ids(self) -> list[int]:
        """Prompt and output ids, a new list."""
        return self.prompt_ids + self.output_ids


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request as headless callers see it.

    ``decode_tokens_per_s`` is decode tokens over decode time, ``None`` under two tokens; the time to
    the first token is apart, in ``ttft_s``.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float | None
    decode_tokens_per_s: float | None
    logprobs: list[dict[int, float]] = []
    error: str = ""


def completion_of(request: Request) -> Completion:
    """The public view of a finished request."""
    ttft = None if request.first_token_s is None else request.first_token_s - request.arrival_s
    return Completion(
        text=request.text,
        token_ids=list(request.output_ids),
        finish_reason=str(request.finish_reason or ""),
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=request.cached_tokens,
        ttft_s=ttft,
        decode_tokens_per_s=decode_rate(
            len(request.output_ids) - request.begun, request.first_token_s, request.last_token_s
        ),
        logprobs=request.logprobs,
        error=request.error,
    )


def decode_rate(tokens: int, first_s: float | None, last_s: float | None) -> float | None:
    """Tokens per second after the first token; ``None`` where it would mean nothing."""
    if tokens < 2 or first_s is None or last_s is None or last_s <= first_s:
        return None
    return (tokens - 1) / (last_s - first_s)
