"""The parts of the bench without an engine: statistics, bytes of a step, loads, the header, tables."""

import datetime
import io
import statistics
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from transformers import AutoConfig

from engine.bench import header as header_module
from engine.bench.decode import DecodePlan
from engine.bench.header import header
from engine.bench.launch import LaunchPlan
from engine.bench.load import LoadPlan
from engine.bench.measure import copy_gb_per_s, median, percentile, rounded
from engine.bench.prefill import PrefillPlan
from engine.bench.report import show, write_json
from engine.bench.session import fill_steps, random_prompt
from engine.bench.traffic import Traffic
from engine.errors import ConfigError
from engine.models.random_model import random_config
from engine.models.shapes import SHAPES


class Status:
    """The two facts of an engine's status that traffic is made from."""

    dtype = "bfloat16"

    def __init__(self, weight_bytes):
        self.weight_bytes = weight_bytes


def test_percentiles_are_samples_by_nearest_rank():
    samples = [float(value) for value in range(100, 0, -1)]
    assert (median(samples), percentile(samples, 0.99), percentile(samples, 1.0)) == (50.0, 99.0, 100.0)
    assert percentile([3.0], 0.99) == percentile([3.0], 0.0) == 3.0
    assert percentile([1.0, 9.0], 0.99) == 9.0
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_numbers_keep_five_significant_digits():
    assert rounded(0.0123456789) == 0.012346
    assert rounded(123456.789) == 123460.0
    assert rounded(None) is None


def test_copies_count_reads_and_writes(monkeypatch):
    monkeypatch.setattr("engine.bench.measure.CPU_COPY_BYTES", 2**24)
    monkeypatch.setattr("engine.bench.measure._copy_s", lambda source, target: source.nbytes / 1e9)
    assert copy_gb_per_s(torch.device("cpu")) == pytest.approx(2.0)


def test_a_copy_rate_is_that_of_a_memory():
    assert 0.2 < copy_gb_per_s(torch.device("cpu")) < 5000


def test_a_tied_model_reads_its_table_and_an_untied_one_only_the_head():
    tied, untied = SHAPES["qwen2.5-1.5b"], SHAPES["qwen2.5-7b"]
    one = Traffic.of(random_config(tied), Status(2 * tied.parameters))
    two = Traffic.of(random_config(untied), Status(2 * untied.parameters))
    assert one.step_bytes([]) == 2 * 1_543_714_304
    assert two.step_bytes([]) == 2 * (7_615_616_512 - 152_064 * 3584)
    # 28 layers, keys and values, 2 and 4 heads of 128, two bytes each
    assert one.step_bytes([1000]) - one.step_bytes([]) == 1000 * 28 * 2 * 2 * 128 * 2
    assert two.step_bytes([7, 993]) - two.step_bytes([]) == 1000 * 28 * 2 * 4 * 128 * 2


