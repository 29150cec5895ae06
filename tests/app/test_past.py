"""The past equals what was live: block map, aggregates and panels at any kept step, at a bounded cost."""

import gc
import random
import time
import tracemalloc
from collections import defaultdict

import msgspec
import pytest

from engine.records import BlockChange, BlockCounts, StepRecord, Steps
from tests.app.simulation import Simulation
from tests.budgets import most
from tests.engine.token_device import Harness
from tui_infer.history import StepHistory
from tui_infer.mirror import BlockMirror, BlockState
from tui_infer.past import CHECKPOINT_BYTES, EVERY, Moment, Past, Timeline, record_bytes

Pool = tuple[BlockCounts, dict[int, dict[int, int]], frozenset[int]]


def pool_of(scheduler: object, step: int) -> Pool:
    """Counts, holders and published blocks, from the pool and the block tables themselves."""
    holders: dict[int, dict[int, int]] = defaultdict(dict)
    for request in scheduler._holders():  # type: ignore[attr-defined]
        for index, block in enumerate(request.block_table):
            holders[block][request.id] = index
    pool = scheduler.pool  # type: ignore[attr-defined]
    return pool.counts(), dict(holders), frozenset(pool.published())


def assert_map_is(mirror: BlockMirror, pool: Pool) -> None:
    counts, holders, published = pool
    assert mirror.counts() == counts
    for block in range(1, mirror.num_blocks):
        held = holders.get(block, {})
        assert dict(mirror.references(block)) == held
        assert mirror.published(block) == (block in published)
        assert mirror.state(block) == (BlockState.USED if held else BlockState(int(block in published)))
        assert not held or mirror.last_owner(block) in held


def aggregates(history: StepHistory) -> tuple[object, ...]:
    """Every number that a panel reads of a history."""
    return (
        history.latest,
        history.appended,
        history.dropped,
        history.decode_batch,
        dict(history.graph_hits),
        dict(history.eager_reasons),
        history.percentiles(),
        history.tokens_per_s(),
        history.prefill_tokens_per_s(),
        history.time_shares(),
        dict(history.medians()),
        history.nearest_ratio(),
    )


def block_facts(mirror: BlockMirror) -> tuple[object, ...]:
    """Every fact that a panel reads of a mirror."""
    blocks = range(mirror.num_blocks)
    requests = list(mirror.requests)
    return (
        mirror.step,
        mirror.counts(),
        mirror.shared,
        mirror.high_water,
        bytes(mirror.states),
        list(mirror.owner),
        list(mirror.change_step),
        [(dict(mirror.references(block)), mirror.fill(block), mirror.published(block)) for block in blocks],
        [(request, mirror.table(request), mirror.context(request)) for request in requests],
        [
            [mirror.came_from_cache(request, index) for index, _ in mirror.table(request)]
            for request in requests
        ],
        [mirror.num_cached_of(request) for request in range(60)],
    )


def seen(past: Past, step: int) -> Moment:
    moment = past.moment(step)
    assert moment is not None
    return moment


def fed(simulation: Simulation, **options: int) -> Timeline:
    """An empty timeline for what a simulation does."""
    pool = simulation.pool
    return Timeline(StepHistory(), BlockMirror(pool.num_blocks, pool.block_size), **options)


def busy(records: int, blocks: int, chats: int = 8, seed: int = 1) -> tuple[Timeline, list[StepRecord]]:
    """A timeline after a long run; the records went over the wire, as the app's do."""
    simulation = Simulation(num_blocks=blocks, chats=chats, seed=seed)
    timeline = fed(simulation)
    wire = msgspec.msgpack.Decoder(Steps)
    made: list[StepRecord] = []
    while len(made) < records:
        steps = wire.decode(msgspec.msgpack.encode(Steps(simulation.run(100))))
        timeline.extend(steps.records)
        made += steps.records
    return timeline, made


