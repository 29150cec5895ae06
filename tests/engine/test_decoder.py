"""The fused decoder against transformers' modules and float64, and its kernels in Triton's interpreter."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine import Engine, EngineConfig
from engine.attention.base import PagedBatch
from engine.attention.sdpa import SdpaAttention
from engine.errors import ConfigError
from engine.kv_cache import KVCache, kv_shape
from engine.models.decoder import FusedDecoder, unfit
from engine.models.fused_ops import Rope, TorchOps
from tests.engine.interpreted import interpreter  # noqa: F401
from tests.engine.test_architectures import ARCHITECTURES, FUSED, write_model

FAMILIES = {name: settings for name, settings in ARCHITECTURES.items() if name.startswith(FUSED)}
FAMILIES |= {
    "llama with biases everywhere": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "qwen2 with one kv head": {"model_type": "qwen2", "num_key_value_heads": 1},
}
TOKENS = 45


def module_of(folder, dtype):
    torch.manual_seed(2)
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):  # which start as zeros
            torch.nn.init.normal_(parameter, std=0.1)
        elif parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    return module.to(dtype).eval()


def logits_of(decoder, config, dtype, tokens):
    """All logits of one prefill and then of a decode step of the last token."""
    cache = KVCache(kv_shape(config, dtype), 8, 16, torch.device("cpu"))
    table = torch.tensor([[3, 1, 5]], dtype=torch.int32)

    def batch(start, end):
        return PagedBatch(
            slot_mapping=torch.tensor([int(table[0, at // 16]) * 16 + at % 16 for at in range(start, end)]),
            block_tables=table,
            context_lens=torch.tensor([end], dtype=torch.int32),
            cu_seqlens_q=torch.tensor([0, end - start], dtype=torch.int32),
            query_lens=(end - start,),
            contexts=(end,),
            decode=end - start == 1,
        )

    last = len(tokens) - 1
    with torch.inference_mode():
        first = decoder.forward(tokens[:last], torch.arange(last), batch(0, last), cache, rows=None)
        then = decoder.forward(tokens[last:], torch.tensor([last]), batch(last, last + 1), cache, rows=None)
    return torch.cat([first, then])


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers_in_float32_and_are_as_near_to_float64_in_bfloat16(
    name, tiny_model_dir, tmp_path
):
    vocab_size = write_model(tmp_path, tiny_model_dir, name, FAMILIES[name])
    tokens = torch.randint(3, vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        exact = module_of(tmp_path, torch.float64)(tokens[None]).logits[0]
        theirs = module_of(tmp_path, torch.float32)(tokens[None]).logits[0]
        theirs_16 = module_of(tmp_path, torch.bfloat16)(tokens[None]).logits[0]
    module = module_of(tmp_path, torch.float32)
    ours = logits_of(FusedDecoder(module, SdpaAttention()), module.config, torch.float32, tokens)
    assert error(ours, theirs) < 2e-5
    module = module_of(tmp_path, torch.bfloat16)
    ours = logits_of(FusedDecoder(module, SdpaAttention()), module.config, torch.bfloat16, tokens)
    assert error(ours, exact) < 1.5 * error(theirs_16, exact)


def error(found, expected) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def test_wanted_rows_are_the_same_rows_of_all_logits(tiny_model_dir):
    module = module_of(tiny_model_dir, torch.float32)
    config = module.config
    decoder = FusedDecoder(module, SdpaAttention())
    tokens = torch.arange(10, 30)
    cache = KVCache(kv_shape(config, torch.float32), 4, 32, torch.device("cpu"))
    batch = PagedBatch(
        slot_mapping=torch.arange(32, 52),
        block_tables=torch.tensor([[1]], dtype=torch.int32),
        context_lens=torch.tensor([20], dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, 20], dtype=torch.int32),
        query_lens=(20,),
        contexts=(20,),
        decode=False,
    )
    with torch.inference_mode():
        every = decoder.forward(tokens, torch.arange(20), batch, cache, rows=None)
        some = decoder.forward(tokens, torch.arange(20), batch, cache, rows=torch.tensor([19, 3]))
    torch.testing.assert_close(some, every[[19, 3]])


def test_tokens_that_tie_in_16_bits_are_told_apart_by_their_exact_logits(tiny_model_dir):
    decoder = FusedDecoder(module_of(tiny_model_dir, torch.bfloat16), SdpaAttention())
    size = decoder.head.shape[1]
    decoder.head = torch.zeros(50, size, dtype=torch.bfloat16)
    decoder.head[[7, 9, 30], 0] = 8.0  # 24 with the hidden value below; the second column decides
    decoder.head[[7, 9, 30], 1] = torch.tensor([-0.01, 0.02, 0.01], dtype=torch.bfloat16)
    decoder.head[4, 0] = 7.9375
    hidden = torch.zeros(2, size, dtype=torch.bfloat16)
    hidden[:, 0], hidden[:, 1] = 3.0, 1.0
    hidden[1, 0] = -3.0  # here nothing but the zeros ties
    logits = decoder._logits(hidden)
    assert (hidden @ decoder.head.t())[0].topk(3).values.unique().numel() == 1, "they tie"
    assert logits[0].topk(4).indices.tolist() == [9, 30, 7, 4]
    assert logits[1].argmax() not in (4, 7, 9, 30)


def test_fusing_leaves_one_copy_of_the_weights(tiny_model_dir):
    module = module_of(tiny_model_dir, torch.float32)
    before = sum(parameter.numel() for parameter in module.parameters())
    decoder = FusedDecoder(module, SdpaAttention())
    held = [decoder.embedding, decoder.norm, decoder.head]
    for layer in decoder.layers:
        fields = (getattr(layer, name) for name in layer.__slots__)
        held += [value for value in fields if isinstance(value, torch.Tensor)]
    assert sum(tensor.numel() for tensor in held) == before
    left = {id(parameter) for parameter in module.parameters()} - {id(tensor) for tensor in held}
    assert all(parameter.dim() < 2 or parameter is module.get_input_embeddings().weight
               or parameter is module.get_output_embeddings().weight
               for parameter in module.parameters() if id(parameter) in left)  # fmt: skip


def test_auto_takes_the_decoder_where_it_fits_and_the_modules_elsewhere(tiny_model_dir, tmp_path):
    with Engine(EngineConfig(model=str(tiny_model_dir), device="cpu", dtype="float32")) as engine:
        assert engine.status().model_impl == "decoder"
    write_model(tmp_path, tiny_model_dir, "olmo2", {})
    with Engine(EngineConfig(model=str(tmp_path), device="cpu", dtype="float32")) as engine:
        assert engine.status().model_impl == "transformers"
    with pytest.raises(
        ConfigError, match=r"Olmo2ForCausalLM is not one of Llama, Mistral.*--model-impl auto"
    ):
        Engine(EngineConfig(model=str(tmp_path), device="cpu", model_impl="decoder"))


def test_a_family_member_with_another_activation_is_left_to_transformers(tiny_model_dir, tmp_path):
    write_model(tmp_path, tiny_model_dir, "llama", {"hidden_act": "gelu"})
    assert "gelu" in unfit(module_of(tmp_path, torch.float32))
    assert json.loads((tmp_path / "config.json").read_text())["hidden_act"] == "gelu"


# --- kernels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [64, 96, 576])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("add", [False, True])
def test_the_norm_kernel_equals_torch(size, dtype, add):
    from engine.kernels.elementwise import add_rms_norm

    x, delta, weight = (torch.randn(*shape).to(dtype) for shape in ((5, size), (5, size), (size,)))
    ours, theirs = x.clone(), x.clone()
    out = add_rms_norm(ours, delta if add else None, weight, 1e-5)
    expected = TorchOps().add_rms_norm(theirs, delta if add else None, weight, 1e-5)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dim", [16, 48, 128])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_the_rotation_kernel_equals_torch_and_leaves_values_alone(dim, norm, rotary):
    from engine.kernels.elementwise import rotate

    heads, tokens = 5, 4
    qkv = torch.randn(tokens, (heads + 2) * dim)
    positions = torch.tensor([0, 1, 77, 5000])
    inv_freq = 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim)
    weight = torch.randn(heads, dim) if norm else None
    ours, theirs = qkv.clone(), qkv.clone()
    rotate(ours, heads, dim, positions, inv_freq if rotary else None, 1.25, weight, 1e-6)
    ops = TorchOps()
    rope: Rope | None = ops.rope(positions, inv_freq, 1.25) if rotary else None
    ops.rotate(theirs, heads, dim, rope, weight, 1e-6)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert torch.equal(ours[:, heads * dim :], qkv[:, heads * dim :])
    assert torch.equal(ours, qkv) == (not norm and not rotary)


@pytest.mark.parametrize("size", [8, 96, 1536])
def test_the_activation_kernel_equals_torch(size):
    from engine.kernels.elementwise import silu_mul

    gate_up = torch.randn(3, 2 * size)
    torch.testing.assert_close(silu_mul(gate_up), TorchOps().silu_mul(gate_up))
