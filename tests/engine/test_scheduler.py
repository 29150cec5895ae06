"""Scheduler: who computes what in a step, who waits, who gives way, and how requests end."""

import random

import pytest

from engine.blocks import BrokenInvariant
from engine.errors import ConfigError, RequestError
from engine.plan import StepPlan, stop_reason
from engine.request import FinishReason, Request, SamplingParams
from tests.engine.token_device import Harness, Launch, answer_of


def rows_of(plan: StepPlan | None) -> set[int]:
    assert plan is not None
    return {request.id for request in plan.requests}


def random_prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(length)]


# --- decode first, budget ------------------------------------------------------------------------------


def test_every_decoding_chat_advances_each_step_beside_a_long_prompt():
    engine = Harness(num_blocks=600, max_batch=8, prefill_chunk=8)
    chats = [engine.submit([chat], max_tokens=200) for chat in range(4)]
    while not all(chat.output_ids for chat in chats):
        engine.step()
    long = engine.submit(random_prompt(400, 1), max_tokens=2)
    while not long.output_ids:
        before = [len(chat.output_ids) for chat in chats]
        engine.step()
        assert [len(chat.output_ids) for chat in chats] == [count + 1 for count in before]


def test_a_short_prompt_behind_20_000_tokens_starts_within_three_steps():
    engine = Harness(num_blocks=3000, block_size=16, prefill_chunk=512, max_model_len=32_000)
    long = engine.submit(random_prompt(20_000, 1), max_tokens=1)
    engine.step()
    short = engine.submit(random_prompt(100, 2), max_tokens=1)
    steps = 0
    while not short.output_ids:
        engine.step()
        steps += 1
    assert steps <= 3
    assert not long.output_ids


def test_a_long_prompt_gets_half_of_the_budget_however_many_short_ones_come():
    engine = Harness(num_blocks=3000, block_size=16, prefill_chunk=64, max_batch=4)
    long = engine.submit(random_prompt(1_000, 1), max_tokens=1)
    steps = 0
    while not long.output_ids:
        engine.submit(random_prompt(60, 10 + steps), max_tokens=1)
        engine.submit(random_prompt(60, 1000 + steps), max_tokens=1)
        engine.step()
        steps += 1
    assert steps <= 1_000 / 32 + 1


def test_prompt_tokens_of_a_step_stay_within_the_budget_and_use_it():
    engine = Harness(num_blocks=400, block_size=4, prefill_chunk=64, max_batch=16)
    for seed in range(10):
        engine.submit(random_prompt(50, seed), max_tokens=3)
    plans = engine.run()
    for plan in plans:
        assert plan.prefill_tokens <= 64
    assert sum(plan.prefill_tokens for plan in plans) == 500
    assert plans[0].prefill_tokens == 64


@pytest.mark.parametrize("prefill_chunk", [1, 2, 7])
def test_prompts_advance_beside_more_decode_rows_than_the_budget_has_tokens(prefill_chunk: int):
    engine = Harness(num_blocks=400, max_batch=12, prefill_chunk=prefill_chunk)
    chats = [engine.submit([seed], max_tokens=90) for seed in range(11)]
    while not all(chat.output_ids for chat in chats):
        engine.step()
    late = engine.submit(random_prompt(10, 5), max_tokens=1)
    while not late.output_ids:
        engine.step()
    assert not any(chat.finished for chat in chats)


def test_never_more_rows_than_max_batch():
    engine = Harness(num_blocks=200, max_batch=3)
    for seed in range(9):
        engine.submit([seed] * 5, max_tokens=6)
    assert max(len(plan.requests) for plan in engine.run()) == 3


def test_first_come_first_served():
    engine = Harness(num_blocks=200, max_batch=1)
    requests = [engine.submit([seed], max_tokens=2) for seed in range(4)]
    order: list[int] = []
    while engine.scheduler.has_work:
        engine.step()
        order += [request.id for request in requests if request.finished and request.id not in order]
    assert order == [request.id for request in requests]


def test_a_higher_priority_goes_first():
    engine = Harness(num_blocks=200, max_batch=1)
    engine.submit([1], max_tokens=2)
    low = engine.submit([2], max_tokens=2, priority=-1)
    high = engine.submit([3], max_tokens=2, priority=5)
    assert [request.id for request in engine.scheduler.waiting] == [high.id, 0, low.id]
    while not high.finished:
        engine.step()
    assert not low.output_ids


