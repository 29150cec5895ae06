"""A stand-in for CUDA graphs on the CPU, with their two traps: addresses and host numbers are frozen."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree

from engine.core import Engine
from engine.decode_buffers import DecodeBuffers
from engine.graphs import GraphPool, graph_sizes
from engine.static_decode import Decoded, StaticDecode, table_width

_pytree.register_pytree_node(
    Decoded, lambda decoded: ([decoded.logits, decoded.tokens], None), lambda parts, _: Decoded(*parts)
)


class TraceRecorder:
    """Records a function's operations once; a replay runs these over the same tensors.

    As in a CUDA graph, every tensor is the one that was there at the recording, every Python number is a
    constant, a value read back to the host is an error, and results are written where the first ones were.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.fail: Callable[[int], bool] = lambda number: False

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.recorded += 1
        if self.fail(self.recorded):
            raise torch.OutOfMemoryError("CUDA out of memory (told so by the test)\nsecond line")
        with torch.inference_mode(False), torch.no_grad():
            graph = make_fx(lambda: run())()
            output = graph()
        tensors = _pytree.tree_leaves(output)

        @torch.inference_mode()
        def replay() -> None:
            for old, new in zip(tensors, _pytree.tree_leaves(graph())):
                old.copy_(new)

        return replay, output

    @property
    def num_bytes(self) -> int:
        return 0

    def close(self) -> None:
        self.recorded = 0


class RunAgain:
    """Records nothing and runs the function again: for tests of dispatch, where numbers do not matter."""

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        return (lambda: None), run()

    @property
    def num_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


def recorded_pool(sizes: tuple[int, ...], width: int = 1 << 20) -> GraphPool:
    """A pool whose graphs do nothing."""
    pool = GraphPool(sizes, width=width, recorder=RunAgain())
    pool.capture(lambda size: size)
    return pool


def with_graphs(engine: Engine) -> TraceRecorder:
    """Let an engine on the CPU decode as on a GPU: static buffers, and graphs by the stand-in."""
    runner, recorder = engine.runner, TraceRecorder()
    chosen = graph_sizes(engine.config.graph_sizes, engine.config.max_batch)
    width = table_width(engine.scheduler.max_model_len, runner.cache.block_size)
    graphs = GraphPool(chosen, width=width, recorder=recorder)
    rows = max(engine.config.max_batch, *chosen)
    buffers = DecodeBuffers(rows, width, runner.cache.block_size, runner.device)
    runner.static = StaticDecode(runner.model, runner.cache, graphs, buffers, runner.vocab_size)
    runner.graphs = engine.graphs = graphs
    runner.capture(lambda _: None)
    return recorder


def same(left: Tensor, right: Tensor) -> bool:
    """Equal to the last bit."""
    return bool(torch.equal(left, right))
