"""Decode over static buffers, with recorded operations in the place of CUDA graphs."""

import random

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.decode_buffers import NO_SLOT
from engine.graphs import STAGE, GraphPool, graph_sizes
from engine.kv_cache import NULL_BLOCK
from engine.records import Progress
from tests.engine.recorder import TraceRecorder, recorded_pool, same, with_graphs

LONG = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
KINDS = {
    "greedy": LONG,
    "drawn": SamplingParams(temperature=0.9, seed=5, max_tokens=24, ignore_eos=True),
    "top-p": SamplingParams(temperature=0.8, top_p=0.9, seed=6, max_tokens=21, ignore_eos=True),
    "top-k": SamplingParams(temperature=0.8, top_k=20, min_p=0.02, seed=7, max_tokens=17, ignore_eos=True),
    "penalties": SamplingParams(
        temperature=0, repetition_penalty=1.3, presence_penalty=0.5, max_tokens=22, ignore_eos=True
    ),
    "logprobs": SamplingParams(temperature=0, logprobs=3, max_tokens=12, ignore_eos=True),
}


def engine_of(folder, **settings) -> Engine:
    settings = {"max_batch": 6, "num_blocks": 200, "block_size": 4, "prefill_chunk": 16, **settings}
    return Engine(EngineConfig(model=str(folder), device="cpu", dtype="float32", **settings))


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Ends on, before and behind block boundaries; pairs share a prefix."""
    chance = random.Random(seed)
    shared = [chance.randrange(3, 200) for _ in range(19)]
    return [
        shared[: 4 * (row % 5)] + [chance.randrange(3, 200) for _ in range(1 + row)] for row in range(count)
    ]


def play(engine: Engine, asked, mode=lambda step: "graph"):
    """Submit one prompt every second step; tokens per request, records."""
    waiting, requests, records, step = list(asked), [], [], 0
    while waiting or engine.has_work:
        if waiting and step % 2 == 0:
            requests.append(engine.submit(*waiting.pop(0)))
        engine.set_mode(mode(step))
        record = engine.step()
        if record is not None:
            records.append(record)
        engine.check()
        step += 1
    assert engine.pool.counts().used == 0
    return [request.output_ids for request in requests], records


@pytest.mark.parametrize("kind", KINDS)
def test_graph_gives_the_tokens_of_eager_and_of_inputs_built_anew(tiny_model_dir, kind):
    asked = [(prompt, KINDS[kind]) for prompt in prompts(9)]
    with engine_of(tiny_model_dir) as engine:
        anew, _ = play(engine, asked)
    with engine_of(tiny_model_dir) as engine:
        with_graphs(engine)
        graph, records = play(engine, asked)
        assert {record.graph_size for record in records if record.decode_tokens} == {1, 2, 4, 6}
    with engine_of(tiny_model_dir) as engine:
        with_graphs(engine)
        eager, records = play(engine, asked, lambda step: "eager")
        assert {record.reason for record in records if record.decode_tokens} == {"eager mode was chosen"}
    assert graph == eager == anew
    assert len({tuple(tokens) for tokens in graph}) > 5, "the tokens tell the prompts apart"


def test_rows_of_all_kinds_share_a_graph_step(tiny_model_dir):
    asked = list(zip(prompts(6), KINDS.values()))
    alone = []
    for prompt, params in asked:
        with engine_of(tiny_model_dir) as engine:
            alone += play(engine, [(prompt, params)])[0]
    with engine_of(tiny_model_dir) as engine:
        with_graphs(engine)
        together, records = play(engine, asked)
    assert together == alone
    assert any(record.graph_size == 6 for record in records)


def test_switching_at_random_steps_changes_no_token(tiny_model_dir):
    chance = random.Random(3)
    asked = [(prompt, list(KINDS.values())[row % 4]) for row, prompt in enumerate(prompts(14, seed=2))]
    with engine_of(tiny_model_dir) as engine:
        with_graphs(engine)
        without, _ = play(engine, asked)
    with engine_of(tiny_model_dir) as engine:
        with_graphs(engine)
        switched, records = play(engine, asked, lambda step: chance.choice(["graph", "eager"]))
    assert switched == without
    decode = [record.mode for record in records if record.decode_tokens]
    assert min(decode.count("graph"), decode.count("eager")) > 20


def test_preemption_and_forks_are_followed_by_the_static_tables(tiny_model_dir):
    def forked(engine: Engine):
        parent = engine.submit(prompts(1)[0] * 5, LONG)
        for _ in range(6):
            engine.step()
        other = SamplingParams(temperature=1.0, seed=1, max_tokens=30, ignore_eos=True)
        children = [engine.fork(parent.id, other) for _ in range(2)]
        tokens, records = play(engine, [(prompt, LONG) for prompt in prompts(5)])
        return [parent.output_ids, *(child.output_ids for child in children), *tokens], records

    with engine_of(tiny_model_dir, num_blocks=34, prefix_cache=False) as engine:
        anew, records = forked(engine)
        assert any(record.preempted for record in records), "the pool was small enough"
    with engine_of(tiny_model_dir, num_blocks=34, prefix_cache=False) as engine:
        with_graphs(engine)
        graph, records = forked(engine)
        assert any(record.preempted for record in records)
    assert graph == anew


def test_a_padded_replay_changes_the_slots_of_real_rows_only(tiny_model_dir):
    with engine_of(tiny_model_dir, max_batch=8, graph_sizes=(8,)) as engine:
        with_graphs(engine)
        pages = engine.runner.cache.pages
        requests = [engine.submit(prompt, LONG) for prompt in prompts(3)]
        while any(len(request.output_ids) < 2 for request in requests):
            engine.step()
        held = [block for request in requests for block in request.block_table]
        free = [block for block in range(1, engine.pool.num_blocks) if block not in held]
        pages[:, :, free] = 777.0
        before = pages.clone()
        record = engine.step()
        assert record.graph_size == 8
        assert record.decode_tokens == 3
        changed = (pages != before).flatten(4).any(-1).any(0).any(0).nonzero().tolist()
        expected = [
            [request.block_table[(request.num_tokens - 2) // 4], (request.num_tokens - 2) % 4]
            for request in requests
        ]
        assert sorted(changed) == sorted(expected)
        assert not pages[:, :, NULL_BLOCK].any(), "the null block stays zero"


def test_the_null_block_is_zero_after_capture(tiny_model_dir):
    with engine_of(tiny_model_dir) as engine:
        engine.runner.cache.pages.fill_(float("nan"))
        with_graphs(engine)
        assert not engine.runner.cache.pages[:, :, NULL_BLOCK].any()


def test_padding_rows_are_finite_and_have_no_slot(tiny_model_dir):
    with engine_of(tiny_model_dir, max_batch=8, graph_sizes=(8,)) as engine:
        with_graphs(engine)
        for _ in engine.generate(prompts(3), LONG):
            pass
        buffers, static = engine.runner.static.buffers, engine.runner.static
        batch = buffers.batch(8)
        assert (batch.slot_mapping[3:] == NO_SLOT).all()
        assert (batch.context_lens[3:] == 1).all()
        assert (batch.block_tables[3:] == NULL_BLOCK).all()
        assert static.graphs.replay(8).logits.isfinite().all()


def test_the_buffers_hold_what_a_fresh_fill_would(tiny_model_dir):
    """Incremental updates against buffers that are written whole, at every decode of a busy history."""
    with engine_of(tiny_model_dir, num_blocks=40) as engine:
        with_graphs(engine)
        static = engine.runner.static
        launch, seen = static.launch, []

        def checked(requests, dispatch):
            sampled = launch(requests, dispatch)
            old, size = static.buffers, static.graphs.pad(len(requests))
            fresh = type(old)(old.rows, old.width, engine.pool.block_size, old.device)
            fresh.fill(requests, size, static.vocab_size)
            fresh.advance(size)
            left, right = old.batch(size), fresh.batch(size)
            for name in ("slot_mapping", "block_tables", "context_lens"):
                assert same(getattr(left, name), getattr(right, name)), name
            assert same(old.input_ids(size), fresh.input_ids(size))
            assert same(old.positions(size), fresh.positions(size))
            left, right = old.sampling(size, old.kind), fresh.sampling(size, fresh.kind)
            assert old.kind == fresh.kind
            for name in ("greedy", "temperature", "top_k", "top_p", "min_p", "seed", "position"):
                assert same(getattr(left, name), getattr(right, name)), name
            seen.append(len(requests))
            return sampled

        static.launch = checked
        chance = random.Random(1)
        asked = [(prompt, chance.choice(list(KINDS.values()))) for prompt in prompts(16, seed=4)]
        _, records = play(engine, asked)
        assert any(record.preempted for record in records)
        assert set(seen) >= {1, 2, 3}


def test_a_size_that_cannot_be_captured_runs_eager_and_says_why(tiny_model_dir):
    with engine_of(tiny_model_dir, max_batch=4) as engine:
        with_graphs(engine)
        recorder = TraceRecorder()
        recorder.fail = lambda number: number == 2  # sizes 4, 2, 1: the second is 2
        engine.graphs.recorder, engine.graphs._graphs = recorder, {}
        engine.runner.capture(lambda _: None)
        assert engine.graphs.sizes == (1, 4)
        reason = "graph 2 could not be captured: OutOfMemoryError: CUDA out of memory (told so by the test)"
        assert engine.graphs.failures == {2: reason}
        _, records = play(engine, [(prompt, LONG) for prompt in prompts(4)])
        by_rows = {record.decode_tokens: (record.graph_size, record.reason) for record in records}
        assert by_rows[1] == (1, "")
        assert by_rows[2] == (None, reason)
        assert by_rows[3] == (4, "")


def test_an_engine_whose_captures_all_fail_runs_eager(tiny_model_dir):
    with engine_of(tiny_model_dir, max_batch=4) as engine:
        with_graphs(engine)
        graphs = engine.graphs
        graphs._graphs.clear()
        graphs.recorder.fail = lambda number: True
        engine.runner.capture(lambda _: None)
        assert graphs.sizes == ()
        assert engine.mode == "eager"
        assert "could not be captured" in engine.set_mode("graph")
        assert len(next(engine.generate([[5, 6]], LONG)).token_ids) == LONG.max_tokens


def test_sampling_that_cannot_be_captured_runs_behind_the_graph(tiny_model_dir):
    params = KINDS["top-k"]
    with engine_of(tiny_model_dir) as engine:
        wanted = [completion.token_ids for completion in engine.generate(prompts(3), params)]
    with engine_of(tiny_model_dir) as engine:
        recorder = with_graphs(engine)
        recorder.fail = lambda number: True
        assert [completion.token_ids for completion in engine.generate(prompts(3), params)] == wanted
        assert "OutOfMemoryError" in engine.runner.static.sampler_failure


def test_every_reason_for_eager_is_told():
    pool = recorded_pool((1, 2, 4), width=10)
    assert pool.dispatch(3, 10).size == 4
    assert pool.dispatch(5, 10).reason == "batch 5 is larger than the largest graph, 4"
    assert pool.dispatch(3, 11).reason == "a block table of 11 columns is wider than the graphs' 10"
    pool.mode = "eager"
    assert pool.dispatch(3, 10).reason == "eager mode was chosen"
    assert GraphPool(unavailable="no CUDA graphs on cpu").dispatch(1).reason == "no CUDA graphs on cpu"
    pool.mode = "graph"
    pool.close()
    assert pool.dispatch(1).size is None


def test_a_batch_beyond_the_graphs_falls_back_for_that_step_only(tiny_model_dir):
    with engine_of(tiny_model_dir, max_batch=5, graph_sizes=(1, 2)) as engine:
        with_graphs(engine)
        _, records = play(engine, [(prompt, LONG) for prompt in prompts(5)])
        modes = [(record.decode_tokens, record.mode) for record in records if record.decode_tokens]
        assert (5, "eager") in modes
        assert (2, "graph") in modes
        assert modes[-1][1] == "graph", "a large batch turns nothing off for good"


def test_a_table_wider_than_the_buffers_runs_eager_and_right(tiny_model_dir):
    with engine_of(tiny_model_dir) as engine:
        wanted = [completion.token_ids for completion in engine.generate(prompts(3), LONG)]
    with engine_of(tiny_model_dir) as engine:
        with_graphs(engine)
        engine.runner.static.buffers.width = engine.graphs.width = 6
        requests = [engine.submit(prompt, LONG) for prompt in prompts(3)]
        reasons = set()
        while engine.has_work:
            record = engine.step()
            reasons |= {record.reason} if record and record.decode_tokens else set()
        assert [request.output_ids for request in requests] == wanted
        assert "" in reasons
        assert any("is wider than the graphs' 6" in reason for reason in reasons)


def test_an_exception_in_a_replay_ends_the_requests_and_leaves_no_state(tiny_model_dir):
    from engine.errors import DeviceError

    with engine_of(tiny_model_dir) as engine:
        with_graphs(engine)
        request = engine.submit([5, 6, 7], LONG)
        engine.step()
        graphs = dict(engine.graphs._graphs)

        def broken() -> None:
            raise RuntimeError("CUDA error: an illegal memory access")

        engine.graphs._graphs[1] = (broken, None)
        with pytest.raises(DeviceError, match="illegal memory access"):
            engine.step()
        assert request.finished
        assert engine.pool.counts().used == 0
        engine.graphs._graphs.update(graphs)
        engine._failed = ""  # the process would be restarted; here the same runner goes on
        after = next(engine.generate([[9, 8, 7, 6]], LONG)).token_ids
    with engine_of(tiny_model_dir) as engine:
        assert next(engine.generate([[9, 8, 7, 6]], LONG)).token_ids == after


def test_progress_names_each_size_largest_first():
    told: list[Progress] = []
    pool = GraphPool((1, 2, 4), width=1, recorder=recorded_pool(()).recorder)
    pool.capture(lambda size: size, told.append)
    assert [event.detail for event in told] == [
        "batch 4 (1 of 3)", "batch 2 (2 of 3)", "batch 1 (3 of 3)", "done",
    ]  # fmt: skip
    assert {event.stage for event in told} == {STAGE}
    assert [event.fraction for event in told] == [0.0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]


@pytest.mark.parametrize(
    ("wanted", "max_batch", "sizes"),
    [
        (None, 1, (1,)),
        (None, 32, (1, 2, 4, 8, 16, 32)),
        (None, 33, (1, 2, 4, 8, 16, 32, 33)),
        ((8, 1, 8), 4, (1, 8)),
        ((), 4, ()),
    ],
)
def test_default_sizes_are_powers_of_two_up_to_max_batch_and_itself(wanted, max_batch, sizes):
    assert graph_sizes(wanted, max_batch) == sizes


def test_a_request_outside_its_table_is_refused_on_the_host(tiny_model_dir):
    with engine_of(tiny_model_dir) as engine:
        with_graphs(engine)
        request = engine.submit([5] * 9, LONG)
        engine.step()
        request.block_table = request.block_table[:1]
        with pytest.raises(IndexError, match="has 10 tokens and 1 blocks of 4"):
            engine.runner.static.buffers.fill([request], 1, engine.runner.vocab_size)


def test_closing_drops_every_graph(tiny_model_dir):
    engine = engine_of(tiny_model_dir)
    with_graphs(engine)
    graphs = engine.graphs
    engine.close()
    assert graphs.sizes == ()
    assert torch.is_inference_mode_enabled() is False
