"""Host time of scheduling and bookkeeping per decode step, by batch and pool size. No model.

    python -m benchmarks.scheduling [--json FILE]

A step here is what the engine does on the host around a decode launch: ``schedule``, ``computed``,
appending a token to each request, and draining the block changes.
"""

import argparse
import gc
import json
import statistics
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.bench.header import header
from engine.blocks import BlockPool
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler

BATCHES = (1, 8, 64, 256)
POOLS = (10_000, 100_000)
BLOCK_SIZE = 16
PROMPT = 128
STEPS = 400
ROUNDS = 5


def decode_step_us(batch: int, num_blocks: int) -> dict[str, float]:
    """Median and p99 microseconds of one decode step's host work."""
    pool = BlockPool(num_blocks, BLOCK_SIZE)
    scheduler = Scheduler(pool, max_batch=batch, prefill_chunk=batch * PROMPT + batch, max_model_len=4096)
    for id in range(1, batch + 1):
        prompt = [id * 1000 + position for position in range(PROMPT)]
        scheduler.add(Request(id, prompt, SamplingParams(max_tokens=4096)))
    while any(not request.output_ids for request in scheduler.requests.values()):
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.computed(plan)
        for chunk in plan.prefill:
            if chunk.completes:
                chunk.request.output_ids.append(7)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        plan = scheduler.schedule()
        assert plan is not None
        assert len(plan.decode) == batch
        scheduler.computed(plan)
        for request in plan.decode:
            request.output_ids.append(step)
        pool.drain_changes()
        times.append((time.perf_counter() - began) * 1e6)
    scheduler.check()
    times.sort()
    return {"us_p50": statistics.median(times), "us_p99": times[int(0.99 * len(times))]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write header and rows to this file")
    chosen = parser.parse_args()
    gc.disable()
    rows = []
    for num_blocks in POOLS:
        for batch in BATCHES:
            runs = [decode_step_us(batch, num_blocks) for _ in range(ROUNDS)]
            best = sorted(runs, key=lambda run: run["us_p50"])[ROUNDS // 2]
            rows.append(
                {"batch": batch, "num_blocks": num_blocks, **{k: round(v, 1) for k, v in best.items()}}
            )
    table = Table(
        "requests", "blocks", "µs a step, median", "p99", "µs a request", title="Scheduling, host time"
    )
    for row in rows:
        table.add_row(
            str(row["batch"]),
            f"{row['num_blocks']:,}",
            f"{row['us_p50']:.1f}",
            f"{row['us_p99']:.1f}",
            f"{row['us_p50'] / row['batch']:.2f}",
        )
    Console().print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps({"header": header(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
