"""A fixed load that others publish figures for: 256 requests at once, 100 to 1,024 tokens in and out."""

import random
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.steady import stepper
from engine.bench.measure import median, percentile, rounded
from engine.bench.session import Session
from engine.errors import EngineError
from engine.request import SamplingParams

REQUESTS = 256
SHORTEST, LONGEST = 100, 1024  # tokens of a prompt, and of an answer
LARGEST_ID = 10_000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MixedLoad:
    """Prompts as token ids, and how many tokens each answer has."""

    prompts: list[list[int]]
    answers: list[int]

    @classmethod
    def draw(cls, requests: int = REQUESTS, seed: int = 0) -> "MixedLoad":
        """The same numbers in the same order as nano-vllm's ``bench.py`` (bb823b3) takes from its seed.

        All prompts come before all answers; a prompt's length is drawn before its tokens.
        """
        numbers = random.Random(seed)
        prompts = []
        for _ in range(requests):
            length = numbers.randint(SHORTEST, LONGEST)
            prompts.append([numbers.randint(0, LARGEST_ID) for _ in range(length)])
        return cls(prompts, [numbers.randint(SHORTEST, LONGEST) for _ in range(requests)])

    def within(self, vocab_size: int) -> "MixedLoad":
        """The same lengths, with ids that a smaller vocabulary has too."""
        return MixedLoad([[id % vocab_size for id in prompt] for prompt in self.prompts], self.answers)


def measure(session: Session, load: MixedLoad, temperature: float, ahead: bool = True) -> Row:
    """All requests at once until the last token; the prefix cache is empty at the start.

    ``output_tokens_per_s`` is over the whole time, prompts included; ``ttft_ms_*`` from the start to a
    request's first token; ``preemptions`` over all requests.

    Raises:
        EngineError: an answer was cut short.
    """
    engine = session.engine
    _warm_up(session, temperature)
    engine.pool.clear_cache()
    step = stepper(session, ahead)
    steps = 0
    began = time.perf_counter()
    requests = [
        engine.submit(prompt, SamplingParams(temperature=temperature, ignore_eos=True, max_tokens=tokens))
        for prompt, tokens in zip(load.prompts, load.answers)
    ]
    while engine.has_work:
        steps += step() is not None
    seconds = time.perf_counter() - began
    session.clear()
    made = sum(len(request.output_ids) for request in requests)
    if made != sum(load.answers):
        raise EngineError(f"{made} of {sum(load.answers)} tokens were made.")
    firsts = [((request.first_token_s or began) - began) * 1e3 for request in requests]
    return {
        **session.identity(),
        "mode": engine.mode,
        "ahead": ahead,
        "temperature": temperature,
        "requests": len(requests),
        "prompt_tokens": sum(map(len, load.prompts)),
        "output_tokens": made,
        "steps": steps,
        "seconds": rounded(seconds),
        "output_tokens_per_s": rounded(made / seconds),
        "ttft_ms_p50": rounded(median(firsts)),
        "ttft_ms_p99": rounded(percentile(firsts, 0.99)),
        "preemptions": sum(request.preemptions for request in requests),
    }


def _warm_up(session: Session, temperature: float) -> None:
    """A prompt and a few tokens that are not counted, so that what is built at first use is there."""
    params = SamplingParams(temperature=temperature, ignore_eos=True, max_tokens=8)
    session.engine.submit(list(range(1, 65)), params)
    while session.engine.has_work:
        session.step()
    session.clear()


def line(row: Row) -> str:
    """A row for people who watch."""
    return (
        f"{row['shape']} {row['requests']} requests at temperature {row['temperature']}: "
        f"{row['output_tokens_per_s']:,.0f} tokens/s, {row['seconds']:.2f} s, {row['steps']} steps, "
        f"first token {row['ttft_ms_p50']:,.0f} ms, {row['preemptions']} preemptions"
    )
