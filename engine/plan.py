"""What one step computes: a value that the scheduler makes and the runner reads. Torch-free."""

from dataclasses import dataclass, field

from engine.prefix import token_slice
from engine.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens ``[start, end)`` of ``request`` are computed; its blocks up to ``end`` are in its table.

    ``completes`` is True when the chunk reached the last known token when it was planned, so that the
    next one is sampled from it.
    """

    request: Request
    start: int
    end: int
    completes: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "completes", self.end == self.request.num_tokens)

    def token_ids(self) -> list[int]:
        """The chunk's tokens."""
        return token_slice(self.request, self.start, self.end)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. Every row has its blocks; no chunk is empty; a request has one row at most.

    ``decode`` rows compute the newest token of their request. ``preempted`` are request ids that lost
    their blocks to this step; ``cached_tokens`` are the tokens that prefix hits of this step saved.
    ``copies`` are blocks, source and target, whose content is copied before anything is launched.
    """

    prefill: tuple[PrefillChunk, ...]
    decode: tuple[Request, ...]
    preempted: tuple[int, ...] = ()
    cached_tokens: int = 0
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def prefill_tokens(self) -> int:
        return sum(chunk.end - chunk.start for chunk in self.prefill)

    @property
    def requests(self) -> list[Request]:
        """All rows, prefills first."""
        return [chunk.request for chunk in self.prefill] + list(self.decode)


def is_decode_row(request: Request) -> bool:
    """True when all but the newest generated token is in the cache; anything else is prefilled."""
    return bool(request.output_ids) and request.num_tokens - request.num_computed == 1


def stop_reason(request: Request, eos_token_ids: frozenset[int], max_model_len: int) -> FinishReason | None:
    """Why the request ends with the token it just got, or None; stop strings are the detokenizer's.

    Args:
        eos_token_ids: the union of all end tokens of the model, ignored under ``ignore_eos``.
        max_model_len: the scheduler's, which knows what the pool can hold.
    """
    params, output = request.params, request.output_ids
    if output:
        newest = output[-1]
        if newest in params.stop_token_ids or (newest in eos_token_ids and not params.ignore_eos):
            return FinishReason.STOP
    if len(output) >= params.max_tokens or len(request.prompt_ids) + len(output) >= max_model_len:
        return FinishReason.LENGTH
    return None
