"""Greedy answers to the same prompts from weights in different numbers, and where they part."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from engine import Engine
from engine.bench.measure import rounded
from engine.request import SamplingParams

ALTERNATIVES = 20  # of each token, among which another one's choice is looked for
PROMPTS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "Write a short poem about the sea.",
    "Explain how a bicycle stays upright.",
    "Give me three tips for better sleep.",
    "What is the difference between a virus and a bacterium?",
    "Write a Python function that reverses a string.",
    "Who wrote Romeo and Juliet, and what happens in it?",
    "How do I make a simple tomato soup?",
    "Translate 'good morning, my friend' into Spanish.",
    "What causes the seasons?",
    "Tell me a story about a fox and a crow.",
    "What is 17 plus 25?",
    "Describe the water cycle in simple words.",
    "Why do cats purr?",
    "Name five inventions that changed the world.",
    "Write an email that asks for a day off.",
    "What is photosynthesis?",
    "How does a computer store numbers?",
    "Give me one argument for and one against school uniforms.",
)

Row = dict[str, Any]


def answers(engine: Engine, prompts: Sequence[str], new: int) -> list[Row]:
    """Answers to all prompts at once: ``ids``, ``text``, and for each token the likeliest ``logprobs``."""
    params = SamplingParams(temperature=0.0, max_tokens=new, logprobs=ALTERNATIVES)
    requests = [engine.submit([{"role": "user", "content": prompt}], params) for prompt in prompts]
    while engine.has_work:
        engine.step()
    return [
        {"ids": list(request.output_ids), "text": request.text, "logprobs": list(request.logprobs)}
        for request in requests
    ]


def parting(exact: Row, other: Row) -> Row:
    """Where an answer leaves the reference's.

    * ``equal``: it never does;
    * ``same_tokens``: that they have in common from the start;
    * ``lead_nats``: by how much the reference preferred its own next token to the other's; None where the
      answers are equal, one of them ended there, or the other token was far from likely.
    """
    shorter = min(len(exact["ids"]), len(other["ids"]))
    pairs = enumerate(zip(exact["ids"], other["ids"]))
    same = next((at for at, (left, right) in pairs if left != right), shorter)
    lead = None
    if same < shorter:
        likely = exact["logprobs"][same]
        own, theirs = exact["ids"][same], other["ids"][same]
        lead = rounded(likely[own] - likely[theirs], 3) if theirs in likely else None
    return {"equal": exact["ids"] == other["ids"], "same_tokens": same, "lead_nats": lead}


def summed(partings: Sequence[Row]) -> Row:
    """How many answers are equal, after how many tokens the others part, and how near the choice was."""
    parted = [row for row in partings if not row["equal"]]
    leads = [row["lead_nats"] for row in parted if row["lead_nats"] is not None]
    return {
        "answers": len(partings),
        "equal": len(partings) - len(parted),
        "same_tokens": sorted(row["same_tokens"] for row in parted),
        "median_lead_nats": rounded(median(leads), 3) if leads else None,
        "most_lead_nats": max(leads, default=None),
    }


def side_by_side(prompts: Sequence[str], said: dict[str, list[Row]], reference: str) -> list[Row]:
    """For each prompt the answer of each form, and where it parts from that of ``reference``."""
    return [
        {
            "prompt": prompt,
            "answers": {
                form: {"text": rows[at]["text"], "tokens": len(rows[at]["ids"])}
                | ({} if form == reference else parting(said[reference][at], rows[at]))
                for form, rows in said.items()
            },
        }
        for at, prompt in enumerate(prompts)
    ]
