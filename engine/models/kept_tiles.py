"""Tiled weights kept in the cache folder: later starts read one file instead of laying every matrix out.

A file is looked up by all that its bytes depend on: the model's files by size and time, the settings, and
the code that lays weights out, by its own files. So none is ever stale; whatever changed finds nothing.

What lies in it is checked as it is read: the table by its CRC and for places and sizes that fit, each piece's
numbers by their sum as words of 64 bits. Numbers that were zeroed, cut or overwritten are noticed; the same
words in another order within a piece are not, nor what a process does to the file that means to deceive.
"""

import contextlib
import hashlib
import os
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from engine.models.arena import ALIGNMENT, Arena
from engine.models.leftovers import leftover_name, remove_leftovers
from engine.models.packed import GROUP, Packing
from engine.models.packer import Packer
from engine.models.source import ModelSource
from engine.models.tiled import LANES, Tiled, TiledWeight, tile_bytes
from engine.paths import cache_dir
from engine.version import __version__

FORMAT = 2
FOLDER = "weights"
KEPT = 4  # files, those used last
START = 12  # bytes before the table: its length and its CRC
SPARE = 1 << 30  # bytes that stay free on the disk
HEAD = "lm_head"
# Whose code decides what the bytes are.
CODE = ("gguf_bits", "gguf_reader", "gguf_weights", "packed", "packer", "quantised", "tiled")


class TiledPacking(Packing, Protocol):
    """A packing that may lay weights out in tiles."""

    dtype: torch.dtype

    @property
    def packer(self) -> Packer:
        """What becomes of the matrices."""
        ...


class Piece(msgspec.Struct, frozen=True):
    """A ``Tiled`` in the file; ``at`` is its first byte, of the data, ``words`` the sum of its words."""

    at: int
    tiles: int
    tile_bytes: int
    kind: int
    outputs: int
    inputs: int
    words: int

    def fits(self, nbytes: int) -> bool:
        """Whether it is a matrix, and lies in data of so many bytes."""
        if self.kind not in (4, 8, 16) or self.outputs < 1 or self.inputs < GROUP or self.inputs % GROUP:
            return False
        size = self.tiles * self.tile_bytes
        return (
            self.tile_bytes == tile_bytes(self.kind, self.inputs)
            and self.tiles == -(-self.outputs // LANES)
            and self.at % ALIGNMENT == 0
            and 0 <= self.at <= nbytes - size
        )

    def of(self, data: Tensor) -> Tiled:
        """The matrix in the file's data [nbytes]."""
        size = self.tiles * self.tile_bytes
        numbers = data[self.at : self.at + size].view(self.tiles, self.tile_bytes)
        return Tiled(numbers, self.kind, self.outputs, self.inputs)


class Table(msgspec.Struct, frozen=True):
    """The head of a file: the pieces of every fused weight by the names of its parts."""

    nbytes: int
    note: str
    weights: dict[str, list[Piece]]


class KeptTiles:
    """A packing whose tiles come from a file where there is one, and can be written to it where not.

    Args:
        packing: gives what the file does not have.
        file: where it is, or will be.
    """

    def __init__(self, packing: TiledPacking, file: Path) -> None:
        self.dtype = packing.dtype
        self._packing = packing
        self._file = file
        self._table: Table | None
        self._data: Tensor | None
        self._table, self._data = _read(file)
        self._made: dict[str, TiledWeight] = {}
        self._found = 0  # weights of the file

    def weight(self, names: Sequence[str], weights: Sequence[Tensor]) -> Any:
        """See ``Packing``."""
        key = "|".join(names)
        found = self._of(key, [tuple(weight.shape) for weight in weights])
        return found or self._keep(key, self._packing.weight(names, weights))

    def head(self, weight: Tensor) -> Any:
        """See ``Packing``."""
        return self._of(HEAD, [tuple(weight.shape)]) or self._keep(HEAD, self._packing.head(weight))

    def num_bytes(self) -> int:
        """See ``Packing``."""
        return self._packing.num_bytes()

    def note(self) -> str:
        """See ``Packing``."""
        return self._packing.note() if self._table is None or self._made else self._table.note

    def keep(self) -> None:
        """Write what was laid out, if anything, for later starts; a disk without room for it gets nothing."""
        if not self._made or self._found or self._table is not None:
            return
        pieces: dict[str, list[Piece]] = {}
        at = 0
        for key, weight in self._made.items():
            pieces[key] = []
            for part in weight.parts:
                tiles, size = part.data.shape
                pieces[key].append(
                    Piece(at, tiles, size, part.kind, part.outputs, part.inputs, _words(part.data))
                )
                at += part.nbytes + -part.nbytes % ALIGNMENT
        parts = [part for weight in self._made.values() for part in weight.parts]
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._file.parent)
            if shutil.disk_usage(self._file.parent).free > at + SPARE:
                _write(self._file, Table(at, self.note(), pieces), parts)
                _forget_oldest(self._file.parent)

    def _of(self, key: str, shapes: Sequence[tuple[int, ...]]) -> TiledWeight | None:
        """The file's weight, if it has one; a file that has another than is asked for is dropped."""
        if self._table is None or self._data is None or key not in self._table.weights:
            return None
        pieces = self._table.weights[key]
        if [(piece.outputs, piece.inputs) for piece in pieces] != shapes:
            self._table = self._data = None
            _drop(self._file)
            return None
        self._found += 1
        return TiledWeight(tuple(piece.of(self._data) for piece in pieces))

    def _keep(self, key: str, made: Any) -> Any:
        if isinstance(made, TiledWeight):
            self._made[key] = made
        return made


