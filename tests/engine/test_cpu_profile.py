"""The profile of decode steps on a CPU: its arithmetic, and a run in small."""

import json
import shutil
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import cpu_profile, step_parts
from benchmarks.cpu_profile import Reader, floor, step_bytes, table, weight_bytes
from benchmarks.step_parts import (
    ATTENTION,
    CACHE,
    ENGINE,
    IN_C,
    LINEARS,
    NORMS,
    PARTS,
    PHASE_PARTS,
    SAMPLING,
    THREADS,
    Lap,
    Stopwatch,
    TickRate,
    parts_ms,
    usual,
    watching,
)
from engine import Engine, EngineConfig
from engine.models.native_path import PHASES
from engine.native.library import native_missing
from engine.sampler import SamplingBatch

needs_native = pytest.mark.skipif(bool(native_missing()), reason=native_missing() or "it is there")


class Work:
    """Takes two seconds of its own, and one for each call of ``inner``."""

    def __init__(self):
        self.now = 0.0

    def outer(self, calls):
        self.now += 2
        return [self.inner() for _ in range(calls)]

    def inner(self):
        self.now += 1
        return "done"


def test_a_watched_function_is_counted_without_those_that_it_calls():
    work = Work()
    watch = Stopwatch(lambda: work.now)
    watch.watch(work, "outer", "own")
    watch.watch(work, "inner", "called")
    assert work.outer(3) == ["done"] * 3
    work.inner()
    assert watch.take() == {"own": 2, "called": 4}
    assert watch.take() == {}


def test_time_counts_although_a_call_fails():
    work = Work()
    watch = Stopwatch(lambda: work.now)
    watch.watch(work, "outer", "own")
    with pytest.raises(TypeError):
        work.outer("many")
    work.outer(0)
    assert watch.take() == {"own": 4}


def test_functions_are_what_they_were_when_nobody_watches():
    work, of = Work(), vars(SamplingBatch)["of"]
    watch = Stopwatch()
    watch.watch(work, "inner", "own")
    watch.watch(SamplingBatch, "of", "sampling")
    assert vars(SamplingBatch)["of"] is not of
    watch.release()
    assert "inner" not in vars(work)
    assert vars(SamplingBatch)["of"] is of
    work.outer(1)
    assert watch.take() == {}


def test_the_rate_of_ticks_is_the_most_that_any_call_had():
    rate = TickRate()
    rate.learn(0, 0.0)
    rate.learn(1_900, 1e-6)
    rate.learn(199_900, 1e-4)
    rate.learn(100, 1e-6)
    assert rate.per_s == pytest.approx(1.999e9)
    assert rate.ms(1_999_000) == pytest.approx(1.0)


def test_parts_add_up_to_the_step_and_what_phases_leave_goes_to_the_threads():
    assert set(PHASE_PARTS) == set(PHASES)
    assert set(PHASE_PARTS.values()) <= set(PARTS)
    ticks = dict.fromkeys(PHASES, 0) | {"norms": 10, "gated": 200, "head": 100, "cache": 5, "attention": 50}
    lap = Lap({IN_C: 0.4, CACHE: 0.01, SAMPLING: 0.02, ENGINE: 0.03}, ticks)
    found = parts_ms([lap, lap], TickRate(1e3))
    assert found[LINEARS] == pytest.approx(300)
    assert (found[NORMS], found[ATTENTION]) == pytest.approx((10, 50))
    assert found[CACHE] == pytest.approx(15)
    assert found[THREADS] == pytest.approx(400 - 365)
    assert (found[SAMPLING], found[ENGINE]) == pytest.approx((20, 30))
    assert sum(found.values()) == pytest.approx(1e3 * lap.total)
    assert tuple(found) == PARTS


def test_the_slowest_and_fastest_quarter_are_left_out():
    found = [Lap({ENGINE: float(seconds)}) for seconds in (100, 3, 1, 4, 2, 5, 0, 200)]
    assert [lap.total for lap in usual(found)] == [2, 3, 4, 5]
    assert len(usual(found[:3])) == 3


def test_the_floor_is_all_bytes_at_the_median_speed():
    read = {"weight_bytes": 80_000_000, "kv_bytes": 20_000_000}
    found = floor(read, [40.0, 20.0, 10.0], ms=15.0)
    assert found["floor_ms"] == pytest.approx(5.0)
    assert found["times_floor"] == pytest.approx(3.0)
    assert (found["slowest_read_gb_per_s"], found["fastest_read_gb_per_s"]) == (10.0, 40.0)


