"""Drawing tokens by itself: µs by our kernels and by torch's operators, and whether the tokens are the same.

    python -m benchmarks.drawing [--json FILE] [--rows 1,8,32,256]

Needs CUDA. Logits are random, [rows, 151,936] in float32: *flat* ones have one spread, *peaked* ones a few
tokens far above the others, as those of a language model. Each way is replayed from a CUDA graph.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import markdown
from benchmarks.replay import replay_ms
from engine.bench.header import header
from engine.request import Request, SamplingParams
from engine.sampler import draw_plainly
from engine.sampling_batch import SamplingBatch

VOCAB = 151_936
KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 0.7": SamplingParams(temperature=0.7),
    "temperature 0.7, top-p 0.95": SamplingParams(temperature=0.7, top_p=0.95),
    "temperature 1, min-p 0.05": SamplingParams(temperature=1.0, min_p=0.05),
}
FLAT, SPREAD = 0.8, 2.5
PEAKS, HEIGHT = 3e-4, 6.0  # the share of tokens far above, and by how much

Row = dict[str, Any]


def logits_of(rows: int, look: str, device: torch.device, vocab: int = VOCAB) -> Tensor:
    """[rows, vocab] float32, the same in every run."""
    generator = torch.Generator(device=device).manual_seed(rows)
    noise = torch.randn(rows, vocab, device=device, generator=generator)
    if look == "flat":
        return noise * FLAT
    peaks = torch.rand(rows, vocab, device=device, generator=generator) < PEAKS
    return noise * SPREAD + peaks * HEIGHT


@torch.inference_mode()
def measure(rows: int, look: str, kind: str, device: torch.device) -> Row:
    """``kernels_us`` and ``torch_us``; ``equal`` rows get the same token either way."""
    from engine.kernels.draw import draw

    logits = logits_of(rows, look, device)
    requests = [Request(row, [1] * (row + 1), KINDS[kind]) for row in range(rows)]
    batch = SamplingBatch.of(requests, device, VOCAB)
    whole = batch.kind.whole
    equal = (draw(logits, batch) == draw_plainly(logits, batch, whole)).sum().item()
    return {
        "rows": rows,
        "logits": look,
        "kind": kind,
        "kernels_us": round(1e3 * replay_ms(lambda: draw(logits, batch)), 1),
        "torch_us": round(1e3 * replay_ms(lambda: draw_plainly(logits, batch, whole)), 1),
        "equal": equal,
    }


def table(rows: list[Row]) -> str:
    """A line a kind and look, a column for each number of rows: our µs, torch's behind it."""
    counts = list(dict.fromkeys(row["rows"] for row in rows))
    lines = [["µs: kernels, torch", *(f"{count} rows" for count in counts)]]
    for name in dict.fromkeys(f"{row['kind']}, {row['logits']}" for row in rows):
        own = {row["rows"]: row for row in rows if f"{row['kind']}, {row['logits']}" == name}
        cells = [f"{own[count]['kernels_us']:,.0f}, {own[count]['torch_us']:,.0f}" for count in counts]
        lines.append([name, *cells])
    return markdown(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the document to this file")
    parser.add_argument("--rows", default="1,8,32,256")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA device, and torch sees none.")
    device = torch.device("cuda")
    found = [
        measure(int(rows), look, kind, device)
        for rows in chosen.rows.split(",")
        for look in ("flat", "peaked")
        for kind in KINDS
    ]
    print(table(found))
    print(f"tokens that differ: {sum(row['rows'] - row['equal'] for row in found)}")
    if chosen.json:
        document = {"bench": "drawing", "header": header(), "rows": found}
        chosen.json.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
