"""Warm starts of the app as somebody at a terminal sees them, from the command to a prompt that takes text.

    python -m benchmarks.startup --json benchmarks/results/startup-cpu.json

Each start runs on a pseudo-terminal of its own. What it writes is kept with its times and looked at when the
app is gone, so that reading the screen takes no time from what is measured. One start before the first
counted one makes it warm. Configuration and chats are those of an empty folder; the cache is the user's.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import pyte
from rich.console import Console
from rich.table import Table

from engine.bench.header import header
from tests.pty.terminal import UNFINISHED, UNKNOWN_TO_PYTE, Terminal

SIZE = (120, 36)
TYPED = "zqz"  # stands nowhere else on the screen
STAGES = ("importing torch", "finding the model", "loading", "warm-up")
IDLE = "○ idle"
PROMPT = "Ask something"
LONGEST_S = 120.0
ECHO_S = 1.0  # for what was typed to be drawn
SETTLE_S = 1.0  # between two starts

Frames = list[tuple[float, bytes]]


class Recorded(Terminal):
    """Keeps what comes with the time at which it came; draws nothing."""

    frames: Frames

    def _read(self) -> None:
        self.frames = []
        while not self._closed:
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    data = os.read(self.master, 1 << 16)
                except OSError:
                    return
                self.frames.append((time.perf_counter(), data))
                self.output += data


def main() -> None:
    parser = argparse.ArgumentParser(description="Time warm starts of the app.")
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console()
    load = os.getloadavg()
    floor = [import_torch() for _ in range(options.starts + 1)][1:]
    starts = [start(options.model) for _ in range(options.starts + 1)][1:]
    rows = {name: spread(found[name] for found in starts) for name in starts[0]}
    rows["import torch, alone"] = spread(floor)
    table = Table("seconds from the command to", "median", "least", "most")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[key]:.2f}" for key in ("median", "min", "max")))
    console.print(table)
    if options.json is not None:
        settings = {"starts": options.starts, "model": options.model, "terminal": f"{SIZE[0]}x{SIZE[1]}"}
        result = {
            "header": header(),
            "settings": settings,
            "loadavg_before": load,
            "loadavg_after": os.getloadavg(),
            "seconds": rows,
            "starts": starts,
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


def start(model: str) -> dict[str, float]:
    """One start with an empty folder for configuration and chats."""
    with tempfile.TemporaryDirectory() as folder:
        return run(model, Path(folder))


def run(model: str, folder: Path) -> dict[str, float]:
    """Start the app, type when the engine is ready, quit; seconds from the command to each event.

    Raises:
        RuntimeError: something did not come, with the last screen.
    """
    time.sleep(SETTLE_S)
    own = {f"TUI_INFER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "LOG")}
    own |= {"PYTHONDONTWRITEBYTECODE": ""}  # as where it is installed: modules are compiled once
    began = time.perf_counter()
    terminal = Recorded([sys.executable, "-m", "tui_infer", "--model", model], SIZE, own)
    try:
        wait(terminal, lambda: IDLE.encode() in terminal.output)
        terminal.send(TYPED)
        time.sleep(ECHO_S)
        terminal.send("\x03")
        time.sleep(0.2)
        terminal.send("\x03")
        wait(terminal, lambda: terminal.process.poll() is not None, running=False)
    finally:
        terminal.close()
    return events(terminal.frames, began)


def wait(terminal: Recorded, ready: Callable[[], bool], running: bool = True) -> None:
    deadline = time.perf_counter() + LONGEST_S
    while not ready():
        if time.perf_counter() > deadline or (running and terminal.process.poll() is not None):
            raise RuntimeError(f"The app did not come up: {terminal.output[-2000:]!r}")
        time.sleep(0.01)


def events(frames: Frames, began: float) -> dict[str, float]:
    """When each event was first on the screen."""
    wanted: dict[str, Callable[[str], bool]] = {
        "first frame": lambda text: bool(text.strip()),
        "loading progress": lambda text: any(stage in text for stage in STAGES),
        "the app's own frame": lambda text: PROMPT in text,
        "engine ready": lambda text: IDLE in text,
        "prompt takes text": lambda text: TYPED in text,
    }
    screen = pyte.Screen(*SIZE)
    stream = pyte.ByteStream(screen)
    found: dict[str, float] = {}
    held = b""
    for at, data in frames:
        data = held + data
        cut = UNFINISHED.search(data)
        held = data[cut.start() :] if cut else b""
        stream.feed(UNKNOWN_TO_PYTE.sub(b"", data[: cut.start()] if cut else data))
        text = "\n".join(screen.display)
        for name, seen in wanted.items():
            if name not in found and seen(text):
                found[name] = round(at - began, 4)
    if missing := wanted.keys() - found.keys():
        raise RuntimeError(f"Never seen: {', '.join(sorted(missing))}.")
    return {name: found[name] for name in wanted}


def import_torch() -> float:
    """Seconds of a process that imports torch and ends: no engine can be ready before."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import gc; gc.disable(); import torch"], check=True)
    return time.perf_counter() - began


def spread(values: Iterable[float]) -> dict[str, Any]:
    found = sorted(values)
    return {"median": round(median(found), 3), "min": round(found[0], 3), "max": round(found[-1], 3)}


if __name__ == "__main__":
    main()
