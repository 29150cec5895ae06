"""Steps launched ahead: the same tokens, one record a step, and nothing lost where a step is under way."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.advance import ADDED
from engine.errors import DeviceError
from engine.request import FinishReason
from engine.sampler import NO_TOKEN
from tests.engine.recorder import with_graphs

LONG = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
KINDS = (
    LONG,
    SamplingParams(temperature=0.9, seed=5, max_tokens=27, ignore_eos=True),
    SamplingParams(temperature=0.8, top_p=0.9, seed=6, max_tokens=33, ignore_eos=True),
    SamplingParams(temperature=0.8, top_k=20, min_p=0.02, seed=7, max_tokens=21, ignore_eos=True),
)
ON_THE_HOST = (
    SamplingParams(temperature=0, repetition_penalty=1.3, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=1, logprobs=2, max_tokens=9, ignore_eos=True),
)


def engine_of(folder, graphs=True, **settings) -> Engine:
    # Another number of threads can change the last bits of log probabilities.
    usual = {"threads": 1, "max_batch": 4, "num_blocks": 120, "block_size": 4, "prefill_chunk": 16}
    settings = usual | settings
    engine = Engine(EngineConfig(model=str(folder), device="cpu", dtype="float32", **settings))
    if graphs:
        with_graphs(engine)
    return engine


@pytest.fixture(scope="module")
def engine(tiny_model_dir):
    with engine_of(tiny_model_dir) as engine:
        yield engine


@pytest.fixture(autouse=True)
def idle(request):
    yield
    if "engine" in request.fixturenames:
        engine = request.getfixturevalue("engine")
        for id in list(engine.scheduler.requests):
            engine.cancel(id)
        engine.land()
        engine.set_mode("graph")
        assert engine.pool.counts().used == 0


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    chance = random.Random(seed)
    shared = [chance.randrange(3, 200) for _ in range(19)]
    return [
        shared[: 4 * (row % 5)] + [chance.randrange(3, 200) for _ in range(1 + row)] for row in range(count)
    ]


class Launches:
    """What the device was really told, launch by launch: tokens, positions and slots of the real rows."""

    def __init__(self, engine: Engine) -> None:
        self.size = engine.pool.block_size
        self.seen: list = []
        self.static = engine.runner.static
        self.launch = self.static.launch
        self.static.launch = self

    def __call__(self, requests, dispatch):
        sampled = self.launch(requests, dispatch)
        count, batch = len(requests), self.static.buffers.batch(self.static.graphs.pad(len(requests)))
        told = (
            self.static.buffers.input_ids(count).tolist(),
            self.static.buffers.positions(count).tolist(),
            batch.slot_mapping.tolist(),
            batch.context_lens.tolist(),
        )
        self.seen.append((list(requests), [list(request.block_table) for request in requests], told))
        return sampled

    def check(self) -> None:
        """Every row had its request's token at that place, whatever was read by then."""
        for requests, tables, (ids, positions, slots, lengths) in self.seen:
            for row, (request, table) in enumerate(zip(requests, tables)):
                position, tokens = positions[row], request.token_ids()
                assert lengths[row] == position + 1
                assert slots[row] == table[position // self.size] * self.size + position % self.size
                assert position <= len(tokens)
                if position < len(tokens):  # else it is the late row of one that was cancelled
                    assert ids[row] == tokens[position]
            assert set(slots[len(requests) :]) <= {-1}
            assert set(lengths[len(requests) :]) <= {1}
        self.static.launch = self.launch


def play(engine: Engine, asked, ahead=lambda step: True, mode=lambda step: "graph", cancel=None):
    """Submit one prompt every second step; the requests, their records, steps under way when one returned."""
    engine.pool.clear_cache()
    waiting, requests, records, step, out = list(asked), [], [], 0, 0
    launches = Launches(engine) if engine.runner.static is not None else None
    while waiting or engine.has_work:
        if waiting and step % 2 == 0:
            requests.append(engine.submit(*waiting.pop(0)))
        if cancel is not None:
            for request in requests:
                if cancel(request) and not request.finished:
                    engine.cancel(request.id)
        engine.set_mode(mode(step))
        record = engine.step(ahead=ahead(step))
        out += engine._flight is not None
        if record is not None:
            records.append(record)
        engine.check()
        step += 1
    assert engine.pool.counts().used == 0
    if launches is not None:
        launches.check()
    return requests, records, out


def answers(requests):
    return [(request.output_ids, request.text, request.finish_reason) for request in requests]


def continuous(records) -> bool:
    first = records[0].index
    return [record.index for record in records] == list(range(first, first + len(records)))


@pytest.mark.parametrize("mode", ["graph", "eager", "mixed"])
def test_tokens_are_those_of_steps_made_one_by_one(engine, mode):
    chance = random.Random(8)
    asked = [(prompt, KINDS[row % 4]) for row, prompt in enumerate(prompts(10))]
    modes = {"graph": ["graph"], "eager": ["eager"], "mixed": ["graph", "eager"]}[mode]
    alone, _, none = play(engine, asked, ahead=lambda step: False)
    ahead, records, out = play(engine, asked, mode=lambda step: chance.choice(modes))
    assert none == 0
    assert out > len(records) / 2
    assert answers(ahead) == answers(alone)
    assert continuous(records)
    assert {record.mode for record in records if record.decode_tokens} == set(modes)


def test_steps_ahead_and_steps_by_hand_can_be_mixed_at_will(engine):
    chance = random.Random(4)
    asked = [(prompt, (*KINDS, *ON_THE_HOST)[row % 6]) for row, prompt in enumerate(prompts(12, seed=3))]
    alone, _, _ = play(engine, asked, ahead=lambda step: False)
    ahead, records, out = play(engine, asked, ahead=lambda step: chance.random() < 0.7)
    assert out > 20
    assert answers(ahead) == answers(alone)
    assert [request.logprobs for request in ahead] == [request.logprobs for request in alone]
    assert continuous(records)


def test_penalties_and_log_probabilities_are_never_run_ahead_of_their_tokens(engine):
    for params in ON_THE_HOST:
        _, _, out = play(engine, [([5, 6, 7], params), ([8, 9], LONG)], ahead=lambda step: True)
        _, _, without = play(engine, [([8, 9], LONG)], ahead=lambda step: True)
        assert 0 < out <= without
    engine.submit([5, 6, 7], ON_THE_HOST[0])
    while engine.has_work:
        engine.step(ahead=True)
        assert engine._flight is None


def test_an_answer_that_ends_by_itself_drops_the_token_that_came_late(engine):
    first, _, _ = play(engine, [(prompt, LONG) for prompt in prompts(3)], ahead=lambda step: False)
    ends = [request.output_ids[at] for request, at in zip(first, (5, 11, 20))]
    asked = [
        (prompt, SamplingParams(temperature=0, max_tokens=40, stop_token_ids=(end,), ignore_eos=True))
        for prompt, end in zip(prompts(3), ends)
    ]
    alone, by_hand, _ = play(engine, asked, ahead=lambda step: False)
    ahead, records, _ = play(engine, asked)
    assert answers(ahead) == answers(alone)
    assert {request.finish_reason for request in ahead} == {FinishReason.STOP}
    for told in (by_hand, records):
        rows = Counter(row.request for record in told for row in record.rows if not row.prefill)
        assert all(record.decode_tokens == sum(not row.prefill for row in record.rows) for record in told)
        requests = ahead if told is records else alone
        assert [rows[request.id] for request in requests] == [
            len(request.output_ids) - 1 for request in requests
        ]
    last = records[-1]
    assert (last.decode_tokens, last.active, last.rows) == (0, 0, ()), "all it computed came too late"
    assert continuous(records)


def test_rows_that_leave_and_come_take_the_tokens_of_their_own_places(engine):
    """The first of four ends at other steps than the others, so that rows move while a step is out."""
    asked = [
        (prompt, SamplingParams(temperature=0.7, seed=row, max_tokens=6 + 7 * (row % 3), ignore_eos=True))
        for row, prompt in enumerate(prompts(9, seed=6))
    ]
    alone, _, _ = play(engine, asked, ahead=lambda step: False)
    ahead, records, _ = play(engine, asked)
    assert answers(ahead) == answers(alone)
    assert {record.graph_size for record in records if record.decode_tokens} == {1, 2, 4}


def test_cancelled_answers_keep_what_they_wrote_and_the_others_go_on(engine):
    asked = [(prompt, LONG) for prompt in prompts(6, seed=2)]

    def cancel(request) -> bool:
        return request.prompt_ids in (asked[1][0], asked[3][0]) and len(request.output_ids) >= 9

    alone, _, _ = play(engine, asked, ahead=lambda step: False, cancel=cancel)
    ahead, records, _ = play(engine, asked, cancel=cancel)
    assert answers(ahead) == answers(alone)
    ended = Counter(id for record in records for id in record.finished)
    assert ended == Counter(request.id for request in ahead)


def test_preempted_answers_are_the_same(tiny_model_dir):
    found = []
    for ahead in (False, True):
        with engine_of(tiny_model_dir, num_blocks=30, prefix_cache=False) as engine:
            asked = [(prompt, KINDS[row % 4]) for row, prompt in enumerate(prompts(8, seed=5))]
            requests, records, _ = play(engine, asked, ahead=lambda step, ahead=ahead: ahead)
            assert any(record.preempted for record in records)
            found.append(answers(requests))
    assert found[0] == found[1]


def test_a_fork_ends_the_step_under_way_and_its_record_is_not_lost(engine):
    parent = engine.submit([9, 8, 7, 6], LONG)
    records = [engine.step(ahead=True) for _ in range(8)]
    assert engine._flight is not None
    child = engine.fork(parent.id)
    assert child.output_ids == parent.output_ids
    assert engine.has_work
    while engine.has_work:
        records.append(engine.step(ahead=True))
    assert child.output_ids == parent.output_ids == play(engine, [([9, 8, 7, 6], LONG)])[0][0].output_ids
    assert continuous(records)
    assert len(records) == 42 - 2 + records.count(None)


def test_landing_ends_the_step_under_way_and_launches_none(engine):
    assert engine.land() is None
    request = engine.submit([9, 8, 7, 6], LONG)
    records = [engine.step(ahead=True) for _ in range(8)]
    written = len(request.output_ids)
    records.append(engine.land())
    assert len(request.output_ids) == written + 1
    assert engine._flight is None
    assert engine.land() is None
    records += [engine.step() for _ in range(5)]
    assert len(request.output_ids) == written + 6
    assert continuous(records)


def test_without_the_setting_or_without_static_buffers_no_step_is_launched_ahead(tiny_model_dir):
    for settings in ({"ahead": False}, {"graphs": False}):
        with engine_of(tiny_model_dir, **settings) as engine:
            engine.submit([9, 8, 7, 6], LONG)
            while engine.has_work:
                engine.step(ahead=True)
                assert engine._flight is None


def test_the_mode_changes_with_the_next_launch(engine):
    engine.submit([9, 8, 7, 6], LONG)
    for _ in range(5):
        engine.step(ahead=True)
    engine.set_mode("eager")
    assert [engine.step(ahead=True).mode for _ in range(3)] == ["graph", "eager", "eager"]


class Clock:
    """A clock that goes on by a millisecond whenever it is looked at."""

    now = 100.0

    def perf_counter(self) -> float:
        self.now += 0.001
        return self.now

    def time(self) -> float:
        return 5000.0 + self.now


def test_times_of_steps_ahead_add_up_without_a_gap(engine, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("engine.batch_loop.time", clock)
    engine.submit([9, 8, 7, 6], LONG)
    records = []
    for _ in range(20):
        records.append(engine.step(ahead=True))
        clock.now += 1.0  # the loop has other things to do
    records.append(engine.land())
    for record, after in pairwise(records[2:]):
        assert after.t == pytest.approx(record.t + record.ms.total / 1e3)
    assert all(record.ms.total > 1000 for record in records[3:])
    for record in records:
        assert record.ms.total < 1100
        assert record.ms.schedule >= 0
        assert record.ms.read > 0
    assert [record.ms.launch > 0 for record in records] == [True] * 20 + [False], "landing launches nothing"


@pytest.mark.parametrize("where", ["launch", "read"])
def test_a_device_that_fails_with_two_steps_out_ends_every_request(tiny_model_dir, monkeypatch, where):
    with engine_of(tiny_model_dir, max_batch=2) as engine:
        requests = [engine.submit(prompt, LONG) for prompt in prompts(2)]
        for _ in range(6):
            engine.step(ahead=True)
        assert engine._flight is not None

        def broken(*_):
            raise RuntimeError("the card fell off the bus")

        monkeypatch.setattr(engine.runner, where, broken)
        with pytest.raises(DeviceError, match="fell off the bus"):
            engine.step(ahead=True)
        assert all(request.finish_reason == FinishReason.ERROR for request in requests)
        assert not engine.has_work
        engine.check()
        counts = engine.pool.counts()
        assert (counts.used, counts.cached) == (0, 0)
        with pytest.raises(DeviceError, match="Restart"):
            engine.submit([1], LONG)


def test_an_engine_closes_with_a_step_under_way(tiny_model_dir):
    engine = engine_of(tiny_model_dir, max_batch=2)
    request = engine.submit([5, 6, 7], LONG)
    for _ in range(6):
        engine.step(ahead=True)
    assert engine._flight is not None
    engine.close()
    assert request.finish_reason == FinishReason.CANCELLED
    assert engine.pool.counts().used == 0
    assert not engine.has_work


def test_a_token_that_is_none_ends_its_row_and_the_late_step_reads_no_such_embedding(engine, monkeypatch):
    bad, good = engine.submit([5, 6, 7], LONG), engine.submit([8, 9], LONG)
    static, late = engine.runner.static, []
    launch = static.launch

    def poisoned(requests, dispatch):
        sampled = launch(requests, dispatch)
        if bad in requests:
            late.append(static.buffers.input_ids(1).item())
            if len(late) == 5:
                static.buffers.tokens[0] = NO_TOKEN  # as logits of NaN leave it
        return sampled

    monkeypatch.setattr(static, "launch", poisoned)
    while engine.has_work:
        engine.step(ahead=True)
    assert bad.finish_reason == FinishReason.ERROR
    assert "NaN" in bad.error
    assert len(bad.output_ids) == 5
    assert late == [*bad.output_ids, 0]
    assert good.finish_reason == FinishReason.LENGTH
    monkeypatch.undo()
    assert good.output_ids == play(engine, [([8, 9], LONG)])[0][0].output_ids


def test_generate_leaves_no_step_under_way(engine):
    done = list(engine.generate(prompts(3), LONG))
    assert engine._flight is None
    assert not engine.has_work
    alone, _, _ = play(engine, [(prompt, LONG) for prompt in prompts(3)], ahead=lambda step: False)
    assert [completion.token_ids for completion in done] == [request.output_ids for request in alone]


def test_a_steady_step_sends_nothing_but_blocks_that_were_added(engine, monkeypatch):
    requests = [engine.submit(prompt, LONG) for prompt in prompts(3)]
    while not all(request.output_ids for request in requests):
        engine.step(ahead=True)
    for _ in range(2):
        engine.step(ahead=True)
    staging, sent = engine.runner.static.buffers._staging, []
    send_column = staging.send_column

    def one(column: int) -> None:
        added = staging._columns[column]
        sent.append((column, added[added > 0].tolist()))
        send_column(column)

    monkeypatch.setattr(staging, "send_columns", lambda: sent.append("columns"))
    monkeypatch.setattr(staging, "send_tables", lambda first, end: sent.append("tables"))
    monkeypatch.setattr(staging, "send_column", one)
    held = {block for request in requests for block in request.block_table}
    for _ in range(12):
        engine.step(ahead=True)
    assert {column for column, _ in sent} == {ADDED}
    new = {block for request in requests for block in request.block_table} - held
    assert sorted(block for _, blocks in sent for block in blocks) == sorted(new)
    assert len(new) == 9