def test_the_map_equals_the_pool_at_every_step_of_a_random_run_and_at_any_of_them_later() -> None:
    generator = random.Random(11)
    harness = Harness(num_blocks=48, block_size=4)
    changes: list[BlockChange] = []
    drain = harness.pool.drain_changes

    def noted() -> tuple[BlockChange, ...]:
        new = drain()
        changes.extend(new)
        return new

    harness.pool.drain_changes = noted  # type: ignore[method-assign]
    timeline = Timeline(StepHistory(), BlockMirror(48, 4))
    truth: list[Pool] = []
    happened: set[str] = set()
    prefix = [generator.randrange(3) for _ in range(9)]
    template = Simulation(chats=1).run(1)[0]
    while len(truth) < 2_000:
        live = list(harness.scheduler.requests.values())
        if len(live) < 6 and generator.random() < 0.25:
            start = prefix if generator.random() < 0.5 else []
            prompt = start + [generator.randrange(3) for _ in range(generator.randint(1, 40))]
            harness.submit(prompt, generator.randint(1, 40), priority=generator.randint(0, 1))
        if live and generator.random() < 0.03:
            harness.scheduler.cancel(generator.choice(live).id)
        changes.clear()
        plan = harness.step()
        if plan is None:
            timeline.restore(harness.scheduler.snapshot(timeline.mirror.step))
            continue
        record = msgspec.structs.replace(
            template,
            index=len(truth),
            blocks=harness.pool.counts(),
            block_changes=tuple(changes),
            rows=(),
            preempted=plan.preempted,
        )
        timeline.extend([record])
        truth.append(pool_of(harness.scheduler, record.index))
        assert_map_is(timeline.mirror, truth[-1])
        happened.update(change.kind for change in changes)
        happened.update("preempt" for _ in plan.preempted)
    assert happened >= {"allocate", "share", "publish", "release", "evict", "preempt"}
    past = timeline.freeze()
    for step in [0, 1, 255, 256, 257, 1_999, *generator.sample(range(2_000), 150)]:
        moment = seen(past, step)
        assert (moment.step, moment.notes) == (step, ())
        assert_map_is(moment.mirror, truth[step])


def test_history_and_map_of_a_past_step_say_what_they_said_then() -> None:
    simulation = Simulation(num_blocks=300, chats=6)
    timeline = fed(simulation)
    generator = random.Random(3)
    then: dict[int, tuple[object, ...]] = {}
    for number in range(2_400):
        if number % 400 == 200:
            simulation.mode = "eager" if simulation.mode == "graph" else "graph"
        records = simulation.run(1)
        timeline.extend(records)
        if generator.random() < 0.03 or number % 256 in (0, 255):
            then[records[0].index] = (*aggregates(timeline.history), *block_facts(timeline.mirror))
    past = timeline.freeze()
    order = list(then)
    generator.shuffle(order)
    for step in [*order, *sorted(order)]:
        moment = seen(past, step)
        assert (*aggregates(moment.history), *block_facts(moment.mirror)) == then[step]
        assert list(moment.history)[-1] is moment.record
        assert len(moment.history) == moment.position + 1


def test_the_past_stands_still_while_the_engine_goes_on() -> None:
    simulation = Simulation(num_blocks=200, chats=4)
    timeline = Timeline(StepHistory(capacity=500), BlockMirror(200, 16))
    timeline.extend(simulation.run(500))
    past = timeline.freeze()
    moment = seen(past, 120)
    before = (aggregates(moment.history), block_facts(moment.mirror), moment.history.last(5))
    timeline.extend(simulation.run(3_000))
    assert (aggregates(moment.history), block_facts(moment.mirror), moment.history.last(5)) == before
    again = seen(past, 120)
    assert block_facts(again.mirror) == before[1]
    newer = seen(timeline.freeze(), 120)
    assert 2_700 < newer.step <= 3_001
    assert newer.notes == ("step 120 is no longer kept",)


def test_every_kept_step_can_be_seen_after_the_ring_went_round() -> None:
    simulation = Simulation(num_blocks=200, chats=4)
    timeline = Timeline(StepHistory(capacity=700), BlockMirror(200, 16))
    facts = {}
    for _ in range(3_000):
        (record,) = simulation.run(1)
        timeline.extend([record])
        facts[record.index] = block_facts(timeline.mirror)
    past = timeline.freeze()
    assert len(past) - past.oldest >= 700
    assert len(past) < 700 + 2 * EVERY
    assert len(timeline.checkpoints) <= 5
    for step in range(past.records[past.oldest].index, 3_001, 7):
        moment = seen(past, step)
        assert block_facts(moment.mirror) == facts[step]
    assert seen(past, 3_001).notes == ("step 3,001 was not run yet",)


