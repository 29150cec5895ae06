"""ModelRunner: weights, KV cache and the two launches of a step."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.base import PagedBatch
from engine.graphs import Dispatch, GraphPool
from engine.kv_cache import NULL_BLOCK, KVCache
from engine.records import Progress
from engine.request import Request, SamplingParams
from engine.sampler import Sampled, SamplingBatch, sample
from engine.scheduler import PrefillChunk, StepPlan
from engine.static_decode import Model, StaticDecode


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Tokens of a step and where its time went, in milliseconds.

    ``tokens`` holds one entry a request that got a token; ``logprobs`` only those that asked.
    """

    tokens: list[tuple[Request, int]]
    logprobs: dict[int, dict[int, float]]
    dispatch: Dispatch | None
    launch_ms: float
    device_ms: float | None
    read_ms: float


class ModelRunner:
    """Turns a step plan into launches: at most one decode batch, then at most one packed prefill.

    Args:
        static: decode over static buffers, where graphs can be captured; None builds the inputs of each
            step anew, which is quicker where a launch costs nothing.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        graphs: GraphPool,
        vocab_size: int,
        static: StaticDecode | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.graphs = graphs
        self.vocab_size = vocab_size
        self.static = static
        self.device = cache.pages.device
        self._timer = _DeviceTimer(self.device)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepOutput:
        """Launch a step and read its tokens; decode is launched first so that it never waits."""
        began = time.perf_counter()
        static = self.static
        if static is not None:
            for chunk in plan.prefill:
                static.buffers.forget(chunk.request.id)
        dispatch = None
        if plan.decode:
            width = max(len(request.block_table) for request in plan.decode)
            dispatch = self.graphs.dispatch(len(plan.decode), width)
            if static is not None and static.fits(len(plan.decode), width):
                static.fill(plan.decode, dispatch)
            else:
                static = None
        self._timer.start()  # behind the host's own work, in which the device waits
        for source, target in plan.copies:
            self.cache.copy(source, target)
        launched: list[tuple[Sequence[Request], Sampled]] = []
        if plan.decode and dispatch is not None:
            sampled = static.launch(plan.decode, dispatch) if static else self._decode(plan.decode)
            launched.append((plan.decode, sampled))
        if plan.prefill:
            completed = [chunk.request for chunk in plan.prefill if chunk.completes]
            prefilled = self._prefill(plan.prefill, completed)
            if prefilled is not None:
                launched.append((completed, prefilled))
        self._timer.stop()
        launched_at = time.perf_counter()
        tokens: list[tuple[Request, int]] = []
        logprobs: dict[int, dict[int, float]] = {}
        for requests, sampled in launched:
            tokens.extend(zip(requests, sampled.token_ids.tolist()))
            logprobs.update(_logprobs_of(requests, sampled))
        device_ms = self._timer.milliseconds()
        read_at = time.perf_counter()
        return StepOutput(
            tokens,
            logprobs,
            dispatch,
            launch_ms=(launched_at - began) * 1e3,
            device_ms=device_ms,
            read_ms=(read_at - launched_at) * 1e3,
        )

    @torch.inference_mode()
    def warm_up(self) -> None:
        """One forward pass over the null block, so that the first prompt does not pay for set-up."""
        batch = self._batch([[NULL_BLOCK]], [0], [1], decode=True)
        self._logits([0], [0], batch, torch.zeros(1, dtype=torch.int64, device=self.device))
        self.cache.clear(NULL_BLOCK)

    @torch.inference_mode()
    def rehearse(self, prefill_tokens: int, context: int, max_batch: int) -> None:
        """The largest prefill and the dearest sampling that can come, over the null block alone.

        What they take at their peak has to stay free beside weights, graphs and cache.

        Args:
            prefill_tokens: most tokens of one prefill.
            context: longest sequence, whose last tokens these are.
            max_batch: most rows that are sampled at once.
        """
        length = min(prefill_tokens, context)
        positions = list(range(context - length, context))
        table = [NULL_BLOCK] * -(-context // self.cache.block_size)
        batch = self._batch([table], positions, [length], decode=False)
        batch.slot_mapping.zero_()
        rows = torch.zeros(max_batch, dtype=torch.int64, device=self.device)
        logits = self._logits([0] * length, positions, batch, rows)
        dearest = SamplingParams(temperature=1.0, top_p=0.9, top_k=self.vocab_size // 2)
        requests = [Request(0, [0], dearest)] * max_batch
        sample(logits, SamplingBatch.of(requests, self.device, self.vocab_size))
        self.cache.clear(NULL_BLOCK)

    @torch.inference_mode()
    def capture(self, progress: Callable[[Progress], None]) -> None:
        """Capture the graphs of the pool, and leave the null block as it has to be: all zero."""
        if self.static is None:
            return
        # Each capture collects garbage; frozen, the modules and imports are not searched every time.
        gc.collect()
        gc.freeze()
        try:
            self.static.capture(progress)
        finally:
            gc.unfreeze()
        self.cache.clear(NULL_BLOCK)

    def close(self) -> None:
        """Drop graphs, weights and cache."""
        if self.static is not None:
            self.static.close()
            self.static = None
        del self.model, self.cache

    def _decode(self, requests: Sequence[Request]) -> Sampled:
        positions = [request.num_tokens - 1 for request in requests]
        input_ids = [request.output_ids[-1] for request in requests]
        rows = torch.arange(len(requests), device=self.device)
        batch = self._batch(
            [request.block_table for request in requests],
            positions,
            [1] * len(requests),
            decode=True,
        )
        return self._launch(input_ids, positions, batch, rows, requests)

    def _prefill(self, chunks: Sequence[PrefillChunk], completed: Sequence[Request]) -> Sampled | None:
        input_ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        for chunk in chunks:
            input_ids += chunk.token_ids()
            positions += range(chunk.start, chunk.end)
            if chunk.completes:
                rows.append(len(input_ids) - 1)
        batch = self._batch(
            [chunk.request.block_table for chunk in chunks],
            positions,
            [chunk.end - chunk.start for chunk in chunks],
            decode=False,
        )
        # A launch whose chunks all end early still fills the cache; its one row of logits is dropped.
        wanted = torch.tensor(rows or [len(input_ids) - 1], device=self.device)
        if not completed:
            self._logits(input_ids, positions, batch, wanted)
            return None
        return self._launch(input_ids, positions, batch, wanted, completed)

    def _launch(
        self,
        input_ids: list[int],
        positions: list[int],
        batch: PagedBatch,
        rows: Tensor,
        requests: Sequence[Request],
    ) -> Sampled:
        logits = self._logits(input_ids, positions, batch, rows)
        return sample(logits, SamplingBatch.of(requests, self.device, self.vocab_size))

    def _logits(self, input_ids: list[int], positions: list[int], batch: PagedBatch, rows: Tensor) -> Tensor:
        return self.model.forward(
            torch.tensor(input_ids, device=self.device),
            torch.tensor(positions, device=self.device),
            batch,
            self.cache,
            rows,
        )

    def _batch(
        self,
        tables: Sequence[Sequence[int]],
        positions: Sequence[int],
        query_lens: list[int],
        *,
        decode: bool,
    ) -> PagedBatch:
        """The attention value of packed tokens; tables are checked here, not on the device."""
        size = self.cache.block_size
        slots: list[int] = []
        contexts: list[int] = []
        cumulative = [0]
        for table, length in zip(tables, query_lens):
            begin = cumulative[-1]
            own = positions[begin : begin + length]
            if own[-1] // size >= len(table):
                raise IndexError(f"position {own[-1]} is outside a table of {len(table)} blocks of {size}")
            slots += [table[position // size] * size + position % size for position in own]
            contexts.append(own[-1] + 1)
            cumulative.append(begin + length)
        width = max(len(table) for table in tables)
        padded = [[*table, *[NULL_BLOCK] * (width - len(table))] for table in tables]
        return PagedBatch(
            slot_mapping=torch.tensor(slots, device=self.device),
            block_tables=torch.tensor(padded, dtype=torch.int32, device=self.device),
            context_lens=torch.tensor(contexts, dtype=torch.int32, device=self.device),
            cu_seqlens_q=torch.tensor(cumulative, dtype=torch.int32, device=self.device),
            query_lens=tuple(query_lens),
            contexts=tuple(contexts),
            decode=decode,
        )


def _logprobs_of(requests: Sequence[Request], sampled: Sampled) -> dict[int, dict[int, float]]:
    """Chosen and top log probabilities of the rows that asked for them."""
    return {
        request.id: sampled.logprobs_of(row, request.params.logprobs)
        for row, request in enumerate(requests)
        if request.params.logprobs
    }


class _DeviceTimer:
    """Time between two points of the stream, from CUDA events; nothing on other devices."""

    def __init__(self, device: torch.device) -> None:
        self._events = (
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            if device.type == "cuda"
            else None
        )

    def start(self) -> None:
        if self._events:
            self._events[0].record()

    def stop(self) -> None:
        if self._events:
            self._events[1].record()

    def milliseconds(self) -> float | None:
        """Call after the launch's tokens were read: the second event has passed by then."""
        if not self._events:
            return None
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1]))
