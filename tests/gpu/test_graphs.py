"""CUDA graphs on a real card: the tokens of eager, no write beside the real rows, no allocation."""

import random
import subprocess
import sys
import time

import pytest

from engine import Engine, EngineConfig, SamplingParams
from tests.gpu.results import write

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SIZES = (1, 2, 4, 8, 16, 32)
MARGIN = 0.2  # logits: a flip beyond it is no near tie
SHAPES = [
    pytest.param(model, marks=pytest.mark.xdist_group(model)) for model in ("smollm2", "shape:qwen2.5-1.5b")
]


def engine_of(model: str, **settings) -> Engine:
    chosen = {
        "max_batch": 33,
        "graph_sizes": SIZES,
        "kv_memory": 8 * 2**30,
        "max_model_len": 2048,
        **settings,
    }
    return Engine(EngineConfig(model=model, device="cuda", prefill_chunk=192, **chosen))


@pytest.fixture(scope="module", params=SHAPES)
def engine(request, default_model_dir):
    model = str(default_model_dir) if request.param == "smollm2" else request.param
    with engine_of(model) as engine:
        engine.label = request.param
        yield engine


def history(count: int, most: int, seed: int):
    """(step, prompt, params): a ramp up to a full batch and down again; every other request draws.

    Prompts end on and beside block boundaries, share prefixes, and are longer than a prefill chunk.
    """
    chance = random.Random(seed)
    shared = [chance.randrange(5, 40_000) for _ in range(600)]
    for row in range(count):
        begin = chance.choice([0, 0, 255, 256, 257, 512, 600])
        length = chance.choice([1, 15, 16, 17, 100, 254, 255, 256, 300])
        prompt = shared[:begin] + [chance.randrange(5, 40_000) for _ in range(length)]
        tokens = most if row < 2 else chance.randrange(most // 4, most)
        drawn = {"temperature": 0.8, "top_p": 0.95, "seed": row} if row % 2 else {"temperature": 0}
        yield (
            3 * row if row < 4 else 12 + row,
            prompt,
            SamplingParams(max_tokens=tokens, ignore_eos=True, **drawn),
        )


def play(engine: Engine, asked, mode):
    engine.pool.clear_cache()
    waiting, requests, records, step = list(asked), [], [], 0
    while waiting or engine.has_work:
        while waiting and waiting[0][0] <= step:
            _, prompt, params = waiting.pop(0)
            requests.append(engine.submit(prompt, params))
        engine.set_mode(mode(step))
        record = engine.step()
        if record is not None:
            records.append(record)
        step += 1
    engine.check()
    return requests, records


def flips(engine: Engine, left, right) -> list[dict]:
    """Where two runs of the same requests part, with the margin between the two best logits there."""
    found = []
    for number, (a, b) in enumerate(zip(left, right)):
        if a.output_ids == b.output_ids:
            continue
        at = next(i for i, pair in enumerate(zip(a.output_ids, b.output_ids)) if pair[0] != pair[1])
        look = SamplingParams(temperature=0, max_tokens=1, logprobs=2, ignore_eos=True)
        best = next(engine.generate([a.prompt_ids + a.output_ids[:at]], look)).logprobs[0]
        top = sorted(best.values(), reverse=True)
        found.append({"request": number, "token": at, "margin": top[0] - top[1]})
    return found


def test_graph_gives_the_tokens_of_eager_with_requests_coming_and_going(engine):
    asked = list(history(40, 256, seed=1))
    graph, records = play(engine, asked, lambda step: "graph")
    eager, eager_records = play(engine, asked, lambda step: "eager")
    found = flips(engine, graph, eager)
    sizes = {record.graph_size for record in records if record.decode_tokens}
    write(
        "h200-parity",
        {
            engine.label: {
                "requests": len(asked),
                "tokens": sum(len(request.output_ids) for request in graph),
                "largest_batch": max(record.decode_tokens for record in records),
                "graph_sizes_replayed": sorted(size for size in sizes if size),
                "eager_reasons": sorted({record.reason for record in records if record.decode_tokens} - {""}),
                "prefix_hits": sum(record.cached_tokens for record in records),
                "flips": found,
                "graph_ms_p50": median(record.ms.total for record in records if record.kind == "decode"),
                "eager_ms_p50": median(
                    record.ms.total for record in eager_records if record.kind == "decode"
                ),
            }
        },
    )
    assert max(record.decode_tokens for record in records) == 33
    assert sizes >= {1, 2, 4, 8, 16, 32, None}
    assert any(record.cached_tokens for record in records)
    assert max(len(request.output_ids) for request in graph) == 256
    assert all(flip["margin"] < MARGIN for flip in found), found


def test_five_hundred_switches_among_sixteen_streaming_chats_change_no_token(engine):
    chance = random.Random(7)
    asked = [(0, prompt, params) for _, prompt, params in history(16, 300, seed=2)]
    asked = [
        (0, prompt, SamplingParams(**{**_fields(params), "max_tokens": 520})) for _, prompt, params in asked
    ]
    plain, _ = play(engine, asked, lambda step: "graph")
    switches, last = [0], [""]

    def mode(step: int) -> str:
        # Nearly every step is another mode than the one before; now and then graph is kept for two.
        wanted = "eager" if last[0] == "graph" and chance.random() < 0.97 else "graph"
        switches[0] += wanted != last[0]
        last[0] = wanted
        return wanted

    switched, records = play(engine, asked, mode)
    found = flips(engine, plain, switched)
    write("h200-switches", {engine.label: {"chats": 16, "switches": switches[0], "flips": found}})
    assert switches[0] >= 500
    assert {record.mode for record in records} == {"graph", "eager"}
    assert all(flip["margin"] < MARGIN for flip in found), found


def test_a_padded_replay_changes_the_slots_of_real_rows_only(engine):
    engine.pool.clear_cache()
    engine.set_mode("graph")
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    requests = [engine.submit([7 + row] * (254 + row), params) for row in range(5)]
    while any(len(request.output_ids) < 2 for request in requests):
        engine.step()
    pages, size = engine.runner.cache.pages, engine.pool.block_size
    held = {block for request in requests for block in request.block_table}
    others = [block for block in range(1, engine.pool.num_blocks) if block not in held]
    for block in others:
        pages[:, :, block] = 3.0
    before = pages.clone()
    expected = []
    for _ in range(6):
        slots = [request.num_tokens - 1 for request in requests]
        record = engine.step()
        assert (record.graph_size, record.decode_tokens) == (8, 5)
        expected += [
            [request.block_table[slot // size], slot % size] for request, slot in zip(requests, slots)
        ]
    changed = (pages != before).flatten(4).any(-1).any(0).any(0).nonzero().tolist()
    assert sorted(changed) == sorted(expected)
    assert not pages[:, :, 0].any(), "the null block stays zero"
    for request in requests:
        engine.cancel(request.id)
    pages.zero_()
    engine.pool.clear_cache()


def test_two_hundred_graph_steps_allocate_nothing(engine):
    engine.pool.clear_cache()
    engine.set_mode("graph")
    kinds = [
        {"temperature": 0},
        {"temperature": 0.7, "top_p": 0.95, "seed": 1},
        {"temperature": 0.7, "top_k": 40, "seed": 2},
        {"temperature": 1.0, "seed": 3},
    ]
    requests = [
        engine.submit([9 + row] * 20, SamplingParams(max_tokens=230, ignore_eos=True, **kind))
        for row, kind in enumerate(kinds)
    ]
    for _ in range(20):
        engine.step()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    records = [engine.step() for _ in range(200)]
    after = torch.cuda.memory_stats()["allocation.all.allocated"]
    assert {record.graph_size for record in records} == {4}
    for request in requests:
        engine.cancel(request.id)
    write("h200-allocations", {engine.label: {"steps": 200, "before": before, "after": after}})
    assert after == before


def test_device_time_is_part_of_the_step(engine):
    request = engine.submit([5] * 30, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    records = []
    while engine.has_work:
        if (record := engine.step()) is not None:
            records.append(record)
    assert request.finished
    assert all(0 < record.ms.device <= record.ms.total for record in records)


def test_default_graphs_are_captured_and_told(default_model_dir):
    stages = []
    settings = EngineConfig(model=str(default_model_dir), device="cuda", kv_memory=2**30)
    with Engine(settings, progress=stages.append) as engine:
        status = engine.status()
        captured = [event.detail for event in stages if event.stage == "capturing graphs"]
        assert status.graph_sizes == SIZES
        assert captured[0].startswith("batch 32 ")
        assert status.graph_bytes > 0
        assert status.mode == "graph"
        write("h200-capture", {"smollm2": _startup(status)})


@pytest.mark.parametrize("attention", ["auto", "flash", "triton", "sdpa", "auto without flash-attn"])
def test_each_back_end_starts_and_answers(default_model_dir, attention, monkeypatch):
    name, _, without = attention.partition(" ")
    if without:
        monkeypatch.setitem(sys.modules, "flash_attn", None)
        monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    settings = EngineConfig(
        model=str(default_model_dir), device="cuda", attention=name, kv_memory=2**30,
        max_batch=4, max_model_len=1024,
    )  # fmt: skip
    with Engine(settings) as engine:
        chat = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
        answer = next(engine.generate([chat], SamplingParams(temperature=0, max_tokens=24)))
        status = engine.status()
        write("h200-startup", {attention: {**_startup(status), "answer": answer.text}})
        assert "Paris" in answer.text
        assert status.mode == "graph", status.mode_reason
        assert status.graph_failures == ()
        if name != "auto":
            assert status.attention == name
        if without:
            assert status.attention == "triton"


def test_flash_attention_with_small_blocks_is_refused_with_both_ways_out(default_model_dir):
    from engine.errors import ConfigError

    settings = EngineConfig(
        model=str(default_model_dir), device="cuda", attention="flash", block_size=16, kv_memory=2**30
    )
    with pytest.raises(ConfigError) as refusal:
        Engine(settings)
    text = str(refusal.value)
    write("h200-startup", {"flash with block size 16": text})
    assert "16" in text
    assert "256" in text
    assert "triton" in text


ENDINGS = {
    "leaves": ("", 0),
    "raises": ("raise ValueError('on purpose')", 1),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_with_live_graphs_and_streaming_chats_is_gone_in_five_seconds(default_model_dir, ending):
    last, code = ENDINGS[ending]
    program = f"""
import sys
from engine import Engine, EngineConfig, SamplingParams
engine = Engine(EngineConfig(model={str(default_model_dir)!r}, device="cuda", kv_memory=2**28, max_batch=2))
for prompt in ([5, 6, 7], [8]):
    engine.submit(prompt, SamplingParams(max_tokens=500, ignore_eos=True))
for _ in range(20):
    record = engine.step()
print(record.graph_size, flush=True)
{last}
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "2"
    began = time.perf_counter()
    assert process.wait(30) == code
    assert time.perf_counter() - began < 5


def _startup(status) -> dict:
    return {
        "attention": status.attention,
        "reason": status.attention_reason,
        "passed_over": {item.name: item.reason for item in status.attention_passed_over},
        "block_size": status.block_size,
        "graph_sizes": status.graph_sizes,
        "graph_capture_s": status.graph_capture_s,
        "graph_bytes": status.graph_bytes,
        "activation_bytes": status.activation_bytes,
        "kv_bytes": status.kv_bytes,
        "load_s": status.load_s,
    }


def _fields(params: SamplingParams) -> dict:
    return {name: getattr(params, name) for name in params.__struct_fields__}


def median(values) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else float("nan")
