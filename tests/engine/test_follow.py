"""Scheduler.follow: the step behind one that is out, planned before its tokens are known."""

import random

import pytest

from engine.blocks import BrokenInvariant
from engine.request import FinishReason
from engine.scheduler import Scheduler
from tests.engine.token_device import Harness, Launch, answer_of


def decoding(engine: Harness, count: int, **settings) -> list:
    """Requests that have their first token, and a step of all of them that is out."""
    requests = [engine.submit([row + 1], **{"max_tokens": 20, **settings}) for row in range(count)]
    while not all(request.output_ids for request in requests):
        engine.step()
    return requests


def refused(engine: Harness, plan) -> bool:
    """Whether following a plan is refused, and changes nothing then."""
    pool, scheduler = engine.pool, engine.scheduler
    before = (pool.counts(), [list(request.block_table) for request in scheduler.running])
    following = scheduler.follow(plan)
    assert following is not None or before == (
        pool.counts(),
        [list(request.block_table) for request in scheduler.running],
    )
    engine.check()
    return following is None


def test_the_rows_go_on_by_one_token_and_a_block_is_added_where_one_is_full():
    engine = Harness(block_size=4)
    short, long = decoding(engine, 2)
    engine.submit([1, 2, 0])
    engine.step()
    engine.scheduler.cancel(2)
    plan = engine.scheduler.schedule()
    assert plan is not None
    held = {request.id: len(request.block_table) for request in plan.decode}
    following = engine.scheduler.follow(plan)
    assert following is not None
    assert following.decode == plan.decode == (short, long)
    for request in following.decode:
        grown = (request.num_computed + 1) % 4 == 0
        assert len(request.block_table) == held[request.id] + grown
    first = Launch(plan)
    second = Launch(following, first)
    for launch in (first, second):
        engine.land(launch)
    assert short.output_ids == answer_of([1], 4)
    engine.run()
    assert long.output_ids == answer_of([2], 20)


def test_every_block_boundary_is_crossed_ahead():
    engine = Harness(block_size=2)
    requests = decoding(engine, 3, max_tokens=30)
    while engine.scheduler.has_work:
        engine.step(ahead=True)
    assert [request.output_ids for request in requests] == [answer_of([row], 30) for row in (1, 2, 3)]
    assert engine.pool.counts().used == 0


def test_a_step_with_a_prefill_is_not_followed():
    engine = Harness()
    engine.submit([1, 2, 3])
    plan = engine.scheduler.schedule()
    assert plan is not None
    assert plan.prefill
    assert refused(engine, plan)


def test_an_open_prefill_without_a_chunk_is_not_passed_by():
    engine = Harness(num_blocks=7, block_size=2, prefill_chunk=2)
    (chat,) = decoding(engine, 1)
    long = engine.submit([0] * 6, max_tokens=2)
    while long not in engine.scheduler.running:
        engine.step()
    plan = engine.scheduler.schedule()
    assert plan is not None
    assert chat in plan.decode
    assert refused(engine, plan)


def test_a_prompt_that_may_be_let_in_is_not_kept_waiting():
    engine = Harness()
    decoding(engine, 2)
    plan = engine.scheduler.schedule()
    engine.submit([1])
    assert refused(engine, plan)


def test_a_prompt_that_waits_for_the_batch_or_for_room_keeps_nobody_from_following():
    engine = Harness(max_batch=2)
    decoding(engine, 2)
    engine.submit([1])
    assert not refused(engine, engine.scheduler.schedule())
    engine = Harness(num_blocks=8, block_size=4)
    decoding(engine, 1, max_tokens=24)
    engine.submit([1] * 28)
    engine.step()
    plan = engine.scheduler.schedule()
    assert engine.scheduler.num_waiting == 1
    assert not refused(engine, plan)


def test_rows_that_end_with_the_token_under_way_are_left_out():
    engine = Harness(max_model_len=10)
    ends, stays = engine.submit([1], max_tokens=3), engine.submit([2], max_tokens=20)
    engine.step()
    engine.step()
    plan = engine.scheduler.schedule()
    assert plan is not None
    assert plan.decode == (ends, stays)
    following = engine.scheduler.follow(plan)
    assert following is not None
    assert following.decode == (stays,)
    first = Launch(plan)
    for launch in (first, Launch(following, first)):
        engine.land(launch)
    assert ends.finish_reason is FinishReason.LENGTH
    while len(stays.output_ids) < 8:
        engine.step()
    assert stays.num_tokens == 9
    assert refused(engine, engine.scheduler.schedule()), "the tenth token is its last: no row is left"


def test_too_few_blocks_for_all_rows_are_taken_by_none():
    engine = Harness(num_blocks=6, block_size=4)
    requests = decoding(engine, 3, max_tokens=12)
    while not all((request.num_computed + 1) % 4 == 0 for request in requests):
        engine.step()
    assert engine.pool.available == 2
    assert refused(engine, engine.scheduler.schedule())


