"""A chat of ten turns with the default model: prompt tokens found in the prefix cache against the possible.

    python -m benchmarks.chat_turns [--turns 10] [--max-tokens 60] [--json FILE]

A turn's prompt begins with the token ids of everything before it. All of those were forwarded but the last
token of the answer, so the possible is their full blocks.
"""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine import Engine, EngineConfig, SamplingParams
from engine.bench.header import header

QUESTIONS = (
    "What is a cache? Answer briefly.",
    "Why do computers use one?",
    "Give an example from daily life.",
    "What happens when it is full?",
    "Which entry should go first?",
    "What is that rule called?",
    "When does that rule fail?",
    "Name another rule.",
    "Which of the two is simpler?",
    "Sum up what we said in one sentence.",
)


def chat(engine: Engine, turns: int, max_tokens: int) -> list[dict[str, int]]:
    """Run the chat greedily; one row a turn, counts in tokens."""
    size = engine.status().block_size
    params = SamplingParams(temperature=0, max_tokens=max_tokens, repetition_penalty=1.1)
    rows, history = [], None
    for turn in range(turns):
        question = QUESTIONS[turn % len(QUESTIONS)]
        request = engine.submit([{"role": "user", "content": question}], params, history=history)
        while not request.finished:
            engine.step()
        forwarded = 0 if history is None else len(history) - 1
        rows.append(
            {
                "turn": turn + 1,
                "prompt_tokens": len(request.prompt_ids),
                "possible": forwarded // size * size,
                "cached": request.cached_tokens,
                "computed": len(request.prompt_ids) - request.cached_tokens,
                "answer_tokens": len(request.output_ids),
            }
        )
        history = request.token_ids()
    engine.check()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=len(QUESTIONS))
    parser.add_argument("--max-tokens", type=int, default=60)
    parser.add_argument("--json", type=Path, help="write header and rows to this file")
    chosen = parser.parse_args()
    with Engine(EngineConfig(device="cpu")) as engine:
        rows = chat(engine, chosen.turns, chosen.max_tokens)
    table = Table(*(name.replace("_", " ") for name in rows[0]), title="Prefix hits a turn, tokens")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps({"header": header(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
