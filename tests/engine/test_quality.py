"""How well the default model predicts English, in its file's own bits and in float32."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from engine import Engine, EngineConfig
from engine.attention.base import PagedBatch
from engine.models.decoder import FusedDecoder
from engine.models.packed import PackedWeight, kernel_missing
from tests.engine.prose import TEXT

MOST_LOSS = 0.01  # of the perplexity


def perplexity(kernel_only=False, **settings):
    """Of ``TEXT``, computed in one prefill; ``kernel_only`` has no product go to a copy for many rows."""
    with Engine(EngineConfig(device="cpu", **settings)) as engine:
        decoder, cache = engine.runner.model, engine.runner.cache
        assert isinstance(decoder, FusedDecoder)
        for layer in decoder.layers if kernel_only else ():
            for name in ("qkv", "out", "gate_up", "down"):
                assert isinstance(getattr(layer, name), PackedWeight)
                setattr(layer, name, replace(getattr(layer, name), wide=None))
        if kernel_only:
            decoder.packed_head = replace(decoder.packed_head, wide=None)
        ids = torch.tensor(engine.tokenizer.encode(TEXT))
        count, size = len(ids), cache.block_size
        assert 800 < count < 1200
        batch = PagedBatch(
            slot_mapping=torch.arange(size, size + count),
            block_tables=torch.arange(1, 2 + count // size, dtype=torch.int32)[None],
            context_lens=torch.tensor([count], dtype=torch.int32),
            cu_seqlens_q=torch.tensor([0, count], dtype=torch.int32),
            query_lens=(count,),
            contexts=(count,),
            decode=False,
        )
        with torch.inference_mode():
            logits = decoder.forward(ids, torch.arange(count), batch, cache, None)
        return F.cross_entropy(logits[:-1], ids[1:]).exp().item()


@pytest.mark.skipif(bool(kernel_missing()), reason=kernel_missing() or "it is there")
def test_perplexity_in_the_files_own_bits_is_within_a_percent_of_float32():
    exact = perplexity(dtype="float32")
    assert 5 < exact < 60, "the model reads English"
    assert perplexity(dtype="bfloat16") == pytest.approx(exact, rel=MOST_LOSS)
    assert perplexity(dtype="bfloat16", kernel_only=True) == pytest.approx(exact, rel=MOST_LOSS)
