"""The mirror equals the pool: driven by the real scheduler, by random streams, and after lost telemetry."""

import random
from collections import defaultdict

import pytest

from engine.blocks import BlockPool
from engine.records import BlockChange, BlockCounts, BlockOwner, BlockSnapshot, StepRecord, StepRow, StepTimes
from engine.request import FinishReason
from tests.app.simulation import Simulation
from tui_infer.mirror import BlockMirror, BlockState


def step(index: int, *changes: BlockChange, rows: tuple[StepRow, ...] = ()) -> StepRecord:
    return StepRecord(
        index=index,
        t=0.0,
        kind="decode",
        mode="eager",
        reason="",
        graph_size=None,
        active=1,
        waiting=0,
        prefill_tokens=0,
        cached_tokens=0,
        decode_tokens=1,
        ms=StepTimes(1, 0, 1, None, 0),
        blocks=BlockCounts(0, 0, 0),
        rows=rows,
        block_changes=changes,
    )


def assert_same(mirror: BlockMirror, simulation: Simulation) -> None:
    """Every block of the mirror against the pool and the block tables themselves."""
    pool = simulation.pool
    holders: dict[int, dict[int, int]] = defaultdict(dict)
    for request in simulation.scheduler._holders():
        for index, block in enumerate(request.block_table):
            holders[block][request.id] = index
        assert mirror.table(request.id) == list(enumerate(request.block_table))
    published = set(pool.published())
    assert mirror.counts() == pool.counts()
    for block in range(1, pool.num_blocks):
        assert dict(mirror.references(block)) == holders.get(block, {})
        assert mirror.published(block) == (block in published)
        state = BlockState.USED if block in holders else BlockState(int(block in published))
        assert mirror.state(block) == state
    assert mirror.state(0) == BlockState.NULL
    assert mirror.shared == sum(len(owners) > 1 for owners in holders.values())


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "chats", "seen"),
    [
        (40, 16, 3, {"evict", "share"}),
        (64, 1, 2, {"evict", "share", "preempt"}),
        (300, 4, 6, {"evict", "share"}),
        (9, 256, 5, {"evict"}),
    ],
)
def test_the_mirror_equals_the_pool_after_every_step(
    num_blocks: int, block_size: int, chats: int, seen: set[str]
) -> None:
    simulation = Simulation(
        num_blocks=num_blocks, block_size=block_size, chats=0, prefix=min(40, block_size * 3)
    )
    generator = random.Random(num_blocks)
    happened: set[str] = set()
    capacity = simulation.pool.capacity
    for _ in range(400):
        live = list(simulation.scheduler.requests)
        if len(live) < chats and generator.random() < 0.3:
            chat = generator.randrange(chats)
            if len(simulation.past.get(chat, ())) > capacity // 2:
                simulation.past.pop(chat)
            simulation.submit(chat, generator.randint(1, max(1, capacity // 6)), generator.randint(1, 40))
        if live and generator.random() < 0.03:
            simulation.scheduler.cancel(generator.choice(live))
        record = simulation.step()
        if record is None:
            continue
        assert simulation.mirror.in_step_with(record)
        assert_same(simulation.mirror, simulation)
        happened.update(change.kind for change in record.block_changes)
        happened.update("preempt" for _ in record.preempted)
    assert happened >= {"allocate", "release", "publish"} | seen


def test_fill_follows_the_tokens_in_the_cache() -> None:
    simulation = Simulation(num_blocks=60, block_size=16, chats=0)
    request = simulation.submit(0, 10, 30)
    for _ in range(12):
        simulation.step()
        table = request.block_table
        for index, block in enumerate(table):
            expected = min(16, max(0, request.num_computed - index * 16))
            assert simulation.mirror.fill(block) == expected
        assert simulation.mirror.context(request.id) == request.num_computed


def test_a_block_that_nobody_holds_is_cached_if_published_else_free() -> None:
    mirror = BlockMirror(8, 4)
    mirror.apply(step(1, BlockChange("allocate", 3, 7, 0), BlockChange("allocate", 4, 7, 1)))
    assert mirror.counts() == BlockCounts(2, 0, 5)
    mirror.apply(step(2, BlockChange("publish", 3, 7, 0)))
    mirror.apply(step(3, BlockChange("release", 4, 7, 1), BlockChange("release", 3, 7, 0)))
    assert mirror.counts() == BlockCounts(0, 1, 6)
    assert mirror.state(3) == BlockState.CACHED
    assert mirror.state(4) == BlockState.FREE
    assert mirror.last_owner(3) == 7
    assert mirror.num_cached_of(7) == 1
    assert mirror.cached_of(7) == mirror.cached_of(7, [3]) == mirror.cached_of(7, [4]) == [3]
    mirror.apply(step(4, BlockChange("evict", 3), BlockChange("allocate", 3, 9, 0)))
    assert mirror.counts() == BlockCounts(1, 0, 6)
    assert (mirror.last_owner(3), mirror.num_cached_of(7)) == (9, 0)
    assert mirror.cached_of(7, [3]) == []


def test_a_shared_block_belongs_to_both_until_one_lets_go() -> None:
    mirror = BlockMirror(8, 4)
    mirror.apply(step(1, BlockChange("allocate", 2, 1, 0), BlockChange("publish", 2, 1, 0)))
    mirror.apply(step(2, BlockChange("share", 2, 5, 0)))
    assert mirror.references(2) == {1: 0, 5: 0}
    assert mirror.shared == 1
    assert mirror.came_from_cache(5, 0)
    assert not mirror.came_from_cache(1, 0)
    mirror.apply(step(3, BlockChange("release", 2, 1, 0)))
    assert mirror.references(2) == {5: 0}
    assert mirror.shared == 0
    assert mirror.counts() == BlockCounts(1, 0, 6)


def test_the_step_of_the_last_change_is_kept_for_each_block() -> None:
    mirror = BlockMirror(4, 4)
    mirror.apply(step(10, BlockChange("allocate", 1, 1, 0)))
    mirror.apply(step(11, rows=(StepRow(1, 3, 1, False),)))
    mirror.apply(step(12, BlockChange("allocate", 2, 1, 1)))
    assert [mirror.last_change_step(block) for block in range(4)] == [-1, 10, 12, -1]


def test_readers_learn_which_blocks_to_draw_again() -> None:
    mirror = BlockMirror(4, 4)
    mirror.apply(step(1, BlockChange("allocate", 1, 1, 0)))
    version = mirror.version
    assert mirror.changed_since(version) == set()
    mirror.apply(step(2, rows=(StepRow(1, 3, 1, False),)))
    assert mirror.changed_since(version) == {1}
    mirror.apply(step(3, BlockChange("allocate", 2, 1, 1)))
    assert mirror.changed_since(version) == {1, 2}
    for index in range(4, 70_000):
        mirror.apply(step(index, rows=(StepRow(1, 3, 1, False),)))
    assert mirror.changed_since(version) is None
    assert mirror.changed_since(mirror.version) == set()


def test_a_snapshot_puts_a_mirror_right_that_lost_steps() -> None:
    simulation = Simulation(num_blocks=80, block_size=8, chats=4)
    lossy = BlockMirror(80, 8)
    generator = random.Random(5)
    restored = 0
    for _ in range(300):
        (record,) = simulation.run(1)
        if generator.random() < 0.25:
            continue
        lossy.apply(record)
        if not lossy.in_step_with(record):
            lossy.restore(simulation.scheduler.snapshot(record.index))
            restored += 1
            assert_same(lossy, simulation)
        if record.index == lossy.step and generator.random() < 0.1:
            lossy.restore(simulation.scheduler.snapshot(record.index))
            assert_same(lossy, simulation)
    assert restored


def test_a_snapshot_changes_only_what_differs() -> None:
    mirror = BlockMirror(6, 4)
    mirror.apply(step(1, BlockChange("allocate", 1, 1, 0), BlockChange("allocate", 2, 1, 1)))
    mirror.restore(BlockSnapshot(step=9, owners=[BlockOwner(1, 1, 0), BlockOwner(3, 2, 0)], published=[3, 4]))
    assert [mirror.last_change_step(block) for block in range(1, 6)] == [1, 9, 9, 9, -1]
    assert mirror.counts() == BlockCounts(2, 1, 2)
    assert mirror.table(1) == [(0, 1)]
    assert mirror.last_owner(4) is None


def test_steps_that_a_snapshot_contains_are_not_applied_again() -> None:
    mirror = BlockMirror(6, 4)
    mirror.restore(BlockSnapshot(step=5, owners=[BlockOwner(1, 1, 0)], published=[]))
    mirror.apply(step(5, BlockChange("release", 1, 1, 0)))
    assert mirror.counts().used == 1


def test_changes_that_cannot_be_are_survived() -> None:
    mirror = BlockMirror(4, 4)
    mirror.apply(
        step(
            1,
            BlockChange("release", 2, 9, 0),
            BlockChange("allocate", 99, 1, 0),
            BlockChange("allocate", 0, 1, 0),
            BlockChange("evict", 3),
        )
    )
    assert mirror.counts() == BlockCounts(0, 0, 3)
    assert mirror.state(0) == BlockState.NULL


def test_a_finished_chat_leaves_no_context_behind() -> None:
    pool_size = 50
    simulation = Simulation(num_blocks=pool_size, block_size=4, chats=0)
    request = simulation.submit(0, 20, 5)
    while not request.finished:
        simulation.step()
    simulation.scheduler.finish(request, FinishReason.STOP)
    other = simulation.submit(1, 5, 2)
    while not other.finished:
        simulation.step()
    other_pool: BlockPool = simulation.pool
    assert simulation.mirror.context(request.id) == 0
    assert list(simulation.mirror.requests) == []
    assert simulation.mirror.counts() == other_pool.counts()


def test_an_empty_mirror_has_nothing() -> None:
    mirror = BlockMirror()
    assert mirror.counts() == BlockCounts(0, 0, 0)
    assert mirror.table(1) == []
