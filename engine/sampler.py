"""Sampling on the device: logits to token ids, every row with its own parameters.

Per row, in this order: penalties, temperature, top-k, top-p over what top-k left, min-p against the
most likely token. What remains is everything above one threshold; the token is the argmax of logits
plus noise there. Rows with a small top-k are drawn from their few sorted candidates, all others from
the whole vocabulary. ``sample`` reads nothing back and has no shape that depends on data, so it can be
captured in a CUDA graph; what a batch needs at all is decided on the host, in ``SamplingBatch``. A row's
token depends on its own logits and parameters only, never on the rows beside it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from engine.noise import log_exponential, row_keys
from engine.request import Request, SamplingParams

GREEDY_BELOW = 1e-5  # temperatures below differ from greedy by less than float32 logits can tell
SORTED_TOP_K = 255  # up to here top-k sorts; beyond, and for top-p alone, selecting by digits is faster
SPARE_CANDIDATES = 16  # 16-bit logits tie often; equals of the last of top-k beyond these are cut
MASS_BITS = 40  # probability mass is counted in integers, so that sums do not depend on their order
INFINITY_BITS = 0x7F800000
NO_TOKEN = -1
ARGMAX_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Penalties:
    """The tokens that each row has seen, once each, and how it penalises them.

    Rows are padded to the same width with repetitions of an entry, which write the same value again.
    """

    ids: Tensor  # int64 [n, m]: in prompt or output
    counts: Tensor  # float32 [n, m]: times in the output
    repetition: Tensor  # float32 [n, 1]
    presence: Tensor  # float32 [n, 1]
    frequency: Tensor  # float32 [n, 1]


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Parameters of a batch as columns; row i belongs to request i."""

    greedy: Tensor  # bool [n, 1]
    temperature: Tensor  # float32 [n, 1], 1 in greedy rows
    top_k: Tensor  # int64 [n, 1], 0 is off
    top_p: Tensor  # float64 [n, 1]
    min_p: Tensor  # float32 [n, 1]
    seed: Tensor  # int64 [n]
    position: Tensor  # int64 [n]
    penalties: Penalties | None
    candidates: int  # columns for rows that are drawn from sorted candidates; 0 without such rows
    whole: bool  # rows are drawn from the whole vocabulary
    select_k: bool  # some of those have a top-k
    select_p: bool  # some of those have a top-p
    logprobs: int  # most alternatives that any row wants

    @classmethod
    def of(cls, requests: Sequence[Request], device: torch.device, vocab_size: int) -> "SamplingBatch":
        """Columns for the next token of each request; two copies to the device, more with penalties."""
        params = [request.params for request in requests]
        greedy = [_is_greedy(p) for p in params]
        drawn = [p for p, still in zip(params, greedy) if not still]
        whole = [p for p in drawn if not 0 < p.top_k <= SORTED_TOP_K]
        top_k = max((p.top_k for p in drawn if p.top_k <= SORTED_TOP_K), default=0)
        device = _sampling_device(device)
        reals = _columns(
            [
                [1.0 if still else p.temperature for p, still in zip(params, greedy)],
                [p.top_p for p in params],
                [p.min_p for p in params],
            ],
            torch.float64,
            device,
        )
        ids = _columns(
            [
                greedy,
                [p.top_k for p in params],
                [request.seed for request in requests],
                [request.num_tokens for request in requests],
            ],
            torch.int64,
            device,
        )
        return cls(
            greedy=ids[0].bool()[:, None],
            temperature=reals[0].float()[:, None],
            top_k=ids[1][:, None],
            top_p=reals[1][:, None],
            min_p=reals[2].float()[:, None],
            seed=ids[2],
            position=ids[3],
            penalties=_penalties(requests, device) if any(map(_penalised, params)) else None,
            # Some more than top_k, so that tokens as likely as the last one are candidates too.
            candidates=min(vocab_size, 1 << (top_k + SPARE_CANDIDATES - 1).bit_length()) if top_k else 0,
            whole=bool(whole),
            select_k=any(p.top_k > 0 for p in whole),
            select_p=any(p.top_p < 1.0 for p in whole),
            logprobs=max((p.logprobs for p in params), default=0),
        )


@dataclass(slots=True)
class Sampled:
    """The new tokens, still on the device.

    A row whose logits have no finite maximum (NaN, or nothing allowed) gives ``NO_TOKEN``; its
    request has to fail. Log probabilities are of the model's raw logits, whatever was drawn.
    """

    token_ids: Tensor  # int64 [n]
    logprobs: Tensor | None = None  # float32 [n], of the new tokens
    top_ids: Tensor | None = None  # int64 [n, k], most likely first
    top_logprobs: Tensor | None = None  # float32 [n, k]
    _host: tuple[list[int], list[float], list[list[int]], list[list[float]]] | None = field(
        default=None, repr=False
    )

    def logprobs_of(self, row: int, count: int) -> dict[int, float]:
        """The new token of ``row`` and its ``count`` most likely ones; waits for the device once."""
        if self.logprobs is None or self.top_ids is None or self.top_logprobs is None:
            return {}
        if self._host is None:
            self._host = (
                self.token_ids.tolist(),
                self.logprobs.tolist(),
                self.top_ids.tolist(),
                self.top_logprobs.tolist(),
            )
        tokens, chosen, top_ids, top_logprobs = self._host
        result = dict(zip(top_ids[row][:count], top_logprobs[row][:count]))
        result[tokens[row]] = chosen[row]
        return result


