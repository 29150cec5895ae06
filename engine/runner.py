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
from engine.readback import Readback, Slot
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


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step, whose tokens nobody has read.

    Attributes:
        launched: for each launch the requests that get a token, and what was sampled.
        static: its decode rows, and nothing else that is sampled, went over static buffers by columns that
            move on by themselves: the next step can be launched before this one is read.
        width: columns of its widest decode table.
    """

    plan: StepPlan
    dispatch: Dispatch | None
    launched: list[tuple[Sequence[Request], Sampled]]
    slot: Slot
    static: bool
    width: int
    launch_ms: float


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
        self._readback = Readback(self.device)

    def launch(self, plan: StepPlan, before: Flight | None = None) -> Flight:
        """Launch a step, decode first so that it never waits for a prefill; does not wait for its tokens.

        Args:
            before: the step under way whose tokens this one computes, of which ``can_follow`` was true.
        """
        began = time.perf_counter()
        static, decode = self.static, plan.decode
        dispatch, width = None, 0
        if static is not None:
            for chunk in plan.prefill:
                static.buffers.forget(chunk.request.id)
        if decode:
            width = max([len(request.block_table) for request in decode])
            dispatch = self.graphs.dispatch(len(decode), width)
            if static is not None and static.fits(len(decode), width):
                static.fill(decode, dispatch, None if before is None else before.plan.decode)
            elif static is not None:
                static.buffers.break_off()
                static = None
        slot = self._readback.begin()  # behind the host's own work, in which the device waits
        for source, target in plan.copies:
            self.cache.copy(source, target)
        launched: list[tuple[Sequence[Request], Sampled]] = []
        if decode and dispatch is not None:
            sampled = static.launch(decode, dispatch) if static else self._decode(decode)
            launched.append((decode, sampled))
        if plan.prefill:
            completed = [chunk.request for chunk in plan.prefill if chunk.completes]
            prefilled = self._prefill(plan.prefill, completed)
            if prefilled is not None:
                launched.append((completed, prefilled))
        slot.end([sampled.token_ids for _, sampled in launched])
        goes_on = bool(decode) and static is not None and static.buffers.kind.static
        return Flight(plan, dispatch, launched, slot, goes_on, width, (time.perf_counter() - began) * 1e3)

    def can_follow(self, flight: Flight) -> bool:
        """Whether the step behind a launched one can be launched before its tokens are read.

        Penalties and log probabilities need these on the host, as do inputs that are built anew.
        """
        static = self.static
        return flight.static and static is not None and static.fits(len(flight.plan.decode), flight.width + 1)

    def read(self, flight: Flight) -> StepOutput:
        """The tokens of a launched step; waits for that step and for nothing behind it."""
        began = time.perf_counter()
        parts, device_ms = flight.slot.read()
        tokens: list[tuple[Request, int]] = []
        logprobs: dict[int, dict[int, float]] = {}
        for (requests, sampled), ids in zip(flight.launched, parts):
            tokens.extend(zip(requests, ids))
            if sampled.logprobs is not None:
                logprobs.update(_logprobs_of(requests, sampled))
        return StepOutput(
            tokens,
            logprobs,
            flight.dispatch,
            launch_ms=flight.launch_ms,
            device_ms=device_ms,
            read_ms=(time.perf_counter() - began) * 1e3,
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

    @torch.inference_mode()
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

    @torch.inference_mode()
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
