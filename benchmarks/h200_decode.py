"""Decode on a GPU in full, beside other engines' figures from the same run.

    python -m benchmarks.h200_decode --json FILE [--only decode,throughput] [--peers peers.jsonl]
    python -m benchmarks.h200_decode --json FILE --only none --add --peers peers.jsonl

Random weights by shape, greedy, through ``Engine.step`` as its users call it, one step ahead where the
engine can.

*decode*: each shape by batch, contexts of ``--context`` tokens in the middle of the steps; some batches
again with tokens that are drawn. *contexts*: one
shape by context. *ttft*: prompts of each shape until the first token, new and cached. *throughput*: a mixed
load of 256 requests at once. Every row is printed and written as soon as it is measured. ``--add`` keeps
what the file has of other parts. The second line measures nothing: it puts the peers' figures in and prints
the tables.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import mixed_load, peers, steady
from benchmarks.findings import Findings
from engine.bench.prefill import PrefillPlan, bench_prefill
from engine.bench.session import Need, Session, open_session
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.models.shapes import PREFIX, shape_name

PARTS = ("decode", "contexts", "ttft", "throughput")
SHAPES = ("qwen2.5-1.5b", "qwen2.5-7b", "qwen3-0.6b")
LONG_STEPS = 64  # of a context in the sweep
DRAWN_BATCHES = (1, 8, 32)
TEMPERATURE, TOP_P = 0.7, 0.95  # of drawn steps
TEMPERATURES = (0.6, 0.0)  # of the mixed load: as the peers run it, and greedy

Row = dict[str, Any]


def decode(chosen: argparse.Namespace, found: Findings) -> None:
    """Every shape by batch, greedy and drawn."""
    found.value["drawing"] = []
    for shape in chosen.shapes:
        plans = [steady.Steady(batch, chosen.context, chosen.steps, chosen.ahead) for batch in chosen.batch]
        plans += [
            replace(plan, temperature=TEMPERATURE, top_p=TOP_P)
            for plan in plans
            if plan.batch in DRAWN_BATCHES
        ]
        _steady_rows(chosen, found, "decode", shape, plans)


def contexts(chosen: argparse.Namespace, found: Findings) -> None:
    """One shape by batch and context."""
    steps = min(chosen.steps, LONG_STEPS)
    plans = [
        steady.Steady(batch, context, steps, chosen.ahead)
        for context in sorted(chosen.contexts)
        for batch in chosen.context_batch
    ]
    _steady_rows(chosen, found, "contexts", chosen.context_shape, plans)


def _steady_rows(
    chosen: argparse.Namespace, found: Findings, part: str, shape: str, plans: list[steady.Steady]
) -> None:
    needs = [plan.need(chosen.prefill_chunk) for plan in plans]
    room = Need(max(need.rows for need in needs), max(need.tokens for need in needs))
    with found.guard(part, shape), _opened(chosen, shape, room, found, part) as session:
        for plan in plans:
            if reason := session.lacks_room(plan.need(chosen.prefill_chunk)):
                raise EngineError(reason)
            row = steady.measure(session, plan)
            print(steady.line(row), flush=True)
            found.add("drawing" if plan.temperature else part, row)


def ttft(chosen: argparse.Namespace, found: Findings) -> None:
    """Prompts of every shape."""
    for shape in chosen.shapes:
        with found.guard("ttft", shape):
            plan = PrefillPlan(tuple(chosen.prompts))
            result = bench_prefill([_config(chosen, shape, 1)], plan, _quiet)
            for row in result["rows"]:
                print(
                    f"{shape} prompt {row['prompt_tokens']} ({row['cached_tokens']} cached): "
                    f"first token {row['ttft_ms_p50']:.2f} ms",
                    flush=True,
                )
            found.add("ttft", *result["rows"])
            for name in ("engines", "skipped"):
                found.add(name, *({"part": "ttft", **row} for row in result[name]))


def throughput(chosen: argparse.Namespace, found: Findings) -> None:
    """The mixed load at each temperature."""
    load = mixed_load.MixedLoad.draw(chosen.requests)
    shape = chosen.load_shape
    need = Need(chosen.requests, 2 * mixed_load.LONGEST)
    with found.guard("throughput", shape), _opened(chosen, shape, need, found, "throughput") as session:
        fitting = load.within(session.engine.status().vocab_size)
        for temperature in TEMPERATURES:
            row = mixed_load.measure(session, fitting, temperature, chosen.ahead)
            print(mixed_load.line(row), flush=True)
            found.add("throughput", row)


MEASURED: dict[str, Callable[[argparse.Namespace, Findings], None]] = {
    "decode": decode,
    "contexts": contexts,
    "ttft": ttft,
    "throughput": throughput,
}


@contextmanager
def _opened(
    chosen: argparse.Namespace, shape: str, need: Need, found: Findings, part: str
) -> Iterator[Session]:
    with open_session(_config(chosen, shape, need.rows), need, _quiet) as session:
        found.add("engines", {"part": part, **session.facts()})
        yield session


def _config(chosen: argparse.Namespace, shape: str, rows: int) -> EngineConfig:
    return EngineConfig(
        model=f"{PREFIX}{shape_name(shape)}",
        device=chosen.device,
        dtype=chosen.dtype,
        attention=chosen.attention,
        prefill_chunk=chosen.prefill_chunk,
        max_batch=max(rows, EngineConfig().max_batch),
    )


def _quiet(_: Any) -> None:
    pass


def tables(value: Row) -> str:
    """Everything that was found, as Markdown."""
    parts: list[tuple[str, str]] = []
    if value["decode"] or value["peers"]:
        parts.append(("Milliseconds a step", peers.comparison(value["decode"], value["peers"])))
    drawn = f"At temperature {TEMPERATURE}, top-p {TOP_P}"
    for name, title in (("decode", "Our steps"), ("drawing", drawn), ("contexts", "By context")):
        if value[name]:
            parts.append((title, peers.steady(value[name])))
    if value["ttft"]:
        parts.append(("First token", peers.prompts(value["ttft"])))
    if value["throughput"] or any("throughput" in row for row in value["peers"]):
        parts.append(("Mixed load", peers.loads(value["throughput"], value["peers"])))
    return "\n\n".join(f"**{title}**\n\n{table}" for title, table in parts)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the document to this file")
    parser.add_argument("--add", action="store_true", help="keep what the file has and is not measured now")
    parser.add_argument("--peers", type=Path, help="figures of other engines, one JSON object a line")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, or none")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="of decode and ttft")
    parser.add_argument("--batch", type=_integers, default=(1, 2, 4, 8, 16, 32))
    parser.add_argument("--context", type=int, default=512, help="tokens, in the middle of the steps")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--contexts", type=_integers, default=(512, 4096, 16384, 32768))
    parser.add_argument("--context-batch", type=_integers, default=(1, 8))
    parser.add_argument("--context-shape", default=SHAPES[0])
    parser.add_argument("--prompts", type=_integers, default=(512, 4096, 16384))
    parser.add_argument("--load-shape", default=SHAPES[2])
    parser.add_argument("--requests", type=int, default=mixed_load.REQUESTS, help="of the mixed load")
    parser.add_argument("--prefill-chunk", type=int, default=4096)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--wait", dest="ahead", action="store_false", help="read each step before the next")
    chosen = parser.parse_args(arguments)
    chosen.only = () if chosen.only == "none" else tuple(chosen.only.split(","))
    chosen.shapes = tuple(chosen.shapes.split(","))
    if unknown := set(chosen.only) - set(PARTS):
        parser.error(f"--only: no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if chosen.add and not (chosen.json and chosen.json.is_file()):
        chosen.add = False
    return chosen


def main(arguments: list[str] | None = None) -> int:
    chosen = _options(arguments)
    kept = json.loads(chosen.json.read_text("utf-8")) if chosen.add else {}
    settings = {name: value for name, value in vars(chosen).items() if not isinstance(value, Path)}
    found = Findings("h200_decode", chosen.json, settings, (*PARTS, "drawing", "peers"), kept)
    if chosen.peers:
        found.value["peers"] = peers.read_peers(chosen.peers)
    for part in chosen.only:
        found.begin(part)
        MEASURED[part](chosen, found)
    found.write()
    print(tables(found.value) + found.failures())
    return 1 if found.value["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