# --- prefix hits and chunks ----------------------------------------------------------------------------


@pytest.mark.parametrize("prefill_chunk", [1, 2, 3, 4, 5, 7, 8, 64])
@pytest.mark.parametrize("length", [4, 8, 9, 11, 12])
def test_a_hit_and_chunks_leave_no_empty_chunk_and_start_at_the_hit(prefill_chunk: int, length: int):
    engine = Harness(block_size=4, prefill_chunk=prefill_chunk)
    prompt = list(range(length))
    engine.submit(prompt, max_tokens=1)
    engine.run()
    again = engine.submit(prompt, max_tokens=1)
    plans = engine.run()
    hit = (length - 1) // 4 * 4
    assert again.cached_tokens == hit
    assert sum(plan.cached_tokens for plan in plans) == hit
    chunks = [chunk for plan in plans for chunk in plan.prefill]
    assert chunks[0].start == hit
    assert chunks[-1].completes
    assert sum(chunk.end - chunk.start for chunk in chunks) == length - hit


def test_each_turn_hits_all_full_blocks_of_the_turn_before():
    engine = Harness(num_blocks=400, block_size=4)
    history = random_prompt(10, 0)
    computed = 0
    for turn in range(10):
        request = engine.submit(history, max_tokens=7)
        engine.run()
        assert request.cached_tokens == computed // 4 * 4
        computed = request.num_tokens - 1  # the last token was sampled, not forwarded
        history = request.token_ids() + random_prompt(5, turn + 1)


def test_equal_prompts_submitted_together_are_computed_once():
    engine = Harness(num_blocks=400, block_size=4, prefill_chunk=512)
    prompt = random_prompt(100, 1)
    requests = [engine.submit([*prompt, tail], max_tokens=1) for tail in range(8)]
    plans = engine.run()
    assert sum(plan.prefill_tokens for plan in plans) == 101 + 7
    assert [request.cached_tokens for request in requests] == [0] + [100] * 7
    assert len(plans) == 2


def test_a_prefix_that_another_request_publishes_meanwhile_is_taken_up():
    engine = Harness(num_blocks=400, block_size=4, prefill_chunk=16)
    prompt = random_prompt(100, 1)
    first = engine.submit([*prompt, 1], max_tokens=1)
    second = engine.submit([*prompt, 2], max_tokens=1)
    plans = engine.run()
    assert first.cached_tokens == 0
    assert second.cached_tokens == 100
    assert sum(plan.prefill_tokens for plan in plans) == 102


def test_a_chunk_ends_at_a_block_so_that_its_prompt_can_go_on_with_hits():
    engine = Harness(num_blocks=400, block_size=4, prefill_chunk=21)
    engine.submit(random_prompt(400, 1), max_tokens=1)
    shared = random_prompt(60, 2)
    late = engine.submit([*shared, *random_prompt(60, 3)], max_tokens=1)
    engine.step()
    assert late.num_computed == 12, "of the 13 tokens that were left for it"
    ahead = engine.submit([*shared, 1], max_tokens=1)
    while not late.output_ids:
        engine.step()
    assert ahead.cached_tokens == 12
    assert late.cached_tokens == 48


def test_equal_prompts_of_one_block_do_not_wait_for_a_hit_that_cannot_come():
    engine = Harness(block_size=4)
    for _ in range(3):
        engine.submit([1, 2, 3, 4], max_tokens=1)
    assert len(engine.run()) == 1


def test_a_queued_prompt_is_looked_up_again_only_after_blocks_came_back(monkeypatch: pytest.MonkeyPatch):
    engine = Harness(num_blocks=11, block_size=4)
    engine.submit([1] * 20, max_tokens=12)
    queued = engine.submit([2] * 30, max_tokens=1)
    looked_up: list[int] = []
    match = engine.pool.match
    monkeypatch.setattr(engine.pool, "match", lambda r: looked_up.append(r.id) or match(r))
    engine.run()
    assert looked_up.count(queued.id) <= 3


def test_a_cancelled_chat_keeps_its_full_blocks_for_the_next_turn():
    engine = Harness(num_blocks=100, block_size=4, prefill_chunk=16)
    prompt = random_prompt(40, 1)
    request = engine.submit(prompt, max_tokens=5)
    engine.step()
    engine.step()
    engine.scheduler.cancel(request.id)
    engine.check()
    assert engine.pool.counts().used == 0
    again = engine.submit(prompt, max_tokens=1)
    engine.run()
    assert again.cached_tokens == 32


