"""The bench on a real engine: every row's keys, numbers that fit together, and what is left out and why."""

import io
import itertools
import json

import msgspec
import pytest
import torch

from engine.bench import session as session_module
from engine.bench.ab import AbPlan, bench_ab
from engine.bench.decode import DecodePlan, bench_decode
from engine.bench.launch import LaunchPlan, bench_launch
from engine.bench.load import LoadPlan
from engine.bench.prefill import PrefillPlan, bench_prefill
from engine.bench.profile import ProfilePlan, bench_profile
from engine.bench.report import document
from engine.bench.throughput import bench_throughput
from engine.config import EngineConfig
from engine.core import Engine
from engine.errors import ConfigError
from engine.models.shapes import SHAPES

pytestmark = pytest.mark.usefixtures("small_copies")

DECODE_KEYS = [
    "shape", "impl", "attention", "block_size", "mode", "batch", "context", "ms_p50", "ms_p99",
    "device_ms_p50", "host_ms_p50", "tokens_per_s", "gb_per_s", "share_of_copy",
]  # fmt: skip
IDENTITY = {"shape": "tiny", "impl": "decoder", "attention": "sdpa", "block_size": 16}
NO_GRAPHS = "no CUDA graphs on cpu"


def quiet(_):
    pass


def config(**settings):
    settings = {"model": "shape:tiny", "device": "cpu", "dtype": "float32", "threads": 1, **settings}
    return EngineConfig(**settings)


@pytest.fixture
def engines(monkeypatch):
    """The engines that were made, in order."""
    made = []

    def engine(config, progress=None):
        made.append(Engine(config, progress))
        return made[-1]

    monkeypatch.setattr(session_module, "Engine", engine)
    return made


def test_decode_rows_have_exactly_the_documented_keys_and_agree_with_each_other():
    plan = DecodePlan(batches=(1, 3), context=40, steps=10)
    found = bench_decode([config()], plan, quiet)
    assert [(row["batch"], row["mode"]) for row in found["rows"]] == [(1, "eager"), (3, "eager")]
    (engine,) = found["engines"]
    for row in found["rows"]:
        assert list(row) == DECODE_KEYS
        assert row.items() >= IDENTITY.items()
        assert row["context"] == 40
        assert 0 < row["ms_p50"] <= row["ms_p99"]
        assert row["device_ms_p50"] is row["host_ms_p50"] is None
        assert row["tokens_per_s"] == pytest.approx(row["batch"] / row["ms_p50"] * 1e3, rel=1e-3)
        # 2 layers, keys and values, 2 heads of 64 in float32; contexts grow from 41 to 40 and all steps
        kv = 2 * 2 * 2 * 64 * 4 * row["batch"]
        moved = row["gb_per_s"] * 1e9 * row["ms_p50"] / 1e3
        weights = 4 * SHAPES["tiny"].parameters
        assert weights + 41 * kv < moved < (weights + 120 * kv) * 1.01
        assert row["share_of_copy"] == pytest.approx(row["gb_per_s"] / engine["copy_gb_per_s"], rel=1e-3)


def test_a_mode_that_cannot_be_had_is_left_out_with_the_reason():
    found = bench_decode([config()], DecodePlan(batches=(1, 2), context=8, steps=2), quiet)
    assert found["skipped"] == [
        {"shape": "tiny", "mode": "graph", "batch": batch, "reason": NO_GRAPHS} for batch in (1, 2)
    ]


def test_an_engine_is_described_beside_its_rows():
    found = bench_decode([config(max_batch=2)], DecodePlan((1,), 8, 2, ("eager",)), quiet)
    assert found["skipped"] == []
    (engine,) = found["engines"]
    assert engine.items() >= IDENTITY.items()
    assert engine["architecture"] == "Qwen2ForCausalLM"
    assert (engine["device"], engine["dtype"], engine["max_batch"]) == ("cpu", "float32", 2)
    assert engine["graph_capture_s"] is None
    assert engine["weight_bytes"] == pytest.approx(4 * SHAPES["tiny"].parameters, rel=1e-3)
    assert engine["load_s"] > 0
    assert engine["copy_gb_per_s"] > 0
    assert json.loads(json.dumps(engine)) == engine


