"""What the engine knows of one block and nobody outside it does. Torch-free."""

from collections.abc import Callable, Sequence

from engine.blocks import NULL_BLOCK
from engine.errors import RequestError
from engine.prefix import token_slice
from engine.records import BlockDetail
from engine.scheduler import Scheduler

HASH_DIGITS = 12  # of the hex text: enough to tell blocks apart by eye


def block_detail(
    block: int, step: int, scheduler: Scheduler, pieces: Callable[[Sequence[int]], list[str]]
) -> BlockDetail:
    """The detail of a block between two steps.

    A published block is known by the prefix index; another one by the first request that holds it, as far
    as its tokens are computed. Of a free block nothing is known but when it was last used.

    Args:
        step: number of the last step that was run.
        pieces: texts of tokens.

    Raises:
        RequestError: there is no such block.
    """
    pool = scheduler.pool
    check_block(block, pool.num_blocks)
    if block == NULL_BLOCK:
        return BlockDetail(block=block, step=step, references=0)
    content = pool.content(block)
    token_ids = list(content[1]) if content is not None else _held_tokens(block, scheduler)
    return BlockDetail(
        block=block,
        step=step,
        references=pool.references(block),
        hash="" if content is None else content[0].hex()[:HASH_DIGITS],
        last_used=min(pool.last_used(block), step),  # released since then: the next record will tell
        token_ids=token_ids,
        pieces=pieces(token_ids),
    )


def check_block(block: int, num_blocks: int) -> None:
    """See that there is such a block.

    Raises:
        RequestError: with the ids that there are.
    """
    if not 0 <= block < num_blocks:
        raise RequestError(f"There is no block {block}; the blocks are 0 to {num_blocks - 1}.")


def _held_tokens(block: int, scheduler: Scheduler) -> list[int]:
    held = scheduler.holder(block)
    if held is None:
        return []
    request, index = held
    size = scheduler.pool.block_size
    return token_slice(request, index * size, min((index + 1) * size, request.num_computed))
