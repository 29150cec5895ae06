"""Greedy tokens equal those of transformers' own generate, whatever else is in the batch."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine import Engine, EngineConfig, SamplingParams

NEW_TOKENS = 32
GENERATED = (1, 17, 256)  # lengths of prompts that are also given to ``generate``
LENGTHS = [
    1,
    2,
    3,
    5,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    48,
    64,
    65,
    100,
    128,
    200,
    255,
    256,
    257,
    350,
    512,
    513,
    700,
]


@pytest.fixture(scope="module")
def prompts(default_model_dir):
    """24 prompts of 1 to 700 real tokens, cut from English text at different places."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(default_model_dir)
    ids = tokenizer.encode(TEXT * 12)
    draw = random.Random(7)
    prompts = []
    for length in LENGTHS:
        start = draw.randrange(len(ids) - length)
        prompts.append(ids[start : start + length])
    return prompts


@pytest.fixture(scope="module")
def model(default_model_dir):
    """transformers' own modules and attention."""
    model = AutoModelForCausalLM.from_pretrained(default_model_dir, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def generated(model, prompts):
    """What ``generate`` makes of some of the prompts, each alone, end tokens ignored."""
    outputs = {}
    with torch.inference_mode():
        for index in (LENGTHS.index(length) for length in GENERATED):
            ids = torch.tensor([prompts[index]])
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                pad_token_id=2,
            )
            outputs[index] = out[0, len(prompts[index]) :].tolist()
    return outputs


@pytest.fixture(scope="module")
def likeliest(model):
    """The most likely token behind every position of an answer, by one forward pass over the whole text.

    An answer in which each token is the most likely one behind those before it is the answer of ``generate``,
    token for token, which would take a pass for each.
    """
    known: dict[tuple[int, ...], list[int]] = {}

    def tokens(prompt: list[int], answer: list[int]) -> list[int]:
        text = (*prompt, *answer)
        if text not in known:
            with torch.inference_mode():
                logits = model(torch.tensor([text]), logits_to_keep=len(answer) + 1).logits[0]
            known[text] = logits[:-1].argmax(-1).tolist()
        return known[text]

    return tokens


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block_size", [1, 4, 16, 256])
def test_greedy_tokens_equal_transformers_for_24_prompts_arriving_at_different_steps(
    default_model_dir, prompts, generated, likeliest, block_size
):
    config = EngineConfig(
        model=str(default_model_dir), device="cpu", dtype="float32", block_size=block_size, max_batch=24
    )
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    with Engine(config) as engine:
        draw = random.Random(block_size)
        arriving = list(range(len(prompts)))
        draw.shuffle(arriving)
        requests, steps = {}, 0
        while arriving or engine.has_work:
            for _ in range(draw.randrange(4)):
                if arriving:
                    index = arriving.pop()
                    requests[index] = engine.submit(prompts[index], params)
            engine.step()
            steps += 1
            if block_size > 1 or steps % 8 == 0:  # the proof of a pool takes long where a token is a block
                engine.check()
        assert engine.pool.counts().used == 0
    for index, tokens in generated.items():
        assert requests[index].output_ids == tokens, f"prompt {index} of {len(prompts[index])} tokens"
    for index, prompt in enumerate(prompts):
        answer = requests[index].output_ids
        assert len(answer) == NEW_TOKENS
        assert likeliest(prompt, answer) == answer, f"prompt {index} of {len(prompt)} tokens"


TEXT = """The printing press changed how knowledge travelled. Before it, every book was copied by hand, one
page after another, and a single error could live for centuries. A press could make hundreds of copies in
a week, all alike. Prices fell, more people learned to read, and letters, maps and tables of numbers began
to spread across borders faster than any ruler could follow. A diesel engine works without a spark: air is
pressed together until it is hot enough to light the fuel by itself. The sky looks blue at noon because the
air scatters short waves of light more than long ones. Bread rises in the oven when the gas that yeast made
grows warm and wide. A star is born when a cloud of gas falls together under its own weight, and it shines
for as long as it can turn light elements into heavier ones. Water goes up from the sea, travels as cloud,
comes down as rain and snow, and finds its way back through rivers and stones. """