def test_modes_take_turns_over_the_same_rows_and_graph_rows_replayed_graphs(graphs, monkeypatch):
    seen = []
    step = Engine.step

    def watched(self, ahead=False):
        record = step(self, ahead)
        # A step that was under way when all its rows were cancelled has none.
        if record is not None and record.kind == "decode" and record.decode_tokens:
            seen.append((record.mode, record.graph_size, record.decode_tokens))
        return record

    monkeypatch.setattr(Engine, "step", watched)
    found = bench_decode([config(max_batch=4)], DecodePlan(batches=(3,), context=20, steps=10), quiet)
    assert [(row["mode"], row["batch"]) for row in found["rows"]] == [("eager", 3), ("graph", 3)]
    assert found["skipped"] == []
    assert set(seen) == {("eager", None, 3), ("graph", 4, 3)}
    switches = sum(before[0] != after[0] for before, after in itertools.pairwise(seen))
    assert switches >= 9  # five rounds of each, and not one mode after the other
    assert sum(mode == "graph" for mode, _, _ in seen) == pytest.approx(10 + 5 * 3, abs=2)


def test_a_batch_beyond_the_largest_graph_has_an_eager_row_and_the_reason(graphs):
    settings = config(max_batch=4, graph_sizes=(1, 2))
    found = bench_decode([settings], DecodePlan(batches=(2, 4), context=8, steps=3), quiet)
    assert [(row["batch"], row["mode"]) for row in found["rows"]] == [
        (2, "eager"),
        (2, "graph"),
        (4, "eager"),
    ]
    (skipped,) = found["skipped"]
    assert (skipped["mode"], skipped["batch"]) == ("graph", 4)
    assert skipped["reason"] == "batch 4 is larger than the largest graph, 2"


def test_several_models_give_one_result_and_only_one_engine_lives_at_a_time(engines, default_model_dir):
    plan = DecodePlan(batches=(1,), context=8, steps=2, modes=("eager",))
    found = bench_decode([config(), config(model=str(default_model_dir))], plan, quiet)
    names = ["tiny", default_model_dir.name]
    assert [row["shape"] for row in found["rows"]] == [row["shape"] for row in found["engines"]] == names
    assert len(engines) == 2
    for engine in engines:
        with pytest.raises(Exception, match="closed"):
            engine.submit([1, 2])


def test_the_engine_is_closed_when_measuring_fails(engines, monkeypatch):
    monkeypatch.setattr("engine.bench.decode.take_turns", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench_decode([config()], DecodePlan((1,), 8, 2), quiet)
    with pytest.raises(Exception, match="closed"):
        engines[0].submit([1, 2])


def test_a_batch_for_which_there_are_no_blocks_or_rows_is_left_out_with_the_numbers():
    plan = DecodePlan(batches=(1, 4, 8), context=40, steps=2, modes=("eager",))
    found = bench_decode([config(num_blocks=20, max_batch=4)], plan, quiet)
    assert [row["batch"] for row in found["rows"]] == [1]
    four, eight = found["skipped"]
    assert "4 sequences of" in four["reason"]
    assert "KV blocks; there are 19" in four["reason"]
    assert eight["reason"] == "8 rows are more than --max-batch 4"


def test_the_cache_grows_to_what_the_run_needs_where_nobody_sized_it(monkeypatch, engines):
    monkeypatch.setattr(session_module, "ENOUGH_BYTES", 0)
    bench_decode([config(max_batch=8)], DecodePlan((1, 8), 100, 2, ("eager",)), quiet)
    bench_decode([config(num_blocks=30, max_batch=8)], DecodePlan((1,), 8, 2, ("eager",)), quiet)
    sized, given = engines
    assert sized.status().num_blocks > 8 * (100 + 2) // 16
    assert sized.status().kv_bytes < 40 * 2**20
    assert given.status().num_blocks == 30


def test_a_context_that_the_model_does_not_take_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"--context 90 with --steps 10 needs .* takes 100 here"):
        bench_decode([config(max_model_len=100)], DecodePlan((1,), 90, 10), quiet)


