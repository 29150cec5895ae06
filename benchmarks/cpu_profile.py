"""Where one decode step on a CPU goes, and how far it is from the time in which its bytes can be read.

    python -m benchmarks.cpu_profile [--json FILE]

The engine decodes 1 and 8 chats in this process, with a fixed number of threads, in the model's own bits (by
the C decoder, where it runs) and in bfloat16 by torch's operators. A step is timed from outside and divided:

* the C decoder counts clock ticks of its first thread by phase, waiting for the others included; how many
  ticks a second has comes from the longest calls of the same run. ``threads`` is the rest of its call;
* torch's operators, attention, sampling and the pass itself are timed call by call;
* ``around the pass`` is Python of the forward pass: embeddings, tables, tensors; ``engine`` is all other
  Python of a step: the plan, tokens, text, records. What an engine process does between steps is not here.

Means are over the middle half of the steps by time, and the parts of a step add up to it. The floor is the
bytes that a step cannot avoid reading (weights as they are laid out, keys and values of all contexts, a row
of the embeddings a token) at the speed at which all threads read a large array, the median of readings
before and after. Caches keep some of it from step to step, which the floor does not count.
"""

import argparse
import gc
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cpu_decode import processor
from benchmarks.peers import markdown
from engine.config import DEFAULT_MODEL, EngineConfig, Quant
from engine.threads import limit_spinning

if TYPE_CHECKING:
    from benchmarks.step_parts import TickRate
    from engine.bench.session import Session
    from engine.models.decoder import FusedDecoder

READ_BYTES = 2**29  # beyond any cache
READS = 12
QUANTS: tuple[Quant, ...] = ("auto", "none")

Row = dict[str, Any]


