"""The kernels of a decode step of few rows, interpreted, against the decoder's plain way and float64."""

from dataclasses import replace

import pytest
import torch

from engine.kernels.attention_cut import JOIN, AttentionShape, attention_shape
from engine.kernels.tiles import Shape, Tile, tile_for
from engine.models.decode_path import DEFAULTS, DecodePath
from tests.engine.decode_cases import MODELS, Case, decoder_of, error, few_programs  # noqa: F401
from tests.engine.interpreted import interpreter  # noqa: F401

LENGTHS = (1, 64, 2, 65, 130)
pytestmark = pytest.mark.usefixtures("few_programs")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@torch.inference_mode()
def test_logits_and_cache_equal_the_plain_way(name, rows):
    config = MODELS[name]
    decoder = decoder_of(config, torch.float32)
    case = Case(config, torch.float32, LENGTHS[-rows:])
    expected, cache = case.plainly(decoder)
    found = DecodePath(decoder).forward(case.ids, case.batch, case.cache)
    assert error(found, expected) < 1e-5
    torch.testing.assert_close(case.cache.pages, cache, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("narrow", [0, 2048])
@torch.inference_mode()
def test_what_the_end_needs_can_be_read_before_the_sums_or_after(narrow, monkeypatch):
    monkeypatch.setattr(DEFAULTS, "narrow", narrow)
    config = MODELS["llama with biases"]
    decoder = decoder_of(config, torch.float32)
    case = Case(config, torch.float32, LENGTHS[:1])
    expected, _ = case.plainly(decoder)
    assert error(DecodePath(decoder).forward(case.ids, case.batch, case.cache), expected) < 1e-5


@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize("length", [1, 65, 257])
@torch.inference_mode()
def test_a_context_of_any_number_of_pieces_is_joined_whole(parts, length, monkeypatch):
    monkeypatch.setattr(DEFAULTS, "parts", parts)
    decoder = decoder_of(MODELS["qwen2"], torch.float32)
    case = Case(MODELS["qwen2"], torch.float32, [length])
    expected, _ = case.plainly(decoder)
    path = DecodePath(decoder)
    for _ in range(2):  # the counters are as before
        assert error(path.forward(case.ids, case.batch, case.cache), expected) < 1e-5


@pytest.mark.parametrize("lengths", [[257], [273], [600], [600, 40]])
@torch.inference_mode()
def test_many_pieces_are_joined_by_groups(lengths, monkeypatch):
    monkeypatch.setattr(DEFAULTS, "parts", 1)
    monkeypatch.setattr(DEFAULTS, "attention", AttentionShape(16, 4, 0, 16, 64))
    decoder = decoder_of(MODELS["qwen2"], torch.float32)
    case = Case(MODELS["qwen2"], torch.float32, lengths)
    expected, _ = case.plainly(decoder)
    path = DecodePath(decoder)
    for _ in range(2):
        assert error(path.forward(case.ids, case.batch, case.cache), expected) < 1e-5
    assert not path._scratch.pieces_done.any()


@pytest.mark.parametrize("workers", [2, 3, 5])
@torch.inference_mode()
def test_pieces_may_be_of_any_length(workers, monkeypatch):
    monkeypatch.setattr(DEFAULTS, "attention", AttentionShape(32, 4, 3, 32, workers, 32, grain=16))
    decoder = decoder_of(MODELS["qwen2"], torch.float32)
    case = Case(MODELS["qwen2"], torch.float32, [65, 130, 181])
    expected, _ = case.plainly(decoder)
    assert error(DecodePath(decoder).forward(case.ids, case.batch, case.cache), expected) < 1e-5


@pytest.mark.parametrize("most_shared", [99 * 1024, 163 * 1024, 227 * 1024])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_the_cut_of_attention_fits_the_card(dim, most_shared):
    for kv_heads in (1, 2, 3, 4, 5, 8, 16):
        for rows in range(1, 33):
            shape = attention_shape(rows, kv_heads, dim, most_shared)
            tiles = max(0, shape.stages - 1) * shape.tile * dim * 2 * 2
            assert tiles + 8 * 1024 <= most_shared
            assert shape.workers & (shape.workers - 1) == 0
            assert not shape.chunk % 16
            assert shape.together(8 if rows == 1 else 1) <= 2 * JOIN


@pytest.mark.parametrize("early", [0, 16, 32])
@pytest.mark.parametrize("lengths", [[1, 64], [65, 130]])
@torch.inference_mode()
def test_tiles_that_go_through_shared_memory_give_the_same(lengths, early, monkeypatch):
    monkeypatch.setattr(DEFAULTS, "attention", AttentionShape(32, 4, 3, 64, 2, early))
    decoder = decoder_of(MODELS["qwen2"], torch.float32)
    case = Case(MODELS["qwen2"], torch.float32, lengths)
    expected, _ = case.plainly(decoder)
    assert error(DecodePath(decoder).forward(case.ids, case.batch, case.cache), expected) < 1e-5


@pytest.mark.parametrize("window", [1, 30, 64])
@torch.inference_mode()
def test_a_window_sees_that_many_latest_tokens(window):
    decoder = decoder_of(MODELS["qwen3"], torch.float32)
    decoder.layers[1].window = window
    decoder.layers[0].rotary = False
    case = Case(MODELS["qwen3"], torch.float32, LENGTHS[-3:])
    expected, _ = case.plainly(decoder)
    assert error(DecodePath(decoder).forward(case.ids, case.batch, case.cache), expected) < 1e-5


@pytest.mark.parametrize("padded", [1, 3])
@torch.inference_mode()
def test_padded_rows_write_nothing_and_change_no_other_row(padded):
    config = MODELS["llama"]
    decoder = decoder_of(config, torch.float32)
    case = Case(config, torch.float32, LENGTHS[:2], padded=padded)
    expected, cache = case.plainly(decoder)
    found = DecodePath(decoder).forward(case.ids, case.batch, case.cache)
    assert error(found[:2], expected[:2]) < 1e-5
    torch.testing.assert_close(case.cache.pages, cache, rtol=1e-4, atol=1e-4)
    assert not case.cache.pages[:, :, 0].any()


CUTS = (
    Tile(32, 64, 4, 4, 2),
    Tile(32, 64, 4, 1, 2, cuts=2),
    Tile(32, 64, 4, 4, 2, early=True),
    Tile(32, 64, 4, 1, 2, cuts=3, early=True),
)


@pytest.mark.parametrize("tile", CUTS, ids=lambda tile: f"split {tile.split}, cuts {tile.cuts}, {tile.early}")
@torch.inference_mode()
def test_every_way_to_cut_gives_the_same(tile):
    config = MODELS["llama with biases"]
    decoder = decoder_of(config, torch.float32)
    case = Case(config, torch.float32, LENGTHS)
    expected, _ = case.plainly(decoder)
    path = DecodePath(decoder)
    rows = len(LENGTHS)
    path.tiles = {(kind, rows): tile for kind in ("qkv", "out", "down", "head")}
    path.tiles["gate_up", rows] = replace(tile, cuts=1)
    assert error(path.forward(case.ids, case.batch, case.cache), expected) < 1e-5


@pytest.mark.parametrize(("rows", "times"), [(1, 1.2), (2, 1.2), (5, 1.5)])
@torch.inference_mode()
def test_bfloat16_is_as_near_to_float64_as_the_plain_way(rows, times):
    config = MODELS["qwen3"]
    exact_decoder = decoder_of(config, torch.float64)
    decoder = decoder_of(config, torch.bfloat16)
    case, exact_case = (Case(config, dtype, LENGTHS[-rows:]) for dtype in (torch.bfloat16, torch.float64))
    exact_case.cache.pages.copy_(case.cache.pages)
    exact, _ = exact_case.plainly(exact_decoder)
    plain, _ = case.plainly(decoder)
    found = DecodePath(decoder).forward(case.ids, case.batch, case.cache)
    assert error(found, exact) < times * error(plain, exact)


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 32])
@pytest.mark.parametrize("ins", [64, 192, 576, 1536, 8960])
@pytest.mark.parametrize("kind", ["qkv", "out", "join", "gate_up", "down", "head"])
def test_a_tile_of_an_unmeasured_shape_fits_it(kind, ins, rows):
    tile = tile_for(Shape(kind, 777, ins, rows))
    assert tile.ins & (tile.ins - 1) == 0
    assert tile.outs & (tile.outs - 1) == 0
    assert tile.ins < 2 * ins or tile.ins == 64
    assert not tile.ins % tile.split
    assert tile.split <= tile.warps
