"""BlockPool: reference counts, the prefix index, reuse in order of last use."""

import pytest

from engine import prefix
from engine.blocks import BlockPool, BrokenInvariant
from engine.errors import ConfigError
from engine.prefix import root_key
from engine.records import BlockChange
from engine.request import Request, SamplingParams


def make(id: int, prompt: list[int]) -> Request:
    return Request(id, prompt, SamplingParams())


def compute(pool: BlockPool, request: Request, tokens: int | None = None) -> None:
    """What a step does: take what is cached, allocate, compute, publish."""
    blocks = pool.match(request)
    pool.share(request, blocks)
    request.num_computed += len(blocks) * pool.block_size
    end = request.num_tokens if tokens is None else tokens
    pool.allocate(request, pool.blocks_for(end) - len(request.block_table))
    request.num_computed = max(request.num_computed, end)
    pool.publish(request)


def states(pool: BlockPool) -> list[int]:
    counts = pool.counts()
    return [counts.used, counts.cached, counts.free]


def test_the_null_block_is_never_handed_out():
    pool = BlockPool(5, 2)
    request = make(1, [1] * 8)
    pool.allocate(request, 4)
    assert sorted(request.block_table) == [1, 2, 3, 4]
    with pytest.raises(BrokenInvariant):
        pool.allocate(request)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 16), (0, 16), (8, 0)])
def test_a_pool_that_holds_nothing_is_refused(num_blocks: int, block_size: int):
    with pytest.raises(ConfigError, match=f"{num_blocks} blocks of {block_size}"):
        BlockPool(num_blocks, block_size)


def test_used_cached_and_free_are_three_numbers_that_add_up():
    pool = BlockPool(8, 2)
    first, second = make(1, [1, 2, 3, 4, 5]), make(2, [9, 9, 9])
    compute(pool, first)
    assert states(pool) == [3, 0, 4]
    pool.forget(first)
    assert states(pool) == [0, 2, 5], "two full blocks stay cached, the partial one is free"
    compute(pool, second)
    assert states(pool) == [2, 2, 3]
    pool.check([second])


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
def test_a_hit_leaves_at_least_one_token_to_compute(length: int):
    pool = BlockPool(8, 4)
    compute(pool, make(1, list(range(length))))
    again = make(2, list(range(length)))
    assert len(pool.match(again)) == (length - 1) // 4


def test_a_block_is_found_only_after_it_was_computed():
    pool = BlockPool(8, 2)
    first = make(1, [1, 2, 3, 4, 5])
    pool.allocate(first, 3)
    second = make(2, [1, 2, 3, 4, 5])
    assert pool.match(second) == []
    first.num_computed = 3
    pool.publish(first)
    assert pool.match(second) == first.block_table[:1]
    pool.forget(first)
    assert len(pool.match(second)) == 1, "what its owner never computed does not become a hit when it ends"


def test_two_requests_that_computed_the_same_prefix_keep_their_own_blocks():
    pool = BlockPool(16, 2)
    first, second = make(1, [1, 2, 3, 4, 5]), make(2, [1, 2, 3, 4, 5])
    for request in (first, second):
        pool.allocate(request, 3)
        request.num_computed = 5
    for request in (first, second):
        pool.publish(request)
    pool.check([first, second])
    pool.forget(first)
    pool.check([second])
    assert set(second.block_table).isdisjoint(pool.match(make(3, [1, 2, 3, 4, 5])))
    pool.forget(second)
    pool.check([])
    assert states(pool) == [0, 2, 13]


def test_a_reused_block_loses_its_name():
    pool = BlockPool(3, 2)
    first = make(1, [1, 2, 3])
    compute(pool, first)
    block = first.block_table[0]
    pool.forget(first)
    other = make(2, [7, 7, 7, 7])
    pool.allocate(other, 2)
    assert block in other.block_table
    assert pool.match(make(3, [1, 2, 3])) == []
    assert BlockChange("evict", block) in pool.drain_changes()


def test_a_hit_refreshes_a_block():
    pool = BlockPool(4, 2)
    for id, prompt in enumerate(([1, 1, 0], [2, 2, 0])):
        request = make(id, prompt)
        compute(pool, request)
        pool.forget(request)
    again = make(5, [1, 1, 3])
    compute(pool, again)
    pool.forget(again)
    taker = make(6, [8, 8, 8, 8])
    pool.allocate(taker, 2)  # the free block, then the least recently used one
    assert pool.match(make(7, [1, 1, 0])), "the hot prefix survives"
    assert not pool.match(make(8, [2, 2, 0]))


def test_the_tail_is_reused_before_the_head():
    pool = BlockPool(5, 1)
    request = make(1, [1, 2, 3, 4])
    compute(pool, request)
    table = list(request.block_table)
    pool.forget(request)
    for left in (3, 2, 1):
        taker = make(10 + left, [9])
        pool.allocate(taker)
        assert pool.match(make(2, [1, 2, 3, 4, 5])) == table[:left]


def test_free_blocks_are_taken_before_cached_ones():
    pool = BlockPool(6, 2)
    request = make(1, [1, 2, 3])
    compute(pool, request)
    pool.forget(request)
    pool.allocate(make(2, [5] * 8), 4)
    assert states(pool) == [4, 1, 0]


