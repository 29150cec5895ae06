"""Reading a recording: the whole file at once, as far as it is whole."""

import gc
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.records import Ready, Steps
from tui_infer.recording.format import (
    CHUNK,
    FORMAT_VERSION,
    LENGTH,
    MAGIC,
    MOST_CHUNK_BYTES,
    MOST_PLAIN_BYTES,
    VERSION,
    AnyEntry,
    End,
    Header,
    Heard,
    RecordingError,
)

MOST_BLOCKS = 50_000_000  # a pool larger than any card holds is damage, and would take all memory


@dataclass(frozen=True)
class Recording:
    """What a file holds.

    Attributes:
        note: what is wrong at its end, for people; empty when it was closed in order.
        first_step, last_step: numbers of the steps in it; None where there are none.
        duration: seconds from the first to the last entry.
    """

    path: Path
    header: Header
    entries: list[AnyEntry]
    note: str = ""
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    duration: float = 0.0

    @property
    def ready_s(self) -> float:
        """When its engine was ready: nothing is to be seen before."""
        ready = (
            entry.t for entry in self.entries if isinstance(entry, Heard) and isinstance(entry.event, Ready)
        )
        return next(ready, 0.0)

    @property
    def has_graphs(self) -> bool:
        """Whether its engine could replay CUDA graphs."""
        return any(
            isinstance(entry, Heard)
            and isinstance(entry.event, Ready)
            and bool(entry.event.status.graph_sizes)
            for entry in self.entries
        )


class _Torn(Exception):
    """The file is whole up to here."""


def read_recording(path: Path) -> Recording:
    """Read a recording.

    Raises:
        RecordingError: no such file, no recording, a newer version, or damage before anything can be shown.
    """
    data = _bytes_of(path)
    _check_start(path, data)
    collecting = gc.isenabled()
    gc.disable()  # a hundred thousand objects that stay: looking for garbage among them doubles the time
    try:
        header, entries, note = _read(path, data)
    finally:
        if collecting:
            gc.enable()
    if not any(isinstance(entry, Heard) and isinstance(entry.event, Ready) for entry in entries):
        why = f" ({note})" if note else ""
        raise RecordingError(f"{path} ends before the engine was ready{why}: there is nothing to show.")
    if not note and not isinstance(entries[-1], End):
        note = "it was not closed: the app that wrote it was ended, or still runs"
    steps = [
        record
        for entry in entries
        if isinstance(entry, Heard) and isinstance(entry.event, Steps)
        for record in entry.event.records
    ]
    return Recording(
        path=path,
        header=header,
        entries=entries,
        note=note,
        steps=len(steps),
        first_step=steps[0].index if steps else None,
        last_step=steps[-1].index if steps else None,
        duration=max((entry.t for entry in entries), default=0.0),
    )


def _bytes_of(path: Path) -> bytes:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise RecordingError(f"{path} is a device or a pipe, not a recording.")
        return path.read_bytes()
    except FileNotFoundError:
        raise RecordingError(f"{path} is not there.") from None
    except IsADirectoryError:
        raise RecordingError(f"{path} is a folder, not a recording.") from None
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise RecordingError(f"{path} cannot be read: {why}.") from None


def _check_start(path: Path, data: bytes) -> None:
    if not data:
        raise RecordingError(f"{path} is empty.")
    if not data.startswith(MAGIC):
        torn = MAGIC.startswith(data)
        what = "is cut off at its very start" if torn else "is no recording of tui-infer"
        raise RecordingError(f"{path} {what}.", "" if torn else "Recordings are made with --record FILE.")
    if len(data) < len(MAGIC) + VERSION.size:
        raise RecordingError(f"{path} is cut off at its very start.")
    (version,) = VERSION.unpack_from(data, len(MAGIC))
    if version > FORMAT_VERSION:
        raise RecordingError(
            f"{path} has format {version}; this tui-infer reads up to {FORMAT_VERSION}.", "Update tui-infer."
        )
    if version < 1:
        raise RecordingError(f"{path} is damaged: format {version} never was.")


def _read(path: Path, data: bytes) -> tuple[Header, list[AnyEntry], str]:
    header: Header | None = None
    entries: list[AnyEntry] = []
    decoder = msgspec.msgpack.Decoder(AnyEntry)
    note = ""
    try:
        for plain in _chunks(data):
            for frame in _frames(plain):
                if header is None:
                    header = msgspec.msgpack.decode(frame, type=Header)
                else:
                    entries.append(_checked(decoder.decode(frame)))
    except _Torn as torn:
        note = str(torn)
    except msgspec.MsgspecError:
        note = "damaged: an entry is no entry of this version"
    if header is None:
        raise RecordingError(f"{path} is damaged at its start{f' ({note})' if note else ''}.")
    return header, entries, note


def _chunks(data: bytes) -> Iterator[bytes]:
    """What the chunks decompress to, one after the other."""
    position = len(MAGIC) + VERSION.size
    stream = zlib.decompressobj()
    while position < len(data):
        if len(data) - position < CHUNK.size:
            raise _Torn("cut off: the end of the file is missing")
        length, crc = CHUNK.unpack_from(data, position)
        position += CHUNK.size
        if length > MOST_CHUNK_BYTES:
            raise _Torn("damaged: what follows makes no sense")
        if len(data) - position < length:
            raise _Torn("cut off: the end of the file is missing")
        part = data[position : position + length]
        position += length
        if zlib.crc32(part) != crc:
            raise _Torn("damaged: a checksum does not agree")
        try:
            plain = stream.decompress(part, MOST_PLAIN_BYTES)
        except zlib.error:
            raise _Torn("damaged: it cannot be decompressed") from None
        if stream.unconsumed_tail:
            raise _Torn("damaged: a part of it is far too large")
        yield plain


def _frames(plain: bytes) -> Iterator[memoryview]:
    view, position = memoryview(plain), 0
    while position < len(plain):
        if len(plain) - position < LENGTH.size:
            raise _Torn("damaged: a frame is cut off")
        (length,) = LENGTH.unpack_from(plain, position)
        position += LENGTH.size
        if len(plain) - position < length:
            raise _Torn("damaged: a frame is cut off")
        yield view[position : position + length]
        position += length


def _checked(entry: AnyEntry) -> AnyEntry:
    if isinstance(entry, Heard) and isinstance(entry.event, Ready):
        status = entry.event.status
        if not (0 < status.num_blocks <= MOST_BLOCKS and status.block_size > 0):
            raise _Torn(f"damaged: a pool of {status.num_blocks} blocks of {status.block_size} tokens")
    return entry
