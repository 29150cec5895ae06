"""GraphPool: captured decode graphs by padded batch size, and what decides for or against one."""

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from engine.attention.base import AttentionBackend
from engine.records import Progress, StepMode

T = TypeVar("T")
STAGE = "capturing graphs"
DRIVER_BYTES = 16 * 2**20  # of a graph of some thousand kernels


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A decision: ``size`` is the padded batch of the graph to replay, None runs eager for ``reason``."""

    size: int | None
    reason: str

    @property
    def mode(self) -> StepMode:
        return "eager" if self.size is None else "graph"


class Recorder(Protocol):
    """What turns a function into something that can be replayed."""

    def record(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Call ``run`` and hold its launches: returns what repeats them, and what ``run`` returned.

        What was returned keeps its addresses: a replay writes to them.
        """
        ...

    @property
    def num_bytes(self) -> int:
        """Memory that the recordings keep."""
        ...

    def close(self) -> None:
        """Give up everything that was recorded."""
        ...


class GraphPool:
    """Captured decode graphs by padded batch size.

    Args:
        sizes: batch sizes to capture, ascending.
        width: columns of the static block table.
        recorder: how to capture; None where ``unavailable`` says why nothing can be.
        unavailable: why no graph can be captured here; empty when they can.
        mode: what the user asked for.
    """

    def __init__(
        self,
        sizes: Sequence[int] = (),
        *,
        width: int = 0,
        recorder: Recorder | None = None,
        unavailable: str = "",
        mode: StepMode = "graph",
    ) -> None:
        self.wanted = tuple(sizes)
        self.width = width
        self.recorder = recorder
        self.unavailable = unavailable
        self.mode: StepMode = mode
        self.failures: dict[int, str] = {}
        self._graphs: dict[int, tuple[Callable[[], None], Any]] = {}

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that can be replayed, ascending."""
        return tuple(sorted(self._graphs))

    @property
    def num_bytes(self) -> int:
        """Memory that the graphs keep."""
        return self.recorder.num_bytes if self.recorder is not None and self._graphs else 0

    @property
    def effective_mode(self) -> StepMode:
        """``eager`` where graphs were asked for but cannot be had."""
        return "eager" if self.unavailable else self.mode

    def capture(
        self, run: Callable[[int], Any], progress: Callable[[Progress], None] = lambda _: None
    ) -> None:
        """Record ``run(size)`` for every wanted size, largest first, so that all share its memory.

        A size that fails is left out with its reason; when none is left the pool is unavailable.
        """
        if self.recorder is None:
            return
        sizes = sorted(self.wanted, reverse=True)
        for number, size in enumerate(sizes):
            progress(Progress(STAGE, f"batch {size} ({number + 1} of {len(sizes)})", number / len(sizes)))
            try:
                self._graphs[size] = self.recorder.record(lambda size=size: run(size))  # type: ignore[misc]
            except Exception as error:  # whatever a driver, a kernel or the allocator says
                self.failures[size] = f"graph {size} could not be captured: {first_line(error)}"
        progress(Progress(STAGE, "done", 1.0))
        if self.wanted and not self._graphs:
            self.unavailable = next(iter(self.failures.values()))

    def pad(self, batch: int) -> int:
        """The smallest wanted size that holds ``batch`` rows; ``batch`` itself beyond the largest.

        Eager steps are padded like graphs: the same shapes take the same kernels, so both give the
        same tokens to the last bit.
        """
        place = bisect_left(self.wanted, batch)
        return self.wanted[place] if place < len(self.wanted) else batch

    def dispatch(self, batch: int, width: int = 0) -> Dispatch:
        """Decide how a decode batch of ``batch`` rows runs whose widest block table has ``width`` columns."""
        if self.unavailable:
            return Dispatch(None, self.unavailable)
        if self.mode == "eager":
            return Dispatch(None, "eager mode was chosen")
        if width > self.width:
            return Dispatch(None, f"a block table of {width} columns is wider than the graphs' {self.width}")
        size = self.pad(batch)
        if size in self._graphs:
            return Dispatch(size, "")
        if size in self.failures:
            return Dispatch(None, self.failures[size])
        return Dispatch(None, f"batch {batch} is larger than the largest graph, {max(self.wanted)}")

    def output(self, size: int) -> Any:
        """What a captured graph writes to; its content is that of the latest replay."""
        return self._graphs[size][1]

    def replay(self, size: int) -> Any:
        """Launch a captured graph; returns what its ``run`` returned, with new content."""
        launch, output = self._graphs[size]
        launch()
        return output

    def close(self) -> None:
        """Give the graphs and their memory back: a process that ends with live graphs can hang."""
        self._graphs.clear()
        if self.recorder is not None:
            self.recorder.close()
        self.unavailable = self.unavailable or "the engine is closed"


class CudaRecorder:
    """Captures CUDA graphs that share one memory pool.

    Capture is thread-local, so that a CUDA call of another thread does not break it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream(device)
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def record(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """See ``Recorder.record``; one call before it warms up libraries, kernels and addresses."""
        main = torch.cuda.current_stream(self._device)
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            run()
        main.wait_stream(self._side)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            with self._capturing(graph, self._pool):
                output = run()
        except BaseException:
            self._recover()
            raise
        self._graphs.append(graph)
        return graph.replay, output

    def _capturing(self, graph: torch.cuda.CUDAGraph, pool: Any) -> torch.cuda.graph:
        return torch.cuda.graph(graph, pool=pool, stream=self._side, capture_error_mode="thread_local")

    def _recover(self) -> None:
        """Undo what a capture that broke leaves behind: torch then stops before it gives up the allocator's
        routing into the pool and the generator's state, and everything later would allocate there.
        """
        torch.cuda.synchronize(self._device)
        with contextlib.suppress(Exception):
            torch._C._cuda_endAllocateToPool(self._device.index or 0, self._pool)
        with contextlib.suppress(Exception):
            graph = torch.cuda.CUDAGraph()
            with self._capturing(graph, torch.cuda.graph_pool_handle()):
                torch.empty(1, device=self._device).zero_()
            graph.reset()

    @property
    def num_bytes(self) -> int:
        """The allocator's pool of these graphs, and an allowance for the driver's lists of launches.

        What is free on the card would tell of the driver's part too, and of other programs' doings.
        """
        segments = torch.cuda.memory_snapshot()
        pool = sum(part["total_size"] for part in segments if part["segment_pool_id"] == self._pool)
        return pool + DRIVER_BYTES * len(self._graphs)

    def close(self) -> None:
        """Reset every graph once the device is done with it."""
        torch.cuda.synchronize(self._device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()


def graph_sizes(wanted: Sequence[int] | None, max_batch: int) -> tuple[int, ...]:
    """Padded batch sizes: those asked for, or powers of two up to ``max_batch`` and that itself."""
    if wanted is not None:
        return tuple(sorted(set(wanted)))
    powers = [1 << exponent for exponent in range(max_batch.bit_length())]
    return tuple(sorted({*powers, max_batch}))


def graphs_unavailable(device: torch.device, backend: AttentionBackend, sizes: Sequence[int]) -> str:
    """Why CUDA graphs cannot be captured here; empty when they can."""
    if device.type != "cuda":
        return f"no CUDA graphs on {device.type}"
    if not backend.capturable:
        return f"attention by {backend.name} cannot be captured"
    return "" if sizes else "no graph sizes were asked for"


def first_line(error: BaseException) -> str:
    """An error in one line."""
    text = (str(error).strip().splitlines() or [""])[0].strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