@pytest.fixture(scope="module")
def folder(tiny_model_dir, tmp_path_factory):
    """A random Llama of two layers that the C decoder takes: 4 heads of 64, 2 of keys, 512 within."""
    from transformers import AutoConfig, LlamaForCausalLM

    made = tmp_path_factory.mktemp("profiled") / "llama"
    shutil.copytree(tiny_model_dir, made)
    config = AutoConfig.from_pretrained(
        tiny_model_dir,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        head_dim=WIDTH // 4,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(made)
    return made


@pytest.fixture
def small(folder):
    """Engines of that model."""
    engines = []

    def make(**settings):
        engines.append(Engine(EngineConfig(model=str(folder), device="cpu", threads=1, **settings)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


WIDTH = 256
PLAIN = 2 * WIDTH * (2 * WIDTH + WIDTH + 3 * 2 * WIDTH)  # numbers of the matrices of both layers
NORM = (2 * 2 + 1) * WIDTH  # and of all norms


def test_bytes_of_a_step_are_weights_and_keys_and_values_of_every_context(small):
    engine = small(quant="none", dtype="bfloat16")
    model = engine.runner.model
    assert weight_bytes(model) == 2 * (PLAIN + NORM + engine.runner.vocab_size * WIDTH)
    token = 2 * 2 * WIDTH // 2 * 2  # keys and values of two layers, two bytes each
    assert step_bytes(model, [10.0, 30.0], 2) == {
        "weight_bytes": weight_bytes(model),
        "kv_bytes": 40 * token,
        "embedding_bytes": 2 * WIDTH * 2,
    }
    model.layers[0].window = 20
    assert step_bytes(model, [10.0, 30.0], 2)["kv_bytes"] == (40 + 30) * token // 2


@needs_native
def test_tiles_count_as_they_are_laid_out_and_the_table_of_embeddings_does_not(small):
    """Of 4 bits with two halves for 32 of them, of 8 with one; outputs fill up tiles of 16."""
    engine = small(quant="int4")
    words = -(-engine.runner.vocab_size // 16) * 16
    expected = PLAIN * (32 // 2 + 4) // 32 + words * WIDTH * (32 + 2) // 32
    assert weight_bytes(engine.runner.model) == expected + 2 * NORM


def test_readings_are_positive_and_of_the_whole_array():
    reader = Reader(2, nbytes=2**20)
    assert sum(piece.nbytes for piece in reader._pieces) == 2**20
    assert all(speed > 0 for speed in reader.gb_per_s())


@needs_native
def test_ticks_are_taken_once_and_cover_every_phase(small):
    engine = small(quant="int4")
    path = engine.runner.model.native
    path.take_ticks()
    engine.submit([1, 2, 3])
    engine.step()
    ticks = path.take_ticks()
    assert tuple(ticks) == PHASES
    assert all(count > 0 for count in ticks.values())
    assert set(path.take_ticks().values()) == {0}


def test_only_the_fused_decoder_is_divided():
    runner = SimpleNamespace(model=torch.nn.Linear(1, 1), cache=None)
    session: Any = SimpleNamespace(engine=SimpleNamespace(runner=runner))
    with (
        pytest.raises(step_parts.EngineError, match="Only the fused decoder"),
        watching(session),
    ):
        pass


@pytest.mark.parametrize("quant", [pytest.param("int4", marks=needs_native), "none"])
def test_the_command_divides_steps_into_parts_that_add_up(
    quant, folder, tmp_path, monkeypatch, capsys, small_copies
):
    path = tmp_path / "cpu-profile.json"
    plan = ["--batch", "1,3", "--context", "20", "--steps", "8", "--threads", "1", "--json", str(path)]
    monkeypatch.setenv("GOMP_SPINCOUNT", "100")
    monkeypatch.setattr(cpu_profile, "READ_BYTES", 2**22)
    monkeypatch.setattr(sys, "argv", ["cpu_profile", "--model", str(folder), "--quant", quant, *plan])
    forward = step_parts.FusedDecoder.forward
    cpu_profile.main()
    assert step_parts.FusedDecoder.forward is forward
    value = json.loads(path.read_text())
    assert [(row["quant"], row["batch"], row["steps"]) for row in value["rows"]] == [
        (quant, 1, 8),
        (quant, 3, 8),
    ]
    for row in value["rows"]:
        parts = row["parts_ms"]
        assert sum(parts.values()) == pytest.approx(row["ms"], abs=0.01)
        assert sum(row["shares"].values()) == pytest.approx(1, abs=0.01)
        assert all(parts[part] > 0 for part in (LINEARS, ATTENTION, NORMS, CACHE, SAMPLING, ENGINE))
        assert min(parts.values()) >= 0
        assert bool(row["phases_ms"]) == (quant == "int4")
        assert row["floor_ms"] > 0
    assert bool(value["engines"][0]["ticks_per_s"]) == (quant == "int4")
    assert value["rows"][1]["kv_bytes"] == 3 * value["rows"][0]["kv_bytes"]
    assert {"command", "machine", "versions", "date"} <= value["header"].keys()
    assert table(value["rows"]) in capsys.readouterr().out
