"""Tuning: which tiles are fastest for a model's decode steps on the card it is on.

A kernel by itself says little: kernels overlap, share the cache, and one's outputs are the next one's inputs.
So whole steps are timed, as a replayed graph, with the tile of one product changed at a time.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.attention.base import PagedBatch
from engine.device import shared_memory
from engine.errors import DeviceError, EngineError
from engine.graphs import CudaRecorder, first_line
from engine.kernels.candidates import candidates
from engine.kernels.tiles import ROW_CLASSES, Shape, Tile, fits, tile_for
from engine.kv_cache import NULL_BLOCK, KVCache
from engine.models.decode_path import DecodePath
from engine.models.decoder import FusedDecoder
from engine.records import Progress

STAGE = "tuning"
CONTEXT = 512  # tokens of each row
ORDER = ("gate_up", "down", "qkv", "join", "out", "head")  # what takes most of a step first
WARM_UPS, BATCHES, REPLAYS = 3, 5, 10
# Of a step's time: less is the clock's own wavering, and no reason to leave a tile that is in use.
LEAST_GAIN = 0.002
# Norm of the difference of a row's logits over that of the logits. Sums in another order are rounded
# otherwise in every layer, which comes to a percent; a sum that lacks a piece differs by far more.
TOLERANCE = 0.05

Step = Callable[[], Tensor]
Timer = Callable[[Step], tuple[float, Tensor]]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found for one product.

    Attributes:
        before: the tile that was in use, and the step's milliseconds with it.
        after: the fastest one; the same where none was faster.
        tried: how many others ran.
        left_out: what did not run or gave something else, and why.
    """

    shape: Shape
    before: Tile
    before_ms: float
    after: Tile
    after_ms: float
    tried: int
    left_out: tuple[tuple[Tile, str], ...]


def tune(
    decoder: FusedDecoder,
    cache: KVCache,
    rows: Sequence[int] = ROW_CLASSES,
    progress: Callable[[Progress], None] = lambda _: None,
    *,
    timer: Timer | None = None,
    most_shared: int | None = None,
    context: int = CONTEXT,
) -> dict[Shape, Tuned]:
    """Try the tiles of every product; nothing is kept, and the decoder uses its tiles as before afterwards.

    Nothing else may run on the decoder meanwhile.

    Args:
        cache: is read and not written.
        rows: batch sizes, of ``ROW_CLASSES``.
        timer: milliseconds of a step and its logits; by default as a replayed graph on the decoder's card.
        most_shared: bytes of shared memory that a program can have; by default what the card says.

    Raises:
        EngineError: the decoder has no path of such kernels, or its steps fail as they are.
        DeviceError: the card failed in a way that only a new process gets over.
    """
    path, device = decoder.path, decoder.embedding.device
    if path is None:
        raise EngineError("There is nothing to tune: the model's decode steps have no kernels of ours.")
    if timer is None:
        timer = GraphTimer(device)
        most_shared = most_shared or shared_memory(device)
    before = dict(path.tiles)
    found: dict[Shape, Tuned] = {}
    try:
        with torch.inference_mode():
            for size in rows:
                vocab = decoder.head.shape[0]
                step = step_of(path, cache, size, vocab, context)
                # Of a single token attention is its own value, whatever the cache holds: over an empty cache
                # it would be next to nothing, and the output projection would hardly be seen in the logits.
                short = step_of(path, cache, size, vocab, context=1)
                found.update(_Search(path, step, short, timer, most_shared, progress).products(size))
    finally:
        path.tiles = before
    return found