def kept(packing: TiledPacking, source: ModelSource, quant: str) -> TiledPacking | KeptTiles:
    """``packing``, or the same by way of the file that an earlier start kept, or that this one may keep.

    Args:
        quant: the setting that the weights' bits follow from.
    """
    place = None if source.shape is not None or not packing.packer.tiled else _place(packing, source, quant)
    return packing if place is None else KeptTiles(packing, place)


def _place(packing: TiledPacking, source: ModelSource, quant: str) -> Path | None:
    here = Path(__file__).parent
    try:
        files = [_stamp(path) for path in sorted(source.path.iterdir()) if path.is_file()]
        files += [_stamp(source.gguf)] if source.gguf is not None else []
        files += [_stamp(here / f"{name}.py") for name in CODE]
    except OSError:
        return None
    facts = (
        FORMAT,
        __version__,
        str(torch.__version__),
        str(packing.dtype),
        quant,
        packing.packer.note(),
        files,
    )
    return cache_dir() / FOLDER / f"{hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()}.tiles"


def _stamp(path: Path) -> tuple[str, int, int]:
    stat = path.stat()
    return str(path.resolve()), stat.st_size, stat.st_mtime_ns


def _read(path: Path) -> tuple[Table, Tensor] | tuple[None, None]:
    """Table and data of a file that is whole; any other is dropped."""
    try:
        with path.open("rb") as file:
            table = _table(file)
            data = None if table is None else Arena(table.nbytes).take(table.nbytes)
            if table is not None and data is not None and _fill(file, data) and _has_its_words(table, data):
                os.utime(path)  # is used: the oldest go
                return table, data
    except OSError:
        return None, None
    _drop(path)
    return None, None


def _table(file: IO[bytes]) -> Table | None:
    """The table, if file and table are what they say of each other."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(START)
    length = int.from_bytes(start[:8], "little")
    if len(start) < START or length > size:
        return None
    head = file.read(length)
    if zlib.crc32(head) != int.from_bytes(start[8:], "little"):
        return None
    try:
        table = msgspec.json.decode(head, type=Table)
    except msgspec.MsgspecError:
        return None
    pieces = [piece for weight in table.weights.values() for piece in weight]
    fits = table.nbytes >= 0 and all(piece.fits(table.nbytes) for piece in pieces)
    return table if fits and size == START + length + table.nbytes else None


def _has_its_words(table: Table, data: Tensor) -> bool:
    return all(
        _words(piece.of(data).data) == piece.words for weight in table.weights.values() for piece in weight
    )


def _words(data: Tensor) -> int:
    """The sum of tiles as unsigned words of 64 bits, modulo 2^64: as fast as memory can be read."""
    return int(data.contiguous().view(-1).numpy().view(np.uint64).sum(dtype=np.uint64))


def _drop(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _fill(file: IO[bytes], data: Tensor) -> bool:
    view = data.numpy().data
    done = 0
    while done < len(view):
        got = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            return False
        done += got
    return True


def _write(path: Path, table: Table, parts: Sequence[Tiled]) -> None:
    """All of it or nothing: written beside its place, synced, renamed."""
    work = path.with_name(leftover_name(path.name))
    head = msgspec.json.encode(table)
    try:
        with work.open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + zlib.crc32(head).to_bytes(4, "little") + head)
            for part in parts:
                file.write(part.data.contiguous().numpy().data)
                file.write(bytes(-part.nbytes % ALIGNMENT))
            file.flush()
            os.fsync(file.fileno())
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.tiles"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[KEPT:]:
        path.unlink(missing_ok=True)