def test_a_clash_of_names_gives_no_hit_and_no_foreign_tokens(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefix, "block_key", lambda parent, tokens: b"always the same")
    pool = BlockPool(16, 2)
    first, second = make(1, [1, 2, 3, 4, 5]), make(2, [6, 7, 3, 4, 5])
    compute(pool, first)
    assert pool.match(second) == []
    compute(pool, second)
    pool.check([first, second])
    assert pool.match(make(3, [1, 2, 9])) == first.block_table[:1]
    assert pool.match(make(4, [6, 7, 9])) == []


def test_a_clash_does_not_spoil_the_blocks_behind_it(monkeypatch: pytest.MonkeyPatch):
    real = prefix.block_key
    root = root_key({})
    monkeypatch.setattr(
        prefix, "block_key", lambda parent, tokens: b"clash" if parent == root else real(parent, tokens)
    )
    pool = BlockPool(16, 2)
    first, second = make(1, [1, 2, 0]), make(2, [6, 7, 3, 4, 0])
    compute(pool, first)
    compute(pool, second)
    found = pool.match(make(3, [1, 2, 3, 4, 0]))
    assert found == first.block_table[:1], "the block of 3, 4 was computed behind 6, 7"


def test_a_request_that_clashed_hits_nothing_behind_the_clash(monkeypatch: pytest.MonkeyPatch):
    real = prefix.block_key
    root = root_key({})
    monkeypatch.setattr(
        prefix, "block_key", lambda parent, tokens: b"clash" if parent == root else real(parent, tokens)
    )
    pool = BlockPool(16, 2)
    first, second = make(1, [1, 2, 3, 4, 0]), make(2, [6, 7, 3, 4, 0])
    compute(pool, first)
    compute(pool, second, tokens=2)
    assert pool.match(second) == [], "the block of 3, 4 was computed behind 1, 2"


def test_a_request_that_lost_its_blocks_publishes_them_again():
    pool = BlockPool(4, 2)
    request = make(1, [1, 2, 3, 4, 5])
    compute(pool, request)
    pool.release(request)
    request.num_computed = 0
    taker = make(2, [9] * 6)
    pool.allocate(taker, 3)
    pool.forget(taker)
    assert pool.match(make(3, [1, 2, 3, 4, 5])) == []
    compute(pool, request)
    assert pool.match(make(3, [1, 2, 3, 4, 5])) == request.block_table[:2]


@pytest.mark.parametrize(
    "other",
    [
        {"model": "a", "salt": "bc"},
        {"model": "abc"},
        {"salt": "ab", "model": "c"},
        {"dtype": "ab", "salt": "c"},
        {},
    ],
)
def test_parts_of_a_name_do_not_run_into_each_other(other: dict[str, str]):
    assert root_key({"model": "ab", "salt": "c"}) != root_key(other)
    assert root_key({"salt": "c", "model": "ab"}) == root_key({"model": "ab", "salt": "c"})


def test_equal_tokens_behind_different_prefixes_are_different_blocks():
    pool = BlockPool(16, 2)
    compute(pool, make(1, [1, 1, 5, 5, 0]))
    assert len(pool.match(make(2, [2, 2, 5, 5, 0]))) == 0
    assert len(pool.match(make(3, [1, 1, 5, 5, 0]))) == 2


def test_generated_tokens_that_were_forwarded_are_hit_in_the_next_turn():
    pool = BlockPool(16, 2)
    request = make(1, [1, 2, 3])
    compute(pool, request)
    request.output_ids = [4, 5, 6]
    pool.allocate(request)
    request.num_computed = 5  # the sixth token was sampled and never forwarded
    pool.publish(request)
    pool.forget(request)
    assert len(pool.match(make(2, [1, 2, 3, 4, 5, 6, 7]))) == 2


def test_without_a_prefix_cache_nothing_is_published():
    pool = BlockPool(8, 2, prefix_cache=False)
    request = make(1, [1, 2, 3])
    compute(pool, request)
    assert pool.match(make(2, [1, 2, 3])) == []
    pool.forget(request)
    assert states(pool) == [0, 0, 7]


def test_changes_tell_allocate_publish_share_release_and_evict_in_order():
    pool = BlockPool(3, 2)
    first, second = make(1, [1, 2, 3]), make(2, [1, 2, 9])
    compute(pool, first)
    a, b = first.block_table
    assert pool.drain_changes() == (
        BlockChange("allocate", a, 1, 0),
        BlockChange("allocate", b, 1, 1),
        BlockChange("publish", a, 1, 0),
    )
    pool.share(second, pool.match(second))
    pool.forget(first)
    pool.forget(second)
    assert pool.drain_changes() == (
        BlockChange("share", a, 2, 0),
        BlockChange("release", b, 1, 1),
        BlockChange("release", a, 1, 0),
        BlockChange("release", a, 2, 0),
    )
    pool.clear_cache()
    assert pool.drain_changes() == (BlockChange("evict", a),)
    assert states(pool) == [0, 0, 2]


def test_a_table_entry_without_a_reference_is_found():
    pool = BlockPool(4, 2)
    request = make(1, [1, 2, 3])
    compute(pool, request)
    request.block_table.append(3)
    with pytest.raises(BrokenInvariant, match="Block 3 counts 0 references and has 1"):
        pool.check([request])


def test_a_lost_block_is_found():
    pool = BlockPool(4, 2)
    request = make(1, [1, 2, 3])
    compute(pool, request)
    with pytest.raises(BrokenInvariant):
        pool.check([])
