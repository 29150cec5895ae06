"""transformers as a process of the CPU benchmark: a line of prompts in, a line of times out.

    python cpu_transformers.py FOLDER generate|continuous float32|bfloat16

The first line out has the versions and says that the model is loaded. Then each line in is
``{"chats": [...], "new": N}`` and each line out what ``benchmarks.cpu_peers.Measured`` has. Needs torch and
transformers, nothing of tui-infer.
"""

import copy
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    ContinuousBatchingConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)

PAGE, PAGES, BATCH_TOKENS = 256, 64, 1024  # tokens, a cache of 16,384 of them, tokens a step
RESULT_S = 600.0

Chats = list[list[dict[str, str]]]
Run = Callable[[Chats, int], dict[str, Any]]


class Clock(StoppingCriteria):
    """Notes when each step's tokens were there, and stops nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


@contextmanager
def generating(model: Any, tokenizer: Any) -> Iterator[Run]:
    """One padded batch: all rows take each step together."""
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    settings = copy.deepcopy(model.generation_config)
    settings.eos_token_id, settings.do_sample = None, False
    settings.pad_token_id = tokenizer.pad_token_id

    def run(chats: Chats, new: int) -> dict[str, Any]:
        settings.max_new_tokens = new
        clock = Clock()
        begin = time.perf_counter()
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
        )
        output = model.generate(
            **inputs, generation_config=settings, stopping_criteria=StoppingCriteriaList([clock])
        )
        length = inputs["input_ids"].shape[1]
        return {
            "first_s": [clock.times[0] - begin] * len(chats),
            "end_s": clock.times[-1] - begin,
            "tokens": len(chats) * (output.shape[1] - length),
            "prompt_tokens": length,
            "text": tokenizer.decode(output[0, length:]),
        }

    yield run


@contextmanager
def batching(model: Any, tokenizer: Any) -> Iterator[Run]:
    """The library's own continuous batching over a paged cache."""
    settings = copy.deepcopy(model.generation_config)
    settings.eos_token_id, settings.do_sample = -1, False
    config = ContinuousBatchingConfig(page_size=PAGE, num_blocks=PAGES, max_batch_tokens=BATCH_TOKENS)
    served = 0
    with model.continuous_batching_context_manager(
        generation_config=settings, continuous_batching_config=config
    ) as manager:

        def run(chats: Chats, new: int) -> dict[str, Any]:
            nonlocal served
            served += 1
            begin, first, last = time.perf_counter(), dict[str, float](), dict[str, Any]()
            names = [f"{served}-{number}" for number in range(len(chats))]
            prompts = [_ids(tokenizer, chat) for chat in chats]
            for name, ids in zip(names, prompts):
                manager.add_request(ids, request_id=name, max_new_tokens=new, streaming=True, eos_token_id=-1)
            while sum(output.is_finished() for output in last.values()) < len(chats):
                output = manager.get_result(timeout=RESULT_S)
                if output is None or output.error:
                    raise SystemExit(f"no result: {output and output.error}")
                if output.generated_tokens:
                    first.setdefault(output.request_id, time.perf_counter() - begin)
                last[output.request_id] = output
            return {
                "first_s": list(first.values()),
                "end_s": time.perf_counter() - begin,
                "tokens": sum(len(output.generated_tokens) for output in last.values()),
                "prompt_tokens": max(map(len, prompts)),
                "text": tokenizer.decode(last[names[0]].generated_tokens),
            }

        yield run


def _ids(tokenizer: Any, chat: list[dict[str, str]]) -> list[int]:
    return list(
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    )


def main() -> None:
    folder, way, dtype = sys.argv[1:]
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no line of ours
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).eval()
    ways = {"generate": generating, "continuous": batching}
    with torch.inference_mode(), ways[way](model, tokenizer) as run:
        versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
        print(json.dumps(versions), file=lines)
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps(run(asked["chats"], asked["new"])), file=lines)


if __name__ == "__main__":
    main()
