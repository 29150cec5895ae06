"""What each technique of the decode path is worth: one added at a time, ms and kernels a step.

    python -m benchmarks.ablation [--shapes qwen2.5-1.5b,qwen2.5-7b] [--batch 1,8] [--json FILE]

From transformers' own modules in a CUDA graph to the whole: fused modules over cuBLAS, matrix and attention
kernels of our own, dependent launch, inputs that advance on the device, one step ahead. Every line keeps what
the lines before it brought. Before the kernels of our own, attention is that of ``--attention``. Random
weights by shape, greedy; times as in ``benchmarks.h200_decode``, kernels a step by torch's profiler.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers, steady
from benchmarks.findings import Findings
from engine.bench.decode import SETTLE
from engine.bench.profile import profiled
from engine.bench.session import Need, Session, open_session
from engine.config import EngineConfig, ModelImpl
from engine.models import decode_path
from engine.models.shapes import PREFIX, shape_name

PROFILED_STEPS = 10

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rung:
    """A decode path with some of the techniques on."""

    name: str
    impl: ModelImpl = "decoder"
    kernels: bool = False
    dependent_launch: bool = False
    advance: bool = False
    ahead: bool = False


RUNGS = (
    Rung("transformers' modules in a graph", impl="transformers"),
    Rung("fused modules, cuBLAS"),
    Rung("kernels of our own", kernels=True),
    Rung("dependent launch", kernels=True, dependent_launch=True),
    Rung("inputs advance on the device", kernels=True, dependent_launch=True, advance=True),
    Rung("one step ahead", kernels=True, dependent_launch=True, advance=True, ahead=True),
)


@contextmanager
def switched(rung: Rung) -> Iterator[None]:
    """Engines that are built in here have the rung's techniques."""
    with ExitStack() as undo:
        for name, value in (("enabled", rung.kernels), ("dependent_launch", rung.dependent_launch)):
            undo.callback(setattr, decode_path.DEFAULTS, name, getattr(decode_path.DEFAULTS, name))
            setattr(decode_path.DEFAULTS, name, value)
        yield


def climb(chosen: argparse.Namespace, shape: str, found: Findings) -> None:
    """Rows of a shape, rung by rung and batch by batch."""
    plans = [steady.Steady(batch, chosen.context, chosen.steps) for batch in chosen.batch]
    extra = SETTLE + PROFILED_STEPS
    need = Need(max(chosen.batch), max(plan.need(chosen.prefill_chunk).tokens for plan in plans) + extra)
    for rung in RUNGS:
        config = EngineConfig(
            model=f"{PREFIX}{shape_name(shape)}",
            device=chosen.device,
            dtype=chosen.dtype,
            model_impl=rung.impl,
            attention=chosen.attention,
            prefill_chunk=chosen.prefill_chunk,
            graph_sizes=tuple(chosen.batch),
            max_batch=max(chosen.batch),
        )
        with (
            found.guard("rows", f"{shape}, {rung.name}"),
            switched(rung),
            open_session(config, need, lambda _: None) as session,
        ):
            for batch in chosen.batch:
                plan = steady.Steady(batch, chosen.context, chosen.steps, rung.ahead, rung.advance)
                row = {"rung": rung.name, **steady.measure(session, plan)}
                row["kernels_per_step"] = _kernels(session, plan)
                print(f"{rung.name}: {steady.line(row)}, {row['kernels_per_step']} kernels", flush=True)
                found.add("rows", row)


def _kernels(session: Session, plan: steady.Steady) -> float | None:
    session.fill(plan.batch, plan.fitted(session), PROFILED_STEPS + SETTLE)
    found = profiled(session, session.engine.mode, PROFILED_STEPS)
    session.clear()
    kernels: float | None = found["kernels_per_step"]
    return kernels


def table(rows: Sequence[Row]) -> str:
    """A line a rung; for each batch wall time, device time and kernels a step."""
    cases = list(dict.fromkeys((row["shape"], row["batch"]) for row in rows))
    found = {(row["rung"], row["shape"], row["batch"]): row for row in rows}
    lines = [["ms a step: wall, device; kernels", *(f"{shape}, batch {batch}" for shape, batch in cases)]]
    for rung in RUNGS:
        lines.append([rung.name, *(_cell(found.get((rung.name, *case))) for case in cases)])
    return peers.markdown(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    device, kernels = row["device_ms_p50"], row["kernels_per_step"]
    figures = [f"{row['ms_p50']:.2f}", "–" if device is None else f"{device:.2f}"]
    return f"{', '.join(figures)}; {'–' if kernels is None else f'{kernels:,.0f}'}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="qwen2.5-1.5b,qwen2.5-7b")
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--prefill-chunk", type=int, default=4096)
    parser.add_argument("--attention", default="triton")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path, help="write header, settings and rows to this file")
    chosen = parser.parse_args(arguments)
    chosen.batch = [int(word) for word in chosen.batch.split(",")]
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own lines on stderr
    settings = {name: value for name, value in vars(chosen).items() if name != "json"}
    found = Findings("ablation", chosen.json, settings, ("rows",))
    for shape in chosen.shapes.split(","):
        climb(chosen, shape, found)
    print(table(found.value["rows"]) + found.failures())
    return 1 if found.value["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
