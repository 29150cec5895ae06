"""Fixtures that several parts share: model folders, and folders that are not the user's own."""

import gc
import json
import os
from pathlib import Path

import pytest

# Small models on few cores: more threads than this only wait for each other. Parallel test processes get one
# each: with two, on two cores, a step takes ten times as long. They inherit what their parent process has
# set here, so that a default would not reach them.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
else:
    os.environ.setdefault("OMP_NUM_THREADS", "2")

TINY_TEXT = (
    "the a of and to in is was for on that with as it at by from an be this are or his her not have has had "
    "hello world paris france capital what where who how red green blue cat dog code block graph token"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# Folders in the order in which their modules are handed out to parallel processes: those with modules that
# take a minute come first, so that the last ones to run are short and none is left alone with a long one.
LONGEST_FIRST = ("pty", "web", "engine", "perf", "gpu")


def pytest_collection_finish(session: pytest.Session) -> None:
    """A process with torch and all tests has objects by the million, through which collections would go
    again and again: a fifth of the suite's computing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Bindings that look at the end for what was never freed do not find all of it."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: folders.get(item.path.parent.name, len(folders)))


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with a byte-level tokenizer and a chat template; same weights every time.

    Grouped heads (4 query, 2 KV), untied embeddings, 512 positions, the vocabulary of its tokenizer.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-llama")
    vocab_size = _write_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.float32)
    for parameter in model.parameters():
        # The default spread gives nearly equal logits; wider ones keep greedy choices clear of ties.
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The folder of the default model, found and converted by the real loader."""
    from engine.config import DEFAULT_MODEL
    from engine.models.loader import resolve

    return Path(resolve(DEFAULT_MODEL, None, lambda _: None).path)


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Config, data and logs in a temporary folder; the model cache stays the user's, it is read only."""
    for name in ("config", "data", "log"):
        monkeypatch.setenv(f"TUI_INFER_{name.upper()}_DIR", str(tmp_path / name))
    return tmp_path


def _write_tokenizer(folder: Path) -> int:
    """Train a small byte-level tokenizer; returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TINY_TEXT] * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer.get_vocab_size()
