"""DecodeBuffers: the static inputs that every captured decode graph reads, and their host side."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention.base import PagedBatch
from engine.kv_cache import NULL_BLOCK
from engine.request import Request
from engine.sampling_batch import SamplingBatch, SamplingKind, is_greedy

# Rows of the one int64 array that goes to the device each step; reals are float64 in the same bytes.
IDS, POSITIONS, SLOTS, CONTEXTS, LENGTHS, GREEDY, TOP_K, SEED, TEMPERATURE, TOP_P, MIN_P = range(11)
COLUMNS = 11
NO_SLOT = -1


class DecodeBuffers:
    """One row a request of a decode batch; addresses never change.

    ``fill`` writes what differs from the step before into pinned memory and starts at most two copies.
    Rows beyond the real ones are padding: token 0 at position 0, no slot, one token of context on the
    null block, greedy.

    Args:
        rows: most rows of a batch, padding included.
        width: columns of the block table, for the longest sequence there can be.
    """

    def __init__(self, rows: int, width: int, block_size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.rows = rows
        self.width = width
        self.device = device
        self.kind = SamplingKind()
        self._block_size = block_size
        self._host = torch.zeros(COLUMNS, rows, dtype=torch.int64, pin_memory=pinned)
        self._host_tables = torch.full((rows, width), NULL_BLOCK, dtype=torch.int32, pin_memory=pinned)
        self._columns = torch.zeros(COLUMNS, rows, dtype=torch.int64, device=device)
        self._tables = torch.full((rows, width), NULL_BLOCK, dtype=torch.int32, device=device)
        self._cumulative = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._ints = self._host.numpy()
        self._reals = self._host.view(torch.float64).numpy()
        self._lengths = self._host[LENGTHS].view(torch.int32).numpy()
        self._table_rows = self._host_tables.numpy()
        self._owners: list[int | None] = [None] * rows
        self._known = [0] * rows  # table entries that a row holds
        self._active = -1
        self._copied = torch.cuda.Event() if pinned else None
        self._pad(range(rows))
        self._columns.copy_(self._host)

    def fill(self, requests: Sequence[Request], size: int, vocab_size: int) -> None:
        """Bring the first ``size`` rows in line with ``requests`` and send them to the device.

        Raises:
            IndexError: a table is wider than the buffers, or shorter than its request's context.
        """
        if self._copied is not None:
            self._copied.synchronize()  # the copies of the step before may still read the host side
        count, block_size = len(requests), self._block_size
        changed: list[int] = []
        moved = False
        for row, request in enumerate(requests):
            table = request.block_table
            last = request.num_tokens - 1
            if len(table) > self.width or last // block_size >= len(table):
                raise IndexError(
                    f"request {request.id} has {last + 1} tokens and {len(table)} blocks of {block_size}; "
                    f"a row holds {self.width} blocks"
                )
            if self._owners[row] != request.id:
                self._owners[row] = request.id
                self._set_table(row, table, 0)
                self._set_sampling(row, request)
                changed.append(row)
                moved = True
            else:
                known = self._known[row]
                held = self._table_rows[row]
                if len(table) != known or held[known - 1] != table[-1] or held[0] != table[0]:
                    # Only the end of a running request's table changes: it grows, or its last block is
                    # copied because another chat shares it.
                    start = known - 1 if len(table) >= known and held[0] == table[0] else 0
                    self._set_table(row, table, start)
                    changed.append(row)
            self._ints[IDS, row] = request.output_ids[-1]
            self._ints[POSITIONS, row] = last
            self._ints[SLOTS, row] = table[last // block_size] * block_size + last % block_size
        lengths = self._ints[POSITIONS, :count] + 1
        self._ints[CONTEXTS, :count] = lengths
        self._lengths[:count] = lengths
        stale = [row for row in range(count, size) if self._owners[row] is not None]
        if stale:
            self._pad(stale)
            changed += stale
        if moved or stale or self._active != count:
            self.kind = SamplingKind.of([request.params for request in requests], vocab_size)
        self._active = count
        self._columns.copy_(self._host, non_blocking=True)
        if changed:
            first, end = min(changed), max(changed) + 1
            self._tables[first:end].copy_(self._host_tables[first:end], non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def forget(self, request_id: int) -> None:
        """Its table may be another one when it comes back: after a preemption, or a prefill."""
        for row, owner in enumerate(self._owners):
            if owner == request_id:
                self._owners[row] = -1

    def input_ids(self, size: int) -> Tensor:
        """[size] int64."""
        return self._columns[IDS, :size]

    def positions(self, size: int) -> Tensor:
        """[size] int64."""
        return self._columns[POSITIONS, :size]

    def batch(self, size: int) -> PagedBatch:
        """What attention reads of the first ``size`` rows."""
        return PagedBatch(
            slot_mapping=self._columns[SLOTS, :size],
            block_tables=self._tables[:size],
            context_lens=self._columns[LENGTHS].view(torch.int32)[:size],
            cu_seqlens_q=self._cumulative[: size + 1],
            query_lens=(1,) * size,
            contexts=None,
            decode=True,
        )

    def sampling(self, size: int, kind: SamplingKind) -> SamplingBatch:
        """Parameters of the first ``size`` rows; launches kernels, which a capture then holds."""
        ints = self._columns[:, :size]
        reals = ints.view(torch.float64)
        return SamplingBatch(
            greedy=ints[GREEDY].bool()[:, None],
            temperature=reals[TEMPERATURE].float()[:, None],
            top_k=ints[TOP_K][:, None],
            top_p=reals[TOP_P][:, None],
            min_p=reals[MIN_P].float()[:, None],
            seed=ints[SEED],
            position=ints[CONTEXTS],
            penalties=None,
            kind=kind,
        )

    def _set_table(self, row: int, table: list[int], start: int) -> None:
        held, length = self._table_rows[row], len(table)
        held[start:length] = table[start:]
        if length < self._known[row]:
            held[length : self._known[row]] = NULL_BLOCK
        self._known[row] = length

    def _set_sampling(self, row: int, request: Request) -> None:
        params = request.params
        greedy = is_greedy(params)
        self._ints[GREEDY, row] = greedy
        self._ints[TOP_K, row] = params.top_k
        self._ints[SEED, row] = request.seed
        self._reals[TEMPERATURE, row] = 1.0 if greedy else params.temperature
        self._reals[TOP_P, row] = params.top_p
        self._reals[MIN_P, row] = params.min_p

    def _pad(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._owners[row] = None
            self._set_table(row, [], 0)
            self._ints[[IDS, POSITIONS, TOP_K, SEED, MIN_P], row] = 0
            self._ints[SLOTS, row] = NO_SLOT
            self._ints[CONTEXTS, row] = 1
            self._lengths[row] = 1
            self._ints[GREEDY, row] = 1
            self._reals[TEMPERATURE, row] = 1.0
            self._reals[TOP_P, row] = 1.0