def test_a_step_that_copies_a_shared_block_is_not_followed():
    engine = Harness(block_size=4)
    (parent,) = decoding(engine, 1)
    engine.fork(parent, 20)
    plan = engine.scheduler.schedule()
    assert plan is not None
    assert plan.copies
    assert refused(engine, plan)


def test_only_the_one_step_that_is_out_can_be_followed():
    engine = Harness()
    decoding(engine, 2)
    plan = engine.scheduler.schedule()
    following = engine.scheduler.follow(plan)
    for other in (plan, following):
        with pytest.raises(BrokenInvariant, match="followed"):
            engine.scheduler.follow(other)
    with pytest.raises(BrokenInvariant, match="still out"):
        engine.scheduler.schedule()
    with pytest.raises(BrokenInvariant, match="order"):
        engine.scheduler.computed(following)
    engine.scheduler.abandoned(plan)
    with pytest.raises(BrokenInvariant, match="not out"):
        engine.scheduler.abandoned(plan)


def test_the_late_token_of_an_answer_that_ended_is_dropped_and_its_blocks_wait_for_it():
    engine = Harness(block_size=4, num_blocks=40)
    prompt = [1, 0]
    end = answer_of(prompt, 4)[3]
    request = engine.submit(prompt, max_tokens=30, stop_token_ids=(end,))
    other = engine.submit([0], max_tokens=30)
    while not request.finished:
        engine.step(ahead=True)
    flight = engine.flight
    assert flight is not None
    assert request in flight.plan.decode
    held = list(request.block_table)
    assert held
    tokens, computed = list(request.output_ids), request.num_computed
    engine.step(ahead=True)
    assert (request.output_ids, request.num_computed) == (tokens, computed)
    assert request.block_table == []
    assert tokens[-1] == end
    while engine.scheduler.has_work:
        engine.step(ahead=True)
    engine.settle()
    assert other.output_ids == answer_of([0], 30)
    assert engine.pool.counts().used == 0


def test_a_request_that_is_cancelled_with_two_steps_out_publishes_nothing_of_them():
    engine = Harness(block_size=2)
    (request,) = decoding(engine, 1)
    while request.num_computed % 2 != 1:
        engine.step()
    published = engine.pool.published()
    engine.step(lambda: engine.scheduler.cancel(request.id), ahead=True)
    assert request.block_table, "the second step is still out"
    engine.settle()
    assert request.block_table == []
    assert engine.pool.published() == published


def test_check_finds_a_launched_row_that_lost_its_place(monkeypatch):
    engine = Harness(block_size=1)
    (request,) = decoding(engine, 1)
    plan = engine.scheduler.schedule()
    assert engine.scheduler.follow(plan) is not None
    monkeypatch.setattr(engine.pool, "check", lambda requests: None)
    request.block_table.pop()
    with pytest.raises(BrokenInvariant, match="without a place"):
        engine.scheduler.check()


def test_check_finds_a_row_that_no_step_before_had(monkeypatch):
    engine = Harness()
    one, two = decoding(engine, 2)
    plan = engine.scheduler.schedule()
    following = engine.scheduler.follow(plan)
    assert following is not None
    object.__setattr__(plan, "decode", (one,))
    assert two in following.decode
    with pytest.raises(BrokenInvariant, match="other rows"):
        engine.scheduler.check()


def traffic(seed: int, ahead: bool) -> tuple[list[list[int]], int]:
    """Answers of one history that comes, ends, is cancelled and runs out of blocks; steps made ahead."""
    chance, turns = random.Random(seed), random.Random(seed + 1)
    engine = Harness(num_blocks=24, block_size=4, max_batch=4, prefill_chunk=8)
    requests, followed = [], 0
    for _ in range(30):
        stop = (2,) if chance.random() < 0.3 else ()
        prompt = [chance.randrange(3) for _ in range(chance.randrange(1, 14))]
        requests.append(
            engine.submit(prompt, chance.randrange(1, 25), chance.randrange(2), stop_token_ids=stop)
        )
        for _ in range(chance.randrange(0, 9)):
            engine.step(ahead=ahead and turns.random() < 0.8)
            followed += engine.flight is not None
    while engine.scheduler.has_work or engine.flight is not None:
        engine.step(ahead=ahead and turns.random() < 0.8)
    assert engine.pool.counts().used == 0
    return [request.output_ids for request in requests], followed


@pytest.mark.parametrize("seed", range(6))
def test_a_history_gives_the_same_answers_with_steps_made_ahead_and_without(seed):
    answers, followed = traffic(seed, ahead=True)
    assert followed > 20
    assert answers == traffic(seed, ahead=False)[0]


def test_a_row_is_part_of_two_plans_until_both_are_back():
    engine = Harness()
    (request,) = decoding(engine, 1)
    scheduler: Scheduler = engine.scheduler
    plan = scheduler.schedule()
    following = scheduler.follow(plan)
    assert plan is not None
    assert following is not None
    scheduler.finish(request, FinishReason.ERROR, "its text could not be decoded")
    scheduler.computed(plan)
    engine.check()
    assert request.block_table
    scheduler.computed(following)
    engine.check()
    assert request.block_table == []