class Reader:
    """Reads one large array with several threads: each adds up its part as 64-bit integers, by numpy.

    numpy asks for huge pages for arrays of this size, as the weights have them.
    """

    def __init__(self, threads: int, nbytes: int = READ_BYTES) -> None:
        self._array = np.ones(nbytes // 8, dtype=np.uint64)
        self._pieces = np.array_split(self._array, threads)
        self._pool = ThreadPoolExecutor(threads)

    def gb_per_s(self) -> list[float]:
        """Several readings, in 10^9 bytes a second."""
        return [self._array.nbytes / self._seconds() / 1e9 for _ in range(READS)]

    def _seconds(self) -> float:
        began = time.perf_counter()
        list(self._pool.map(np.add.reduce, self._pieces))
        return time.perf_counter() - began


def weight_bytes(model: "FusedDecoder") -> int:
    """Weights that every step reads, as they are laid out; a table of embeddings that is the output layer
    too counts where the output layer has no form of its own.
    """
    head = model.tiled_head or model.packed_head
    held: list[Any] = [model.norm, model.head if head is None else head]
    held += [getattr(layer, own.name) for layer in model.layers for own in fields(layer)]
    return sum(int(value.nbytes) for value in held if hasattr(value, "nbytes"))


def step_bytes(model: "FusedDecoder", contexts: Sequence[float], cache_itemsize: int) -> dict[str, int]:
    """Bytes that a step over rows with these contexts cannot avoid reading, by what they are."""
    token = 2 * model.geometry.kv_heads * model.geometry.head_dim * cache_itemsize
    seen = sum(min(context, layer.window or context) for context in contexts for layer in model.layers)
    row = model.embedding.shape[1] * model.embedding.dtype.itemsize
    return {
        "weight_bytes": weight_bytes(model),
        "kv_bytes": round(token * seen),
        "embedding_bytes": row * len(contexts),
    }


def floor(read: dict[str, int], speeds: Sequence[float], ms: float) -> Row:
    """The time in which those bytes can be read, and how many times that a step takes.

    Args:
        speeds: of readings, in GB/s.
        ms: that a step takes.
    """
    speed = median(speeds)
    least = sum(read.values()) / speed / 1e6
    return {
        **read,
        "read_gb_per_s": round(speed, 2),
        "slowest_read_gb_per_s": round(min(speeds), 2),
        "fastest_read_gb_per_s": round(max(speeds), 2),
        "floor_ms": round(least, 4),
        "times_floor": round(ms / least, 3),
    }


def profile(
    session: "Session", batch: int, context: int, steps: int, rate: "TickRate", reader: Reader
) -> Row:
    """One row; see the module.

    Raises:
        EngineError: see ``laps``.
    """
    from benchmarks.steady import Steady
    from benchmarks.step_parts import LINEARS, laps, parts_ms, phases_ms, usual
    from engine.bench.measure import percentile
    from engine.models.decoder import FusedDecoder

    load, before = os.getloadavg()[0], reader.gb_per_s()
    found = laps(session, Steady(batch, context, steps, ahead=False), rate)
    speeds = before + reader.gb_per_s()
    model = session.engine.runner.model
    assert isinstance(model, FusedDecoder)
    kept = usual(found)
    parts = parts_ms(kept, rate)
    ms = sum(parts.values())
    read = step_bytes(model, [float(context)] * batch, session.engine.runner.cache.shape.dtype.itemsize)
    return {
        "batch": batch,
        "context": context,
        "steps": len(found),
        "ms": round(ms, 4),
        "ms_p50": round(1e3 * percentile([lap.total for lap in found], 0.5), 4),
        "ms_p99": round(1e3 * percentile([lap.total for lap in found], 0.99), 4),
        "tokens_per_s": round(1e3 * batch / ms, 1),
        "parts_ms": {part: round(spent, 4) for part, spent in parts.items()},
        "shares": {part: round(spent / ms, 4) for part, spent in parts.items()},
        "phases_ms": {phase: round(spent, 4) for phase, spent in phases_ms(kept, rate).items()},
        "linears_gb_per_s": round(read["weight_bytes"] / parts[LINEARS] / 1e6, 2),
        **floor(read, speeds, ms),
        "load_before": round(load, 2),
    }


def measure(
    model: str,
    quants: Sequence[Quant],
    batches: Sequence[int],
    contexts: Sequence[int],
    steps: int,
    threads: int,
) -> Row:
    """Rows of all engines, one after the other.

    Raises:
        EngineError: see ``laps``.
    """
    from benchmarks.steady import Steady
    from benchmarks.step_parts import TickRate
    from engine.bench.session import Need, open_session

    rows: list[Row] = []
    reader = Reader(threads)
    engines: list[Row] = []
    for quant in quants:
        config = EngineConfig(
            model=model,
            device="cpu",
            quant=quant,
            threads=threads,
            max_batch=max(batches),
            prefix_cache=False,
        )
        needs = [
            Steady(batch, most, steps).need(config.prefill_chunk) for batch in batches for most in contexts
        ]
        need = Need(max(batches), max(need.tokens for need in needs))
        with open_session(config, need, lambda event: None) as session:
            rate, notes = TickRate(), list(session.engine.status().notes)
            for batch in batches:
                for context in contexts:
                    row = {"quant": quant, **profile(session, batch, context, steps, rate, reader)}
                    rows.append(row)
                    print(line(row), flush=True)
            engines.append(
                {"quant": quant, **session.facts(), "ticks_per_s": round(rate.per_s), "notes": notes}
            )
        gc.collect()
    return {"rows": rows, "engines": engines}


def line(row: Row) -> str:
    """A row for people who watch."""
    return (
        f"quant {row['quant']}, batch {row['batch']}, context {row['context']}: {row['ms']:.2f} ms, "
        f"{row['times_floor']:.2f} times the floor of {row['floor_ms']:.2f} ms"
    )


def table(rows: Sequence[Row]) -> str:
    """A column a row: milliseconds and share of each part, and the floor."""
    heads = [f"{row['quant']}, batch {row['batch']}, context {row['context']}" for row in rows]
    lines = [["ms a step", *heads]]
    lines.append(["all", *(f"{row['ms']:.2f}" for row in rows)])
    for part in rows[0]["parts_ms"]:
        cells = [f"{row['parts_ms'][part]:.2f} ({row['shares'][part]:.1%})" for row in rows]
        if any(row["parts_ms"][part] for row in rows):
            lines.append([part, *cells])
    lines.append(["floor", *(f"{row['floor_ms']:.2f}" for row in rows)])
    lines.append(["all over floor", *(f"{row['times_floor']:.2f}" for row in rows)])
    lines.append(["reads, GB/s", *(f"{row['read_gb_per_s']:.1f}" for row in rows)])
    return markdown(lines)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--quant", type=lambda text: text.split(","), default=list(QUANTS))
    parser.add_argument("--batch", type=_numbers, default=[1, 8])
    parser.add_argument("--context", type=_numbers, default=[96, 512], help="in the middle of the steps")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if min(*chosen.batch, *chosen.context, chosen.steps, chosen.threads) < 1:
        parser.error("numbers must be at least 1")
    limit_spinning(os.environ)  # as engine processes do, before torch is loaded
    from engine.bench.report import document, write_json

    found = measure(chosen.model, chosen.quant, chosen.batch, chosen.context, chosen.steps, chosen.threads)
    if chosen.json:
        asked = {key: value for key, value in vars(chosen).items() if key != "json"}
        write_json(chosen.json, document("cpu-profile", asked, {"processor": processor(), **found}))
    print(table(found["rows"]))


if __name__ == "__main__":
    main()