def sample(logits: Tensor, batch: SamplingBatch) -> Sampled:
    """Draw the next token of every row.

    Args:
        logits: [n, V] of any floating dtype; not changed.
        batch: the parameters of the same n rows.
    """
    logits = logits.to(device=batch.greedy.device, dtype=torch.float32)
    scores = logits if batch.penalties is None else _penalise(logits, batch.penalties)
    best = _argmax(scores)
    highest = scores.gather(1, best)
    tokens = best
    if batch.whole or batch.candidates:
        keys = row_keys(batch.seed, batch.position)
        settled = batch.greedy
        if batch.candidates:
            here = (batch.top_k > 0) & (batch.top_k <= SORTED_TOP_K)
            drawn = _draw_candidate(scores, highest, best, keys, batch)
            tokens = torch.where(here & ~batch.greedy, drawn, tokens)
            settled = here | settled
        if batch.whole:
            drawn = _draw_any(scores, highest, best, keys, batch)
            tokens = torch.where(settled, tokens, drawn)
    tokens = tokens.masked_fill(~highest.isfinite(), NO_TOKEN)[:, 0]
    if not batch.logprobs:
        return Sampled(tokens)
    all_logprobs = logits.log_softmax(dim=-1)
    top = all_logprobs.topk(min(batch.logprobs, logits.shape[1]), dim=-1)
    chosen = all_logprobs.gather(1, tokens.clamp(min=0)[:, None])[:, 0]
    return Sampled(tokens, chosen, top.indices, top.values)


# --- drawing ---------------------------------------------------------------------------------------


def _draw_candidate(
    scores: Tensor, highest: Tensor, best: Tensor, keys: Tensor, batch: SamplingBatch
) -> Tensor:
    """Tokens of rows with a small top-k, int64 [n, 1]; other rows hold anything.

    ``best`` are the most likely tokens; of equals the first, which a sort does not promise.
    """
    values, ids = scores.topk(batch.candidates, dim=-1)
    scaled = values.sub_(highest).div_(batch.temperature)
    last = batch.top_k.clamp(1, batch.candidates) - 1
    columns = torch.arange(batch.candidates, device=scaled.device)
    mass = _mass(scaled).masked_fill_(columns > last, 0).cumsum(dim=-1)
    wanted = _wanted(mass[:, -1:], batch.top_p)
    last = torch.minimum(last, (mass < wanted).sum(dim=-1, keepdim=True))
    lowest = torch.maximum(scaled.gather(1, last), batch.min_p.log())
    drawn = scaled.sub(log_exponential(keys, ids.to(torch.int32)))
    drawn.masked_fill_(scaled < lowest, -torch.inf)
    return torch.where(last > 0, ids.gather(1, drawn.argmax(dim=-1, keepdim=True)), best)


def _draw_any(scores: Tensor, highest: Tensor, best: Tensor, keys: Tensor, batch: SamplingBatch) -> Tensor:
    """Tokens of rows that are drawn from the whole vocabulary, int64 [n, 1]; other rows hold anything."""
    scaled = scores.sub(highest).div_(batch.temperature)
    lowest = batch.min_p.log()  # min_p 0 is minus infinity: no bound
    alone: Tensor | None = None
    if batch.select_k or batch.select_p:
        bound, alone = _bound(scaled, batch)
        lowest = torch.maximum(lowest, bound)
    drawn = log_exponential(keys, _token_ids(scaled.shape[1], scaled.device))
    torch.sub(scaled, drawn, out=drawn).masked_fill_(scaled < lowest, -torch.inf)
    tokens = _argmax(drawn)
    return tokens if alone is None else torch.where(alone, best, tokens)


