"""The parts of a decode step, with a clock that counts launches of interpreted kernels."""

import json
from collections import Counter

import pytest
import torch

from benchmarks import decode_parts
from benchmarks.decode_parts import TOGETHER, WHOLE, parts, table, without
from engine.errors import EngineError
from engine.models.decode_path import DecodePath
from tests.engine.decode_cases import MODELS, Case, decoder_of, few_programs  # noqa: F401
from tests.engine.interpreted import interpreter  # noqa: F401

# What a step computes without one of its kernels means nothing, and numpy says so.
pytestmark = [pytest.mark.usefixtures("few_programs"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
KERNELS = ("_embed", "_matvec", "_matrows", "_matvec_join", "_split_attention")


@pytest.fixture
def decoder():
    made = decoder_of(MODELS["qwen2"], torch.float32)
    del made.layers[2:]
    made.path = DecodePath(made)
    return made


def cache():
    return Case(MODELS["qwen2"], torch.float32, [40, 3]).cache


class Counted:
    """A kernel that counts its launches and makes them."""

    def __init__(self, kernel, name, launches):
        self.kernel, self.name, self.launches = kernel, name, launches

    def __getitem__(self, grid):
        def launch(*arguments, **settings):
            self.launches[self.name] += 1
            return self.kernel[grid](*arguments, **settings)

        return launch


@pytest.fixture
def clock(decoder):
    """A launch takes a millisecond."""
    launches = Counter()
    for name in KERNELS:
        setattr(decoder.path, name, Counted(getattr(decoder.path, name), name, launches))

    def timer(step):
        launches.clear()
        logits = step()
        return float(launches.total()), logits

    timer.launches = launches
    return timer


@pytest.mark.parametrize(("rows", "out"), [(1, "join"), (2, "out")])
def test_each_kind_takes_its_own_launches_with_it_and_the_path_is_as_before(decoder, clock, rows, out):
    found = parts(decoder, cache(), rows, 12, clock)
    layers = len(decoder.layers)
    expected = {"start": 1, "qkv": layers, "attention": layers, out: layers, "gate_up": layers}
    expected |= {"down": layers, "head": 1}
    assert {row["part"]: row["ms"] for row in found[1:-1]} == expected
    assert {row["part"]: row["kernels"] for row in found[1:-1]} == expected
    assert (found[0]["part"], found[0]["ms"]) == (WHOLE, sum(expected.values()))
    assert found[0]["kernels"] == 5 * layers + 2
    assert (found[-1]["part"], found[-1]["ms"]) == (TOGETHER, 0)
    assert all(isinstance(getattr(decoder.path, name), Counted) for name in KERNELS)
    assert "product" not in vars(decoder.path)


def test_bytes_are_the_weights_once_and_all_keys_and_values(decoder, clock):
    found = {row["part"]: row["bytes"] for row in parts(decoder, cache(), 2, 12, clock)}
    layer = decoder.layers[0]
    for kind in ("qkv", "out", "gate_up", "down"):
        assert found[kind] == 2 * getattr(layer, kind).nbytes
    assert found["head"] == decoder.head.nbytes
    assert found["attention"] == 2 * 12 * cache().shape.bytes_per_token
    assert found[WHOLE] == sum(found[kind] for kind in found.keys() - {WHOLE})


def test_a_step_without_a_product_goes_on_and_one_after_it_is_whole_again(decoder, clock):
    case = Case(MODELS["qwen2"], torch.float32, [40, 3])
    expected = decoder.path.forward(case.ids, case.batch, case.cache)
    with without(decoder.path, "down"):
        assert not torch.equal(decoder.path.forward(case.ids, case.batch, case.cache), expected)
    decoder.path.reset()
    assert torch.equal(decoder.path.forward(case.ids, case.batch, case.cache), expected)


def test_a_model_without_such_kernels_is_refused(decoder, clock):
    decoder.path = None
    with pytest.raises(EngineError, match="no kernels of ours"):
        parts(decoder, cache(), 1, 12, clock)


def test_the_table_has_a_column_a_case_and_no_rate_where_nothing_is_read():
    case = {"shape": "tiny", "batch": 8, "kernels": 1}
    rows = [
        {**case, "part": "head", "ms": 0.25, "bytes": 10**9, "gb_per_s": 4000.0},
        {**case, "part": TOGETHER, "ms": -0.01, "bytes": 0, "gb_per_s": None},
    ]
    lines = [line.strip("| ").split(" | ") for line in table(rows).splitlines()]
    assert lines[0] == ["ms, GB/s", "tiny, batch 8"]
    assert lines[2:] == [["head", "0.250, 4,000"], ["together", "-0.010"]]


def test_a_shape_that_cannot_be_measured_here_is_said_and_kept(tmp_path, capsys):
    path = tmp_path / "parts.json"
    assert decode_parts.main(["--shapes", "tiny", "--batch", "1", "--json", str(path)]) == 1
    assert "no kernels of ours" in capsys.readouterr().out
    assert json.loads(path.read_text())["failed"][0]["what"] == "tiny"
