"""Writing a recording: entries are handed over at once, a thread encodes, compresses and writes them."""

import contextlib
import errno
import os
import queue
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from engine.records import WIRE_VERSION
from engine.version import __version__
from tui_infer.recording.format import (
    CHUNK,
    FORMAT_VERSION,
    LENGTH,
    MAGIC,
    VERSION,
    AnyEntry,
    Header,
    RecordingError,
)
from tui_infer.recording.redact import without_text

FLUSH_S = 1.0
FLUSH_BYTES = 1 << 20  # of frames, before compression
MOST_WAITING = 200_000  # entries; a disk that is so far behind will not catch up
CLOSE_S = 10.0

OnError = Callable[[str], None]


class RecordingWriter:
    """A file that grows by a chunk a second while there is something to write.

    ``put`` never blocks and never raises. A write that fails ends the recording, and ``on_error`` is told
    why, once, on the writer's thread; what was written before stays readable.

    Raises:
        RecordingError: the file is there already or cannot be made.
    """

    def __init__(self, path: Path, *, texts: bool = True, on_error: OnError | None = None) -> None:
        self.path = path
        self.texts = texts
        self.on_error = on_error
        self.error = ""
        self.bytes_written = 0
        self.entries = 0  # handed over
        self._file = _open(path)
        self._queue: queue.SimpleQueue[AnyEntry | None] = queue.SimpleQueue()
        self._encoder = msgspec.msgpack.Encoder()
        self._zlib = zlib.compressobj(6)
        self._plain = bytearray()
        self._closed = False
        self._began = time.monotonic()
        header = Header(
            created=time.time(), app=__version__, engine=__version__, wire=WIRE_VERSION, texts=texts
        )
        try:
            self._write(MAGIC + VERSION.pack(FORMAT_VERSION))
            self._add(header)
            self._flush()
        except OSError as error:
            self._file.close()
            raise RecordingError(_cannot(path, error)) from None
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    @property
    def now(self) -> float:
        """Seconds since the recording began."""
        return time.monotonic() - self._began

    def put(self, entry: AnyEntry) -> None:
        """Hand an entry over; from then on it must not change."""
        if not self.error and not self._closed:
            self.entries += 1
            self._queue.put(entry)

    def end(self) -> None:
        """Nothing more comes; what was handed over is still written."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)

    def close(self) -> None:
        """``end``, and wait until all is written, a few seconds at the most; ``error`` says if it was not."""
        self.end()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive() and not self.error:
            self.error = f"The recording is not yet written to {self.path} after {CLOSE_S:g} s."

    def discard(self) -> None:
        """Close and delete the file: there will be nothing in it."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._work()
        except OSError as error:
            self._fail(_cannot(self.path, error))
        except Exception as error:  # whatever it is, it is the recording's end and nobody else's
            self._fail(f"The recording stopped: {type(error).__name__}: {error}")
        finally:
            with contextlib.suppress(OSError):
                self._file.close()

    def _work(self) -> None:
        due = time.monotonic() + FLUSH_S
        while True:
            entry: AnyEntry | None = None
            try:
                entry = self._queue.get(timeout=max(0.0, due - time.monotonic()) if self._plain else None)
                if entry is None:
                    self._flush()
                    return
                if not self._plain:
                    due = time.monotonic() + FLUSH_S
                self._add(entry if self.texts else without_text(entry))
            except queue.Empty:
                pass
            if len(self._plain) >= FLUSH_BYTES or (self._plain and time.monotonic() >= due):
                self._flush()
            if self._queue.qsize() > MOST_WAITING:
                raise OSError(errno.EIO, "it takes longer to write than there is to write")

    def _add(self, frame: AnyEntry | Header) -> None:
        start = len(self._plain)
        self._plain += LENGTH.pack(0)
        self._encoder.encode_into(frame, self._plain, start + LENGTH.size)
        LENGTH.pack_into(self._plain, start, len(self._plain) - start - LENGTH.size)

    def _flush(self) -> None:
        if not self._plain:
            return
        data = self._zlib.compress(self._plain) + self._zlib.flush(zlib.Z_SYNC_FLUSH)
        self._plain.clear()
        self._write(CHUNK.pack(len(data), zlib.crc32(data)) + data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = self._file.write(view)
            self.bytes_written += written
            view = view[written:]

    def _fail(self, why: str) -> None:
        self.error = why
        if self.on_error is not None:
            with contextlib.suppress(Exception):  # an app that is gone meanwhile needs no word
                self.on_error(why)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("xb", buffering=0)
    except FileExistsError:
        raise RecordingError(f"{path} is there already.", "Choose another name for the recording.") from None
    except (OSError, ValueError) as error:
        raise RecordingError(_cannot(path, error), "Choose another place for the recording.") from None


def _cannot(path: Path, error: OSError | ValueError) -> str:
    why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return f"The recording cannot be written to {path}: {why}."
