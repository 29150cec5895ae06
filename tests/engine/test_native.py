"""The decoder in C against float64 transformers modules that hold the very numbers of its tiles."""

import shutil

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from engine.attention.base import PagedBatch
from engine.attention.sdpa import SdpaAttention
from engine.kv_cache import KVCache, kv_shape
from engine.models.decoder import FusedDecoder
from engine.models.packed import Nibbles
from engine.models.quantised import QuantisedWeights, quantise
from engine.models.tiled import Tiled
from engine.native import library

MISSING = library.native_missing()
needs_native = pytest.mark.skipif(bool(MISSING), reason=MISSING or "it is there")

SIZES = {
    "vocab_size": 88,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16384,
    "head_dim": 64,
}
WIDE = SIZES | {"head_dim": 128, "num_attention_heads": 3, "num_key_value_heads": 1}
NARROW = SIZES | {"head_dim": 32, "num_attention_heads": 3, "num_key_value_heads": 3}
SEVEN = SIZES | {"hidden_size": 448, "num_attention_heads": 7, "num_key_value_heads": 1}
MODELS = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama of wide heads": LlamaConfig(**WIDE),
    "llama of narrow heads": LlamaConfig(**NARROW),
    "mistral with a window": MistralConfig(**SIZES, sliding_window=19),
    "qwen2": Qwen2Config(**SEVEN),
    "qwen3": Qwen3Config(**SIZES),
    "smollm3": SmolLM3Config(**SIZES, no_rope_layers=[1, 0, 1], pad_token_id=None),
}
TOKENS = torch.randint(0, SIZES["vocab_size"], (150,), generator=torch.Generator().manual_seed(4))


class Sixteen(QuantisedWeights):
    """Leaves matrices in bfloat16."""

    def _part(self, weight, bits):
        return weight.bfloat16()


def module_of(config, dtype=torch.float32, attention="eager"):
    torch.manual_seed(5)
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
        elif parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
        else:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        parameter.data = parameter.data.bfloat16().float()
    return module.to(dtype).eval()


def native_of(config, bits):
    module = module_of(config, torch.bfloat16)
    shapes = {name: tuple(weight.shape) for name, weight in module.named_parameters()}
    kind = Sixteen if bits == 16 else QuantisedWeights
    packing = kind(4 if bits == 16 else bits, shapes, torch.bfloat16, tiled=True)
    decoder = FusedDecoder(module, SdpaAttention(), packing)
    assert decoder.native is not None
    return decoder


def exact_logits(config, decoder, tokens):
    """[T, vocab] float64 of a module with the numbers that the decoder's tiles stand for."""
    module = module_of(config, torch.float64)
    for layer, own in zip(decoder.layers, module.model.layers):
        attention, mlp = own.self_attn, own.mlp
        for weight, linears in (
            (layer.qkv, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.out, (attention.o_proj,)),
            (layer.gate_up, (mlp.gate_proj, mlp.up_proj)),
            (layer.down, (mlp.down_proj,)),
        ):
            for part, linear in zip(weight.parts, linears):
                linear.weight.data = part.values().double()
    module.lm_head.weight = torch.nn.Parameter(decoder.tiled_head.parts[0].values().double())
    with torch.inference_mode():
        return module(tokens[None]).logits[0]


class Run:
    """Sequences over one cache, whose blocks are dealt out in no order."""

    def __init__(self, config, decoder, block_size=16, blocks=64):
        self.decoder = decoder
        self.cache = KVCache(kv_shape(config, torch.bfloat16), blocks, block_size, torch.device("cpu"))
        self.free = torch.randperm(blocks - 1, generator=torch.Generator().manual_seed(3)).add(1).tolist()
        self.tables = {}

    def __call__(self, *chunks):
        """Logits of ``(name, tokens, start)``, one after another: [T, vocab]."""
        size = self.cache.block_size
        slots, positions, ids, lens, contexts = [], [], [], [], []
        for name, tokens, start in chunks:
            table = self.tables.setdefault(name, [])
            while len(table) * size < start + len(tokens):
                table.append(self.free.pop())
            own = range(start, start + len(tokens))
            slots += [table[at // size] * size + at % size for at in own]
            positions += own
            ids += tokens.tolist()
            lens.append(len(tokens))
            contexts.append(start + len(tokens))
        width = max(len(self.tables[name]) for name, _, _ in chunks)
        tables = [self.tables[name] + [0] * (width - len(self.tables[name])) for name, _, _ in chunks]
        batch = PagedBatch(
            slot_mapping=torch.tensor(slots),
            block_tables=torch.tensor(tables, dtype=torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            cu_seqlens_q=torch.tensor([0, *lens], dtype=torch.int32).cumsum(0, dtype=torch.int32),
            query_lens=tuple(lens),
            contexts=tuple(contexts),
            decode=all(length == 1 for length in lens),
        )
        with torch.inference_mode():
            return self.decoder.forward(torch.tensor(ids), torch.tensor(positions), batch, self.cache, None)


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (37, 96), (2050, 64)])
def test_tiles_hold_the_very_numbers(bits, outputs, inputs):
    from engine.models.arena import Arena

    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(1))
    numbers = quantise(weight, bits)
    tiled = Tiled.of(numbers, Arena(0))
    torch.testing.assert_close(tiled.values(), numbers.values(), rtol=1e-6, atol=1e-6)
    assert torch.equal(Tiled.of(weight, Arena(0)).values(), weight.bfloat16().float())