def test_what_a_cancelled_launched_step_computed_is_cached_too():
    engine = Harness(num_blocks=100, block_size=4, prefill_chunk=64)
    prompt = random_prompt(40, 1)
    request = engine.submit(prompt, max_tokens=5)
    engine.step(midway=lambda: engine.scheduler.cancel(request.id))
    again = engine.submit(prompt, max_tokens=1)
    engine.run()
    assert again.cached_tokens == 36


# --- running out of blocks -----------------------------------------------------------------------------


def test_the_newest_request_is_preempted_and_its_answer_is_whole():
    engine = Harness(num_blocks=9, block_size=4)
    old = engine.submit([1] * 4, max_tokens=20)
    new = engine.submit([2] * 4, max_tokens=20)
    plans = engine.run()
    preempted = [id for plan in plans for id in plan.preempted]
    assert preempted
    assert set(preempted) == {new.id}
    assert old.preemptions == 0
    assert new.preemptions == len(preempted)
    assert old.output_ids == answer_of(old.prompt_ids, 20)
    assert new.output_ids == answer_of(new.prompt_ids, 20)


def test_the_lowest_priority_is_preempted_before_the_newest():
    engine = Harness(num_blocks=9, block_size=4)
    low = engine.submit([1] * 4, max_tokens=20, priority=0)
    high = engine.submit([2] * 4, max_tokens=20, priority=1)
    preempted = {id for plan in engine.run() for id in plan.preempted}
    assert preempted == {low.id}
    assert high.preemptions == 0


def test_a_resumed_request_counts_its_tokens_after_the_match():
    engine = Harness(num_blocks=60, block_size=4)
    request = engine.submit(random_prompt(10, 1), max_tokens=20)
    for _ in range(8):
        engine.step()
    engine.scheduler.preempt(request)
    assert request.num_computed == 0
    plan = engine.step()
    assert plan is not None
    computed = 10 + 7 - 1
    assert plan.cached_tokens == computed // 4 * 4
    assert request.cached_tokens == 0, "its own blocks are no saving of its prompt"
    engine.run()
    assert request.output_ids == answer_of(request.prompt_ids, 20)


def test_a_request_preempted_at_every_step_ends_with_the_same_answer():
    engine = Harness(num_blocks=60, block_size=4)
    request = engine.submit(random_prompt(10, 1), max_tokens=20)
    other = engine.submit(random_prompt(10, 2), max_tokens=30)
    while not request.finished:
        engine.step()
        if request in engine.scheduler.running:
            engine.scheduler.preempt(request)
            engine.check()
    assert request.output_ids == answer_of(request.prompt_ids, 20)
    engine.run()
    assert other.output_ids == answer_of(other.prompt_ids, 30)


def test_a_preempted_request_is_not_admitted_to_be_preempted_again_at_once():
    engine = Harness(num_blocks=33, block_size=4, max_batch=8)
    for seed in range(8):
        engine.submit(random_prompt(8, seed), max_tokens=60)
    plans = engine.run()
    preemptions = sum(len(plan.preempted) for plan in plans)
    assert 0 < preemptions <= 24
    assert sum(plan.prefill_tokens for plan in plans) < 8 * 68


def test_prompts_are_let_in_only_while_all_open_ones_have_room():
    engine = Harness(num_blocks=26, block_size=4, prefill_chunk=8)
    requests = [engine.submit(random_prompt(40, seed), max_tokens=1) for seed in range(6)]
    together, computed = 0, 0
    while engine.scheduler.has_work:
        plan = engine.step()
        assert plan is not None
        together = max(together, len(engine.scheduler.running))
        computed += plan.prefill_tokens
    assert together == 2
    assert computed == 6 * 40
    assert not any(request.preemptions for request in requests)


def test_a_prompt_is_not_let_in_where_a_growing_chat_would_throw_it_out_at_once():
    engine = Harness(num_blocks=9, block_size=4)
    chat = engine.submit([1] * 12, max_tokens=16)
    engine.step()
    engine.step()
    late = engine.submit([2] * 16, max_tokens=8)
    engine.run()
    assert chat.preemptions == late.preemptions == 0