def test_ab_lets_both_modes_take_turns_in_blocks_and_puts_them_side_by_side(graphs, monkeypatch):
    seen = []
    step = Engine.step

    def watched(self, ahead=False):
        record = step(self, ahead)
        if record is not None and record.kind == "decode":
            seen.append(record.mode)
        return record

    monkeypatch.setattr(Engine, "step", watched)
    plan = AbPlan(batches=(3,), context=20, steps=12, block=4)
    found = bench_ab([config(max_batch=4)], plan, quiet)
    (row,) = found["rows"]
    assert list(row) == [
        "shape", "impl", "attention", "block_size", "batch", "context", "steps", "graph_size",
        "eager_ms", "eager_host_ms", "eager_device_ms", "graph_ms", "graph_host_ms", "graph_device_ms",
        "ratio",
    ]  # fmt: skip
    assert (row["batch"], row["steps"], row["graph_size"]) == (3, 12, 4)
    assert row["ratio"] == pytest.approx(row["eager_ms"] / row["graph_ms"], rel=1e-2)
    assert row["eager_device_ms"] is row["graph_host_ms"] is None  # one and the same on a CPU
    blocks = [mode for mode, _ in itertools.groupby(seen)]
    assert blocks[-6:] == ["eager", "graph"] * 3
    assert seen[-(4 + 3) :] == ["graph"] * 7  # three steps of a block are not counted
    assert found["skipped"] == []


def test_ab_leaves_out_batches_that_have_no_graph_and_says_why(graphs):
    settings = config(max_batch=4, graph_sizes=(1, 2))
    found = bench_ab([settings], AbPlan(batches=(2, 4, 8), context=8, steps=2), quiet)
    assert [row["batch"] for row in found["rows"]] == [2]
    assert [(row["batch"], row["reason"]) for row in found["skipped"]] == [
        (4, "batch 4 is larger than the largest graph, 2"),
        (8, "8 rows are more than --max-batch 4"),
    ]


def test_ab_on_an_engine_without_graphs_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=NO_GRAPHS):
        bench_ab([config()], AbPlan((1,), 8, 2), quiet)


def test_an_ab_document_is_shown_as_a_table_of_both_modes(graphs):
    from rich.console import Console

    from engine.bench.report import show

    found = bench_ab([config(max_batch=4)], AbPlan(batches=(1, 2), context=8, steps=4), quiet)
    console = Console(width=100, record=True, file=io.StringIO())
    show(document("ab", {"context": 8}, found), console)
    text = console.export_text()
    for row in found["rows"]:
        assert f"{row['ratio']:.2f}×" in text
    assert "graph of" in text


def test_profile_rows_and_their_ratio_come_from_the_profiler(graphs):
    found = bench_profile([config(max_batch=2)], ProfilePlan(batch=2, context=16, steps=4), quiet)
    eager, graph = found["rows"]
    for row in (eager, graph):
        assert list(row) == [
            "shape", "impl", "attention", "block_size", "mode", "batch", "context", "steps",
            "cpu_self_total_ms", "cpu_ms_per_step", "cpu_busy_ms_per_step", "device_total_ms",
            "kernels_per_step", "launch_ms_p50", "ms_p50",
        ]  # fmt: skip
        assert (row["batch"], row["context"], row["steps"]) == (2, 16, 4)
        assert row["cpu_ms_per_step"] == pytest.approx(row["cpu_self_total_ms"] / 4, rel=1e-3)
        assert 0 < row["cpu_busy_ms_per_step"] <= row["cpu_ms_per_step"]
        assert row["device_total_ms"] is row["kernels_per_step"] is None
        assert 0 < row["launch_ms_p50"] <= row["ms_p50"]
    assert (eager["mode"], graph["mode"]) == ("eager", "graph")
    (ratio,) = found["ratios"]
    assert ratio["cpu_ms_per_step"] == pytest.approx(
        eager["cpu_ms_per_step"] / graph["cpu_ms_per_step"], rel=1e-2
    )
    assert ratio["device_total_ms"] is None


def test_profile_without_graphs_has_one_row_no_ratio_and_the_reason():
    found = bench_profile([config()], ProfilePlan(context=8, steps=2), quiet)
    assert [row["mode"] for row in found["rows"]] == ["eager"]
    assert found["ratios"] == []
    assert found["skipped"] == [{"shape": "tiny", "mode": "graph", "reason": NO_GRAPHS}]


