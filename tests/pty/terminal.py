"""A real pseudo-terminal around a real process, with its screen as pyte understands it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import pyte

# Kitty's keys, mode queries, pointer shapes and device strings: pyte would draw parts of them, or stumble
UNKNOWN_TO_PYTE = re.compile(
    rb"\x1bP(?:[^\x1b]|\x1b[^\\])*\x1b\\|\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$p|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\\\)"
)
UNFINISHED = re.compile(
    rb"\x1bP(?:[^\x1b]|\x1b[^\\])*\x1b?$|\x1b(?:\[[<>=?]?[0-9;]*\$?|\][^\x07\x1b]*\x1b?)?$"
)
PRIVATE_MODE = re.compile(rb"\x1b\[\?([0-9;]+)([hl])")


class Terminal:
    """Starts ``command`` on a terminal of its own.

    ``output`` is every byte that came; ``lines()`` is the screen now. Answers the queries that a terminal
    answers, as far as the app waits for none.
    """

    def __init__(self, command: Sequence[str], size: tuple[int, int], env: Mapping[str, str]) -> None:
        columns, rows = size
        self.output = b""
        self._closed = False
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.settings = termios.tcgetattr(slave)
        self._slave = slave
        self.process = subprocess.Popen(
            list(command),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **env},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        held = b""
        while not self._closed:
            if not select.select([self.master], [], [], 0.2)[0]:
                continue
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:
                return
            with self._lock:
                self.output += data
                data = held + data
                cut = UNFINISHED.search(data)
                held = data[cut.start() :] if cut else b""
                self._stream.feed(UNKNOWN_TO_PYTE.sub(b"", data[: cut.start()] if cut else data))

    def send(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        while data:
            data = data[os.write(self.master, data[:1024]) :]

    def paste(self, text: str) -> None:
        """As a terminal in bracketed paste mode sends it: line ends are carriage returns."""
        self.send(b"\x1b[200~" + text.replace("\n", "\r").encode() + b"\x1b[201~")

    def lines(self) -> list[str]:
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    def text(self) -> str:
        return "\n".join(self.lines())

    def wait_for(self, wanted: str | Callable[[str], bool], timeout_s: float = 60.0) -> str:
        """The screen once ``wanted`` is on it; fails with the last screen when it does not come."""
        deadline = time.monotonic() + timeout_s
        while True:
            text = self.text()
            if wanted in text if isinstance(wanted, str) else wanted(text):
                return text
            assert self.process.poll() is None, f"ended with {self.process.returncode}; screen:\n{text}"
            assert time.monotonic() < deadline, f"{wanted!r} did not come in {timeout_s} s; screen:\n{text}"
            time.sleep(0.02)

    def wait_exit(self, timeout_s: float = 10.0) -> int:
        code = self.process.wait(timeout_s)
        time.sleep(0.3)  # for the reader to take what is still in the line
        return code

    def modes(self) -> dict[int, bool]:
        """The private modes that were switched, and whether they are on now."""
        with self._lock:
            found = PRIVATE_MODE.findall(self.output)
        return {int(mode): switch == b"h" for modes, switch in found for mode in modes.split(b";")}

    def line_settings(self) -> list[object]:
        """The terminal's line settings now; ``settings`` are those before the start."""
        return termios.tcgetattr(self._slave)

    def close(self) -> None:
        """End the process, whatever it does, and free the terminal."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._closed = True
        self._reader.join()
        os.close(self.master)
        os.close(self._slave)


ALTERNATE_SCREEN, CURSOR, BRACKETED_PASTE, FOCUS = 1049, 25, 2004, 1004
MOUSE = (1000, 1003, 1015, 1006)


def assert_restored(terminal: Terminal) -> None:
    """Nothing that the app switched on is left on."""
    modes = terminal.modes()
    left = {mode for mode in (ALTERNATE_SCREEN, BRACKETED_PASTE, FOCUS, *MOUSE) if modes.get(mode)}
    assert not left, f"left on: {left}"
    assert modes[CURSOR], "the cursor is hidden"
    assert terminal.output.count(b"\x1b[<u") >= terminal.output.count(b"\x1b[>"), "Kitty keys are left on"
    assert terminal.line_settings() == terminal.settings
