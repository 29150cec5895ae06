"""A back end tried before it is trusted: real calls on a tiny cache, captured, replayed and compared."""

import contextlib
import gc
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, PagedBatch
from engine.attention.needs import AttentionNeeds
from engine.errors import DeviceError
from engine.graphs import CudaRecorder, Recorder, first_line
from engine.kv_cache import NULL_BLOCK, KVCache, KVShape

# What rounding explains, as a share of a row's norm; a wrong page, length or mask is off by far more.
TOLERANCE = {torch.float32: 0.005, torch.float16: 0.005, torch.bfloat16: 0.02}
PROBE_WINDOW = 3
PREFILL = (4, 6)  # new tokens: behind a cached prefix, and of a prompt of which nothing is cached
PADDING_SLOT = -1


def probe(
    backend: AttentionBackend,
    needs: AttentionNeeds,
    block_size: int,
    device: torch.device,
    recorder: Recorder | None = None,
) -> str:
    """Why ``backend`` cannot be used; empty when it can. No memory stays taken, whatever happens.

    Two sequences and one row of padding are decoded: captured at one pair of lengths, replayed at another
    over an output filled with NaN. Then comes a prefill, partly over a cached prefix. All rows must equal a
    float64 reference, and the cache may change nowhere but in the new tokens' own slots.

    Args:
        recorder: how to capture; None takes CUDA graphs.

    Raises:
        DeviceError: the trial broke the CUDA context, so that nothing else would run in this process.
    """
    why = _attempt(backend, needs, block_size, device, recorder)
    if device.type == "cuda":
        _settle(backend, device, failed=bool(why))
    return why


def _attempt(
    backend: AttentionBackend,
    needs: AttentionNeeds,
    block_size: int,
    device: torch.device,
    recorder: Recorder | None,
) -> str:
    try:
        recorder = recorder or CudaRecorder(device)
        with torch.no_grad(), contextlib.closing(recorder):
            trial = _Trial(backend, needs, block_size, device, recorder)
            return next((why for why in trial.findings() if why), "")
    except Exception as error:  # of a library, a compiler, a driver: whatever it is, it is the reason
        return _reason(error)


def _settle(backend: AttentionBackend, device: torch.device, *, failed: bool) -> None:
    """Give memory back, and find out whether the device still works."""
    if failed:
        gc.collect()  # an exception can hold the frames, and so the tensors, that it came through
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except Exception as error:
        raise DeviceError(
            f"The GPU does not answer any more after attention by {backend.name} was tried: "
            f"{first_line(error)}.",
            "Name another back end with --attention.",
        ) from None


def _reason(error: Exception) -> str:
    """One line; of a capture that failed, what made it fail and not that it did."""
    while "capture" in str(error) and isinstance(error.__context__, Exception):
        error = error.__context__
    return str(error) if isinstance(error, _ReadsBackError) else first_line(error)


