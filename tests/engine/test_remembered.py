"""Starts that ask transformers nothing: what they know is what it said, and never of another file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM, AutoTokenizer

import engine.models.remembered as remembered
from engine import Engine, EngineConfig, SamplingParams
from engine.attention.sdpa import SdpaAttention
from engine.models.decoder import FusedDecoder
from engine.models.loader import resolve
from engine.models.plain_template import is_plain, render
from engine.models.plain_tokenizer import CHATS, SAMPLES, PlainTokenizer, facts_of
from engine.models.skeleton import assembled, bones_of
from tests.conftest import CHAT_TEMPLATE
from tests.engine.test_architectures import write_model
from tests.engine.test_decoder import FAMILIES, logits_of, module_of

GREEDY = SamplingParams(temperature=0, max_tokens=12)
CHAT = [{"role": "user", "content": "hello <|im_end|> world"}]

# What a warm start of a known model may not import: each takes longer than reading the weights.
NOT_IN_ENGINE_PROCESS = [
    "transformers",
    "scipy",
    "sklearn",
    "pandas",
    "torchvision",
    "huggingface_hub",
    "PIL",
]
PROBE = """
import json, sys
from engine.config import EngineConfig
from engine.service import load_engine
engine = load_engine(EngineConfig(model=sys.argv[1], device="cpu", num_blocks=40), lambda _: None)
loaded = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
request = engine.submit(json.loads(sys.argv[3]))
while engine.has_work:
    engine.step()
print(json.dumps([loaded, [name for name in json.loads(sys.argv[2]) if name in sys.modules]]))
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path / "cache"))
    remembered._read.cache_clear()
    yield tmp_path / "cache"
    remembered._read.cache_clear()


