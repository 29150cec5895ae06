"""A request gets the same tokens whatever happens around it: company, chunks, cache, preemption, fork."""

import random

import pytest

from engine import Engine, EngineConfig, SamplingParams

SEEDS = range(50)
NEW_TOKENS = 20
PREFILL_CHUNKS = {"chunks of 1": 1, "chunks of 7": 7, "chunks of 64": 64, "no chunks": 512}


def prompt_of(seed: int, vocab_size: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, vocab_size) for _ in range(draw.choice((1, 5, 15, 16, 17, 40)))]


def params_of(seed: int, greedy: bool) -> SamplingParams:
    if greedy:
        return SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    draw = random.Random(seed)
    return SamplingParams(
        temperature=draw.choice((0.7, 1.0, 1.5)),
        top_p=draw.choice((1.0, 0.9)),
        top_k=draw.choice((0, 20)),
        min_p=draw.choice((0.0, 0.02)),
        repetition_penalty=draw.choice((1.0, 1.2)),
        presence_penalty=draw.choice((0.0, 0.5)),
        frequency_penalty=draw.choice((0.0, 0.3)),
        seed=seed,
        max_tokens=NEW_TOKENS,
        ignore_eos=True,
    )


def start(folder, prefill_chunk=512, **settings) -> Engine:
    return Engine(
        EngineConfig(
            model=str(folder),
            device="cpu",
            dtype="float32",
            prefill_chunk=prefill_chunk,
            **{"num_blocks": 256, "block_size": 4, "threads": 1, **settings},
        )
    )


def run(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        engine.check()
    assert engine.pool.counts().used == 0


@pytest.fixture(scope="module")
def alone(tiny_model_dir):
    """What each seed gives, greedy and sampled, with the engine for itself and nothing cached."""
    expected = {}
    with start(tiny_model_dir, prefix_cache=False) as engine:
        for greedy in (True, False):
            for seed in SEEDS:
                request = engine.submit(prompt_of(seed, engine.status().vocab_size), params_of(seed, greedy))
                run(engine)
                expected[seed, greedy] = request.output_ids
    assert len({tuple(tokens) for tokens in expected.values()}) > 60, "answers differ from each other"
    return expected


def submit(engine: Engine, seed: int, greedy: bool):
    return engine.submit(prompt_of(seed, engine.status().vocab_size), params_of(seed, greedy))


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "seeded"])
@pytest.mark.parametrize("chunk", PREFILL_CHUNKS)
def test_among_eight_with_any_chunks_and_a_cold_cache(tiny_model_dir, alone, chunk, greedy):
    with start(tiny_model_dir, PREFILL_CHUNKS[chunk], max_batch=8) as engine:
        requests = {seed: submit(engine, seed, greedy) for seed in SEEDS}
        run(engine)
    for seed, request in requests.items():
        assert request.output_ids == alone[seed, greedy], f"seed {seed}"


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "seeded"])
def test_with_a_hot_cache(tiny_model_dir, alone, greedy):
    with start(tiny_model_dir, num_blocks=2048) as engine:
        for round in ("cold", "hot"):
            requests = {seed: submit(engine, seed, greedy) for seed in SEEDS}
            run(engine)
            for seed, request in requests.items():
                assert request.output_ids == alone[seed, greedy], f"{round}, seed {seed}"
        hits = [request.cached_tokens for request in requests.values() if len(request.prompt_ids) > 4]
        assert all(hits)


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "seeded"])
def test_preempted_at_random_steps(tiny_model_dir, alone, greedy):
    draw = random.Random(5)
    with start(tiny_model_dir, num_blocks=80, max_batch=8) as engine:
        requests = {seed: submit(engine, seed, greedy) for seed in SEEDS}
        while engine.has_work:
            if engine.scheduler.running and draw.random() < 0.6:
                engine.scheduler.preempt(draw.choice(engine.scheduler.running))
            engine.step()
            engine.check()
    assert sum(request.preemptions for request in requests.values()) > 50
    for seed, request in requests.items():
        assert request.output_ids == alone[seed, greedy], f"seed {seed}"


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "seeded"])
def test_after_a_fork(tiny_model_dir, alone, greedy):
    draw = random.Random(6)
    with start(tiny_model_dir, max_batch=8) as engine:
        for seed in SEEDS:
            parent = submit(engine, seed, greedy)
            for _ in range(draw.randrange(1, NEW_TOKENS)):
                engine.step()
            child = engine.fork(parent.id)
            run(engine)
            assert parent.output_ids == child.output_ids == alone[seed, greedy], f"seed {seed}"
