"""StaticDecode: decode over buffers whose addresses never change, by graph replay or launched one by one."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.base import PagedBatch
from engine.decode_buffers import DecodeBuffers
from engine.graphs import Dispatch, GraphPool, first_line
from engine.kv_cache import KVCache
from engine.records import Progress
from engine.request import Request
from engine.sampler import (
    USUAL,
    Sampled,
    SamplingBatch,
    SamplingKind,
    graph_kind,
    greedy_tokens,
    sample,
)


class Model(Protocol):
    """What decode needs of a model."""

    def forward(
        self, input_ids: Tensor, positions: Tensor, batch: PagedBatch, cache: KVCache, rows: Tensor | None
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one decode launch leaves on the device: logits [size, vocab] and greedy tokens [size] int64, which
    are the buffers' own.
    """

    logits: Tensor
    tokens: Tensor


class StaticDecode:
    """Decode batches of at most ``buffers.rows`` requests.

    Graph and eager run the same function on the same padded shapes, so their tokens are the same. The
    greedy token is part of it; batches that draw go through a second graph, captured the first time that
    a batch of its size and kind comes; penalties and log probabilities are computed behind the replay
    without one. However its tokens come about, a step leaves them in the buffers, where the next one takes
    them up.
    """

    def __init__(
        self, model: Model, cache: KVCache, graphs: GraphPool, buffers: DecodeBuffers, vocab_size: int
    ) -> None:
        self.model = model
        self.cache = cache
        self.graphs = graphs
        self.buffers = buffers
        self.vocab_size = vocab_size
        self._batches: dict[int, PagedBatch] = {}
        self._samplers: dict[tuple[int, SamplingKind], Callable[[], None] | None] = {}
        self._tokens: dict[int, Tensor] = {}
        self.sampler_failure = ""

    def capture(self, progress: Callable[[Progress], None] = lambda _: None) -> None:
        """Capture every size of the pool, and its sampling for what most chats ask: temperature and top-p.

        The buffers hold padding rows only.
        """
        self._samplers.clear()
        self.graphs.capture(self._run, progress)
        for size in self.graphs.sizes:
            self._draw(size, USUAL, self.graphs.output(size).logits)

    def fits(self, rows: int, width: int) -> bool:
        """Whether the buffers hold so many rows, and block tables of so many columns."""
        return self.graphs.pad(rows) <= self.buffers.rows and width <= self.buffers.width

    def fill(
        self, requests: Sequence[Request], dispatch: Dispatch, before: Sequence[Request] | None = None
    ) -> None:
        """Send the rows of a batch to the device; for ``before`` see ``DecodeBuffers.fill``."""
        size = dispatch.size or self.graphs.pad(len(requests))
        self.buffers.fill(requests, size, self.vocab_size, before)

    def launch(self, requests: Sequence[Request], dispatch: Dispatch) -> Sampled:
        """Compute the next token of the rows that ``fill`` was given; waits for nothing.

        What comes back lies in the buffers until the next launch.
        """
        count = len(requests)
        if dispatch.size is None:
            with torch.inference_mode():
                decoded = self._run(self.graphs.pad(count))
        else:
            decoded = self.graphs.replay(dispatch.size)
        kind = self.buffers.kind
        if kind.static:
            if not kind.greedy and (
                dispatch.size is None or not self._draw(dispatch.size, kind, decoded.logits)
            ):
                with torch.inference_mode():
                    self._sample(decoded.logits, kind)
            return Sampled(self._tokens_of(count))
        with torch.inference_mode():
            batch = SamplingBatch.of(requests, decoded.logits.device, self.vocab_size)
            return sample(decoded.logits[:count], batch, self._tokens_of(count))

    def close(self) -> None:
        """Drop every graph."""
        self._samplers.clear()
        self.graphs.close()

    def _run(self, size: int) -> Decoded:
        """One decode over the first ``size`` rows; reads nothing but the buffers."""
        buffers = self.buffers
        buffers.advance(size)
        batch = self._batches.get(size)
        if batch is None:
            batch = self._batches[size] = buffers.batch(size)
        logits = self.model.forward(
            buffers.input_ids(size), buffers.positions(size), batch, self.cache, rows=None
        )
        tokens = buffers.tokens[:size]
        greedy_tokens(logits.float(), out=tokens)
        return Decoded(logits, tokens)

    def _tokens_of(self, count: int) -> Tensor:
        """The first ``count`` tokens of the buffers, a view that is made once."""
        tokens = self._tokens.get(count)
        if tokens is None:
            tokens = self._tokens[count] = self.buffers.tokens[:count]
        return tokens

    def _sample(self, logits: Tensor, kind: SamplingKind) -> Tensor:
        """Draw a token for every row of logits [size, vocab], padding included, into the buffers."""
        size = logits.shape[0]
        return sample(logits, self.buffers.sampling(size, kind), self.buffers.tokens[:size]).token_ids

    def _draw(self, size: int, kind: SamplingKind, logits: Tensor) -> bool:
        """Draw by a graph, captured where there is none yet; False where that cannot be had."""
        kind = graph_kind(kind, logits.device)
        key = (size, kind)
        if key not in self._samplers:
            recorder = self.graphs.recorder
            assert recorder is not None, "a size was dispatched, so something recorded it"
            try:
                with torch.inference_mode():
                    self._samplers[key], _ = recorder.record(lambda: self._sample(logits, kind))
            except Exception as error:  # the step goes on without; what failed is told
                self._samplers[key] = None
                self.sampler_failure = f"sampling of batch {size} could not be captured: {first_line(error)}"
                print(self.sampler_failure, file=sys.stderr)  # the engine's log
        replay = self._samplers[key]
        if replay is None:
            return False
        replay()
        return True


def table_width(max_model_len: int, block_size: int) -> int:
    """Columns for the longest sequence, and one for the token that fills its last block."""
    return -(-max_model_len // block_size) + 1
