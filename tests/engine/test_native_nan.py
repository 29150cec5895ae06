"""Numbers that are none come through the C decoder, whatever the weights' bits and the processor."""

import pytest
import torch

from engine.attention.sdpa import SdpaAttention
from engine.models.decoder import FusedDecoder
from engine.models.quantised import QuantisedWeights
from engine.native import library
from tests.engine.test_native import MODELS, TOKENS, Run, Sixteen, module_of, native_of, needs_native

pytestmark = needs_native
PROCESSORS = {
    "this one": ((), ()),
    "AVX2": (("-mno-avx512f",), ("AVX2", "AVX-VNNI")),
}


@pytest.fixture(params=PROCESSORS)
def processor(request, monkeypatch, tmp_path):
    without, products = PROCESSORS[request.param]
    if without:
        monkeypatch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, *without))
        library._loaded.cache_clear()
        assert library.native_products() in products
    yield request.param
    if without:
        library._loaded.cache_clear()


def with_norm(bits: int, at: int, value: float) -> FusedDecoder:
    module = module_of(MODELS["llama"], torch.bfloat16)
    module.model.layers[1].post_attention_layernorm.weight.data[at] = value
    shapes = {name: tuple(weight.shape) for name, weight in module.named_parameters()}
    packing = (Sixteen if bits == 16 else QuantisedWeights)(
        4 if bits == 16 else bits, shapes, torch.bfloat16, tiled=True
    )
    decoder = FusedDecoder(module, SdpaAttention(), packing)
    assert decoder.native is not None
    return decoder


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_a_nan_in_a_norm_is_in_every_logit(processor, bits):
    for value in (float("nan"), float("inf")):
        for at in (0, 20, 40, 95):  # in either half of a group, first and last
            decoder = with_norm(bits, at, value)
            assert not Run(MODELS["llama"], decoder)(("a", TOKENS[:9], 0)).isfinite().any()


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_a_nan_in_one_rows_input_is_in_its_logits_and_leaves_the_bits_of_rows_before_it(processor, bits):
    config = MODELS["llama"]
    decoder = native_of(config, bits)
    tokens = torch.tensor([1, 5, 7, 8, 5, 9, 3, 2, 11, 12])
    before = Run(config, decoder)(("a", tokens, 0))
    decoder.embedding[9, 3] = float("nan")
    after = Run(config, decoder)(("a", tokens, 0))
    assert torch.equal(after[:5], before[:5])
    assert not after[5].isfinite().any()
