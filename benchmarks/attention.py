"""Decode attention by itself: µs a layer, GB/s of keys and values, and other shapes of our kernel tried.

    python -m benchmarks.attention [--json FILE] [--no-sweep]

Needs CUDA. One CUDA graph holds a call for each of 28 layers, each with pages of its own, as a decode step
would; launches cost nothing then. What is timed is a back end's whole ``attend``: appending the new token and
attending. Small cases fit in the card's L2 cache and go faster than its memory. Keys and values of a
context are counted once: GB/s are 10^9 bytes a second.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.replay import replay_ms
from engine.attention.base import AttentionBackend, PagedBatch
from engine.attention.flash import FLASH2_PAGE, FlashAttention2
from engine.attention.triton import DecodeTiling, TritonAttention, fitted
from engine.bench.header import header
from engine.bench.measure import copy_gb_per_s
from engine.kv_cache import KVCache, KVShape

LAYERS = 28
HEADS = {"qwen2.5-1.5b": (12, 2, 128), "qwen2.5-7b": (28, 4, 128)}
BATCHES = (1, 8, 32)
CONTEXTS = (256, 2048, 16000)
DTYPE = torch.bfloat16

SWEPT_SHAPE, SWEPT_BLOCK_SIZE = "qwen2.5-1.5b", 16
CANDIDATES = (
    DecodeTiling(tile=128),
    DecodeTiling(tile=128, stages=3),
    DecodeTiling(tile=128, chunk=512),
    DecodeTiling(tile=128, chunk=512, stages=3),
    DecodeTiling(tile=128, chunk=512, warps=8, stages=3),
    DecodeTiling(tile=128, chunk=128),
    DecodeTiling(tile=64, stages=3),
    DecodeTiling(tile=64, stages=4),
    DecodeTiling(tile=64, chunk=128, stages=3),
    DecodeTiling(tile=64, warps=2, stages=3),
    DecodeTiling(tile=32, stages=4),
    DecodeTiling(tile=128, programs_per_sm=2),
    DecodeTiling(tile=128, programs_per_sm=3),
    DecodeTiling(tile=128, programs_per_sm=8),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One decode launch: ``batch`` sequences of ``context`` tokens each, the new one included."""

    shape: str
    block_size: int
    batch: int
    context: int

    @property
    def kv_bytes(self) -> int:
        """Keys and values that one layer reads."""
        _, kv_heads, dim = HEADS[self.shape]
        return 2 * self.batch * self.context * kv_heads * dim * DTYPE.itemsize


