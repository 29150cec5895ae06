"""Greedy parity with transformers for every architecture that the README lists, on random weights.

Prompts and answers cross block and window boundaries; prompts are chunked, so that later chunks read
cached pages.
"""

import json
import shutil

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import ModelError

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
ROPE_3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
ARCHITECTURES = {
    "llama": {},
    "llama with 3.x rope scaling": {"model_type": "llama", "rope_parameters": ROPE_3},
    "mistral": {"sliding_window": None, "head_dim": 16},
    "mistral with a window": {"model_type": "mistral", "sliding_window": 24, "head_dim": 16},
    "qwen2": {},
    "qwen2 with a window that is not used": {
        "model_type": "qwen2",
        "use_sliding_window": False,
        "sliding_window": 8,
    },
    "qwen2 with a window in its upper layers": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
    "qwen3": {"head_dim": 32},
    "gemma": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16},
    "phi3": {"sliding_window": None},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "olmo2": {},
    "granite": {},
}
LENGTHS = (1, 15, 16, 33, 70)


def write_model(folder, tiny_model_dir, name, settings):
    """A random model of the architecture with the tiny tokenizer."""
    vocab_size = json.loads((tiny_model_dir / "config.json").read_text())["vocab_size"]
    settings = {"model_type": name, **settings}
    config = AutoConfig.for_model(vocab_size=vocab_size, **(SHAPE | settings))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
        elif name == "gemma3_text":
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model_dir / file, folder)
    return vocab_size


def generate(folder, prompt, new_tokens):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    out = model.eval().generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=2,
    )
    return out[0, len(prompt) :].tolist()


FUSED = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
CASES = [(name, "transformers") for name in ARCHITECTURES]
CASES += [(name, "decoder") for name in ARCHITECTURES if name.startswith(FUSED)]


@pytest.mark.parametrize(("name", "impl"), CASES)
def test_greedy_tokens_equal_transformers(name, impl, tiny_model_dir, tmp_path):
    vocab_size = write_model(tmp_path, tiny_model_dir, name, ARCHITECTURES[name])
    draw = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, vocab_size, (length,), generator=draw).tolist() for length in LENGTHS]
    config = EngineConfig(
        model=str(tmp_path), device="cpu", dtype="float32", block_size=16, num_blocks=64, prefill_chunk=24,
        model_impl=impl,
    )  # fmt: skip
    with Engine(config) as engine:
        assert engine.status().model_impl == impl
        done = list(engine.generate(prompts, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)))
        assert engine.pool.counts().used == 0
    for prompt, completion in zip(prompts, done):
        assert completion.token_ids == generate(tmp_path, prompt, 40), f"prompt of {len(prompt)} tokens"


def test_soft_capped_scores_are_refused_by_name(tiny_model_dir, tmp_path):
    write_model(tmp_path, tiny_model_dir, "gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16})
    with pytest.raises(ModelError, match="soft-capped"):
        Engine(EngineConfig(model=str(tmp_path), device="cpu"))