@dataclass(frozen=True, slots=True)
class _Sequence:
    """A sequence's true keys and values [tokens, kv heads, head dim], and its blocks in order."""

    keys: Tensor
    values: Tensor
    blocks: list[int]

    def slot(self, position: int, block_size: int) -> int:
        return self.blocks[position // block_size] * block_size + position % block_size


class _Trial:
    """A cache with two sequences, and the calls that a back end is put through on it."""

    def __init__(
        self,
        backend: AttentionBackend,
        needs: AttentionNeeds,
        block_size: int,
        device: torch.device,
        recorder: Recorder,
    ) -> None:
        self.backend, self.needs, self.device, self.recorder = backend, needs, device, recorder
        self.block_size = block_size
        self.scale = 1 / math.sqrt(needs.head_dim)
        self.draw = torch.Generator().manual_seed(0)
        # The first sequence grows over a block boundary between capture and replay.
        self.first = (block_size // 2 + 1, 1)
        self.later = (max(block_size, 64) + 3, 5)
        tokens = (self.later[0] + PREFILL[0], max(self.later[1], PREFILL[1]))
        counts = [-(-count // block_size) for count in tokens]
        spare = 1  # a block that nobody owns
        blocks = list(range(sum(counts) + spare, 0, -1))  # not in order of their numbers
        self.width = max(counts) + 1
        shape = KVShape(1, needs.num_kv_heads, needs.head_dim, needs.dtype)
        self.cache = KVCache(shape, 1 + len(blocks), block_size, device)
        # What nobody may read is so large that it shows.
        self.cache.pages.copy_(self._random(*self.cache.pages.shape) * 50)
        self.cache.clear(NULL_BLOCK)
        self.sequences = []
        for count, held in zip(tokens, counts):
            own, blocks = blocks[:held], blocks[held:]
            keys, values = (self._random(count, needs.num_kv_heads, needs.head_dim) for _ in range(2))
            self.sequences.append(_Sequence(keys, values, own))
        tables = [s.blocks + [NULL_BLOCK] * (self.width - len(s.blocks)) for s in self.sequences]
        self.tables = torch.tensor([*tables, [NULL_BLOCK] * self.width], dtype=torch.int32, device=device)

    def findings(self) -> Iterator[str]:
        """What is wrong with each call, empty where nothing is."""
        for sequence, length in zip(self.sequences, self.later):
            slots = self._slots(sequence, range(length - 1))
            self.cache.append(0, sequence.keys[: length - 1], sequence.values[: length - 1], slots)
        self.pages = self.cache.pages.clone()
        for window in (None, PROBE_WINDOW) if self.needs.windowed else (None,):
            yield from self._decode(window)
            yield from self._prefill(window)

    def _decode(self, window: int | None) -> Iterator[str]:
        what = "decode" if window is None else "decode with a window"
        rows = len(self.tables)
        query = self._random(rows, self.needs.num_heads, self.needs.head_dim)
        key, value = (self._random(rows, *self.sequences[0].keys.shape[1:]) for _ in range(2))
        batch = PagedBatch(
            slot_mapping=torch.full((rows,), PADDING_SLOT, dtype=torch.int64, device=self.device),
            block_tables=self.tables,
            context_lens=torch.ones(rows, dtype=torch.int32, device=self.device),
            cu_seqlens_q=torch.arange(rows + 1, dtype=torch.int32, device=self.device),
            query_lens=(1,) * rows,
            contexts=None,
            decode=True,
        )

        def run() -> Tensor:
            return self._attend(query, key, value, batch, window)

        def place(lengths: tuple[int, ...]) -> None:
            for row, (sequence, length) in enumerate(zip(self.sequences, lengths)):
                key[row], value[row] = sequence.keys[length - 1], sequence.values[length - 1]
                batch.context_lens[row] = length
                batch.slot_mapping[row] = sequence.slot(length - 1, self.block_size)

        place(self.first)
        run()  # compiles and allocates what stays
        with _no_reading_back(self.device):
            run()
        replay, out = self.recorder.record(run)
        place(self.later)
        self._expect(batch.slot_mapping[:-1], key[:-1], value[:-1])
        out.fill_(math.nan)
        replay()
        expected = torch.cat(
            [
                self._expected(query[row, None], sequence, length, window)
                for row, (sequence, length) in enumerate(zip(self.sequences, self.later))
            ]
        )
        yield self._pages_changed(what)
        yield self._differs(what, out, expected)

    def _prefill(self, window: int | None) -> Iterator[str]:
        what = "prefill" if window is None else "prefill with a window"
        contexts = (self.later[0] + PREFILL[0], PREFILL[1])
        spans = [range(context - new, context) for context, new in zip(contexts, PREFILL)]
        query = self._random(sum(PREFILL), self.needs.num_heads, self.needs.head_dim)
        key, value = (
            torch.cat([getattr(s, name)[span.start : span.stop] for s, span in zip(self.sequences, spans)])
            for name in ("keys", "values")
        )

        def ints(*values: int) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=self.device)

        batch = PagedBatch(
            slot_mapping=torch.cat([self._slots(s, span) for s, span in zip(self.sequences, spans)]),
            block_tables=self.tables[:-1],
            context_lens=ints(*contexts),
            cu_seqlens_q=ints(0, PREFILL[0], sum(PREFILL)),
            query_lens=PREFILL,
            contexts=contexts,
            decode=False,
        )
        self._expect(batch.slot_mapping, key, value)
        _leave_nan_behind(query)
        out = self._attend(query, key, value, batch, window)
        expected = torch.cat(
            [
                self._expected(rows, sequence, context, window)
                for rows, sequence, context in zip(query.split(PREFILL), self.sequences, contexts)
            ]
        )
        yield self._pages_changed(what)
        yield self._differs(what, out, expected)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, batch: PagedBatch, window: int | None
    ) -> Tensor:
        return self.backend.attend(0, query, key, value, batch, self.cache, scale=self.scale, window=window)

    def _expected(self, query: Tensor, sequence: _Sequence, context: int, window: int | None) -> Tensor:
        """Attention of the last tokens of a sequence, float64 [tokens, heads, head dim]."""
        group = self.needs.num_heads // self.needs.num_kv_heads
        keys, values = (
            part[:context].double().repeat_interleave(group, dim=1)
            for part in (sequence.keys, sequence.values)
        )
        scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * self.scale
        at = torch.arange(context - len(query), context, device=self.device)[:, None]
        position = torch.arange(context, device=self.device)[None]
        hidden = position > at
        if window is not None:
            hidden |= position <= at - window
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)

    def _differs(self, what: str, out: Tensor, expected: Tensor) -> str:
        if not bool(torch.isfinite(out).all()):
            return f"{what} leaves values unwritten or not finite"
        error = (out[: len(expected)].double() - expected).flatten(1).norm(dim=1)
        worst = float((error / expected.flatten(1).norm(dim=1)).max())
        if worst <= TOLERANCE[self.needs.dtype]:
            return ""
        return f"{what} is wrong by {f'{worst:.0%}' if worst < 1 else 'more than its own size'}"

    def _expect(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Note what the pages must hold from now on."""
        for part, new in enumerate((key, value)):
            self.pages[0, part].flatten(0, 1)[slots] = new

    def _pages_changed(self, what: str) -> str:
        pages = self.cache.pages
        if torch.equal(pages, self.pages):
            return ""
        if bool(pages[:, :, NULL_BLOCK].any()):
            return f"{what} writes padding into the null block"
        return f"{what} does not store keys and values in their slots, or writes to others"

    def _slots(self, sequence: _Sequence, positions: range) -> Tensor:
        return torch.tensor(
            [sequence.slot(position, self.block_size) for position in positions],
            dtype=torch.int64,
            device=self.device,
        )

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.draw).to(self.device, self.needs.dtype)


def _leave_nan_behind(like: Tensor) -> None:
    """Free memory of this size full of NaN: an allocator hands it out next, and what is not written shows."""
    torch.full_like(like, math.nan)


@contextlib.contextmanager
def _no_reading_back(device: torch.device) -> Iterator[None]:
    """Values read back to the host are an error: found out here, they break no capture."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls the mode a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    except RuntimeError as error:
        if "synchronizing CUDA operation" in str(error):
            raise _ReadsBackError("it reads a value back to the host, which no graph can hold") from error
        raise
    finally:
        torch.cuda.set_sync_debug_mode(before)


class _ReadsBackError(Exception):
    """A back end that cannot be captured."""
