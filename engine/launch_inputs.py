"""What a launch reads of its requests, built anew for every step: for devices without graphs, and prefill."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import PagedBatch
from engine.kv_cache import NULL_BLOCK
from engine.request import Request


@dataclass(frozen=True, slots=True)
class LaunchInputs:
    """T packed tokens, of which some get logits; nothing in it is written to."""

    input_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    batch: PagedBatch
    rows: Tensor  # int64 [n], tokens whose logits are wanted


class InputBuilder:
    """Builds inputs on the host; block tables, which grow once in many steps, are kept until they do.

    Host time matters where the computation waits for it, so arrays are made by numpy, in a third of the time.
    """

    def __init__(self, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        self._device = device
        self._tables: list[list[int]] = []
        self._padded: Tensor | None = None

    def decode(self, requests: Sequence[Request]) -> LaunchInputs:
        """The newest token of every request.

        Raises:
            IndexError: a position is outside of its request's table.
        """
        count = len(requests)
        positions = [request.num_tokens - 1 for request in requests]
        tables = [request.block_table for request in requests]
        contexts = [position + 1 for position in positions]
        batch = PagedBatch(
            slot_mapping=self._tensor([self._slot(*pair) for pair in zip(tables, positions)]),
            block_tables=self._kept(tables),
            context_lens=self._tensor(contexts, np.int32),
            cu_seqlens_q=_counted(count + 1, torch.int32, self._device),
            query_lens=(1,) * count,
            contexts=tuple(contexts),
            decode=True,
        )
        return LaunchInputs(
            self._tensor([request.output_ids[-1] for request in requests]),
            self._tensor(positions),
            batch,
            _counted(count, torch.int64, self._device),
        )

    def packed(
        self,
        tables: Sequence[list[int]],
        input_ids: Sequence[int],
        positions: Sequence[int],
        query_lens: Sequence[int],
        rows: Sequence[int],
        *,
        decode: bool = False,
    ) -> LaunchInputs:
        """The new tokens of several sequences, one behind the other.

        Args:
            tables: blocks of each sequence.
            input_ids: of all tokens; ``positions`` the same.
            query_lens: new tokens of each sequence.
            rows: tokens whose logits are wanted.
            decode: every sequence has exactly one.

        Raises:
            IndexError: a position is outside of its sequence's table.
        """
        slots: list[int] = []
        contexts: list[int] = []
        cumulative = [0]
        for table, length in zip(tables, query_lens):
            begin = cumulative[-1]
            own = positions[begin : begin + length]
            self._slot(table, own[-1])  # the others are before it
            size = self._block_size
            slots += [table[position // size] * size + position % size for position in own]
            contexts.append(own[-1] + 1)
            cumulative.append(begin + length)
        batch = PagedBatch(
            slot_mapping=self._tensor(slots),
            block_tables=self._tensor(_padded(tables), np.int32),
            context_lens=self._tensor(contexts, np.int32),
            cu_seqlens_q=self._tensor(cumulative, np.int32),
            query_lens=tuple(query_lens),
            contexts=tuple(contexts),
            decode=decode,
        )
        return LaunchInputs(self._tensor(input_ids), self._tensor(positions), batch, self._tensor(rows))

    def _slot(self, table: list[int], position: int) -> int:
        """The cache slot of a position; tables are checked here, not on the device."""
        size = self._block_size
        if position // size >= len(table):
            raise IndexError(f"position {position} is outside a table of {len(table)} blocks of {size}")
        return table[position // size] * size + position % size

    def _kept(self, tables: list[list[int]]) -> Tensor:
        """Padded tables; those of the call before where they say the same, whoever's they are."""
        if self._padded is None or tables != self._tables:
            self._tables = [list(table) for table in tables]  # requests change theirs in place
            self._padded = self._tensor(_padded(tables), np.int32)
        return self._padded

    def _tensor(self, values: Sequence, dtype: type[np.signedinteger] = np.int64) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=dtype)).to(self._device)


def _padded(tables: Sequence[list[int]]) -> list[list[int]]:
    width = max(map(len, tables))
    return [table + [NULL_BLOCK] * (width - len(table)) for table in tables]


@lru_cache(maxsize=128)
def _counted(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers from 0."""
    return torch.arange(count, dtype=dtype, device=device)
