"""Record ``docs/tour.cast``: the real app and engine on a terminal, typed through like a user would.

    python scripts/tour.py [--model NAME] [--out docs/tour.cast] [--size 160x44]

Three chats at once, one prompt to all, a comparison of temperatures, a branch, other themes. The file is an
asciicast of version 2: ``asciinema play docs/tour.cast`` shows it. Needs ``pyte`` (extra ``dev``).
"""

import argparse
import fcntl
import json
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte

from engine.config import DEFAULT_MODEL

ROOT = Path(__file__).resolve().parent.parent
KEY_S, READ_S = 0.045, 1.2  # between two keys; to let a viewer read
LONGEST_PAUSE_S = 1.5  # of a cast: what takes longer is shortened

SETTINGS = "temperature = 0.0\nmax_tokens = 120\n"  # short answers, the same each time

ALT_A, CTRL_L, CTRL_N, CTRL_T, ESC, ENTER = "\x1ba", "\x0c", "\x0e", "\x14", "\x1b", "\r"


class Stage:
    """A terminal with the app on it, everything that it draws written down with its time in seconds."""

    def __init__(self, command: list[str], columns: int, rows: int, env: dict[str, str]) -> None:
        self.frames: list[tuple[float, str]] = []
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **env},
        )
        os.close(slave)
        self._started = time.monotonic()
        self._held = b""

    def wait(self, seconds: float) -> None:
        """Take in what is drawn meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not select.select([self._master], [], [], left)[0]:
                return
            try:
                data = self._held + os.read(self._master, 1 << 16)
            except OSError:
                return
            text = data.decode("utf-8", "ignore")
            self._held = data[len(text.encode()) :]
            self._stream.feed(text.encode())
            self.frames.append((time.monotonic() - self._started, text))

    def wait_for(self, words: str, timeout_s: float = 120.0) -> None:
        """Until ``words`` stand on the screen."""
        deadline = time.monotonic() + timeout_s
        while not any(words in line for line in self._screen.display):
            if time.monotonic() > deadline or self.process.poll() is not None:
                screen = "\n".join(line.rstrip() for line in self._screen.display)
                raise SystemExit(f"{words!r} did not come:\n{screen}")
            self.wait(0.1)

    def press(self, keys: str, pause_s: float = READ_S) -> None:
        os.write(self._master, keys.encode())
        self.wait(pause_s)

    def type(self, text: str) -> None:
        for character in text:
            self.press(character, KEY_S)

    def ask(self, text: str, pause_s: float = READ_S) -> None:
        self.type(text)
        self.press(ENTER, pause_s)

    def write(self, path: Path, title: str) -> None:
        """The cast, without long pauses."""
        header = {
            "version": 2,
            "width": self._screen.columns,
            "height": self._screen.lines,
            "title": title,
            "env": {"TERM": "xterm-256color"},
        }
        lines = [json.dumps(header)]
        shown = before = 0.0
        for at, text in self.frames:
            shown += min(at - before, LONGEST_PAUSE_S)
            before = at
            lines.append(json.dumps([round(shown, 3), "o", text], ensure_ascii=False))
        path.write_text("\n".join(lines) + "\n", "utf-8")
        print(f"{path}: {len(self.frames)} frames, {shown:.0f} s, {path.stat().st_size >> 10} KiB")


def play(stage: Stage) -> None:
    """What a user would do, in five scenes."""
    stage.wait_for("Ask something")
    stage.wait_for("idle")
    stage.ask("Write a short poem about the sea.")  # three chats at once
    stage.press(CTRL_N)
    stage.ask("List five facts about the Moon.")
    stage.press(CTRL_N)
    stage.ask("Write a Python function that checks whether a number is prime.", 6.0)
    stage.press(ESC)
    stage.press(ALT_A)  # one prompt to all
    stage.ask("Say it again in one sentence.", 5.0)
    stage.press(ALT_A)
    stage.wait_for("idle")
    stage.ask("/compare temperature=0,0.7,1.2 What is a good name for a cat?", 6.0)
    stage.wait(3.0)
    stage.press("k", 2.0)
    stage.press(CTRL_L)  # a branch of the chat at its first answer
    stage.press("k")
    stage.press("f", 2.0)
    stage.ask("Now in French, please.", 5.0)
    for _ in range(3):
        stage.press(CTRL_T, 1.5)
    stage.press("\x03", 0.3)
    stage.press("\x03", 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "tour.cast")
    parser.add_argument("--size", default="160x44", help="columns and rows")
    arguments = parser.parse_args()
    columns, rows = (int(part) for part in arguments.size.split("x"))
    folders = Path(tempfile.mkdtemp(prefix="tui-infer-tour-"))
    env = {f"TUI_INFER_{kind}_DIR": str(folders / kind.lower()) for kind in ("CONFIG", "DATA", "LOG")}
    (folders / "config").mkdir()
    (folders / "config" / "config.toml").write_text(SETTINGS)
    command = [sys.executable, "-m", "tui_infer", "--model", arguments.model, "--no-history"]
    stage = Stage(command, columns, rows, env)
    try:
        play(stage)
        code = stage.process.wait(10)
    finally:
        if stage.process.poll() is None:
            stage.process.kill()
        shutil.rmtree(folders)
    if code:
        raise SystemExit(f"the app ended with {code}")
    stage.write(arguments.out, "tui-infer")


if __name__ == "__main__":
    main()
