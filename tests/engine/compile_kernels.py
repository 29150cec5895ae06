"""Compiles the kernels for Hopper, without a card: python -m tests.engine.compile_kernels"""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels.advance import _advance
from engine.kernels.draw import _chosen, _drawn
from engine.kernels.greedy import _best, _slices
from engine.kernels.matrows import embed, matrows
from engine.kernels.matvec import matvec, matvec_join
from engine.kernels.nucleus import narrow
from engine.kernels.paged_prefill import paged_prefill
from engine.kernels.split_attention import split_attention

HALF, FLOAT, INT, LONG = "*bf16", "*fp32", "*i32", "*i64"
PRODUCT = {
    "y": HALF,
    "x": HALF,
    "w": HALF,
    "bias": HALF,
    "residual": HALF,
    "gain": HALF,
    "eps": "fp32",
    "N": "i32",
}
PARTS = {"parts": FLOAT, "peaks": FLOAT, "sums": FLOAT}


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], warps: int) -> None:
    """What is neither in ``types`` nor in ``constants`` must not be an argument of the kernel."""
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    # Addresses and widths are multiples of 16 in use; without that nothing would be pipelined.
    aligned = [name for name in kernel.arg_names if types.get(name, "").startswith("*") or name == "N"]
    hints = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=hints)
    options = {"num_warps": warps, "launch_pdl": True}
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    print(binary.metadata.name, binary.metadata.shared)


def main() -> None:
    """Each kernel once, in a form that a real model takes."""
    flags = {"NORM": True, "SILU": False, "BIAS": True, "RESIDUAL": True, "PDL": True}
    compiled(matvec, PRODUCT, flags | {"K": 1536, "BN": 2, "BK": 512, "SILU": True, "SOON": True}, 2)
    compiled(
        matvec_join,
        PRODUCT | PARTS,
        {"K": 1536, "HEADS": 12, "DIM": 128, "PARTS": 8, "BN": 8, "BK": 512, "BIAS": False, "PDL": True},
        4,
    )
    sums = {"gained": HALF, "squares": FLOAT, "squares_in": FLOAT, "partial": FLOAT, "arrived": INT}
    shape = {"K": 1536, "ROWS": 8, "ROWS_PADDED": 8, "PARTS": 96, "PARTS_PADDED": 128, "EMIT": True}
    for outs, ins, warps, split, stages, cuts, early in (
        (16, 256, 2, 2, 6, 4, False),
        (64, 128, 4, 1, 4, 1, True),
    ):
        tile = {"BN": outs, "BK": ins, "SPLIT": split, "STAGES": stages, "CUTS": cuts, "EARLY": early}
        compiled(matrows, PRODUCT | sums, flags | shape | tile, warps)
    compiled(
        embed,
        {"x": HALF, "gained": HALF, "squares": FLOAT, "ids": LONG, "table": HALF, "gain": HALF},
        {"K": 1536, "BLOCK": 2048, "EMIT": True, "PDL": True},
        4,
    )
    types = PARTS | {"out": HALF, "pieces": FLOAT, "piece_peaks": FLOAT, "piece_sums": FLOAT, "arrived": INT}
    types |= {"qkv": HALF, "keys": HALF, "values": HALF, "tables": INT, "lengths": INT, "slots": LONG}
    types |= {"inv_freq": FLOAT, "norm": FLOAT, "coming": HALF, "slice_bytes": "i32", "scale_log2": "fp32"}
    types |= {"scaling": "fp32", "eps": "fp32", "window": "i32", "table_row": "i32", "row_stride": "i32"}
    heads = {
        "HEADS": 16,
        "KV_HEADS": 8,
        "GROUP_ROWS": 16,
        "DIM": 128,
        "BLOCK": 16,
        "ROPE": True,
        "NORM": True,
    }
    for tile, warps, stages, chunk, workers, parts in ((64, 4, 0, 64, 64, 8), (128, 4, 2, 64, 64, 1)):
        cut = {
            "TILE": tile,
            "CHUNK": chunk,
            "STAGES": stages,
            "WORKERS": workers,
            "PARTS": parts,
            "EARLY": 64,
            "JOIN": 8,
            "GRAIN": 64,
            "TOGETHER": 8,
            "COUNTERS": 9,
        }
        compiled(split_attention, types, heads | cut | {"PDL": True, "PREFETCH": True}, warps)
    types = {"out": HALF, "query": HALF, "keys": HALF, "values": HALF, "tables": INT, "lengths": INT}
    types |= {"starts": INT, "scale_log2": "fp32", "window": "i32", "table_row": "i32"}
    types |= {"query_row": "i32", "query_head": "i32"}
    heads = {"HEADS": 16, "KV_HEADS": 8, "DIM": 128, "DIM_PADDED": 128, "BLOCK": 16, "PRECISION": "tf32"}
    for windowed in (False, True):
        cut = {"ROWS": 128, "TILE": 64, "STAGES": 3, "WINDOWED": windowed}
        compiled(paged_prefill, types, heads | cut, 8)
    compiled(
        _slices,
        {"logits": FLOAT, "best": FLOAT, "where": INT, "V": "i32"},
        {"SLICE": 4096, "SLICES": 38, "PDL": True},
        8,
    )
    compiled(
        _best,
        {"tokens": LONG, "best": FLOAT, "where": INT, "V": "i32"},
        {"SLICES": 38, "PADDED": 64, "PDL": True},
        1,
    )
    columns = {"greedy": "*i1", "temperatures": FLOAT, "top_ks": LONG, "top_ps": "*fp64", "min_ps": FLOAT}
    columns |= {"seeds": LONG, "positions": LONG, "state": LONG, "sums": LONG, "peaks": FLOAT, "places": INT}
    columns |= {"logits": FLOAT, "best": FLOAT, "where": INT, "tokens": LONG, "V": "i32", "rows": "i32"}
    columns |= {"stride": "i32", "greedy_stride": "i32", "level": "i32", "shift": "i32", "select_p": "i32"}
    cut = {"SLICES": 38, "PADDED": 64, "PDL": True}
    compiled(narrow, columns, cut | {"SLICE": 4096, "DIGITS": 16}, 8)
    compiled(_drawn, columns, cut | {"SLICE": 4096, "DIGITS": 16, "LEVELS": 6}, 8)
    compiled(_chosen, columns, cut | {"LEVELS": 6}, 1)
    compiled(
        _advance,
        {
            "columns": LONG,
            "lengths": INT,
            "tables": INT,
            "tokens": LONG,
            "rows": "i32",
            "width": "i32",
            "size": "i32",
        },
        {
            "BLOCK_SIZE": 16,
            "ROWS": 8,
            "IDS": 0,
            "POSITIONS": 1,
            "SLOTS": 2,
            "CONTEXTS": 3,
            "FRESH": 4,
            "SOURCE": 5,
            "ADDED": 6,
        },
        1,
    )


if __name__ == "__main__":
    main()
