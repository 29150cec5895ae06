"""The kernels of a decode step of few rows, interpreted, against the decoder's plain way and float64."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

import engine.models.decode_path as path_module
from engine.attention.base import PagedBatch
from engine.attention.sdpa import SdpaAttention
from engine.kernels.tiles import Shape, Tile, tile_for
from engine.kv_cache import KVCache
from engine.models.decode_path import DEFAULTS, DecodePath
from engine.models.decoder import FusedDecoder
from engine.models.transformers import kv_shape
from tests.engine.interpreted import interpreter  # noqa: F401

SIZES = {
    "vocab_size": 72,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 64,
}
MODELS = {
    "llama": LlamaConfig(**SIZES),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "qwen2": Qwen2Config(**(SIZES | {"hidden_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1})),
    "qwen3": Qwen3Config(**SIZES),
}
LENGTHS = (1, 64, 2, 65, 130)
BLOCK = 16


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """The interpreter takes as long for a small program as for a large one."""
    monkeypatch.setattr(path_module, "MOST_PROGRAMS", 8)
    path_module._attention_shape.cache_clear()
    monkeypatch.setattr(
        path_module, "tile_for", lambda shape: Tile(64, 64, 4, 1, 2) if shape.rows > 1 else Tile(32, 64, 1)
    )
    yield
    path_module._attention_shape.cache_clear()


def decoder_of(config, dtype):
    torch.manual_seed(5)
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
        elif parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
        else:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return FusedDecoder(module.to(dtype).eval(), SdpaAttention())


class Case:
    """Rows of the given lengths on shuffled pages; keys and values of the cached tokens are random."""

    def __init__(self, config, dtype, lengths, padded=0):
        width = max(lengths) // BLOCK + 2
        generator = torch.Generator().manual_seed(9)
        pages = torch.randperm(len(lengths) * width, generator=generator) + 1
        self.tables = pages.reshape(len(lengths), width).to(torch.int32)
        self.cache = KVCache(kv_shape(config, dtype), len(lengths) * width + 1, BLOCK, torch.device("cpu"))
        self.cache.pages[:, :, 1:].normal_(generator=generator)
        self.positions = torch.tensor([length - 1 for length in lengths] + [0] * padded)
        slots = [
            int(self.tables[row, (n - 1) // BLOCK]) * BLOCK + (n - 1) % BLOCK for row, n in enumerate(lengths)
        ]
        self.slots = torch.tensor(slots + [-1] * padded)
        self.tables = torch.cat([self.tables, torch.zeros(padded, width, dtype=torch.int32)])
        rows = len(lengths) + padded
        self.ids = torch.randint(0, config.vocab_size, (rows,), generator=generator)
        self.batch = PagedBatch(
            slot_mapping=self.slots,
            block_tables=self.tables,
            context_lens=torch.tensor([*lengths, *[1] * padded], dtype=torch.int32),
            cu_seqlens_q=torch.arange(rows + 1, dtype=torch.int32),
            query_lens=(1,) * rows,
            contexts=None if padded else tuple(lengths),
            decode=True,
        )

    def plainly(self, decoder):
        """Logits and cache by the decoder's own way; the case is left as it was."""
        before = self.cache.pages.clone()
        logits = decoder.forward(self.ids, self.positions, self.batch, self.cache, rows=None)
        after, self.cache.pages[:] = self.cache.pages.clone(), before
        return logits, after


def error(found, expected) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [1, 3])
@torch.inference_mode()
def test_logits_and_cache_equal_the_plain_way(name, rows):
    config = MODELS[name]
    decoder = decoder_of(config, torch.float32)
    case = Case(config, torch.float32, LENGTHS[-rows:])
    expected, cache = case.plainly(decoder)
    found = DecodePath(decoder).forward(case.ids, case.batch, case.cache)
    assert error(found, expected) < 1e-5
    torch.testing.assert_close(case.cache.pages, cache, rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize("window", [1, 30, 64])
@torch.inference_mode()
def test_a_window_sees_that_many_latest_tokens(window):
    decoder = decoder_of(MODELS["qwen3"], torch.float32)
    decoder.layers[1].window = window
    decoder.layers[0].rotary = False
    case = Case(MODELS["qwen3"], torch.float32, LENGTHS[-3:])
    expected, _ = case.plainly(decoder)
    assert error(DecodePath(decoder).forward(case.ids, case.batch, case.cache), expected) < 1e-5


@torch.inference_mode()
def test_padded_rows_write_nothing_and_change_no_other_row():
    config = MODELS["llama"]
    decoder = decoder_of(config, torch.float32)
    case = Case(config, torch.float32, LENGTHS[:2], padded=1)
    expected, cache = case.plainly(decoder)
    found = DecodePath(decoder).forward(case.ids, case.batch, case.cache)
    assert error(found[:2], expected[:2]) < 1e-5
    torch.testing.assert_close(case.cache.pages, cache, rtol=1e-4, atol=1e-4)
    assert not case.cache.pages[:, :, 0].any()


@pytest.mark.parametrize("tile", [Tile(32, 64, 4, 4, 2), Tile(32, 64, 4, 1, 2, 2)], ids=str)
@torch.inference_mode()
def test_every_way_to_cut_gives_the_same(tile):
    config = MODELS["llama with biases"]
    decoder = decoder_of(config, torch.float32)
    case = Case(config, torch.float32, LENGTHS[-2:])
    expected, _ = case.plainly(decoder)
    path = DecodePath(decoder)
    path.tiles = {(kind, 2): tile for kind in ("qkv", "out", "down", "head")}
    assert error(path.forward(case.ids, case.batch, case.cache), expected) < 1e-5


@pytest.mark.parametrize("rows", [1, 2])
@torch.inference_mode()
def test_bfloat16_is_as_near_to_float64_as_the_plain_way(rows):
    config = MODELS["qwen3"]
    exact_decoder = decoder_of(config, torch.float64)
    decoder = decoder_of(config, torch.bfloat16)
    case, exact_case = (Case(config, dtype, LENGTHS[-rows:]) for dtype in (torch.bfloat16, torch.float64))
    exact_case.cache.pages.copy_(case.cache.pages)
    exact, _ = exact_case.plainly(exact_decoder)
    plain, _ = case.plainly(decoder)
    found = DecodePath(decoder).forward(case.ids, case.batch, case.cache)
    assert error(found, exact) < 1.2 * error(plain, exact)


@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("ins", [64, 192, 576, 1536, 8960])
@pytest.mark.parametrize("kind", ["qkv", "out", "join", "gate_up", "down", "head"])
def test_a_tile_of_an_unmeasured_shape_fits_it(kind, ins, rows):
    tile = tile_for(Shape(kind, 777, ins, rows))
    assert tile.ins & (tile.ins - 1) == 0
    assert tile.outs & (tile.outs - 1) == 0
    assert tile.ins < 2 * ins or tile.ins == 64
    assert not tile.ins % tile.split
    assert tile.split <= tile.warps