def test_layers_with_a_window_read_the_window_only():
    config = AutoConfig.for_model(
        "qwen2", num_hidden_layers=4, max_window_layers=1, use_sliding_window=True, sliding_window=100,
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    traffic = Traffic.of(config, Status(0))
    a_layer = 2 * 2 * 16 * 2
    assert config.layer_types.count("sliding_attention") == 3
    assert traffic.step_bytes([40]) == 4 * 40 * a_layer
    assert traffic.step_bytes([1000, 40]) == (1000 + 3 * 100 + 4 * 40) * a_layer
    mistral = AutoConfig.for_model("mistral", num_hidden_layers=2, sliding_window=100)
    assert set(Traffic.of(mistral, Status(10**10)).windows) == {100}


def test_a_mixture_of_experts_has_no_fixed_bytes_a_step():
    config = AutoConfig.for_model("qwen3_moe", num_experts=8)
    assert Traffic.of(config, Status(10**9)).step_bytes([5]) is None


def test_prompts_differ_by_row_and_longer_ones_begin_with_the_shorter():
    assert random_prompt(3, 10, 500) == random_prompt(3, 40, 500)[:10]
    assert random_prompt(3, 10, 500) != random_prompt(4, 10, 500)
    assert set(random_prompt(0, 4000, 7)) == set(range(7))


@pytest.mark.parametrize("lengths", ["lognormal", "uniform"])
def test_a_load_has_the_means_and_the_rate_that_were_asked_for(lengths):
    plan = LoadPlan(4000, rate=50.0, lengths=lengths, prompt_mean=200, output_mean=40, seed=3)
    drawn = plan.draw(100_000)
    assert statistics.fmean(one.prompt_tokens for one in drawn) == pytest.approx(200, rel=0.06)
    assert statistics.fmean(one.output_tokens for one in drawn) == pytest.approx(40, rel=0.06)
    assert drawn[-1].at_s == pytest.approx(4000 / 50, rel=0.06)
    assert [one.at_s for one in drawn] == sorted(one.at_s for one in drawn)
    assert len({one.prompt_tokens for one in drawn}) > 50
    assert drawn == plan.draw(100_000)
    assert drawn != LoadPlan(4000, 50.0, lengths, 200, 40, seed=4).draw(100_000)


def test_every_request_of_a_load_fits():
    for one in LoadPlan(500, prompt_mean=900, output_mean=900).draw(100):
        assert one.prompt_tokens >= 1
        assert one.output_tokens >= 1
        assert one.prompt_tokens + one.output_tokens <= 100
        assert one.at_s == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DecodePlan(batches=(1, 0)), "--batch must be at least 1; it is 1, 0"),
        (lambda: DecodePlan(batches=()), "--batch must be at least 1; it is empty"),
        (lambda: DecodePlan(context=0), "--context must be at least 1; it is 0"),
        (lambda: DecodePlan(steps=-3), "--steps must be at least 1; it is -3"),
        (lambda: PrefillPlan(lengths=(128, 0)), "--lengths must be at least 1; it is 128, 0"),
        (lambda: PrefillPlan(repeats=0), "--repeats must be at least 1; it is 0"),
        (lambda: LaunchPlan(replays=0), "--replays must be at least 1; it is 0"),
        (lambda: LoadPlan(0), "--requests must be at least 1; it is 0"),
        (lambda: LoadPlan(1, rate=-1.0), "--rate must be 0 or more"),
        (lambda: LoadPlan(1, rate=float("nan")), "--rate must be 0 or more"),
        (lambda: LoadPlan(1, output_mean=0), "--output-mean must be at least 1; it is 0"),
        (lambda: LoadPlan(1, lengths="normal"), "lognormal, uniform"),
    ],
)
def test_a_plan_that_cannot_be_measured_is_refused_with_the_option_and_the_value(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)


def test_there_is_room_for_the_steps_that_filling_takes():
    plan = DecodePlan(batches=(1, 32), context=512, steps=100)
    assert plan.need(4096).rows == 32
    assert plan.need(4096).tokens >= 512 + 2 * 100 + fill_steps(32, 512, 4096)
    assert plan.need(16).tokens > plan.need(4096).tokens
    assert fill_steps(32, 512, 16) > 32 * 512 // 16


def test_prompt_lengths_go_to_8192_on_a_gpu_and_to_1024_without():
    assert PrefillPlan().lengths_on("cuda:0") == (128, 256, 512, 1024, 2048, 4096, 8192)
    assert PrefillPlan().lengths_on("cpu") == (128, 256, 512, 1024)
    assert PrefillPlan(lengths=(5,)).lengths_on("cpu") == (5,)


