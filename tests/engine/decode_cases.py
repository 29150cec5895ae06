"""Decoders so small that the interpreter runs their decode steps, and batches for them."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

import engine.models.decode_path as path_module
from engine.attention.base import PagedBatch
from engine.attention.sdpa import SdpaAttention
from engine.kernels import attention_cut
from engine.kernels.tiles import Tile
from engine.kv_cache import KVCache, kv_shape
from engine.models.decoder import FusedDecoder

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
BLOCK = 16


@pytest.fixture
def few_programs(monkeypatch):
    """The interpreter takes as long for a small program as for a large one."""
    monkeypatch.setattr(attention_cut, "PROGRAMS", 4)
    attention_cut.attention_shape.cache_clear()
    monkeypatch.setattr(
        path_module,
        "tile_for",
        lambda shape, card="": Tile(64, 64, 4, 1, 2) if shape.rows > 1 else Tile(32, 64, 1),
    )
    yield
    attention_cut.attention_shape.cache_clear()


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
