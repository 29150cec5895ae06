"""Sampling on the device: logits to token ids, every row with its own parameters.

Per row, in this order: penalties, temperature, top-k, top-p over what top-k left, min-p against the
most likely token. What remains is everything above one threshold; the token is the argmax of logits
plus noise there. Rows with a small top-k are drawn from their few sorted candidates, all others from
the whole vocabulary. ``sample`` reads nothing back and has no shape that depends on data, so it can be
captured in a CUDA graph; what a batch needs at all is decided on the host, in ``SamplingBatch``. On a CPU,
where looking costs nothing, it draws the same tokens with less work. A row's token depends on its own
logits and parameters only, never on the rows beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache

import torch
from torch import Tensor

from engine.contenders import draw_free, draw_nucleus, select_rows
from engine.mass import WHOLE, mass_of, wanted_mass
from engine.noise import log_exponential, row_keys, row_keys_on_host
from engine.sampling_batch import SORTED_TOP_K, DrawingWays, Penalties, SamplingBatch, SamplingKind

__all__ = [
    "NO_TOKEN",
    "USUAL",
    "Sampled",
    "SamplingBatch",
    "SamplingKind",
    "draw_plainly",
    "graph_kind",
    "greedy_tokens",
    "sample",
]

INFINITY_BITS = 0x7F800000
NO_TOKEN = -1
ARGMAX_BLOCK = 64
# So many logits are one thread's work on a CPU: many short operators, after each of which threads would meet,
# gain little by a second one, and beside a busy program lose many times as much.
ONE_THREADS = 1 << 19
USUAL = SamplingKind(whole=True, select_p=True)  # what most chats ask: temperature and top-p
FREE = SamplingKind(whole=True)  # temperature alone


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


def sample(logits: Tensor, batch: SamplingBatch, out: Tensor | None = None) -> Sampled:
    """Draw the next token of every row.

    Args:
        logits: [n, V] of any floating dtype; not changed.
        batch: the parameters of the same n rows.
        out: [n] int64, where the tokens shall be.
    """
    threads = torch.get_num_threads()
    if logits.device.type != "cpu" or logits.numel() > ONE_THREADS or threads == 1:
        return _sample(logits, batch, out)
    torch.set_num_threads(1)
    try:
        return _sample(logits, batch, out)
    finally:
        torch.set_num_threads(threads)


def _sample(logits: Tensor, batch: SamplingBatch, out: Tensor | None = None) -> Sampled:
    logits = logits.to(device=batch.greedy.device, dtype=torch.float32)
    scores = logits if batch.penalties is None else _penalise(logits, batch.penalties)
    kind = batch.kind
    launch = _draw_kernels() if scores.is_cuda and scores.is_contiguous() else None
    if launch is None:
        tokens = draw_plainly(scores, batch, whole=kind.whole)
    elif kind.candidates or kind.select_k:
        plain = draw_plainly(scores, batch, whole=kind.select_k)
        # Which way a row's token comes about is a matter of its own parameters only.
        tokens = torch.where((batch.greedy | (batch.top_k == 0))[:, 0], launch(scores, batch, None), plain)
    else:
        tokens = launch(scores, batch, out)
    if out is not None and tokens is not out:
        tokens = out.copy_(tokens)
    if not kind.logprobs:
        return Sampled(tokens)
    all_logprobs = logits.log_softmax(dim=-1)
    top = all_logprobs.topk(min(kind.logprobs, logits.shape[1]), dim=-1)
    chosen = all_logprobs.gather(1, tokens.clamp(min=0)[:, None])[:, 0]
    return Sampled(tokens, chosen, top.indices, top.values)


def draw_plainly(scores: Tensor, batch: SamplingBatch, whole: bool) -> Tensor:
    """Tokens of every row by torch alone, int64 [n].

    Args:
        whole: those that are drawn from the whole vocabulary too; without, they hold the most likely token.
    """
    best = _argmax(scores)
    highest = scores.gather(1, best)
    tokens = best
    if whole or batch.kind.candidates:
        keys_of = row_keys if batch.ways is None else row_keys_on_host
        keys = keys_of(batch.seed, batch.position)
        settled = batch.greedy
        if batch.kind.candidates:
            here = (batch.top_k > 0) & (batch.top_k <= SORTED_TOP_K)
            drawn = _draw_candidate(scores, highest, best, keys, batch)
            tokens = torch.where(here & ~batch.greedy, drawn, tokens)
            settled = here | settled
        if whole:
            scaled = scores.sub(highest).div_(batch.temperature)
            if batch.ways is not None:
                drawn = _draw_by_need(scaled, best, keys, batch, batch.ways)
            else:
                drawn = _draw_any(scaled, best, keys, batch)
            tokens = torch.where(settled, tokens, drawn)
    return tokens.masked_fill(~highest.isfinite(), NO_TOKEN)[:, 0]


def greedy_tokens(logits: Tensor, out: Tensor | None = None) -> Tensor:
    """The most likely token of every row, of equals the first; ``NO_TOKEN`` where no logit is finite.

    Args:
        logits: [n, V] float32; not changed.
        out: [n] int64 to write to.

    Returns:
        [n] int64, ``out`` where it was given.
    """
    launch = _greedy_kernel() if logits.is_cuda and logits.is_contiguous() else None
    if launch is not None:
        out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device) if out is None else out
        launch(logits, out)
        return out
    best = _argmax(logits)
    tokens = best.masked_fill(~logits.gather(1, best).isfinite(), NO_TOKEN)[:, 0]
    return tokens if out is None else out.copy_(tokens)


@cache
def _greedy_kernel() -> Callable[[Tensor, Tensor], None] | None:
    """Two launches for all of it; None where triton does not import."""
    try:
        from engine.kernels.greedy import greedy
    except ImportError:
        return None
    return greedy


def graph_kind(kind: SamplingKind, device: torch.device) -> SamplingKind:
    """The kind whose launches do the work of ``kind`` too; not every kind is worth a graph of its own.

    Without top-p the kernels for it end at once, which takes microseconds; capturing takes milliseconds.
    """
    return USUAL if kind == FREE and device.type == "cuda" and _draw_kernels() is not None else kind


@cache
def _draw_kernels() -> Callable[[Tensor, SamplingBatch, Tensor | None], Tensor] | None:
    """Few launches for greedy rows and those without a top-k; None where triton does not import."""
    try:
        from engine.kernels.draw import draw
    except ImportError:
        return None
    return draw


# --- drawing ---------------------------------------------------------------------------------------


def _draw_candidate(
    scores: Tensor, highest: Tensor, best: Tensor, keys: Tensor, batch: SamplingBatch
) -> Tensor:
    """Tokens of rows with a small top-k, int64 [n, 1]; other rows hold anything.

    ``best`` are the most likely tokens; of equals the first, which a sort does not promise.
    """
    values, ids = scores.topk(batch.kind.candidates, dim=-1)
    scaled = values.sub_(highest).div_(batch.temperature)
    last = batch.top_k.clamp(1, batch.kind.candidates) - 1
    columns = torch.arange(batch.kind.candidates, device=scaled.device)
    mass = mass_of(scaled).masked_fill_(columns > last, 0).cumsum(dim=-1)
    wanted = wanted_mass(mass[:, -1:], batch.top_p)
    last = torch.minimum(last, (mass < wanted).sum(dim=-1, keepdim=True))
    lowest = torch.maximum(scaled.gather(1, last), batch.min_p.log())
    drawn = scaled.sub(log_exponential(keys, ids.to(torch.int32)))
    drawn.masked_fill_(scaled < lowest, -torch.inf)
    return torch.where(last > 0, ids.gather(1, drawn.argmax(dim=-1, keepdim=True)), best)


def _draw_any(scaled: Tensor, best: Tensor, keys: Tensor, batch: SamplingBatch) -> Tensor:
    """Tokens of rows that are drawn from the whole vocabulary, int64 [n, 1]; other rows hold anything.

    ``scaled`` is logits over temperature with a maximum of 0.
    """
    lowest = batch.min_p.log()  # min_p 0 is minus infinity: no bound
    alone: Tensor | None = None
    if batch.kind.select_k or batch.kind.select_p:
        bound, alone = _bound(scaled, batch)
        lowest = torch.maximum(lowest, bound)
    drawn = log_exponential(keys, _token_ids(scaled.shape[1], scaled.device))
    torch.sub(scaled, drawn, out=drawn).masked_fill_(scaled < lowest, -torch.inf)
    tokens = _argmax(drawn)
    return tokens if alone is None else torch.where(alone, best, tokens)


def _draw_by_need(
    scaled: Tensor, best: Tensor, keys: Tensor, batch: SamplingBatch, ways: DrawingWays
) -> Tensor:
    """The tokens of ``_draw_any``, every row by the shortest way that its parameters and logits allow."""
    tokens, dear = best.clone(), ways.cut
    if len(rows := ways.bounded):
        columns = (scaled, best, keys, batch.top_p, batch.min_p)
        tokens[rows], left = draw_nucleus(*(select_rows(column, rows) for column in columns))
        dear = torch.cat((dear, rows[left]))
    if len(rows := ways.free):
        tokens[rows], left = draw_free(select_rows(scaled, rows), select_rows(keys, rows))
        if len(rows := rows[left]):
            noise = log_exponential(keys[rows], _token_ids(scaled.shape[1], scaled.device))
            tokens[rows] = _argmax(torch.sub(scaled.index_select(0, rows), noise, out=noise))
    if len(dear):
        tokens[dear] = _draw_any(scaled.index_select(0, dear), best[dear], keys[dear], batch.rows(dear))
    return tokens


def _bound(scaled: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """The lowest value inside top-k and top-p, float32 [n, 1], and rows of one token, bool [n, 1].

    ``scaled`` is logits over temperature with a maximum of 0. Values equal to the lowest all stay.
    """
    # Not negative, so its bits order like its value: 0 is the most likely token.
    distance = scaled.abs().view(torch.int32)
    farthest = torch.full_like(batch.top_k, INFINITY_BITS, dtype=torch.int32)
    if batch.kind.select_k:
        nearest = _select(distance, torch.ones_like(distance, dtype=torch.int64), batch.top_k)
        farthest = torch.where(batch.top_k > 0, nearest.clamp_(max=INFINITY_BITS), farthest)
    alone = torch.zeros_like(batch.top_k, dtype=torch.bool)
    if batch.kind.select_p:
        mass = mass_of(scaled)
        if batch.kind.select_k:
            mass.masked_fill_(distance > farthest, 0)
        wanted = wanted_mass(mass.sum(dim=-1, keepdim=True), batch.top_p)
        nearest = torch.minimum(farthest, _select(distance, mass, wanted))
        farthest = torch.where(batch.top_p < 1.0, nearest, farthest)
        alone = (batch.top_p < 1.0) & (wanted <= WHOLE)
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


@lru_cache(maxsize=8)
def _token_ids(vocab_size: int, device: torch.device) -> Tensor:
    return torch.arange(vocab_size, dtype=torch.int32, device=device)
