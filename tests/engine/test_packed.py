"""Weights in four and eight bits against float64 of what their file says."""

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine import doctor
from engine.models.gguf_bits import FORMATS, nibbles
from engine.models.packed import Nibbles, Packed, PackedWeight, Wide, kernel_missing, linear

INNER = 512
ERROR = 3.5e-3  # of a product, relative: bfloat16 in and out, and scales in bfloat16

pytestmark = pytest.mark.skipif(bool(kernel_missing()), reason=kernel_missing() or "it is there")


def matrix(kind, rows, seed=0):
    """A matrix as a file has it, and float64 of its values."""
    draw = np.random.default_rng(seed)
    if kind == "Q4_K":  # which the library reads and does not write: any bits, with small factors
        raw = draw.integers(0, 256, (rows, INNER // 256, 144), dtype=np.uint8)
        raw[..., :4] = draw.uniform(1e-3, 1e-2, (rows, INNER // 256, 2)).astype(np.float16).view(np.uint8)
        raw = raw.reshape(rows, -1)
    else:
        values = draw.normal(0, 0.3, (rows, INNER)).astype(np.float32)
        raw = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
    exact = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(raw), torch.from_numpy(exact).double()


def inputs(rows):
    return torch.randn(rows, INNER, generator=torch.Generator().manual_seed(rows)).bfloat16()


def error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rows", [1, 33, 100])
def test_numbers_stand_for_what_the_file_says(kind, rows):
    raw, exact = matrix(kind, rows)
    values = nibbles(kind, raw).values()
    assert values.shape == (rows, INNER)
    torch.testing.assert_close(values.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_packed_product_of_any_number_of_rows_is_as_near_as_bfloat16(kind):
    raw, exact = matrix(kind, 192)
    weight = PackedWeight((Packed(nibbles(kind, raw)),))
    for rows in range(1, 34):
        x = inputs(rows)
        expected = x.double() @ exact.T
        found = linear(x, weight)
        assert found.dtype == torch.bfloat16
        assert error(found, expected) < ERROR, rows
        assert error(found, expected) < 1.5 * error(F.linear(x, exact.bfloat16()), expected), rows


@pytest.mark.parametrize("outputs", [1, 15, 16, 33, 100, 1024, 2100])
def test_outputs_need_not_fill_the_kernels_tiles(outputs):
    raw, exact = matrix("Q4_1", outputs)
    weight = PackedWeight((Packed(nibbles("Q4_1", raw)),))
    x = inputs(3)
    assert weight.shape == (outputs, INNER)
    assert linear(x, weight).shape == (3, outputs)
    torch.testing.assert_close(linear(x, weight).double(), x.double() @ exact.T, rtol=2e-2, atol=0.1)


def test_matrices_of_like_bits_under_each_other_are_one_product():
    parts = [matrix("Q4_1", 96, 1), matrix("Q4_0", 32, 2), matrix("Q4_0", 33, 3)]
    kinds = ("Q4_1", "Q4_0", "Q4_0")
    stacked = Nibbles.stacked([nibbles(kind, raw) for kind, (raw, _) in zip(kinds, parts)])
    x = inputs(5)
    expected = x.double() @ torch.cat([exact for _, exact in parts]).T
    assert error(linear(x, PackedWeight((Packed(stacked),))), expected) < ERROR


def test_matrices_of_unlike_bits_under_each_other_keep_their_order():
    four, eight, plain = matrix("Q4_1", 96, 1), matrix("Q8_0", 32, 2), torch.randn(17, INNER).bfloat16()
    weight = PackedWeight((Packed(nibbles("Q4_1", four[0])), plain, Packed(nibbles("Q8_0", eight[0]))))
    x = inputs(2)
    expected = x.double() @ torch.cat([four[1], plain.double(), eight[1]]).T
    assert weight.shape == (96 + 17 + 32, INNER)
    assert error(linear(x, weight), expected) < ERROR


def test_a_bias_is_added_and_float32_stays_float32():
    raw, exact = matrix("Q4_1", 64)
    bias = torch.randn(64)
    weight = PackedWeight((Packed(nibbles("Q4_1", raw)),))
    x = inputs(3).float()
    found = linear(x, weight, bias)
    assert found.dtype == torch.float32
    assert error(found, x.double() @ exact.T + bias.double()) < ERROR


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_more_rows_than_the_kernel_is_fast_for_go_to_the_copy(dtype):
    raw, exact = matrix("Q4_1", 64)
    copy = (exact + 1).to(dtype)  # told apart from the packed numbers
    bias = torch.randn(64).to(dtype)
    weight = PackedWeight((Packed(nibbles("Q4_1", raw)),), Wide(copy), most_rows=4)
    few, many = inputs(4).to(dtype), inputs(5).to(dtype)
    assert error(linear(few, weight, bias), few.double() @ exact.T + bias.double()) < ERROR
    assert error(linear(many, weight, bias), many.double() @ copy.double().T + bias.double()) < ERROR


def test_four_bits_take_five_with_their_scales_and_a_copy_is_counted():
    raw, exact = matrix("Q4_1", 64)
    numbers = 64 * INNER
    assert PackedWeight((Packed(nibbles("Q4_1", raw)),)).nbytes == numbers * 5 // 8
    eight = Packed(nibbles("Q8_0", matrix("Q8_0", 64)[0]))
    assert eight.nbytes == numbers * 10 // 8
    copy = Wide(exact.bfloat16())
    assert PackedWeight((eight,), copy).nbytes == numbers * 10 // 8 + numbers * 2
    assert Wide(exact.float()).nbytes == numbers * 4
    assert Wide(exact.float(), shared=True).nbytes == 0, "it is not reordered, and held by somebody else"


def test_a_tensor_is_multiplied_as_ever():
    x, weight, bias = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)
    assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))


def test_a_processor_without_the_kernels_instructions_is_named(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert kernel_missing().endswith("needs AVX2 or AVX-512, and this processor has DEFAULT")


@pytest.mark.parametrize(
    ("native", "kernel", "said"),
    [
        ("", "", "4 and 8 bits as they are, in C with AVX2"),
        ("no compiler", "", "4 and 8 bits as they are, by torch: no compiler"),
        ("no compiler", "no kernel", "in 16 or 32 bits: no compiler; no kernel"),
    ],
)
def test_doctor_says_what_computes_with_weights_of_few_bits_and_why(native, kernel, said, monkeypatch):
    monkeypatch.setattr(doctor, "native_missing", lambda: native)
    monkeypatch.setattr(doctor, "native_products", lambda: "AVX2")
    monkeypatch.setattr(doctor, "kernel_missing", lambda: kernel)
    assert doctor.examine()["device"]["cpu_weights"] == said