class Pages:
    """A filled cache for the largest case of a shape, and launches on its shuffled pages."""

    def __init__(self, shape: str, block_size: int, device: torch.device) -> None:
        self.shape, self.block_size, self.device = shape, block_size, device
        self.width = -(-max(CONTEXTS) // block_size) + 1
        self.heads, kv_heads, dim = HEADS[shape]
        blocks = 1 + max(BATCHES) * self.width
        self.cache = KVCache(KVShape(LAYERS, kv_heads, dim, DTYPE), blocks, block_size, device)
        self.cache.pages.normal_()
        self.cache.clear(0)
        self.order = 1 + torch.randperm(blocks - 1, device=device, dtype=torch.int32)

    def microseconds(self, backend: AttentionBackend, case: Case) -> float:
        """Median time of one layer's call."""
        shape = self.cache.shape
        batch = self._batch(case)
        draw = [
            torch.randn(case.batch, heads, shape.head_dim, dtype=DTYPE, device=self.device)
            for heads in (self.heads, shape.num_kv_heads, shape.num_kv_heads)
        ]

        def step() -> None:
            for layer in range(LAYERS):
                backend.attend(
                    layer, *draw, batch, self.cache, scale=1 / math.sqrt(shape.head_dim), window=None
                )

        return 1e3 * replay_ms(step) / LAYERS

    def _batch(self, case: Case) -> PagedBatch:
        used = -(-case.context // self.block_size)
        tables = torch.zeros(case.batch, self.width, dtype=torch.int32, device=self.device)
        tables[:, :used] = self.order[: case.batch * used].view(case.batch, used)
        last = tables[:, used - 1].long() * self.block_size + (case.context - 1) % self.block_size
        lengths = torch.full((case.batch,), case.context, dtype=torch.int32, device=self.device)
        return PagedBatch(
            slot_mapping=last,
            block_tables=tables,
            context_lens=lengths,
            cu_seqlens_q=torch.arange(case.batch + 1, dtype=torch.int32, device=self.device),
            query_lens=(1,) * case.batch,
            contexts=None,
            decode=True,
        )


def cases(shape: str, block_size: int) -> Iterator[Case]:
    """Batches by contexts, small first."""
    for batch in BATCHES:
        for context in CONTEXTS:
            yield Case(shape, block_size, batch, context)


def compare(copy_gb: float, device: torch.device) -> list[dict[str, Any]]:
    """Each back end on each case of each shape."""
    rows = []
    for shape in HEADS:
        for block_size in (16, 256):
            pages = Pages(shape, block_size, device)
            for backend in _backends(block_size):
                for case in cases(shape, block_size):
                    us = pages.microseconds(backend, case)
                    gb = case.kv_bytes / us / 1e3
                    rows.append(
                        {
                            **asdict(case),
                            "backend": backend.name,
                            "us": round(us, 2),
                            "gb_per_s": round(gb),
                            "share_of_copy": round(gb / copy_gb, 3),
                        }
                    )
            del pages
            torch.cuda.empty_cache()
    return rows


def _backends(block_size: int) -> Iterable[AttentionBackend]:
    yield TritonAttention()
    if block_size % FLASH2_PAGE == 0:
        try:
            yield FlashAttention2()
        except ImportError as error:
            Console(stderr=True).print(f"flash-attn 2 is left out: {error}")


def sweep(device: torch.device) -> list[dict[str, Any]]:
    """Each candidate's times, best first: by how much slower than the fastest of each case, on average."""
    pages = Pages(SWEPT_SHAPE, SWEPT_BLOCK_SIZE, device)
    times: dict[DecodeTiling, dict[str, float]] = {}
    for tiling in CANDIDATES:
        backend = TritonAttention(tiling)
        times[tiling] = {
            f"{case.batch} x {case.context}": round(pages.microseconds(backend, case), 2)
            for case in cases(SWEPT_SHAPE, SWEPT_BLOCK_SIZE)
        }
    fastest = {case: min(row[case] for row in times.values()) for case in times[CANDIDATES[0]]}
    rows = [
        {
            **asdict(tiling),
            "in_use": tiling == fitted(HEADS[SWEPT_SHAPE][2], DTYPE),
            "slowdown": round(math.exp(sum(math.log(row[c] / fastest[c]) for c in row) / len(row)), 3),
            "us": row,
        }
        for tiling, row in times.items()
    ]
    return sorted(rows, key=lambda row: row["slowdown"])


def show(rows: list[dict[str, Any]], candidates: list[dict[str, Any]], copy_gb: float) -> None:
    """Both tables, and the best candidate by name."""
    console = Console(width=120)
    table = Table(title=f"Decode attention, one layer; copies move {copy_gb:.0f} GB/s")
    for column in ("shape", "batch", "context", "triton bs 16", "triton bs 256", "flash-attn 2", "GB/s"):
        table.add_column(column, justify="left" if column == "shape" else "right")
    found = {(r["shape"], r["batch"], r["context"], r["backend"], r["block_size"]): r for r in rows}
    for shape in HEADS:
        for case in cases(shape, 256):
            three = [
                found.get((shape, case.batch, case.context, *which))
                for which in (("triton", 16), ("triton", 256), ("flash", 256))
            ]
            table.add_row(
                shape,
                str(case.batch),
                f"{case.context:,}",
                *(f"{row['us']:.1f} µs" if row else "–" for row in three),
                " / ".join(str(row["gb_per_s"]) if row else "–" for row in three),
            )
    console.print(table)
    if not candidates:
        return
    table = Table(title=f"Candidates, {SWEPT_SHAPE}, block size {SWEPT_BLOCK_SIZE}, µs by batch x context")
    names = ("tile", "chunk", "warps", "stages", "programs_per_sm")
    labels = ("tile", "chunk", "warps", "stages", "per SM")
    for column in (*labels, "slowdown", *candidates[0]["us"]):
        table.add_column(column, justify="right")
    for row in candidates:
        table.add_row(
            *(str(row[name]) for name in names),
            f"{row['slowdown']:.3f}{'*' if row['in_use'] else ''}",
            *(f"{us:.1f}" for us in row["us"].values()),
        )
    console.print(table)
    best = ", ".join(f"{name}={candidates[0][name]}" for name in names)
    console.print(f"Best: DecodeTiling({best}); * is in use.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write header, rows and candidates to this file")
    parser.add_argument("--no-sweep", action="store_true", help="only compare back ends")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures a CUDA device, and torch finds none")
    device = torch.device("cuda")
    torch.manual_seed(0)
    copy_gb = copy_gb_per_s(device)
    candidates = [] if chosen.no_sweep else sweep(device)
    rows = compare(copy_gb, device)
    if chosen.json:
        result = {
            "header": {**header(), "copy_gb_per_s": round(copy_gb)},
            "rows": rows,
            "candidates": candidates,
        }
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    show(rows, candidates, copy_gb)


if __name__ == "__main__":
    main()