@needs_native
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_bfloat16_weights_are_as_near_to_float64_as_those_of_transformers(name):
    config = MODELS[name]
    decoder = native_of(config, 16)
    exact = exact_logits(config, decoder, TOKENS)
    with torch.inference_mode():
        theirs = module_of(config, torch.bfloat16)(TOKENS[None]).logits[0]
    found = Run(config, decoder)(("a", TOKENS, 0))
    assert error(found, exact) < error(theirs, exact)


@needs_native
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_quantised_weights_are_off_by_the_rounding_of_their_inputs_alone(name, bits):
    config = MODELS[name]
    decoder = native_of(config, bits)
    exact = exact_logits(config, decoder, TOKENS)
    found = Run(config, decoder)(("a", TOKENS, 0))
    assert error(found, exact) < 0.04


@needs_native
@pytest.mark.parametrize("bits", [4, 16])
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_a_row_is_the_same_bit_for_bit_in_any_batch_chunk_and_block(bits, block_size):
    config = MODELS["qwen3"]
    decoder = native_of(config, bits)
    whole = Run(config, decoder)(("a", TOKENS, 0))
    run = Run(config, decoder, block_size, blocks=600)
    for start, end in ((0, 3), (3, 70), (70, 149)):
        others = (("b", TOKENS[start : end - 1].flip(0), start), ("c", TOKENS[:1], start))
        found = run(others[0], ("a", TOKENS[start:end], start), others[1])
        assert torch.equal(found[end - 1 - start : 2 * (end - start) - 1], whole[start:end])
    decoded = run(("c", TOKENS[:1], 149), ("a", TOKENS[149:], 149))
    assert torch.equal(decoded[1:], whole[149:])
    assert torch.equal(Run(config, decoder)(("b", TOKENS, 0)), whole)


@needs_native
def test_a_row_is_the_same_bit_for_bit_with_any_number_of_threads():
    config = MODELS["llama"]
    decoder = native_of(config, 4)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            run = Run(config, decoder)
            found.append(torch.cat((run(("a", TOKENS[:149], 0)), run(("a", TOKENS[149:], 149)))))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@needs_native
def test_a_context_of_more_parts_than_are_joined_at_once_is_attended_whole():
    config = LlamaConfig(**(SIZES | {"num_hidden_layers": 1}))
    decoder = native_of(config, 16)
    tokens = torch.randint(0, SIZES["vocab_size"], (8300,), generator=torch.Generator().manual_seed(6))
    run, last = Run(config, decoder, blocks=600), len(tokens) - 1
    for start in range(0, last, 3000):
        run(("a", tokens[start : min(start + 3000, last)], start))
    found = run(("a", tokens[last:], last))
    logits = {}
    for dtype in (torch.float32, torch.bfloat16):
        with torch.inference_mode():
            logits[dtype] = module_of(config, dtype, "sdpa")(tokens[None], logits_to_keep=1).logits[0]
    exact = logits[torch.float32].double()
    assert error(found, exact) < 1.1 * error(logits[torch.bfloat16], exact)


@needs_native
def test_a_padding_row_writes_nothing():
    config = MODELS["llama"]
    run = Run(config, native_of(config, 4))
    run(("a", TOKENS[:40], 0))
    before = run.cache.pages.clone()
    table, context = torch.tensor([run.tables["a"]], dtype=torch.int32), torch.tensor([40], dtype=torch.int32)
    batch = PagedBatch(torch.tensor([-1]), table, context, torch.tensor([0, 1]), (1,), (40,), True)
    with torch.inference_mode():
        run.decoder.forward(TOKENS[:1], torch.tensor([39]), batch, run.cache, None)
    assert torch.equal(run.cache.pages, before)


