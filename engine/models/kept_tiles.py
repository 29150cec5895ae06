"""Tiled weights kept in the cache folder: later starts read one file instead of laying every matrix out.

A file is looked up by all that its bytes depend on: the model's files by size and time, the settings, and
the code that lays weights out, by its own files. So none is ever stale; whatever changed finds nothing.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import torch
from torch import Tensor

from engine.models.arena import ALIGNMENT, Arena
from engine.models.packed import Packing
from engine.models.packer import Packer
from engine.models.source import ModelSource
from engine.models.tiled import Tiled, TiledWeight
from engine.paths import cache_dir
from engine.version import __version__

FORMAT = 1
FOLDER = "weights"
KEPT = 4  # files, those used last
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
    """A ``Tiled`` in the file; ``at`` is its first byte, of the data."""

    at: int
    tiles: int
    tile_bytes: int
    kind: int
    outputs: int
    inputs: int


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

    def weight(self, names: Sequence[str], weights: Sequence[Tensor]) -> Any:
        """See ``Packing``."""
        key = "|".join(names)
        return self._of(key) or self._keep(key, self._packing.weight(names, weights))

    def head(self, weight: Tensor) -> Any:
        """See ``Packing``."""
        return self._of(HEAD) or self._keep(HEAD, self._packing.head(weight))

    def num_bytes(self) -> int:
        """See ``Packing``."""
        return self._packing.num_bytes()

    def note(self) -> str:
        """See ``Packing``."""
        return self._packing.note() if self._table is None or self._made else self._table.note

    def keep(self) -> None:
        """Write what was laid out, if anything, for later starts; a disk without room for it gets nothing."""
        if not self._made or self._table is not None:
            return
        pieces: dict[str, list[Piece]] = {}
        at = 0
        for key, weight in self._made.items():
            pieces[key] = []
            for part in weight.parts:
                tiles, size = part.data.shape
                pieces[key].append(Piece(at, tiles, size, part.kind, part.outputs, part.inputs))
                at += part.nbytes + -part.nbytes % ALIGNMENT
        parts = [part for weight in self._made.values() for part in weight.parts]
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self._file.parent).free > at + SPARE:
                _write(self._file, Table(at, self.note(), pieces), parts)
                _forget_oldest(self._file.parent)

    def _of(self, key: str) -> TiledWeight | None:
        if self._table is None or self._data is None or key not in self._table.weights:
            return None
        data = self._data
        return TiledWeight(
            tuple(
                Tiled(
                    data[piece.at :][: piece.tiles * piece.tile_bytes].view(piece.tiles, piece.tile_bytes),
                    piece.kind,
                    piece.outputs,
                    piece.inputs,
                )
                for piece in self._table.weights[key]
            )
        )

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
    """Table and data of a file that is whole."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = os.fstat(file.fileno()).st_size
            table = msgspec.json.decode(file.read(min(length, size)), type=Table)
            if size != 8 + length + table.nbytes:
                return None, None
            data = Arena(table.nbytes).take(table.nbytes)
            if not _fill(file, data):
                return None, None
        os.utime(path)  # is used: the oldest go
    except (OSError, msgspec.MsgspecError, OverflowError):
        return None, None
    return table, data


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
    work = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    head = msgspec.json.encode(table)
    try:
        with work.open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
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
