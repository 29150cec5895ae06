"""Models by shape: published geometry, random weights that are the same every time, text for every id."""

import time

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import ModelError, OutOfMemory, RequestError
from engine.kv_cache import KVShape, kv_shape
from engine.models import memory
from engine.models.loader import load, read_config, resolve
from engine.models.random_model import STD, random_config, random_module, random_tokenizer
from engine.models.shapes import NOTE, SHAPES
from engine.models.support import context_limit, model_class
from engine.text import Detokenizer

CPU = torch.device("cpu")

# Counted in the checkpoints that the authors published.
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "llama3.2-1b": 1_235_814_400,
    "llama3.1-8b": 8_030_261_248,
}


def module_of(name, device=CPU, dtype=torch.float32):
    config = random_config(SHAPES[name])
    return random_module(model_class(config, name), config, dtype=dtype, device=device, attention="sdpa")


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_the_parameters_of_its_module_and_of_the_published_checkpoint(name):
    config = random_config(SHAPES[name])
    with torch.device("meta"):
        module = model_class(config, name)(config)
    module.tie_weights()
    assert sum(parameter.numel() for parameter in module.parameters()) == SHAPES[name].parameters
    assert PUBLISHED.get(name, SHAPES[name].parameters) == SHAPES[name].parameters
    assert config.eos_token_id < config.vocab_size
    assert context_limit(config)[0] == SHAPES[name].max_positions


@pytest.mark.parametrize(
    ("name", "layers", "kv_heads", "head_dim", "bias", "tied", "theta"),
    [
        ("qwen2.5-1.5b", 28, 2, 128, True, True, 1e6),
        ("qwen2.5-7b", 28, 4, 128, True, False, 1e6),
        ("qwen3-0.6b", 28, 8, 128, False, True, 1e6),
        ("llama3.1-8b", 32, 8, 128, False, False, 5e5),
        ("smollm2-135m", 30, 3, 64, False, True, 1e5),
    ],
)
def test_attention_of_a_shape_is_the_published_one(name, layers, kv_heads, head_dim, bias, tied, theta):
    config = random_config(SHAPES[name])
    assert kv_shape(config, torch.bfloat16) == KVShape(layers, kv_heads, head_dim, torch.bfloat16)
    with torch.device("meta"):
        attention = model_class(config, name)(config).model.layers[0].self_attn
    assert (attention.q_proj.bias is not None) == (attention.k_proj.bias is not None) == bias
    assert attention.o_proj.bias is None
    assert config.tie_word_embeddings is tied
    assert config.rope_parameters["rope_theta"] == theta


def test_weights_are_normal_norms_are_one_and_a_tied_head_is_the_table():
    module = module_of("tiny")
    for name, parameter in module.named_parameters():
        if name.endswith("norm.weight"):
            assert bool((parameter == 1).all()), name
        else:
            assert abs(float(parameter.mean())) < 4 * STD / parameter.numel() ** 0.5, name
            assert float(parameter.std()) == pytest.approx(STD, rel=4 / parameter.numel() ** 0.5), name
    assert module.lm_head.weight is module.model.embed_tokens.weight
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_weights_are_the_same_every_time_and_differ_between_layers():
    torch.manual_seed(1)
    one = module_of("tiny").state_dict()
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    two = module_of("tiny").state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(torch.random.get_rng_state(), state)  # nobody else's random numbers change
    query = "model.layers.{}.self_attn.q_proj.weight"
    assert not torch.equal(one[query.format(0)], one[query.format(1)])


def test_positions_are_those_of_a_module_built_the_usual_way():
    config = random_config(SHAPES["llama3.2-1b"])
    config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.vocab_size = 1, 64, 64, 16
    usual = model_class(config, "x")(config).model.rotary_emb
    ours = random_module(
        model_class(config, "x"), config, dtype=torch.bfloat16, device=CPU, attention="sdpa"
    ).model.rotary_emb
    assert ours.inv_freq.dtype == torch.float32
    assert torch.equal(ours.inv_freq, usual.inv_freq)
    assert float(usual.inv_freq[-1]) < 5e5 ** (-31 / 32) / 30  # the longest wave is stretched 32 times


def test_an_engine_runs_a_shape_and_says_that_its_text_is_noise():
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    texts = []
    for _ in range(2):
        with Engine(EngineConfig(model="shape:tiny", device="cpu", dtype="float32")) as engine:
            status = engine.status()
            chat = [{"role": "user", "content": "Hello"}]
            answers = list(engine.generate([chat, "raw text"], params))
            texts.append([answer.text for answer in answers])
    assert NOTE in status.notes
    assert "random" in status.model_name
    assert (status.model_path, status.vocab_size) == ("shape:tiny", 1024)
    assert status.weight_bytes == pytest.approx(SHAPES["tiny"].parameters * 4, rel=1e-3)
    assert [len(answer.token_ids) for answer in answers] == [12, 12]
    assert all(texts[0])
    assert texts[0] == texts[1]


def test_a_prompt_longer_than_the_positions_is_refused_as_for_any_model():
    with (
        Engine(EngineConfig(model="shape:tiny", device="cpu", num_blocks=400)) as engine,
        pytest.raises(RequestError, match="4096"),
    ):
        engine.submit([5] * 5000)


@pytest.mark.parametrize("name", ["tiny", "qwen2.5-7b"])
def test_every_id_of_the_vocabulary_is_some_text(name):
    began = time.process_time()
    tokenizer = random_tokenizer(SHAPES[name])
    assert time.process_time() - began < 5  # a second, on a machine that does nothing else
    vocab = SHAPES[name].vocab
    assert len(tokenizer) == vocab
    texts = tokenizer.batch_decode([[id] for id in range(vocab)])
    assert all(texts)
    assert len(set(texts[256:])) == vocab - 256


def test_text_survives_the_tokenizer_and_control_tokens_end_a_turn():
    tokenizer = random_tokenizer(SHAPES["tiny"])
    text = "Zwölf Boxkämpfer 🥊 jagen\n\tViktor  "
    assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], add_generation_prompt=True)
    ids = ids["input_ids"] if not isinstance(ids, list) else ids
    assert ids.count(tokenizer.eos_token_id) == 1
    assert tokenizer.decode(ids) == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    streamed = Detokenizer(tokenizer)
    assert streamed.push(tokenizer.encode(text)).text + streamed.flush() == text


@pytest.mark.parametrize("name", ["shape:qwen9", "shape:", " SHAPE:no such "])
def test_an_unknown_shape_is_answered_with_all_that_there_are(name):
    with pytest.raises(ModelError, match="There is no shape") as caught:
        resolve(name)
    assert all(known in str(caught.value) for known in SHAPES)


def test_a_shape_is_found_in_any_case_and_takes_no_revision():
    assert resolve(" Shape:Qwen2.5-1.5B ").shape == "qwen2.5-1.5b"
    with pytest.raises(ModelError, match="revision='main'"):
        resolve("shape:tiny", "main")


def test_a_shape_that_cannot_fit_is_refused_with_the_numbers_before_memory_is_taken(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda device: 8 * 2**30)
    with pytest.raises(OutOfMemory, match=r"needs 14\.2 GiB; cpu has 8\.0 GiB free"):
        load(resolve("shape:qwen2.5-7b"), dtype=torch.bfloat16, device="cpu")


def test_the_configuration_of_a_shape_needs_no_file():
    config = read_config(resolve("shape:qwen3-8b"), trust_remote_code=False)
    assert (config.model_type, config.hidden_size) == ("qwen3", 4096)