@pytest.fixture
def folder(tiny_model_dir, tmp_path) -> Path:
    """A copy of the tiny model, to be changed."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in tiny_model_dir.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def engine_of(folder: Path, **options) -> Engine:
    return Engine(EngineConfig(model=str(folder), device="cpu", num_blocks=40, **options))


def answer_of(folder: Path, **options) -> tuple[list[int], str, list[int]]:
    engine = engine_of(folder, **options)
    try:
        (completion,) = engine.generate([CHAT], GREEDY)
        return completion.token_ids, completion.text, engine._prompts.token_ids(CHAT)
    finally:
        engine.close()


def test_a_second_start_knows_the_model_and_gives_the_same_answer(folder):
    source = resolve(str(folder))
    assert remembered.recall(source) is None
    first = answer_of(folder)
    assert remembered.recall(source) is not None
    assert answer_of(folder) == first


def test_a_warm_start_and_a_chat_import_neither_transformers_nor_what_it_brings(folder):
    def probe() -> list[list[str]]:
        run = subprocess.run(
            [sys.executable, "-c", PROBE, str(folder), json.dumps(NOT_IN_ENGINE_PROCESS), json.dumps(CHAT)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    assert "transformers" in probe()[0], "the first start asks it"
    assert probe() == [[], []]


def test_the_engine_still_hands_out_the_tokenizer_of_transformers(folder):
    engine_of(folder).close()
    engine = engine_of(folder)
    assert isinstance(engine._tokenizer, PlainTokenizer)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert type(engine.tokenizer) is type(theirs)
    assert engine.tokenizer("hello world")["input_ids"] == theirs("hello world")["input_ids"]
    assert engine._tokenizer.get_vocab() == theirs.get_vocab()
    engine.close()


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "another.json"]
)
def test_a_file_that_changed_or_came_is_another_model(folder, name):
    engine_of(folder).close()
    source = resolve(str(folder))
    assert remembered.recall(source) is not None
    file = folder / name
    if file.exists():
        os.utime(file, ns=(1, 1))
    else:
        file.write_text("{}")
    assert remembered.recall(source) is None


def test_another_version_of_whatever_took_part_is_asked_again(folder, monkeypatch):
    engine_of(folder).close()
    source = resolve(str(folder))
    installed = remembered._version
    for package in remembered.PACKAGES:

        def other(name: str, changed: str = package) -> str:
            return "0" if name == changed else installed(name)

        with monkeypatch.context() as patch:
            patch.setattr(remembered, "_version", other)
            assert remembered.recall(source) is None
    assert remembered.recall(source) is not None


def test_another_number_format_and_the_modules_of_transformers_load_from_scratch(folder):
    first = answer_of(folder, dtype="float32")
    other = engine_of(folder, dtype="bfloat16")
    assert other.status().dtype == "bfloat16"
    other.close()
    theirs = engine_of(folder, dtype="bfloat16", model_impl="transformers")
    assert theirs.status().model_impl == "transformers"
    theirs.close()
    assert answer_of(folder, dtype="float32") == first


def test_broken_answers_are_none_and_a_missing_tokenizer_file_is_read_from_the_model(folder, own_cache):
    first = answer_of(folder)
    (kept,) = (own_cache / remembered.FOLDER).iterdir()
    (kept / remembered.TOKENIZER).unlink()
    remembered._read.cache_clear()
    assert answer_of(folder) == first
    (kept / remembered.FACTS).write_text('{"dtype": 3}')
    remembered._read.cache_clear()
    assert remembered.recall(resolve(str(folder))) is None
    assert answer_of(folder) == first
    assert remembered.recall(resolve(str(folder))) is not None, "they are written anew"


def test_what_a_file_would_not_give_back_is_not_kept(folder):
    engine_of(folder).close()
    source = resolve(str(folder))
    facts = remembered.recall(source).facts
    os.utime(folder / "config.json", ns=(1, 1))
    endless = replace(facts.bones, parts={**facts.bones.parts, "model.norm": {"eps": float("inf")}})
    remembered.remember(source, replace(facts, bones=endless), "{}")
    assert remembered.recall(source) is None
    remembered.remember(source, facts, "{}")
    assert remembered.recall(source).facts == facts


def test_a_cache_that_cannot_be_written_keeps_nothing_and_stops_nobody(folder, own_cache):
    own_cache.write_text("a file where the folder should be")
    assert answer_of(folder) == answer_of(folder)
    assert remembered.recall(resolve(str(folder))) is None


def test_only_the_models_used_last_are_kept(folder, own_cache, monkeypatch):
    monkeypatch.setattr(remembered, "KEPT", 2)
    for number in range(4):
        os.utime(folder / "config.json", ns=(number + 1, number + 1))
        engine_of(folder).close()
    assert len(list((own_cache / remembered.FOLDER).iterdir())) == 2
    assert remembered.recall(resolve(str(folder))) is not None


def test_what_a_killed_start_left_goes(folder, own_cache):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    killed, ours = (own_cache / remembered.FOLDER / f".a.{pid}.tmp" for pid in (gone.pid, os.getpid()))
    for left in (killed, ours):
        left.mkdir(parents=True)
        (left / remembered.FACTS).write_text("half")
    engine_of(folder).close()
    assert not killed.exists()
    assert ours.exists()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bones_with_the_weights_put_in_place_decode_to_the_same_bits(name, dtype, tiny_model_dir, tmp_path):
    vocab_size = write_model(tmp_path, tiny_model_dir, name, FAMILIES[name])
    if dtype == torch.float32:
        module = module_of(tmp_path, dtype)
    else:  # as models are loaded: position frequencies stay float32
        module = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    tied = module.config.tie_word_embeddings
    weights = {
        path: tensor
        for path, tensor in module.state_dict().items()
        if not (tied and path == "lm_head.weight")
    }
    bones = bones_of(module, weights)
    assert bones is not None
    again = assembled(bones, weights, torch.device("cpu"))
    tokens = torch.randint(3, vocab_size, (45,), generator=torch.Generator().manual_seed(4))
    expected = logits_of(FusedDecoder(module, SdpaAttention()), module.config, dtype, tokens)
    found = logits_of(FusedDecoder(again, SdpaAttention()), again.config, dtype, tokens)
    assert torch.equal(found, expected)


def test_a_module_with_tensors_that_no_file_has_is_not_bones(tiny_model_dir):
    module = module_of(tiny_model_dir, torch.float32)
    names = dict(module.state_dict())
    module.register_buffer("large", torch.zeros(1 << 15))
    assert bones_of(module, names) is None


def test_the_default_models_tokenizer_does_what_transformers_does(default_model_dir):
    theirs = AutoTokenizer.from_pretrained(default_model_dir)
    found = facts_of(theirs)
    assert found is not None
    plain = PlainTokenizer(theirs.backend_tokenizer, found[0], lambda: theirs)
    for text in (*SAMPLES, "<|im_start|>user\nHi<|im_end|>"):
        assert plain.encode(text) == theirs.encode(text)
        assert plain.encode(text, split_special_tokens=True) == theirs.encode(text, split_special_tokens=True)
    for chat in CHATS:
        text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert plain.apply_chat_template(chat, add_generation_prompt=True) == text


@pytest.mark.parametrize(
    ("template", "plain"),
    [
        (CHAT_TEMPLATE, True),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ eos_token }}", True),
        ("{{ messages | tojson }}{% for i in range(2) %}{% break %}{% endfor %}", True),
        ("{% set state = namespace(n=0) %}{{ state.n }}", False),
        ("{{ strftime_now('%Y') }}", False),
        ("{% generation %}x{% endgeneration %}", False),
        ("{{ dict(a=1) }}", False),
        ("{% if", False),
    ],
)
def test_a_template_is_plain_where_it_uses_nothing_that_only_transformers_gives(template, plain):
    assert is_plain(template, {"eos_token": "</s>"}) is plain


def test_a_template_cannot_reach_the_interpreter():
    with pytest.raises(Exception, match="unsafe"):
        render("{{ messages.__class__.__mro__ }}", CHAT, True, {})
    with pytest.raises(Exception, match=r"unsafe|immutable"):
        render("{{ messages.append(1) }}", CHAT, True, {})


def test_a_tokenizer_with_ways_of_its_own_is_left_to_transformers(tiny_model_dir):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    assert facts_of(tokenizer) is not None
    tokenizer.chat_template = "{{ strftime_now('%Y') }}"
    assert facts_of(tokenizer) is None

    class Shouting(type(tokenizer)):
        def _encode_plus(self, text, *args, **kwargs):
            return super()._encode_plus(text.upper(), *args, **kwargs)

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    tokenizer.__class__ = Shouting
    assert facts_of(tokenizer) is None
