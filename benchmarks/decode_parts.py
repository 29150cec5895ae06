"""Where a decode step of our own kernels goes: what each kind of kernel adds to a replayed step.

    python -m benchmarks.decode_parts [--json FILE] [--shapes qwen3-0.6b] [--batch 1,8,32] [--context 512]

Needs CUDA. Kernels start while the one before runs and ask for weights ahead, so their times by a profiler
overlap and add up to more than the step. Here steps are captured whole and then without the launches of one
kind, all others as before; what that saves is the kind's share. What overlaps is in no share: *together* is
the difference. Random weights; neither sampling nor the advance is in these steps.
"""

import argparse
import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.findings import Findings
from benchmarks.peers import markdown
from engine.bench.measure import rounded
from engine.bench.session import Need, open_session
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.kv_cache import KVCache
from engine.models.decode_path import DecodePath
from engine.models.decoder import FusedDecoder
from engine.models.shapes import PREFIX, shape_name
from engine.models.tune import GraphTimer, Timer, step_of

SHAPES = ("qwen3-0.6b", "qwen2.5-1.5b", "qwen2.5-7b")
ATTENTION, START = "attention", "start"
OWN_KERNEL = {ATTENTION: "_split_attention", START: "_embed", "join": "_matvec_join"}
WHOLE, TOGETHER = "whole step", "together"

Row = dict[str, Any]


class _Nothing:
    """In place of a kernel: takes any launch and makes none."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **settings: None


@contextmanager
def without(path: DecodePath, kind: str) -> Iterator[None]:
    """Steps in here lack the launches of one kind: a product's, ``attention`` or ``start``."""
    kept = dict(vars(path))
    if kind in OWN_KERNEL:
        setattr(path, OWN_KERNEL[kind], _Nothing())
    else:
        bare = copy.copy(path)
        bare._matvec = bare._matrows = _Nothing()
        whole = path.product

        def product(of: str, *arguments: Any, **named: Any) -> None:
            (bare.product if of == kind else whole)(of, *arguments, **named)

        setattr(path, "product", product)  # noqa: B010 - over the method, for this path alone
    try:
        yield
    finally:
        vars(path).clear()
        vars(path).update(kept)


def parts(decoder: FusedDecoder, cache: KVCache, rows: int, context: int, timer: Timer) -> list[Row]:
    """The whole step, each kind, and what is in none.

    Returns:
        rows with ``part``, ``ms``, ``kernels`` (launches) and ``bytes`` that these cannot avoid reading: the
        weights, and of attention the keys and values of all contexts.

    Raises:
        EngineError: the decoder has no path of such kernels.
    """
    path = decoder.path
    if path is None:
        raise EngineError("The model's decode steps have no kernels of ours.")
    step = step_of(path, cache, rows, decoder.head.shape[0], context)
    layers, size = len(decoder.layers), decoder.embedding.element_size()
    count, held = {START: 1}, {START: 0}
    for shape in path.products(rows):
        outs = 2 * shape.outs if shape.kind == "gate_up" else shape.outs
        count[shape.kind] = 1 if shape.kind == "head" else layers
        held[shape.kind] = count[shape.kind] * outs * shape.ins * size
    count[ATTENTION] = layers
    held[ATTENTION] = rows * context * cache.shape.bytes_per_token
    whole = timer(step)[0]
    found = [_row(WHOLE, whole, sum(count.values()), sum(held.values()))]
    for kind in held:
        with without(path, kind):
            found.append(_row(kind, whole - timer(step)[0], count[kind], held[kind]))
        path.reset()  # a kernel that lacks the one before may have counted on
    rest = whole - sum(row["ms"] for row in found[1:])
    return [*found, _row(TOGETHER, rest, 0, 0)]


def _row(part: str, ms: float, kernels: int, held: int) -> Row:
    rate = held / ms / 1e6 if held and ms > 0 else None
    return {"part": part, "ms": rounded(ms), "kernels": kernels, "bytes": held, "gb_per_s": rounded(rate)}


def table(rows: list[Row]) -> str:
    """A line a part, for each shape and batch its milliseconds and GB/s."""
    cases = list(dict.fromkeys((row["shape"], row["batch"]) for row in rows))
    cells = {(row["part"], row["shape"], row["batch"]): row for row in rows}
    lines = [["ms, GB/s", *(f"{shape}, batch {batch}" for shape, batch in cases)]]
    for part in dict.fromkeys(row["part"] for row in rows):
        lines.append([part, *(_cell(cells.get((part, *case))) for case in cases)])
    return markdown(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    rate = row["gb_per_s"]
    return f"{row['ms']:.3f}" + ("" if rate is None else f", {rate:,.0f}")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the document to this file")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--context", type=int, default=512, help="tokens of each row")
    parser.add_argument("--attention", default="auto")
    return parser.parse_args(arguments)


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> int:
    chosen = _options(arguments)
    settings = {name: value for name, value in vars(chosen).items() if name != "json"}
    found = Findings("decode_parts", chosen.json, settings, ("parts",))
    found.begin("parts")
    batches = [int(batch) for batch in chosen.batch.split(",")]
    for shape in chosen.shapes.split(","):
        config = EngineConfig(
            model=f"{PREFIX}{shape_name(shape)}", attention=chosen.attention, graph_sizes=(), mode="auto"
        )
        need = Need(max(batches), chosen.context)
        with found.guard("parts", shape), open_session(config, need, lambda _: None) as session:
            runner = session.engine.runner
            assert isinstance(runner.model, FusedDecoder)
            timer = GraphTimer(runner.model.embedding.device)
            found.add("engines", {"part": "parts", **session.facts()})
            for batch in batches:
                rows = parts(runner.model, runner.cache, batch, chosen.context, timer)
                found.add("parts", *({"shape": shape, "batch": batch, **row} for row in rows))
    print(table(found.value["parts"]) + found.failures())
    return 1 if found.value["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
