"""How a step's prompt tokens are shared among open prefills. Torch-free."""

from collections.abc import Sequence

from engine.blocks import BlockPool
from engine.prefix import Key
from engine.request import Request


def share_budget(prefills: Sequence[Request], budget: int, pool: BlockPool) -> list[tuple[Request, int]]:
    """Tokens for each open prefill; those that get none are left out.

    The first in order gets half, so that it ends after a bounded number of steps whatever comes after
    it. The rest goes to the shortest remainder first within a priority, so that a short prompt starts
    a few steps after it came, however long the one before it is. A chunk that does not complete its
    prompt ends at a block, so that its request can go on with blocks that others published meanwhile.

    Args:
        prefills: in order, each with at least one token to compute.
        budget: tokens, at least 1.
    """
    if not prefills:
        return []
    turns = [(prefills[0], (budget + 1) // 2)]
    turns += [(request, budget) for request in sorted(prefills, key=_shortest_first)]
    grants: dict[int, int] = {}
    coming: set[Key] = set()  # names of blocks that this step will fill
    for request, most in turns:
        before = grants.get(request.id, 0)
        if not before and _another_computes(request, coming, pool):
            continue
        start = request.num_computed
        end = min(request.num_tokens, start + before + min(most, budget))
        if end < request.num_tokens and end - end % pool.block_size > start:
            end -= end % pool.block_size
        if end - start == before:
            continue
        budget -= end - start - before
        grants[request.id] = end - start
        coming.update(pool.names(request, start, end))
    return [(request, grants[request.id]) for request in prefills if request.id in grants]


def _shortest_first(request: Request) -> tuple[int, int]:
    return -request.priority, request.num_tokens - request.num_computed


def _another_computes(request: Request, coming: set[Key], pool: BlockPool) -> bool:
    """True when this step fills the very block that the request needs next: it waits for the hit."""
    start = request.num_computed
    end = start + pool.block_size
    if not coming or start % pool.block_size or end >= request.num_tokens:
        return False
    return not coming.isdisjoint(pool.names(request, start, end))
