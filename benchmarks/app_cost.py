"""What the app with all its panels costs: steps of the engine, CPU of its own, memory of its past.

    python -m benchmarks.app_cost --model smollm2
    python -m benchmarks.app_cost --shape qwen2.5-1.5b --batch 8 --json FILE

*Steps*: the same chats stream over one engine process, in turn by the bare client and by the app with four
panes and every panel open; steps a second are those of the engine's own records while all chats decode. The
app draws as on a terminal, but for the terminal. *CPU*: cores of the app alone at ten batches of 80 steps a
second, of a scheduler without a model, by the size of the pool. *Memory*: what the app keeps of 20,000 steps
of 16 chats, and after 10,000 more, as tracemalloc counts it.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.app_panels import cpu_share, history_memory
from benchmarks.app_rounds import Round, compare
from engine.config import EngineConfig
from engine.models.shapes import PREFIX, shape_name

PARTS = ("steps", "cpu", "memory")


def steps_part(chosen: argparse.Namespace) -> dict[str, Any]:
    """Medians of the rounds, and the app's share of the bare client's steps."""
    model = f"{PREFIX}{shape_name(chosen.shape)}" if chosen.shape else chosen.model
    config = EngineConfig(model=model, device=chosen.device, max_batch=max(chosen.batch, 32))
    found = asyncio.run(compare(config, chosen.batch, chosen.steps, chosen.rounds))
    medians = {name: median(r.steps_per_s for r in rounds) for name, rounds in found.items()}
    # A round against its neighbour: what the machine does meanwhile meets both.
    ratios = [app.steps_per_s / bare.steps_per_s for app, bare in zip(found["app"], found["headless"])]
    return {
        "model": model,
        "chats": chosen.batch,
        "rounds": {name: [dataclasses.asdict(r) for r in rounds] for name, rounds in found.items()},
        "steps_per_s": medians,
        "ratios": ratios,
        "ratio": median(ratios),
        "graph_share": min(r.graph_share for rounds in found.values() for r in rounds),
    }


def show_steps(console: Console, part: dict[str, Any]) -> None:
    table = Table(
        "", "steps/s, median", "rounds", "ms a step, median", "cores beside the engine", "loop late by, p99"
    )
    for name, rounds in part["rounds"].items():
        made = [Round(**values) for values in rounds]
        table.add_row(
            {"headless": "bare client", "app": "app, all panels"}[name],
            f"{part['steps_per_s'][name]:,.1f}",
            " ".join(f"{r.steps_per_s:,.1f}" for r in made),
            f"{median(r.ms_p50 for r in made):.3f}",
            f"{median(r.cpu for r in made):.2f}",
            f"{median(r.late_p99_ms for r in made):.1f} ms",
        )
    table.title = f"{part['model']}, {part['chats']} chats, {part['graph_share']:.0%} of steps by graph"
    console.print(table)
    each = " ".join(f"{ratio:.1%}" for ratio in part["ratios"])
    console.print(f"with the app: {part['ratio']:.2%} of the steps, median of {each}", highlight=False)


def show_cpu(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table("blocks", "used", "cached", "steps/s", "CPU, share of a core", title="The app by itself")
    for row in rows:
        counts = (f"{row[name]:,}" for name in ("blocks", "blocks_used", "blocks_cached"))
        table.add_row(*counts, f"{row['steps_per_s']:,.0f}", f"{row['cpu_cores']:.1%}")
    console.print(table)


def show_memory(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table("steps run", "kept", "MB", "of it records", "bytes a step", title="Memory of the past")
    for row in rows:
        table.add_row(
            f"{row['steps_run']:,}",
            f"{row['steps_kept']:,}",
            f"{row['total_bytes'] / 1e6:.1f}",
            f"{row['records_bytes'] / 1e6:.1f}",
            f"{row['bytes_a_step']:,}",
        )
    console.print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--shape", help="random weights of this shape, in place of a model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=4, help="chats that stream at once")
    parser.add_argument("--steps", type=int, help="tokens of an answer [200 for a model, 2000 for a shape]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", type=int, nargs="*", default=[4096, 100_000], help="sizes of the pool")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement of CPU")
    parser.add_argument("--history", type=int, nargs=2, default=[20_000, 10_000], metavar=("STEPS", "MORE"))
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--json", type=Path, help="write header and results to this file")
    chosen = parser.parse_args()
    if chosen.steps is None:
        chosen.steps = 2000 if chosen.shape else 200
    return chosen


def main() -> None:
    chosen = _options()
    console = Console(width=None if sys.stdout.isatty() else 120)
    found: dict[str, Any] = {}
    if "steps" in chosen.only:
        found["steps"] = steps_part(chosen)
        show_steps(console, found["steps"])
    if "cpu" in chosen.only:
        found["cpu"] = [asyncio.run(cpu_share(blocks, chosen.seconds)) for blocks in chosen.blocks]
        show_cpu(console, found["cpu"])
    if "memory" in chosen.only:
        found["memory"] = history_memory(*chosen.history)
        show_memory(console, found["memory"])
    if chosen.json:
        import torch  # noqa: F401 - so that the header names the card

        from engine.bench.header import header

        chosen.json.write_text(json.dumps({"header": header(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