def step_of(path: DecodePath, cache: KVCache, rows: int, vocab: int, context: int) -> Step:
    """A decode step of rows behind ``context`` tokens, spread over the cache's blocks as they are.

    No row has a slot, so that nothing is written to the cache.
    """
    device = cache.pages.device
    width = -(-context // cache.block_size)
    blocks = torch.arange(rows * width, dtype=torch.int32, device=device).view(rows, width)
    blocks = blocks % (cache.num_blocks - 1) + 1 if cache.num_blocks > 1 else blocks.fill_(NULL_BLOCK)
    batch = PagedBatch(
        slot_mapping=torch.full((rows,), -1, dtype=torch.int64, device=device),
        block_tables=blocks,
        context_lens=torch.full((rows,), context, dtype=torch.int32, device=device),
        cu_seqlens_q=torch.arange(rows + 1, dtype=torch.int32, device=device),
        query_lens=(1,) * rows,
        contexts=None,
        decode=True,
    )
    ids = torch.arange(rows, device=device) * 7919 % vocab  # all of them others
    return lambda: path.forward(ids, batch, cache)


class _Search:
    """The products of one step, one after another; what was found for one is used while the next is tuned."""

    def __init__(
        self,
        path: DecodePath,
        step: Step,
        short: Step,
        timer: Timer,
        most_shared: int | None,
        progress: Callable[[Progress], None],
    ) -> None:
        self._path, self._step, self._short, self._timer = path, step, short, timer
        self._most_shared, self._progress = most_shared, progress

    def products(self, rows: int) -> dict[Shape, Tuned]:
        """What was found for each product of a step of so many rows."""
        shapes = sorted(self._path.products(rows), key=lambda shape: ORDER.index(shape.kind))
        try:
            expected = self._run()[1]
        except Exception as error:
            raise EngineError(
                f"A step of {rows} rows fails with the tiles in use: {first_line(error)}."
            ) from error
        return {shape: self._product(shape, expected) for shape in shapes}

    def _product(self, shape: Shape, expected: Tensor) -> Tuned:
        path, place = self._path, (shape.kind, shape.rows)
        usual = path.tile(shape.kind, shape.outs, shape.ins, shape.rows)
        listed = (tile_for(shape), *candidates(shape, self._most_shared))
        others = [tile for tile in dict.fromkeys(listed) if tile != usual and fits(tile, shape)]
        times: dict[Tile, float] = {}
        left_out: list[tuple[Tile, str]] = []
        waiting = [usual, *others]
        for number, tile in enumerate(waiting):
            what = f"{shape.rows} rows, {shape.kind}: {tile} ({number + 1} of {len(waiting)})"
            self._progress(Progress(STAGE, what, number / len(waiting)))
            path.tiles[place] = tile
            reason = self._measure(tile, expected, times)
            if reason:
                left_out.append((tile, reason))
            if tile == usual and reason:
                raise EngineError(f"A step of {shape.rows} rows does not give the same twice: {reason}.")
            if number == len(others) and shape.rows > 1:  # the best one in its other form too
                best = min(times, key=lambda tile: times[tile])
                waiting += {replace(best, early=not best.early)} - {*times, *others}
        best = min(times, key=lambda tile: times[tile])
        if times[best] > times[usual] * (1 - LEAST_GAIN):
            best = usual
        path.tiles[place] = best
        return Tuned(shape, usual, times[usual], best, times[best], len(times) - 1, tuple(left_out))

    def _run(self) -> tuple[float, Tensor]:
        """The milliseconds of a step, and the logits of the timed step and the short one below each other."""
        ms, logits = self._timer(self._step)
        return ms, torch.cat([logits, self._short()])

    def _measure(self, tile: Tile, expected: Tensor, times: dict[Tile, float]) -> str:
        """Enter a tile's time, or say why it has none. What a compiler or a driver can say is of any kind."""
        try:
            ms, logits = self._run()
            off = difference(logits, expected)
        except Exception as error:
            self._recover(expected.device, error)
            return first_line(error)
        if not off <= TOLERANCE:  # NaN is not either
            self._recover(expected.device)
            return f"its logits are off by {off:.2g}"
        times[tile] = ms
        return ""

    def _recover(self, device: torch.device, error: Exception | None = None) -> None:
        """Kernels that broke off may have counted; a card that takes no launch any more says so here."""
        try:
            self._path.reset()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except Exception as failure:
            raise DeviceError(
                f"Tuning broke the device: {first_line(error or failure)}.", "Start the program again."
            ) from failure


def difference(logits: Tensor, expected: Tensor) -> float:
    """The largest distance of a row's logits from those expected, relative to these; both [rows, vocab]."""
    return float(((logits - expected).norm(dim=1) / expected.norm(dim=1)).max())


class GraphTimer:
    """Times a step as it runs in the engine: captured once, replayed many times, by the card's own clock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, step: Step) -> tuple[float, Tensor]:
        """The median of a few batches of replays in milliseconds, and the logits of the last one."""
        with torch.cuda.device(self._device):
            recorder = CudaRecorder(self._device)
            try:
                replay, logits = recorder.record(step)
                for _ in range(WARM_UPS):
                    replay()
                ms = statistics.median(self._batch_ms(replay) for _ in range(BATCHES))
                return ms, logits.clone()
            finally:
                recorder.close()
                torch.cuda.empty_cache()  # of graphs that are gone

    def _batch_ms(self, replay: Callable[[], None]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPLAYS):
            replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / REPLAYS