def _bound(scaled: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """The lowest value inside top-k and top-p, float32 [n, 1], and rows of one token, bool [n, 1].

    ``scaled`` is logits over temperature with a maximum of 0. Values equal to the lowest all stay.
    """
    # Not negative, so its bits order like its value: 0 is the most likely token.
    distance = scaled.abs().view(torch.int32)
    farthest = torch.full_like(batch.top_k, INFINITY_BITS, dtype=torch.int32)
    if batch.select_k:
        nearest = _select(distance, torch.ones_like(distance, dtype=torch.int64), batch.top_k)
        farthest = torch.where(batch.top_k > 0, nearest.clamp_(max=INFINITY_BITS), farthest)
    alone = torch.zeros_like(batch.top_k, dtype=torch.bool)
    if batch.select_p:
        mass = _mass(scaled)
        if batch.select_k:
            mass.masked_fill_(distance > farthest, 0)
        wanted = _wanted(mass.sum(dim=-1, keepdim=True), batch.top_p)
        nearest = torch.minimum(farthest, _select(distance, mass, wanted))
        farthest = torch.where(batch.top_p < 1.0, nearest, farthest)
        alone = (batch.top_p < 1.0) & (wanted <= 1 << MASS_BITS)
    return -farthest.view(torch.float32), alone


def _select(keys: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """The smallest key up to which the weights reach what is wanted, exactly; a radix select.

    Args:
        keys: int32 [n, V], not negative.
        weights: int64 [n, V], not negative; sums must stay under 2**63.
        wanted: int64 [n, 1].

    Returns:
        int32 [n, 1]; the largest one where the weights do not reach it.
    """
    found = wanted.new_zeros(wanted.shape, dtype=torch.int32)
    digits = torch.empty_like(keys)
    columns = torch.empty_like(keys, dtype=torch.int64)
    for shift, bits in ((20, 11), (10, 10), (0, 10)):
        size = 1 << bits
        # Column 0 takes all keys below those that start with ``found``, the last one all above.
        torch.bitwise_right_shift(keys, shift, out=digits)
        columns.copy_(digits.sub_((found << bits) - 1).clamp_(0, size + 1))
        sums = weights.new_zeros(keys.shape[0], size + 2).scatter_add_(1, columns, weights)
        digit = (sums.cumsum(dim=-1)[:, 1:-1] < wanted).sum(dim=-1, keepdim=True)
        found = (found << bits) | digit.clamp_(max=size - 1).to(torch.int32)
    return found


def _mass(scaled: Tensor) -> Tensor:
    """Unnormalised probability in units of ``2**-MASS_BITS`` of the most likely token, int64."""
    return scaled.exp().mul_(2.0**MASS_BITS).to(torch.int64)


def _wanted(total: Tensor, top_p: Tensor) -> Tensor:
    """Mass that the kept tokens must reach, at least 1."""
    return (total.to(torch.float64) * top_p).ceil_().to(torch.int64).clamp_(min=1)


def _argmax(values: Tensor) -> Tensor:
    """The first column of the highest value, int64 [n, 1].

    On the CPU ``amax`` is many times faster than ``argmax``, so blocks are compared first.
    """
    rows, columns = values.shape
    if values.is_cuda or columns % ARGMAX_BLOCK:
        return values.argmax(dim=-1, keepdim=True)
    blocks = values.reshape(rows, -1, ARGMAX_BLOCK)
    block = blocks.amax(dim=-1).argmax(dim=-1)[:, None]
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, ARGMAX_BLOCK))[:, 0].argmax(dim=-1)
    return block * ARGMAX_BLOCK + inside[:, None]


def _penalise(logits: Tensor, penalties: Penalties) -> Tensor:
    """Repetition divides positive and multiplies negative logits (Keskar et al. 2019, CTRL)."""
    seen = logits.gather(1, penalties.ids)
    seen = torch.where(seen > 0, seen / penalties.repetition, seen * penalties.repetition)
    seen -= penalties.frequency * penalties.counts
    seen -= penalties.presence * (penalties.counts > 0)
    return logits.scatter(1, penalties.ids, seen)


# --- host side -------------------------------------------------------------------------------------


def _is_greedy(params: SamplingParams) -> bool:
    return params.temperature < GREEDY_BELOW or params.top_k == 1 or params.min_p == 1.0


def _penalised(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    )


def _penalties(requests: Sequence[Request], device: torch.device) -> Penalties:
    """Columns of what each penalised row has seen; prompt and output stay apart."""
    params = [request.params for request in requests]
    reals = _columns(
        [
            [p.repetition_penalty for p in params],
            [p.presence_penalty for p in params],
            [p.frequency_penalty for p in params],
        ],
        torch.float32,
        device,
    )
    seen = [_seen(request) if _penalised(request.params) else {0: 0} for request in requests]
    longest = max(map(len, seen))
    width = 1 << (longest - 1).bit_length()
    ids = [_padded(list(row), width) for row in seen]
    counts = [_padded(list(row.values()), width) for row in seen]
    repetition, presence, frequency = (column[:, None] for column in reals)
    return Penalties(
        _columns(ids, torch.int64, device),
        _columns(counts, torch.float32, device),
        repetition,
        presence,
        frequency,
    )


def _padded(values: list[int], width: int) -> list[int]:
    return values + values[:1] * (width - len(values))


def _seen(request: Request) -> dict[int, int]:
    """Every token of prompt and output with its count in the output."""
    return dict.fromkeys(request.prompt_ids, 0) | Counter(request.output_ids)


def _columns(columns: list[list], dtype: torch.dtype, device: torch.device) -> Tensor:
    """One copy for several columns; pinned, so that the host does not wait for it."""
    host = torch.tensor(columns, dtype=dtype, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)


def _sampling_device(device: torch.device) -> torch.device:
    """Metal has neither float64 nor 64-bit scatter; there the logits come to the CPU."""
    return torch.device("cpu") if device.type == "mps" else device


@lru_cache(maxsize=8)
def _token_ids(vocab_size: int, device: torch.device) -> Tensor:
    return torch.arange(vocab_size, dtype=torch.int32, device=device)