def test_steps_that_were_not_received_say_so_and_a_snapshot_ends_the_doubt() -> None:
    simulation = Simulation(num_blocks=150, chats=4)
    timeline = fed(simulation)
    timeline.extend(simulation.run(300))
    lost = simulation.run(40)
    after = simulation.run(20)
    facts = {}
    timeline.extend(after, dropped=len(lost))
    timeline.restore(simulation.scheduler.snapshot(after[-1].index))
    facts[after[-1].index] = pool_of(simulation.scheduler, 0)
    for _ in range(300):
        records = simulation.run(1)
        timeline.extend(records)
        facts[records[0].index] = pool_of(simulation.scheduler, 0)
    past = timeline.freeze()
    unreceived = seen(past, 310)
    assert unreceived.step == 300
    assert unreceived.notes == ("step 310 was not received",)
    for record in after[:-1]:
        moment = seen(past, record.index)
        assert moment.notes == ("40 steps before were not received: the block map is not sure",)
        assert moment.history.dropped == 40
    assert seen(past, 300).notes == ()
    assert seen(past, 300).history.dropped == 0
    for step, pool in facts.items():
        moment = seen(past, step)
        assert moment.notes == ()
        assert_map_is(moment.mirror, pool)


def test_blocks_that_a_cancel_gave_back_between_steps_are_free_from_then_on() -> None:
    simulation = Simulation(num_blocks=120, block_size=8, chats=0)
    timeline = fed(simulation)
    first = simulation.submit(0, 60, 50)
    timeline.extend([record for _ in range(5) if (record := simulation.step())])
    used = timeline.mirror.counts().used
    simulation.scheduler.cancel(first.id)
    simulation.pool.drain_changes()
    timeline.restore(simulation.scheduler.snapshot(timeline.mirror.step))
    assert timeline.mirror.counts().used == 0
    simulation.submit(1, 9, 5)
    timeline.extend([record for _ in range(3) if (record := simulation.step())])
    past = timeline.freeze()
    new = timeline.history[5].blocks.used
    assert 0 < new < used
    assert [past.at(position).mirror.counts().used for position in (4, 5)] == [used, new]
    assert past.at(4).notes == past.at(5).notes == ()


def test_nothing_was_run_yet_and_so_there_is_no_past() -> None:
    assert Timeline(StepHistory(), BlockMirror(8, 4)).moment(3) is None


def test_checkpoints_never_take_more_than_their_limit() -> None:
    simulation = Simulation(num_blocks=2_000, chats=8)
    timeline = fed(simulation, limit_bytes=120_000)
    timeline.extend(simulation.run(6_000))
    assert timeline.num_bytes <= 120_000
    past = timeline.freeze()
    assert past.oldest == 0
    for step in (1, 3_000, 6_000):
        moment = seen(past, step)
        assert moment.notes == ()
    for _ in range(200):  # made between two steps, and so not to be had again
        timeline.restore(simulation.scheduler.snapshot(timeline.mirror.step))
        timeline.extend(simulation.run(1))
    assert timeline.num_bytes <= 120_000
    past = timeline.freeze()
    assert seen(past, 6_200).notes == ()
    assert seen(past, 1).step == past.records[past.oldest].index


@pytest.mark.parametrize(("blocks", "limit_ms"), [(4_096, 50), (100_000, 200)])
def test_any_of_20000_steps_is_found_in_time(blocks: int, limit_ms: float) -> None:
    timeline, made = busy(20_000, blocks)
    past = timeline.freeze()
    generator = random.Random(2)
    took = []
    for step in generator.sample(range(made[0].index, made[-1].index), 40):
        started = time.process_time()
        moment = seen(past, step)
        took.append(1000 * (time.process_time() - started))
        assert moment.step == step
    print(f"{blocks} blocks: median {sorted(took)[20]:.1f} ms, slowest {max(took):.1f} ms")
    assert max(took) < most(limit_ms)


def test_20000_steps_stay_below_the_memory_that_is_stated() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        timeline, made = busy(20_000, 4_096)
        del made
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    past = timeline.freeze()
    print(f"{taken >> 20} MiB, stated {past.num_bytes >> 20}, checkpoints {timeline.num_bytes >> 20}")
    assert len(past) == 20_000
    assert taken < 48 << 20
    assert timeline.num_bytes < CHECKPOINT_BYTES
    assert 0.75 * taken < past.num_bytes < 1.33 * taken
    assert record_bytes(past.records[-1]) > 0
