"""Staging: how the host side of the decode buffers reaches the device without anybody waiting."""

import torch
from torch import Tensor


class Staging:
    """Copies parts of host tensors to the device, through pinned memory that no copy still reads.

    There are two pinned sides. A fill writes into one of them and starts its copies; the next one takes the
    other, so that the side of a copy that waits behind a step is left alone. A side is taken again two
    fills later: its copies went before a step whose tokens were read by then, so the event has passed.
    Off CUDA a copy is done when it returns, and there are no sides.

    Args:
        columns: host [C, rows], and ``device_columns`` the same on the device.
        tables: host [rows, width], and ``device_tables`` the same on the device.
    """

    def __init__(
        self, columns: Tensor, tables: Tensor, device_columns: Tensor, device_tables: Tensor
    ) -> None:
        self._columns = columns
        self._tables = tables
        self._device_columns = device_columns
        self._device_tables = device_tables
        cuda = device_columns.is_cuda
        self._sides = [_Side(columns, tables) for _ in range(2)] if cuda else []
        self._side: _Side | None = None  # being written to

    def send_tables(self, first: int, end: int) -> None:
        """Start the copy of rows ``[first, end)`` of the tables; the columns follow."""
        self._send(self._tables, "tables", self._device_tables, slice(first, end))

    def send_columns(self) -> None:
        """Start the copy of all columns; ends the fill."""
        self._send(self._columns, "columns", self._device_columns, slice(None))
        self._sent()

    def send_column(self, column: int) -> None:
        """Start the copy of one of the columns; a fill by itself."""
        self._send(self._columns, "columns", self._device_columns, slice(column, column + 1))
        self._sent()

    def _send(self, host: Tensor, name: str, device: Tensor, rows: slice) -> None:
        source = host[rows]
        if self._sides:
            pinned = getattr(self._take(), name)[rows]
            pinned.copy_(source)
            source = pinned
        device[rows].copy_(source, non_blocking=True)

    def _sent(self) -> None:
        if self._side is not None:
            self._side.copied.record()
            self._side = None

    def _take(self) -> "_Side":
        if self._side is None:
            self._side = self._sides[0]
            self._sides.reverse()
            self._side.copied.synchronize()
        return self._side


class _Side:
    """Pinned memory of the same shapes, and the event behind its latest copies."""

    def __init__(self, columns: Tensor, tables: Tensor) -> None:
        self.columns = torch.empty_like(columns, pin_memory=True)
        self.tables = torch.empty_like(tables, pin_memory=True)
        self.copied = torch.cuda.Event()
