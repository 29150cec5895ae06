"""ModelRunner: weights, KV cache and the two launches of a step."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.graphs import Dispatch, GraphPool
from engine.kv_cache import NULL_BLOCK, KVCache
from engine.launch_inputs import InputBuilder, LaunchInputs
from engine.plan import PrefillChunk, StepPlan
from engine.readback import Readback, Slot
from engine.records import Progress
from engine.request import Request, SamplingParams
from engine.sampler import Sampled, SamplingBatch, sample
from engine.sampling_batch import SamplingColumns
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
        self._inputs = InputBuilder(cache.block_size, self.device)
        self._sampling = SamplingColumns(self.device, vocab_size)

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
        self._logits(self._inputs.packed([[NULL_BLOCK]], [0], [0], [1], [0], decode=True))
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
        inputs = self._inputs.packed([table], [0] * length, positions, [length], [0] * max_batch)
        inputs.batch.slot_mapping.zero_()
        logits = self._logits(inputs)
        dearest = SamplingParams(temperature=1.0, top_p=0.9, top_k=self.vocab_size // 2)
        requests = [Request(0, [0], dearest)] * max_batch
        sample(logits, SamplingBatch.of(requests, self.device, self.vocab_size))
        # Few rows may take other kernels, which a first prompt should not have to wait for.
        sample(logits[:1], SamplingBatch.of(requests[:1], self.device, self.vocab_size))
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
        return self._sample(self._inputs.decode(requests), requests)

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
        inputs = self._inputs.packed(
            [chunk.request.block_table for chunk in chunks],
            input_ids,
            positions,
            [chunk.end - chunk.start for chunk in chunks],
            # A launch whose chunks all end early still fills the cache; its one row of logits is dropped.
            rows or [len(input_ids) - 1],
        )
        if not completed:
            self._logits(inputs)
            return None
        return self._sample(inputs, completed)

    def _sample(self, inputs: LaunchInputs, requests: Sequence[Request]) -> Sampled:
        return sample(self._logits(inputs), self._sampling.of(requests))

    def _logits(self, inputs: LaunchInputs) -> Tensor:
        return self.model.forward(inputs.input_ids, inputs.positions, inputs.batch, self.cache, inputs.rows)


def _logprobs_of(requests: Sequence[Request], sampled: Sampled) -> dict[int, dict[int, float]]:
    """Chosen and top log probabilities of the rows that asked for them."""
    return {
        request.id: sampled.logprobs_of(row, request.params.logprobs)
        for row, request in enumerate(requests)
        if request.params.logprobs
    }
