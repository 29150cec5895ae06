"""Prompts from stdin: one a line, or several lines by a backslash or between marks."""

import asyncio
import codecs
import contextlib
import os
import threading

from tui_infer.sanitize import sanitize

MARK = '"""'
RECEIVE_BYTES = 1 << 16


class Lines:
    """The lines of a file descriptor, sanitized, read ahead on a thread; None behind the last one.

    The descriptor is read without Python's own buffer, whose lock would keep a process from ending while
    the thread waits.
    """

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop) -> None:
        self._fd = fd
        self._loop = loop
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    async def next(self) -> str | None:
        """The next line without its end; None, again and again, where there is none."""
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)
        return line

    def end(self) -> None:
        """Whoever waits for a line, waits no longer."""
        self._lines.put_nowait(None)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        held = ""
        while True:
            try:
                data = os.read(self._fd, RECEIVE_BYTES)
            except OSError:  # a terminal that was closed
                data = b""
            *lines, held = (held + decoder.decode(data, final=not data)).split("\n")
            if not data and held:
                lines.append(held)
            for line in lines:
                self._tell(sanitize(line.removesuffix("\r")))
            if not data:
                self._tell(None)
                return

    def _tell(self, line: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is over
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)


class Prompt:
    """Lines put together. ``add`` returns the whole prompt once it is complete.

    A line that ends with a backslash goes on in the next one. A line that begins with three quotation marks
    begins a text that ends with the line that ends with them.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._marked = False

    @property
    def open(self) -> bool:
        """Whether more lines belong to it."""
        return self._marked or bool(self._lines)

    def add(self, line: str) -> str | None:
        if self._marked:
            if line.rstrip().endswith(MARK):
                self._lines.append(line.rstrip()[: -len(MARK)])
                return self.take()
        elif not self._lines and line.startswith(MARK):
            rest = line[len(MARK) :]
            if rest.rstrip().endswith(MARK):
                return rest.rstrip()[: -len(MARK)]
            self._marked, line = True, rest
        elif line.endswith("\\"):
            line = line[:-1]
        else:
            self._lines.append(line)
            return self.take()
        self._lines.append(line)
        return None

    def take(self) -> str:
        """What is there, complete or not."""
        text = "\n".join(self._lines).strip("\n")
        self._lines, self._marked = [], False
        return text
