"""Draws on a CPU that compute noise for the tokens alone that can be drawn.

What comes out is to the last bit what a draw from the whole vocabulary gives: a row is drawn here where its
contenders provably hold the winner, and else left to the caller. Shapes depend on data.
"""

from functools import lru_cache

import torch
from torch import Tensor

from engine.mass import WHOLE, mass_of, wanted_mass
from engine.noise import log_exponential, logs_of_bits, random_bits

CANDIDATES = 128  # more hold the nucleus of more rows, and take longer to sort
FOLD = 16  # tokens that are compared at once before any is sorted
GROUP = 64  # tokens whose logits and noise are bounded together
GROUPS = 64  # of these are looked into
SLACK = 1e-3  # far more than logarithms of neighbouring numbers can be in the wrong order
ROUGHLY = 1e-9  # far more than a sum of float64 can be off, relative


def draw_nucleus(
    scaled: Tensor, best: Tensor, keys: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens of rows that have a top-p, a min-p or both, and no top-k.

    All tokens inside are among the candidates where the least of these lies below the bound.

    Args:
        scaled: float32 [n, V], logits over temperature with a maximum of 0.
        best: int64 [n, 1], the most likely tokens.
        keys: int32 [n, 2] of ``row_keys``.
        top_p: float64 [n, 1].
        min_p: float32 [n, 1].

    Returns:
        Tokens, int64 [n, 1], and the rows that are not drawn, int64 [m].
    """
    values, ids = likeliest(scaled, min(CANDIDATES, scaled.shape[1]))
    end = _nucleus_end(values, scaled, top_p)
    bound = values.gather(1, end.clamp(max=values.shape[1] - 1)).masked_fill_(
        end == values.shape[1], -torch.inf
    )
    lowest = torch.maximum(min_p.log(), bound)  # min_p 0 is minus infinity: no bound
    drawn = values.sub(log_exponential(keys, ids.to(torch.int32))).masked_fill_(values < lowest, -torch.inf)
    alone = end == 0
    tokens = torch.where(alone, best, _first_highest(drawn, ids))
    # Strictly below: what equals the lowest is inside, and some of it may be farther behind.
    enough = alone | (values[:, -1:] < lowest) | values[:, :1].isnan()
    left = (~enough).nonzero()[:, 0]
    return tokens, left if values.shape[1] < scaled.shape[1] else left[:0]


def draw_free(scaled: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens of rows without any bound; arguments and results as of ``draw_nucleus``.

    No token of a group exceeds its highest logit plus its highest noise, which takes a logarithm for the
    group instead of two for every token. Groups where that is much are looked into; the others lie below.
    """
    rows, columns = scaled.shape
    count = columns // GROUP
    if columns % GROUP or count <= 2 * GROUPS:
        return torch.zeros(rows, 1, dtype=torch.int64), torch.arange(rows)
    bits = random_bits(keys, _token_ids(columns)).bitwise_and_(0x7FFFFFFF)
    folded, folded_bits = (values.reshape(rows, GROUP, count) for values in (scaled, bits))
    highest = folded.amax(dim=1).sub_(logs_of_bits(folded_bits.amin(dim=1)))
    found = highest.topk(GROUPS + 1, dim=-1)
    group = found.indices[:, None, :GROUPS].expand(-1, GROUP, -1)
    drawn = folded.gather(2, group).sub_(logs_of_bits(folded_bits.gather(2, group)))
    ids = group + torch.arange(0, columns, count)[:, None]
    drawn, ids = drawn.view(rows, -1), ids.reshape(rows, -1)
    enough = found.values[:, -1] + SLACK < drawn.amax(dim=-1)
    return _first_highest(drawn, ids), (~enough).nonzero()[:, 0]


def likeliest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest values of every row in falling order and their columns, float32 and int64 [n, count].

    The highest of each few columns are compared first: the ``count`` highest of these lead to all others.
    """
    rows, columns = values.shape
    groups = columns // FOLD
    if columns % FOLD or groups <= 2 * count:
        found = values.topk(count, dim=-1)
        return found.values, found.indices
    folded = values.reshape(rows, FOLD, groups)
    group = folded.amax(dim=1).topk(count, dim=-1, sorted=False).indices
    found = folded.gather(2, group[:, None].expand(-1, FOLD, -1)).view(rows, -1).topk(count, dim=-1)
    at = found.indices
    return found.values, at // count * groups + group.gather(1, at % count)


def select_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Some of the rows in rising order; ``values`` themselves where these are all."""
    return values if len(rows) == len(values) else values.index_select(0, rows)


def _nucleus_end(values: Tensor, scaled: Tensor, top_p: Tensor) -> Tensor:
    """How many of the sorted ``values`` reach less than top-p, int64 [n, 1]; all with top_p 1.

    Integer mass of the whole vocabulary is dear, where every token is rounded down to a unit. It differs from
    a sum without rounding by less than a unit a token, and is counted only where that makes a difference.
    """
    count = values.shape[1]
    if not bool((top_p < 1.0).any()):
        return torch.full_like(top_p, count, dtype=torch.int64)
    mass = mass_of(values).cumsum(dim=-1)
    wanted = scaled.exp().sum(dim=-1, keepdim=True, dtype=torch.float64).mul_(WHOLE).mul_(top_p)
    short = mass - wanted
    end = (short < 0).sum(dim=-1, keepdim=True)
    near = short.abs_() <= wanted.mul_(ROUGHLY).add_(scaled.shape[1])
    if bool(near.any()):
        (rows,) = near.any(dim=-1).nonzero(as_tuple=True)
        exact = wanted_mass(mass_of(scaled[rows]).sum(dim=-1, keepdim=True), top_p[rows])
        end[rows] = (mass[rows] < exact).sum(dim=-1, keepdim=True)
    return end.masked_fill_(top_p >= 1.0, count)


def _first_highest(drawn: Tensor, ids: Tensor) -> Tensor:
    """The token of the highest value, of equals the first in the vocabulary: int64 [n, 1]."""
    behind = drawn < drawn.amax(dim=-1, keepdim=True)
    return ids.masked_fill(behind, torch.iinfo(torch.int64).max).amin(dim=-1, keepdim=True)


@lru_cache(maxsize=8)
def _token_ids(vocab_size: int) -> Tensor:
    return torch.arange(vocab_size, dtype=torch.int32)