def test_cancelling_a_prompt_that_holds_no_blocks_yet_lets_the_next_one_in():
    engine = Harness(num_blocks=21, block_size=4, prefill_chunk=4)
    engine.submit(random_prompt(30, 1), max_tokens=1)
    reserved = engine.submit(random_prompt(40, 2), max_tokens=1)
    queued = engine.submit(random_prompt(40, 3), max_tokens=1)
    engine.step()
    assert reserved in engine.scheduler.running
    assert reserved.block_table == []
    assert queued in engine.scheduler.waiting
    engine.scheduler.cancel(reserved.id)
    engine.step()
    assert queued in engine.scheduler.running


def test_the_only_running_request_ends_with_length_when_the_pool_is_full():
    engine = Harness(num_blocks=4, block_size=4)
    request = engine.submit([1] * 5, max_tokens=100)
    plans = engine.run()
    assert request.finish_reason is FinishReason.LENGTH
    assert request.num_tokens == 3 * 4 + 1, "the last token needs no place"
    assert request.preemptions == 0
    assert len(plans) == len(request.output_ids)
    after = engine.submit([1, 2], max_tokens=2)
    engine.run()
    assert len(after.output_ids) == 2


# --- limits --------------------------------------------------------------------------------------------


def test_a_prompt_larger_than_the_pool_is_refused_with_the_sizes_and_others_run():
    engine = Harness(num_blocks=4, block_size=4)
    with pytest.raises(
        RequestError, match=r"13 tokens and takes 4 blocks of 4; the KV cache has 3 \(12 tokens\)"
    ):
        engine.submit([1] * 13)
    assert not engine.scheduler.has_work
    fits = engine.submit([1] * 12, max_tokens=3)
    engine.run()
    assert len(fits.output_ids) == 1


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused_with_the_limit():
    engine = Harness(max_model_len=20)
    with pytest.raises(RequestError, match="20 tokens; with max_model_len=20 it may have 19"):
        engine.submit([1] * 20)
    request = engine.submit([1] * 19, max_tokens=9)
    engine.run()
    assert (len(request.output_ids), request.finish_reason) == (1, FinishReason.LENGTH)


def test_a_prompt_beyond_both_limits_is_told_the_one_that_memory_cannot_lift():
    engine = Harness(num_blocks=8, block_size=4, max_model_len=20)
    with pytest.raises(RequestError, match="40 tokens; with max_model_len=20") as refused:
        engine.submit([1] * 40)
    assert "memory" not in str(refused.value)


def test_a_request_ends_with_length_exactly_at_the_limit():
    engine = Harness(max_model_len=20)
    request = engine.submit([1] * 7, max_tokens=100)
    engine.run()
    assert request.num_tokens == 20
    assert request.finish_reason is FinishReason.LENGTH


def test_an_empty_or_known_request_is_refused():
    engine = Harness()
    with pytest.raises(RequestError, match="empty"):
        engine.submit([])
    request = engine.submit([1])
    with pytest.raises(RequestError, match="submitted before"):
        engine.scheduler.add(request)
    engine.run()
    with pytest.raises(RequestError, match="submitted before"):
        engine.scheduler.add(request)


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="max_batch=0"):
        Harness(max_batch=0)


# --- cancelling ----------------------------------------------------------------------------------------


def test_a_queued_request_cancelled_is_idle_at_once():
    engine = Harness(max_batch=1)
    engine.submit([1], max_tokens=5)
    queued = engine.submit([2], max_tokens=5)
    engine.step()
    assert engine.scheduler.cancel(queued.id) is queued
    assert queued.finish_reason is FinishReason.CANCELLED
    assert queued.id not in engine.scheduler.requests
    assert engine.scheduler.num_waiting == 0
    again = engine.submit([2], max_tokens=5)
    engine.run()
    assert len(again.output_ids) == 5


def test_a_cancelled_request_has_no_row_in_the_next_step():
    engine = Harness()
    request, other = engine.submit([1], max_tokens=50), engine.submit([2], max_tokens=9)
    engine.step()
    engine.scheduler.cancel(request.id)
    assert rows_of(engine.step()) == {other.id}
    assert request.block_table == []


def test_blocks_of_a_launched_step_return_once_and_only_after_it():
    engine = Harness(num_blocks=6, block_size=4)
    request = engine.submit([1] * 16, max_tokens=5)
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.scheduler.cancel(request.id)
    engine.scheduler.cancel(request.id)
    engine.scheduler.finish(request, FinishReason.ERROR, "late")
    assert engine.pool.counts().used == 4
    later = engine.submit([2] * 16, max_tokens=1)
    with pytest.raises(BrokenInvariant, match="still out"):
        engine.scheduler.schedule()
    engine.device.run(Launch(plan))
    engine.scheduler.computed(plan)
    engine.check()
    assert engine.pool.counts().used == 0
    assert (request.finish_reason, request.error) == (FinishReason.CANCELLED, "")
    engine.run()
    assert later.output_ids == answer_of(later.prompt_ids, 1)