@needs_native
def test_only_the_rows_that_are_asked_for_have_logits():
    config = MODELS["qwen2"]
    decoder = native_of(config, 8)
    whole = Run(config, decoder)(("a", TOKENS, 0))
    run = Run(config, decoder)
    forward = decoder.forward
    decoder.forward = lambda *given: forward(*given[:-1], torch.tensor([7, 149]))
    assert torch.equal(run(("a", TOKENS, 0)), whole[[7, 149]])


@needs_native
@pytest.mark.parametrize(
    ("without", "products"),
    [(("-mno-avx512f",), ("AVX2", "AVX-VNNI")), (("-mno-avx512vnni",), ("AVX-512", "AVX2", "AVX-VNNI"))],
)
def test_lesser_processors_compute_the_same(without, products, monkeypatch, tmp_path):
    config = MODELS["qwen2"]
    expected, exact = {}, {}
    for bits in (4, 8, 16):
        decoder = native_of(config, bits)
        expected[bits] = Run(config, decoder)(("a", TOKENS, 0))
        exact[bits] = exact_logits(config, decoder, TOKENS)
    monkeypatch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, *without))
    library._loaded.cache_clear()
    try:
        assert library.native_products() in products
        for bits, logits in expected.items():
            found = Run(config, native_of(config, bits))(("a", TOKENS, 0))
            if bits == 16:
                assert error(found, logits.double()) < 1e-3
            # Sums in another order round an input of some product to its other neighbour.
            assert error(found, exact[bits]) < 1.1 * error(logits, exact[bits])
    finally:
        library._loaded.cache_clear()


# --- the compiler ----------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    library._loaded.cache_clear()
    yield monkeypatch
    library._loaded.cache_clear()


def test_without_a_compiler_the_reason_names_those_that_were_looked_for(fresh, tmp_path):
    fresh.setenv("PATH", str(tmp_path))
    assert library.native_missing() == "no C compiler (gcc, cc, clang) is on the path" or library._against()
    with pytest.raises(library.NativeError):
        library.native()


def test_a_compiler_that_fails_is_named_with_what_it_said(fresh, tmp_path):
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'fatal error: omp.h: No such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    fresh.setenv("CC", str(broken))
    reason = library.native_missing()
    assert reason == f"{broken} failed: fatal error: omp.h: No such file" or library._against()
    assert not list((tmp_path / "native").glob("*")) if (tmp_path / "native").exists() else True


def test_it_can_be_switched_off(fresh):
    fresh.setenv("TUI_INFER_NATIVE", "off")
    assert library.native_missing() == "TUI_INFER_NATIVE switches it off"
    assert not library.compiles_first()


@needs_native
def test_it_is_compiled_once_and_kept_whole(fresh, tmp_path):
    assert library.compiles_first()
    assert library.native_missing() == ""
    assert not library.compiles_first()
    (made,) = (tmp_path / "native").iterdir()
    assert made.suffix == ".so"
    before = made.stat().st_mtime_ns
    library._loaded.cache_clear()
    assert library.native_missing() == ""
    assert made.stat().st_mtime_ns == before


@needs_native
def test_another_processor_or_source_is_another_file(fresh):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    first = library._key([compiler])
    fresh.setattr(library, "cpu_flags", lambda: frozenset({"avx2", "fma", "f16c"}))
    assert library._key([compiler]) != first


# --- rounding --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "steps"), [(4, 15), (8, 254)])
def test_rounding_is_off_by_half_a_step_of_its_group_at_most(bits, steps):
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(2))
    numbers = quantise(weight, bits)
    assert isinstance(numbers, Nibbles)
    groups = weight.unflatten(1, (-1, 32))
    spread = groups.amax(-1) - groups.amin(-1) if bits == 4 else 2 * groups.abs().amax(-1)
    off = (numbers.values() - weight).abs().unflatten(1, (-1, 32)).amax(-1)
    assert (off <= 0.501 * spread / steps + 2e-3 * groups.abs().amax(-1)).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_a_group_of_equal_numbers_stays_what_it_is(bits):
    weight = torch.tensor([0.0, 0.5, -0.25]).repeat_interleave(32)[None].repeat(16, 1)
    torch.testing.assert_close(quantise(weight, bits).values(), weight, rtol=5e-3, atol=1e-6)