def test_the_header_tells_machine_versions_command_and_date(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/opt/python", "/opt/venv/bin/tui-infer", "bench", "decode"])
    head = header()
    assert set(head) == {"command", "machine", "python", "versions", "date"}
    assert head["command"] == "tui-infer bench decode"
    assert "cores" in head["machine"]
    assert head["python"] == ".".join(map(str, sys.version_info[:3]))
    assert head["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert {"torch", "transformers"} <= set(head["versions"])
    assert datetime.date.fromisoformat(head["date"]) == datetime.date.today()


def test_the_command_leaves_the_folders_of_the_machine_out(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments = ["/opt/python", "-m", "tui_infer", "bench", "decode", "--json", f"{tmp_path}/a b.json"]
    monkeypatch.setattr(sys, "orig_argv", arguments)
    assert header_module.command() == "python -m tui_infer bench decode --json 'a b.json'"


def test_the_header_and_loads_need_no_torch():
    script = (
        "import sys; from engine.bench.header import header; from engine.bench.load import LoadPlan;"
        "header.__module__; LoadPlan(3).draw(50); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no/such/x\.json cannot be written: No such file"):
        write_json(tmp_path / "no/such/x.json", {})


ENGINE = {
    "shape": "qwen2.5-1.5b", "impl": "transformers", "attention": "flash", "block_size": 256,
    "dtype": "bfloat16", "device_name": "NVIDIA H200", "copy_gb_per_s": 4281.4, "graph_sizes": [1, 2, 4],
    "graph_capture_s": 1.234, "graph_bytes": 3 * 2**20,
}  # fmt: skip
HEAD = {"machine": "m", "python": "3.12", "versions": {"torch": "2.11"}, "date": "2026-01-01"}


def printed(value):
    console = Console(width=80, record=True, file=io.StringIO())
    show(value, console)
    return console.export_text()


def test_the_decode_table_says_times_reasons_bandwidth_and_capture_in_eighty_columns():
    row = {
        "shape": "qwen2.5-1.5b", "mode": "graph", "batch": 32, "ms_p50": 1.0519, "ms_p99": 61.2,
        "device_ms_p50": 0.98, "host_ms_p50": 0.0719, "tokens_per_s": 30421.2, "gb_per_s": 3024.2,
        "share_of_copy": 0.7064,
    }  # fmt: skip
    skipped = [
        {"shape": "qwen2.5-1.5b", "mode": "graph", "batch": 64, "reason": "too large"},
        {"shape": "qwen2.5-1.5b", "mode": "graph", "batch": 128, "reason": "too large"},
    ]
    value = {
        "bench": "decode", "header": HEAD, "settings": {"context": 512}, "engines": [ENGINE], "rows": [row],
        "skipped": skipped,
    }  # fmt: skip
    text = printed(value)
    line = next(line for line in text.splitlines() if line.strip().startswith("graph"))
    assert line.split() == ["graph", "32", "1.052", "61.2", "0.980", "0.0719", "30,421", "3,024", "70.6%"]
    assert "not measured: graph at 64, 128: too large" in text
    assert "copies move 4,281 GB/s" in text
    assert "graphs for 1, 2, 4 captured in 1.23 s in 3.0 MiB" in text
    assert "context 512" in text
    assert "…" not in text


def test_the_profile_table_sets_eager_beside_graph_with_their_ratio():
    rows = [
        {"shape": "qwen2.5-1.5b", "mode": mode, "batch": 1, "steps": 20, "cpu_self_total_ms": ms}
        for mode, ms in (("eager", 257.5), ("graph", 124.1))
    ]
    ratios = [{"shape": "qwen2.5-1.5b", "cpu_self_total_ms": 2.075}]
    value = {
        "bench": "profile", "header": HEAD, "settings": {}, "engines": [ENGINE], "rows": rows,
        "ratios": ratios, "skipped": [],
    }  # fmt: skip
    text = printed(value)
    line = next(line for line in text.splitlines() if "CPU self total" in line)
    assert line.split()[-3:] == ["257.5", "124.1", "2.08×"]
    assert next(line for line in text.splitlines() if "device total" in line).split()[-3:] == ["–", "–", "–"]


def test_the_launch_table_needs_no_engine():
    row = {
        "batch": 64, "replays": 200, "eager_ms": 0.0548, "replay_ms": 0.0114, "ratio": 4.8,
        "output_address_before": "0x7f00", "output_address_after": "0x7f00",
    }  # fmt: skip
    text = printed({"bench": "launch", "header": HEAD, "settings": {}, "rows": [row]})
    assert "64 200 0.0548 0.0114 4.80× 0x7f00 0x7f00" in " ".join(text.split())
