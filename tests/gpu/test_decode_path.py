"""The kernels of a decode step of few rows on a card: near float64, by replay, with real weights."""

from dataclasses import replace

import pytest
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from engine import Engine, EngineConfig, SamplingParams
from tests.gpu.results import write

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SIZES = {
    "vocab_size": 4100,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
}
WIDE = SIZES | {"num_attention_heads": 8, "head_dim": 128}
FAMILIES = {
    "llama, head dim 64": LlamaConfig(**SIZES),
    "llama 3 with scaled positions": LlamaConfig(
        **WIDE,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 512,
        },
    ),
    "mistral with a window": MistralConfig(**WIDE, sliding_window=200),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**WIDE),
    "smollm3": SmolLM3Config(**SIZES, pad_token_id=0),
}  # fmt: skip
LENGTHS = (1, 63, 64, 65, 129, 300, 700, 1500)
ROWS = (1, 2, 4, 7, 8, 16, 32)


def module_of(config, dtype):
    torch.manual_seed(7)
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
        elif parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
        else:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return module.to(device="cuda", dtype=dtype).eval()


def error(found, expected) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request):
    """A decoder in bfloat16, prompts, and the logits of their last tokens by transformers in two dtypes."""
    from engine.attention.triton import TritonAttention
    from engine.models.decoder import FusedDecoder

    config = FAMILIES[request.param]
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, 4000, (length,), generator=generator).cuda() for length in LENGTHS]
    answers = []
    for dtype in (torch.float64, torch.bfloat16):
        module = module_of(config, dtype)
        with torch.inference_mode():
            answers.append(torch.cat([module(prompt[None]).logits[0, -1:] for prompt in prompts]))
    decoder = FusedDecoder(module_of(config, torch.bfloat16), TritonAttention())
    assert decoder.path is not None
    return request.param, config, decoder, prompts, *answers


def decode(decoder, config, prompts, replayed):
    """Logits of the last tokens of several prompts in one batch, the others being in the cache."""
    from engine.attention.base import PagedBatch
    from engine.kv_cache import KVCache, kv_shape

    size, rows = 16, len(prompts)
    width = max(map(len, prompts)) // size + 1
    pages = torch.randperm(rows * width, generator=torch.Generator().manual_seed(1)) + 1
    tables = pages.reshape(rows, width).to(torch.int32).cuda()
    cache = KVCache(kv_shape(config, torch.bfloat16), rows * width + 1, size, torch.device("cuda"))

    def slots(row, start, end):
        places = torch.arange(start, end, device="cuda")
        return tables[row, places // size].long() * size + places % size

    for row, prompt in enumerate(prompts):
        known = len(prompt) - 1
        if known:
            batch = PagedBatch(
                slots(row, 0, known), tables[row : row + 1], torch.tensor([known], dtype=torch.int32).cuda(),
                torch.tensor([0, known], dtype=torch.int32).cuda(), (known,), (known,), False,
            )  # fmt: skip
            decoder.forward(
                prompt[:known], torch.arange(known).cuda(), batch, cache, torch.zeros(1).long().cuda()
            )
    lengths = [len(prompt) for prompt in prompts]
    batch = PagedBatch(
        torch.cat([slots(row, length - 1, length) for row, length in enumerate(lengths)]), tables,
        torch.tensor(lengths, dtype=torch.int32).cuda(), torch.arange(rows + 1, dtype=torch.int32).cuda(),
        (1,) * rows, None, True,
    )  # fmt: skip
    ids = torch.stack([prompt[-1] for prompt in prompts])
    positions = torch.tensor(lengths).cuda() - 1
    plain_path, decoder.path = decoder.path, None
    plain = decoder.forward(ids, positions, replace(batch, contexts=tuple(lengths)), cache, None)
    decoder.path = plain_path
    logits = decoder.forward(ids, positions, batch, cache, None)
    if replayed:
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            again = decoder.forward(ids, positions, batch, cache, None)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(again, logits), "a replay gives other bits"
    return logits, plain


@pytest.mark.parametrize("rows", ROWS)
@torch.inference_mode()
def test_logits_are_as_near_to_float64_as_transformers_own_in_bfloat16(family, rows):
    name, config, decoder, prompts, exact, theirs = family
    chosen = [row % len(prompts) for row in range(rows)]
    logits, plain = decode(decoder, config, [prompts[row] for row in chosen], replayed=rows in (1, 8))
    ours = error(logits, exact[chosen])
    limit = error(theirs[chosen], exact[chosen])
    write("h200-decode-errors", {name: {f"rows {rows}": {
        "ours": ours, "ours by cuBLAS": error(plain, exact[chosen]), "transformers": limit,
    }}})  # fmt: skip
    assert ours < 1.5 * limit


def test_greedy_tokens_of_real_weights_are_the_same_by_both_ways(default_model_dir):
    """256 tokens; where they part, the two best logits are a near tie."""
    from engine.models.decode_path import DEFAULTS
    from tests.gpu.test_graphs import MARGIN

    prompts = ["The history of the printing press begins", "def fibonacci(n):", "Water boils when"]
    params = SamplingParams(temperature=0, max_tokens=256, ignore_eos=True)
    found = []
    for enabled in (True, False):
        before, DEFAULTS.enabled = DEFAULTS.enabled, enabled
        try:
            config = EngineConfig(
                model=str(default_model_dir), device="cuda", kv_memory=2**30, max_model_len=1024
            )
            with Engine(config) as engine:
                asked = [engine.tokenizer.encode(prompt) for prompt in prompts]
                found.append([next(engine.generate([ids], params)).token_ids for ids in asked])
                if len(found) == 2:
                    parted = margins(engine, asked, *found)
        finally:
            DEFAULTS.enabled = before
    assert all(flip < MARGIN for flip in parted), parted


def margins(engine, asked, left, right) -> list[float]:
    """How far apart the two best logits are where two runs part."""
    look = SamplingParams(temperature=0, max_tokens=1, logprobs=2, ignore_eos=True)
    found = []
    for prompt, a, b in zip(asked, left, right):
        at = next((index for index, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), None)
        if at is not None:
            best = next(engine.generate([prompt + a[:at]], look)).logprobs[0]
            top = sorted(best.values(), reverse=True)
            found.append(top[0] - top[1])
    return found