def test_prefill_measures_a_new_prompt_and_the_same_again_from_the_cache():
    near = pytest.approx(1.0, rel=0.5)
    for _ in range(4):  # whoever else wants the core between two readings of the clock is not there each time
        found = bench_prefill([config(prefill_chunk=64)], PrefillPlan(lengths=(16, 200), repeats=2), quiet)
        if all(row["ttft_ms_p50"] / row["ms_p50"] == near for row in found["rows"]):
            break
    else:
        pytest.fail("the first token is not there when its steps are")
    parts = [(row["prompt_tokens"], row["cached_tokens"], row["steps"]) for row in found["rows"]]
    # At most all but one token are cached: nothing of one block, twelve blocks of 200.
    assert parts == [(16, 0, 1), (16, 0, 1), (200, 0, 4), (200, 192, 1)]
    for row in found["rows"]:
        assert row.items() >= IDENTITY.items()
        assert row["computed_tokens"] == row["prompt_tokens"] - row["cached_tokens"]
        assert row["ms_p50"] > 0
        assert row["tokens_per_s"] == pytest.approx(row["prompt_tokens"] / row["ms_p50"] * 1e3, rel=1e-3)
    assert found["skipped"] == []


def test_prefill_leaves_out_what_does_not_fit_and_caches_that_are_off():
    settings = config(max_model_len=100, prefix_cache=False)
    found = bench_prefill([settings], PrefillPlan(lengths=(50, 100), repeats=1), quiet)
    assert [row["prompt_tokens"] for row in found["rows"]] == [50]
    long, off = found["skipped"]
    assert (long["prompt_tokens"], "the 100 that fit" in long["reason"]) == (100, True)
    assert off["reason"] == "cached prefixes: the prefix cache is off"


def test_throughput_counts_every_token_of_the_load_once():
    plan = LoadPlan(6, lengths="uniform", prompt_mean=20, output_mean=8, seed=5)
    found = bench_throughput([config(max_batch=4, max_model_len=64)], plan, quiet)
    (row,) = found["rows"]
    load = plan.draw(64)
    assert (row["requests"], row["rate"], row["mode"]) == (6, 0.0, "eager")
    assert row["prompt_tokens"] == sum(one.prompt_tokens for one in load)
    assert row["output_tokens"] == sum(one.output_tokens for one in load)
    assert row["requests_per_s"] == pytest.approx(6 / row["seconds"], rel=1e-3)
    tokens = row["prompt_tokens"] + row["output_tokens"]
    assert row["tokens_per_s"] == pytest.approx(tokens / row["seconds"], rel=1e-3)
    assert row["output_tokens_per_s"] == pytest.approx(row["output_tokens"] / row["seconds"], rel=1e-3)
    assert 0 < row["ttft_ms_p50"] <= row["ttft_ms_p99"] <= row["seconds"] * 1e3 * 1.01
    assert 0 < row["itl_ms_p50"] <= row["itl_ms_p99"]
    assert 1 <= row["mean_batch"] <= 4
    assert (row["graph_share"], row["preemptions"]) == (0.0, 0)


def test_throughput_waits_for_arrivals_and_counts_preemptions_and_graphs(graphs):
    plan = LoadPlan(5, rate=20.0, lengths="uniform", prompt_mean=30, output_mean=30, seed=1)
    settings = config(max_batch=4, num_blocks=8, max_model_len=112, block_size=16)
    (row,) = bench_throughput([settings], plan, quiet)["rows"]
    assert row["seconds"] >= plan.draw(112)[-1].at_s
    assert row["graph_share"] == 1.0
    assert row["preemptions"] > 0
    assert row["mode"] == "graph"


def test_one_token_answers_have_no_time_between_tokens():
    plan = LoadPlan(2, lengths="uniform", prompt_mean=4, output_mean=1)
    (row,) = bench_throughput([config()], plan, quiet)["rows"]
    assert row["output_tokens"] == 2
    assert row["itl_ms_p50"] is row["itl_ms_p99"] is row["mean_batch"] is row["graph_share"] is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_launch_without_cuda_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="torch sees no CUDA device"):
        bench_launch("auto", LaunchPlan(), quiet)


def test_a_document_is_plain_json_with_header_settings_and_rows():
    plan = DecodePlan((1,), 8, 2, ("eager",))
    value = document("decode", {"batches": (1,)}, bench_decode([config()], plan, quiet))
    assert list(value) == ["bench", "header", "settings", "engines", "rows", "skipped"]
    assert msgspec.json.decode(json.dumps(value))["rows"] == value["rows"]