def test_a_request_of_a_launched_step_cannot_be_preempted():
    engine = Harness()
    request = engine.submit([1, 2, 3])
    assert engine.scheduler.schedule() is not None
    with pytest.raises(BrokenInvariant, match="launched step"):
        engine.scheduler.preempt(request)


def test_cancelling_what_is_unknown_or_ended_changes_nothing():
    engine = Harness()
    request = engine.submit([1], max_tokens=1)
    engine.run()
    assert engine.scheduler.cancel(request.id) is None
    assert engine.scheduler.cancel(12345) is None
    assert request.finish_reason is FinishReason.LENGTH


def test_a_failed_step_publishes_nothing():
    engine = Harness(block_size=4)
    request = engine.submit(list(range(9)))
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.scheduler.abandoned(plan)
    engine.scheduler.finish(request, FinishReason.ERROR, "the device failed")
    engine.check()
    assert (engine.pool.counts().used, engine.pool.counts().cached) == (0, 0)


def test_one_failed_request_leaves_the_others_running():
    engine = Harness()
    bad, good = engine.submit([1], max_tokens=9), engine.submit([2], max_tokens=9)
    engine.step()
    engine.scheduler.finish(bad, FinishReason.ERROR, "its text could not be decoded")
    engine.run()
    assert bad.error == "its text could not be decoded"
    assert good.output_ids == answer_of(good.prompt_ids, 9)


# --- ends ----------------------------------------------------------------------------------------------


def ended(output: list[int], eos: frozenset[int] = frozenset({7, 8}), limit: int = 100, **params):
    return stop_reason(Request(1, [0], SamplingParams(**params), output_ids=output), eos, limit)


@pytest.mark.parametrize("token", [7, 8])
def test_every_end_token_ends_the_answer(token: int):
    assert ended([1, token]) is FinishReason.STOP
    assert ended([token, 1]) is None


def test_ignore_eos_ignores_end_tokens_but_not_stop_token_ids():
    assert ended([7], ignore_eos=True) is None
    assert ended([7], ignore_eos=True, stop_token_ids=(7,)) is FinishReason.STOP
    assert ended([5], stop_token_ids=(5,)) is FinishReason.STOP


def test_length_comes_with_the_last_token_that_is_allowed():
    assert ended([1, 1], max_tokens=3) is None
    assert ended([1, 1, 1], max_tokens=3) is FinishReason.LENGTH
    assert ended([1, 1, 7], max_tokens=3) is FinishReason.STOP
    assert ended([1, 1], limit=3) is FinishReason.LENGTH
    assert ended([1, 1], limit=4) is None


def test_a_fork_shares_every_block_and_the_first_writer_copies_the_partial_one():
    engine = Harness(num_blocks=16, block_size=4)
    parent = engine.submit([1, 2, 0, 1, 2], max_tokens=12)
    for _ in range(3):
        engine.step()
    assert parent.num_computed % 4, "the last block is partly filled"
    child = engine.fork(parent, max_tokens=12)
    assert child.block_table == parent.block_table
    engine.check()
    plan = engine.step()
    assert plan.copies == ((child.block_table[-1], parent.block_table[-1]),)
    assert child.block_table[:-1] == parent.block_table[:-1]
    assert not engine.step().copies, "from then on each has its own"
    engine.run()
    assert parent.output_ids == child.output_ids == answer_of([1, 2, 0, 1, 2], 12)


def test_a_fork_of_a_queued_request_queues_too():
    engine = Harness(num_blocks=16, block_size=4, max_batch=1)
    first = engine.submit([1, 2], max_tokens=4)
    engine.step()
    second = engine.submit([2, 1], max_tokens=4)
    children = [engine.fork(first, 4), engine.fork(second, 4)]
    assert engine.scheduler.num_waiting == 3
    engine.run()
    assert [child.output_ids for child in children] == [answer_of([1, 2], 4), answer_of([2, 1], 4)]


def test_a_fork_of_what_has_ended_is_refused():
    engine = Harness()
    request = engine.submit([1], max_tokens=1)
    engine.run()
    with pytest.raises(RequestError, match="not running"):
        engine.fork(request)
