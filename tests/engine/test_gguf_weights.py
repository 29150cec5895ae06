"""A GGUF file's own bits in the fused decoder, against the dequantised weights of the same file."""

from dataclasses import replace

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.attention.sdpa import SdpaAttention
from engine.errors import ConfigError
from engine.models import quant
from engine.models.decoder import FusedDecoder
from engine.models.gguf_reader import GGUFFile
from engine.models.gguf_weights import GGUFWeights
from engine.models.loader import load
from engine.models.packed import PackedWeight, kernel_missing
from engine.models.source import resolve
from engine.models.transformers import ATTENTION_NAME
from engine.native.library import native_missing, native_products
from tests.engine.gguf_files import HEADS, HIDDEN, KV_HEADS, VOCABULARY, write_gguf
from tests.engine.test_decoder import logits_of

ROOM = 2**30
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

needs_native = pytest.mark.skipif(bool(native_missing()), reason=native_missing() or "it is there")
needs_kernel = pytest.mark.skipif(bool(kernel_missing()), reason=kernel_missing() or "it is there")


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a GGUF file and resolves it in a cache of its own."""
    monkeypatch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path / "cache"))

    def make(**settings):
        path = tmp_path / "tiny.gguf"
        write_gguf(path, **settings)
        return resolve(str(path))

    return make


def decoder_of(source, dtype, packing=None):
    loaded = load(source, dtype=dtype, device="cpu", attn_implementation=ATTENTION_NAME, packing=packing)
    return FusedDecoder(loaded.model, SdpaAttention(), packing), loaded.config


def packing_of(source, dtype=torch.bfloat16, room=ROOM):
    return GGUFWeights(source.gguf, HEADS, KV_HEADS, dtype, room)


def by_the_kernel(decoder):
    """The decoder with every packed product left to the kernel, however many rows there are."""
    for layer in decoder.layers:
        for name in ("qkv", "out", "gate_up", "down"):
            weight = getattr(layer, name)
            if isinstance(weight, PackedWeight):
                setattr(layer, name, replace(weight, wide=None))
    if decoder.packed_head is not None:
        decoder.packed_head = replace(decoder.packed_head, wide=None)
    return decoder


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


MIXED = {"ffn_down": "Q8_0", "attn_v": "Q5_0", "blk.1.ffn_up": "Q4_0"}


@needs_kernel
@pytest.mark.parametrize(
    ("architecture", "kinds", "tied"),
    [
        ("llama", {}, True),
        ("llama", {"output.": "Q8_0"}, False),
        ("llama", MIXED, True),
        ("qwen2", MIXED, True),
    ],
)
def test_packed_logits_are_as_near_to_float32_as_those_in_bfloat16(write, architecture, kinds, tied):
    source = write(architecture=architecture, kinds=kinds, tied=tied)
    tokens = torch.randint(0, len(VOCABULARY), (40,), generator=torch.Generator().manual_seed(1))
    exact_decoder, config = decoder_of(source, torch.float32)
    exact = logits_of(exact_decoder, config, torch.float32, tokens)
    plain = logits_of(decoder_of(source, torch.bfloat16)[0], config, torch.bfloat16, tokens)
    decoder, _ = decoder_of(source, torch.bfloat16, packing_of(source))
    assert relative(logits_of(decoder, config, torch.bfloat16, tokens), exact) < 1.5 * relative(plain, exact)
    decoder = by_the_kernel(decoder)
    assert relative(logits_of(decoder, config, torch.bfloat16, tokens), exact) < 1.5 * relative(plain, exact)


@needs_native
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_in_c_logits_are_near_to_float32_whatever_the_formats_and_the_order_of_rows(write, architecture):
    source = write(architecture=architecture, kinds=MIXED, tied=True)
    tokens = torch.randint(0, len(VOCABULARY), (40,), generator=torch.Generator().manual_seed(1))
    exact_decoder, config = decoder_of(source, torch.float32)
    exact = logits_of(exact_decoder, config, torch.float32, tokens)
    plain = logits_of(decoder_of(source, torch.bfloat16)[0], config, torch.bfloat16, tokens)
    packing = GGUFWeights(source.gguf, HEADS, KV_HEADS, torch.bfloat16, 0, tiled=True)
    decoder, _ = decoder_of(source, torch.bfloat16, packing)
    assert decoder.native is not None
    assert relative(logits_of(decoder, config, torch.bfloat16, tokens), exact) < 3 * relative(plain, exact)
    assert packing.note().endswith(f"; computed in C with {native_products()}.")
    assert decoder.weight_bytes == pytest.approx(packing.num_bytes(), rel=0.1)


@needs_kernel
def test_rows_of_queries_and_keys_stand_as_the_modules_have_them(write):
    source = write(architecture="llama")
    expected = decoder_of(source, torch.float32)[0].layers[1].qkv
    packed = by_the_kernel(decoder_of(source, torch.bfloat16, packing_of(source))[0]).layers[1].qkv
    columns = packed.multiply(torch.eye(HIDDEN, dtype=torch.bfloat16), None).float().T
    torch.testing.assert_close(columns, expected, rtol=2e-2, atol=2e-2)


@needs_kernel
def test_a_matrix_in_another_order_than_the_modules_is_not_packed(write):
    source = write()
    packing = packing_of(source)
    name = "model.layers.0.mlp.down_proj"
    weight = load(source, dtype=torch.float32, device="cpu").model.get_submodule(name).weight.data
    assert isinstance(packing.weight([name], [weight]), PackedWeight)
    other = packing_of(source)
    found = other.weight([name], [weight.flip(0)])
    assert torch.equal(found, weight.flip(0).bfloat16())
    assert "in bfloat16: ffn_down (Q4_1 in an order of its own);" in other.note()


@needs_kernel
def test_the_note_says_what_became_of_each_format(write):
    source = write(kinds={"ffn_down": "Q5_0", "token_embd": "Q8_0", "blk.1.attn_output": "F16"})
    packing = packing_of(source, room=0)
    decoder_of(source, torch.bfloat16, packing)
    assert packing.note() == (
        "Weights: 8 bits from Q8_0, 4 bits from Q4_1; "
        "in bfloat16: ffn_down of 2 layers (Q5_0), attn_output (F16); computed by torch."
    )


@needs_kernel
def test_layers_are_left_mapped_and_without_room_there_are_no_copies(write):
    source = write()
    small, large = packing_of(source, room=0), packing_of(source, room=ROOM)
    assert (small.packer.wide, large.packer.wide) == (False, True)
    few, many = (decoder_of(source, torch.bfloat16, packing)[0] for packing in (small, large))
    numbers = sum(layer.qkv.shape[0] * HIDDEN + layer.out.shape[0] * HIDDEN for layer in few.layers)
    numbers += sum(2 * layer.gate_up.shape[0] * HIDDEN * 3 // 4 for layer in few.layers)
    if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        numbers += len(VOCABULARY) * HIDDEN  # the head in another order
    assert many.weight_bytes - few.weight_bytes == 2 * numbers
    assert few.weight_bytes == pytest.approx(small.num_bytes(), rel=0.1)
    assert many.weight_bytes == pytest.approx(large.num_bytes(), rel=0.1)


def test_the_engine_packs_a_gguf_file_and_says_so(write):
    source = write(kinds={"token_embd": "Q8_0"})
    with Engine(EngineConfig(model=str(source.gguf), device="cpu", dtype="bfloat16")) as engine:
        status = engine.status()
        done = next(iter(engine.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=8))))
    assert len(done.token_ids) == 8
    if kernel_missing() and native_missing():
        assert status.notes[0].startswith("Weights in bfloat16, not in the file's own bits: ")
        return
    assert status.notes[0].startswith("Weights: 8 bits from Q8_0, 4 bits from Q4_1")
    assert status.weights == "int4"
    with Engine(EngineConfig(model=str(source.gguf), device="cpu", dtype="bfloat16", quant="none")) as engine:
        assert engine.status().weight_bytes != status.weight_bytes
        assert engine.status().weights == ""


@needs_kernel
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant": "none", "dtype": "bfloat16"}, "in bfloat16, not in the file's own bits: quant is none."),
        ({"dtype": "float32"}, "in float32, not in the file's own bits: dtype is float32."),
        ({"model_impl": "transformers", "dtype": "bfloat16"}, "own bits: transformers' modules run."),
    ],
)
def test_where_weights_are_not_packed_the_status_says_why(write, settings, words):
    with Engine(EngineConfig(model=str(write().gguf), device="cpu", **settings)) as engine:
        assert any(note.endswith(words) for note in engine.status().notes)


def test_a_folder_of_safetensors_has_nothing_to_say_of_bits(tiny_model_dir):
    with Engine(EngineConfig(model=str(tiny_model_dir), device="cpu")) as engine:
        assert not any("Weights" in note for note in engine.status().notes)


@needs_kernel
def test_a_model_that_the_decoder_refuses_after_all_runs_in_its_own_format(write, monkeypatch):
    monkeypatch.setattr("engine.models.choice.unfit", lambda module: "for this test")
    source = write()
    with Engine(EngineConfig(model=str(source.gguf), device="cpu", dtype="bfloat16")) as engine:
        status = engine.status()
        done = next(iter(engine.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=4))))
    assert (status.model_impl, len(done.token_ids)) == ("transformers", 4)
    assert not any("Weights" in note for note in status.notes)
    plain = load(source, dtype=torch.bfloat16, device="cpu")
    assert status.weight_bytes == pytest.approx(plain.weight_bytes, rel=0.01)


def test_a_header_read_without_its_lists_has_the_same_tensors(write):
    path = write(kinds={"attn_v": "Q8_0"}, pre="qwen2").gguf
    whole, short = GGUFFile(path), GGUFFile(path, lists=False)
    assert (short.architecture, short.parameters) == (whole.architecture, whole.parameters)
    assert short.get_field("tokenizer.ggml.pre").contents() == "qwen2", "it stands behind lists"
    assert [tensor.data_offset for tensor in short.tensors] == [
        tensor.data_offset for tensor in whole.tensors
    ]
    assert whole.get_field("tokenizer.ggml.tokens").data
    assert not short.get_field("tokenizer.ggml.tokens").data


@needs_kernel
def test_a_file_that_is_gone_leaves_the_converted_weights(write):
    source = write()
    source.gguf.unlink()
    config = EngineConfig(model=str(source.gguf), device="cpu", dtype="bfloat16")
    packing, note = quant.choose_packing(config, source, torch.device("cpu"), torch.bfloat16)
    assert packing is None
    assert "tiny.gguf cannot be read (FileNotFoundError" in note


@needs_kernel
def test_architectures_outside_the_family_are_left_alone(write, monkeypatch):
    source = write()
    monkeypatch.setattr(quant, "FAMILIES", ("Qwen2ForCausalLM",))
    config = EngineConfig(model=str(source.gguf), device="cpu", dtype="bfloat16")
    packing, note = quant.choose_packing(config, source, torch.device("cpu"), torch.bfloat16)
    assert packing is None
    assert "LlamaForCausalLM does not run in the fused decoder" in note


# --- bits that are asked for -----------------------------------------------------------------------


@needs_kernel
@pytest.mark.parametrize("native", ["on", "off"])
@pytest.mark.parametrize(("wanted", "bits"), [("int4", 4), ("int8", 8)])
def test_any_model_is_rounded_when_bits_are_asked_for(write, wanted, bits, native, monkeypatch):
    monkeypatch.setattr(
        quant, "native_missing", native_missing if native == "on" else lambda: "for this test"
    )
    config = EngineConfig(model=str(write().gguf), device="cpu", quant=wanted, kv_memory=2**24)
    with Engine(config) as engine:
        status = engine.status()
        done = next(iter(engine.generate([[5, 6, 7]], GREEDY)))
    assert len(done.token_ids) == 8
    assert status.notes[0].startswith(
        f"Weights: rounded to {bits} bits, the output projection to 8; computed "
    )
    assert status.weights == wanted
    if native == "off":
        assert status.notes[0].endswith("computed by torch, since for this test.")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "float32"}, "dtype is float32"),
        ({"model_impl": "transformers"}, "transformers' modules run"),
    ],
)
def test_bits_that_cannot_be_had_are_refused_with_reason_and_way_out(tiny_model_dir, settings, reason):
    config = EngineConfig(model=str(tiny_model_dir), device="cpu", quant="int4", **settings)
    with pytest.raises(ConfigError, match=f"quant='int4' cannot be had: {reason}") as caught:
        Engine(config)
    assert "--quant none" in str(caught.value)


def test_shapes_are_rounded_too():
    config = EngineConfig(model="shape:qwen2.5-1.5b", device="cpu", quant="int4")
    source = resolve(config.model)
    if kernel_missing() and native_missing():
        pytest.skip(kernel_missing())
    packing, note = quant.choose_packing(config, source, torch.device("cpu"), torch.bfloat16)
    assert note == ""
    numbers = 1.54e9 - 1536 * 151936
    assert packing.num_bytes() == pytest.approx(numbers * 5 / 8 + 1536 * 151936 * (17 / 16 + 2), rel=0.03)
