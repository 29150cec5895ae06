"""The tiles that were tuned on this machine's cards: a JSON file a card in the user's cache folder.

A file that is broken, or was made for other kernels or another compiler, is as good as none: what it says is
not worth an error, only a note in the log.
"""

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from functools import cache as cached
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.kernels.tiles import ROW_CLASSES, Key, Shape, Tile, fits, tile_for
from engine.paths import cache_dir

KERNELS = 1  # raised when the kernels change so that tiles have to be tuned anew


def card_name(name: str, capability: tuple[int, int]) -> str:
    """A card's kind as a file name: ``NVIDIA-H200-sm90``."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")
    return f"{plain or 'card'}-sm{capability[0]}{capability[1]}"


def tile_file(card: str) -> Path:
    """Where a card's tiles are kept. Not created here."""
    return cache_dir() / "tiles" / f"{card}.json"


@cached
def tuned(card: str) -> Mapping[Key, Tile]:
    """The tiles that were tuned on such a card; read once a process, and again after ``keep``."""
    path = tile_file(card)
    try:
        return MappingProxyType(_read(path))
    except FileNotFoundError:
        pass
    except _Stale as reason:
        _note(f"tuned tiles in {path} are not used: {reason}")
    except Exception as error:  # whatever somebody did to the file
        _note(f"tuned tiles in {path} cannot be read: {type(error).__name__}: {error}")
    return MappingProxyType({})


def keep(card: str, tiles: Mapping[Key, Tile]) -> str:
    """Add tiles to a card's file, which is replaced as a whole, and let them be used from now on.

    Returns:
        Why they could not be written; empty when they were.
    """
    path = tile_file(card)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _held(path.parent):
            tuned.cache_clear()  # another process may have added some
            _write(path, card, {**tuned(card), **tiles})
    except OSError as error:
        reason = f"tuned tiles cannot be kept in {path}: {error.strerror or error}"
        _note(reason)
        return reason
    finally:
        tuned.cache_clear()
        tile_for.cache_clear()
    return ""


def triton_version() -> str:
    """The compiler that times depend on; empty where it is not installed."""
    try:
        from triton import __version__
    except ImportError:
        return ""
    return str(__version__)


class _Stale(Exception):
    """A file of other kernels or another compiler."""


def _read(path: Path) -> dict[Key, Tile]:
    """Raises whatever is wrong with the file."""
    value: Any = json.loads(path.read_text("utf-8"))
    for name, own in _versions().items():
        if value[name] != own:
            raise _Stale(f"they were made for {name} {value[name]}, and this is {own}; tune them again")
    return dict(_entry(**entry) for entry in value["tiles"])


def _entry(kind: str, outs: int, ins: int, rows: int, tile: Mapping[str, Any]) -> tuple[Key, Tile]:
    shape, cut = Shape(kind, outs, ins, rows), Tile(**tile)
    typed = all(type(getattr(cut, field.name)) is field.type for field in fields(cut))
    whole = all(type(number) is int for number in (outs, ins, rows))
    if not (typed and whole and rows in ROW_CLASSES and fits(cut, shape)):
        raise ValueError(f"{cut} is no tile of {shape}")
    return (kind, outs, ins, rows), cut


def _write(path: Path, card: str, tiles: Mapping[Key, Tile]) -> None:
    entries = [
        {"kind": kind, "outs": outs, "ins": ins, "rows": rows, "tile": asdict(tile)}
        for (kind, outs, ins, rows), tile in sorted(tiles.items(), key=lambda item: item[0])
    ]
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
    head = json.dumps({"card": card, **_versions()})
    text = f'{head[:-1]}, "tiles": [\n{lines}\n]}}\n'
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    work = Path(name)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        work.replace(path)
    except BaseException:
        work.unlink(missing_ok=True)
        raise


def _versions() -> dict[str, Any]:
    return {"kernels": KERNELS, "triton": triton_version()}


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """One writer at a time, so that none loses what another adds; without file locks the later one wins."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _note(text: str) -> None:
    print(text, file=sys.stderr)  # the engine's log
