"""DecodeBuffers: the static inputs that every captured decode graph reads, and their host side."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.advance import (
    ADDED,
    COLUMNS,
    CONTEXTS,
    FRESH,
    GREEDY,
    IDS,
    LENGTHS,
    MIN_P,
    NO_SLOT,
    NO_SOURCE,
    POSITIONS,
    SEED,
    SLOTS,
    SOURCE,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    advance,
)
from engine.attention.base import PagedBatch
from engine.kv_cache import NULL_BLOCK
from engine.request import Request
from engine.sampling_batch import SamplingBatch, SamplingKind, is_greedy
from engine.staging import Staging

__all__ = ["NO_SLOT", "DecodeBuffers"]


class DecodeBuffers:
    """One row a request of a decode batch; addresses never change.

    While the same requests decode, a step needs nothing of the host but the blocks that were added:
    ``advance`` moves every row on by the token that it drew. Where requests come, go or change places
    ``fill`` sends all rows anew. Rows beyond the real ones are padding: token 0 at position 0, no slot, one
    token of context on the null block, greedy.

    Args:
        rows: most rows of a batch, padding included.
        width: columns of the block table, for the longest sequence there can be.

    Attributes:
        tokens: [rows] int64, what the rows of the latest step drew; a step writes them at its end.
    """

    def __init__(self, rows: int, width: int, block_size: int, device: torch.device) -> None:
        self.rows = rows
        self.width = width
        self.device = device
        self.kind = SamplingKind()
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._block_size = block_size
        host = torch.zeros(COLUMNS, rows, dtype=torch.int64)
        host_tables = torch.full((rows, width), NULL_BLOCK, dtype=torch.int32)
        self._columns = torch.zeros(COLUMNS, rows, dtype=torch.int64, device=device)
        self._tables = torch.full((rows, width), NULL_BLOCK, dtype=torch.int32, device=device)
        self._device_lengths = self._columns[LENGTHS].view(torch.int32)
        self._cumulative = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._ints = host.numpy()
        self._reals = host.view(torch.float64).numpy()
        self._singles, self._marks = _singles(host).numpy(), _marks(host).numpy()
        self._lengths = host[LENGTHS].view(torch.int32).numpy()
        self._table_rows = host_tables.numpy()
        self._owners: list[int | None] = [None] * rows
        self._known = [0] * rows  # table entries that a row holds
        self._requests: Sequence[Request] = ()  # of the latest step, while nothing broke it off
        self._tails: list[int] = []  # their last blocks
        self._staging = Staging(host, host_tables, self._columns, self._tables)
        self._ints[FRESH] = 1
        self._pad(range(rows))
        self._columns.copy_(host)

    def fill(
        self,
        requests: Sequence[Request],
        size: int,
        vocab_size: int,
        before: Sequence[Request] | None = None,
    ) -> None:
        """Bring the first ``size`` rows in line with ``requests``; waits for nothing.

        Args:
            requests: what the next step decodes, each by its newest token.
            before: rows of the step that is under way, where its tokens are not on the host yet: all
                ``requests`` are among them, and decode the token that they draw there.

        Raises:
            IndexError: a table is wider than the buffers, or shorter than its request's context.
        """
        if requests == self._requests and self._grow(requests):
            return
        self._requests = ()
        self._fill(requests, size, 0 if before is None else 1)
        if before is not None:
            places = {request.id: row for row, request in enumerate(before)}
            self._ints[SOURCE, : len(requests)] = [places[request.id] for request in requests]
        self.kind = SamplingKind.of([request.params for request in requests], vocab_size)
        self._staging.send_columns()
        self._ints[SOURCE, : len(requests)] = NO_SOURCE
        self._requests = requests
        self._tails = [request.block_table[-1] for request in requests]

    def advance(self, size: int) -> None:
        """Launch what moves the first ``size`` rows on; the head of every step, inside its graph."""
        advance(self._columns, self._device_lengths, self._tables, self.tokens, size, self._block_size)

    def forget(self, request_id: int) -> None:
        """Its table may be another one when it comes back: after a preemption, or a prefill."""
        for row, owner in enumerate(self._owners):
            if owner == request_id:
                self._owners[row] = -1
                self._requests = ()

    def break_off(self) -> None:
        """The step went another way than over these buffers: its tokens are not here."""
        self._requests = ()

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
            context_lens=self._device_lengths[:size],
            cu_seqlens_q=self._cumulative[: size + 1],
            query_lens=(1,) * size,
            contexts=None,
            decode=True,
        )

    def sampling(self, size: int, kind: SamplingKind) -> SamplingBatch:
        """Parameters of the first ``size`` rows, where they lie."""
        ints = self._columns[:, :size]
        singles = _singles(self._columns)[:, :size, None]
        return SamplingBatch(
            greedy=_marks(self._columns)[GREEDY, :size, None],
            temperature=singles[TEMPERATURE],
            top_k=ints[TOP_K][:, None],
            top_p=ints[TOP_P].view(torch.float64)[:, None],
            min_p=singles[MIN_P],
            seed=ints[SEED],
            position=ints[CONTEXTS],
            penalties=None,
            kind=kind,
        )

    def _grow(self, requests: Sequence[Request]) -> bool:
        """The rows of the step before go on: send the blocks that were added. False where more changed.

        Nothing says that each row has exactly one more token but that it was a row of the step before: a
        request that got none has ended, and one that was preempted has left.
        """
        tails = [request.block_table[-1] for request in requests]
        if tails == self._tails:
            return True
        grown = [row for row, pair in enumerate(zip(tails, self._tails)) if pair[0] != pair[1]]
        for row in grown:
            known, table = self._known[row], requests[row].block_table
            if len(table) != known + 1 or len(table) > self.width or table[known - 1] != self._tails[row]:
                return False
        added = self._ints[ADDED]
        for row in grown:
            known = self._known[row]
            self._table_rows[row, known] = added[row] = tails[row]
            self._known[row] = known + 1
        self._staging.send_column(ADDED)  # all of them at once; the device enters them into its tables
        added[grown] = 0
        self._tails = tails
        return True

    def _fill(self, requests: Sequence[Request], size: int, under_way: int) -> None:
        """Write all rows of the host side, and send the tables that changed."""
        count, block_size = len(requests), self._block_size
        changed: list[int] = []
        lasts: list[int] = []
        for row, request in enumerate(requests):
            table = request.block_table
            last = request.num_tokens - 1 + under_way
            if len(table) > self.width or last // block_size >= len(table):
                raise IndexError(
                    f"request {request.id} has {last + 1} tokens and {len(table)} blocks of {block_size}; "
                    f"a row holds {self.width} blocks"
                )
            lasts.append(last)
            if self._owners[row] != request.id:
                self._owners[row] = request.id
                self._set_table(row, table, 0)
                self._set_sampling(row, request)
                changed.append(row)
                continue
            known, held = self._known[row], self._table_rows[row]
            if len(table) != known or held[known - 1] != table[-1] or held[0] != table[0]:
                # Only the end of a running request's table changes: it grows, or its last block is
                # copied because another chat shares it.
                start = known - 1 if len(table) >= known and held[0] == table[0] else 0
                self._set_table(row, table, start)
                changed.append(row)
        ints = self._ints
        ints[IDS, :count] = [request.output_ids[-1] for request in requests]
        ints[POSITIONS, :count] = lasts
        ints[SLOTS, :count] = [
            request.block_table[last // block_size] * block_size + last % block_size
            for request, last in zip(requests, lasts)
        ]
        lengths = ints[POSITIONS, :count] + 1
        ints[CONTEXTS, :count] = lengths
        self._lengths[:count] = lengths
        stale = [row for row in range(count, size) if self._owners[row] is not None]
        self._pad(stale)
        changed += stale
        if changed:
            self._staging.send_tables(min(changed), max(changed) + 1)

    def _set_table(self, row: int, table: list[int], start: int) -> None:
        held, length, known = self._table_rows[row], len(table), self._known[row]
        held[start:length] = table[start:]
        if length < known:
            held[length:known] = NULL_BLOCK
        self._known[row] = length

    def _set_sampling(self, row: int, request: Request) -> None:
        params = request.params
        greedy = is_greedy(params)
        self._marks[GREEDY, row] = greedy
        self._ints[TOP_K, row] = params.top_k
        self._ints[SEED, row] = request.seed
        self._singles[TEMPERATURE, row] = 1.0 if greedy else params.temperature
        self._reals[TOP_P, row] = params.top_p
        self._singles[MIN_P, row] = params.min_p

    def _pad(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._owners[row] = None
            self._set_table(row, [], 0)
            self._ints[[IDS, POSITIONS, TOP_K, SEED, MIN_P], row] = 0
            self._ints[SLOTS, row] = NO_SLOT
            self._ints[SOURCE, row] = NO_SOURCE
            self._ints[CONTEXTS, row] = 1
            self._lengths[row] = 1
            self._marks[GREEDY, row] = True
            self._singles[TEMPERATURE, row] = 1.0
            self._reals[TOP_P, row] = 1.0


def _singles(columns: Tensor) -> Tensor:
    """The float32 that int64 columns begin with, in their place."""
    return columns.view(torch.float32)[:, ::2]


def _marks(columns: Tensor) -> Tensor:
    """The truth value that int64 columns begin with, in their place."""
    return columns.view(torch.bool)[:, ::8]
