"""Engines as the CPU benchmark drives them: start it, send it prompts together, weigh it, end it.

Each runs in a process of its own, ours too, and is timed from outside: start-up from the process's begin to
the moment it takes requests, tokens from when all prompts were handed over.
"""

import contextlib
import json
import os
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from engine.errors import EngineError

START_S, RUN_S, STOP_S = 600.0, 600.0, 20.0
TRANSFORMERS = Path(__file__).with_name("cpu_transformers.py")

Chat = Sequence[Mapping[str, str]]  # messages with role and content


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of prompts sent together; times in seconds since then.

    Attributes:
        first_s: when each request's first token was there, or the first piece that had any.
        first_tokens: in these pieces, over all requests.
        end_s: when the last token of all was there.
        tokens: generated, over all requests.
        prompt_tokens: of the longest prompt.
        text: the first answer.
    """

    first_s: tuple[float, ...]
    first_tokens: int
    end_s: float
    tokens: int
    prompt_tokens: int
    text: str


class Peer(ABC):
    """One engine. ``start`` and ``stop`` may take turns; ``stop`` ends what there is, in any state."""

    def __init__(self, name: str, settings: str) -> None:
        self.name = name
        self.settings = settings
        self.versions: dict[str, str] = {}

    @abstractmethod
    def start(self) -> float:
        """Start it; the seconds until it takes requests."""

    @abstractmethod
    def run(self, chats: Sequence[Chat], new: int) -> Measured:
        """Generate ``new`` tokens greedily for each chat, all sent together, whatever ends them."""

    @abstractmethod
    def stop(self) -> None:
        """End it and every process it started."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its first process."""


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it, as far as they live."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def memory_mib(pid: int) -> tuple[float, float]:
    """MiB of a process and all below it: the sum of their peaks, and their share of what is resident now."""
    peak = share = 0.0
    for process in tree(pid):
        peak += _kib(f"/proc/{process.pid}/status", "VmHWM") / 1024
        share += _kib(f"/proc/{process.pid}/smaps_rollup", "Pss") / 1024
    return peak, share


def _kib(file: str, name: str) -> int:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


class Child:
    """A process with a log, that ends with everything below it.

    Raises:
        EngineError: it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log: Path, pipes: bool = False
    ) -> None:
        self.log = log
        pipe = subprocess.PIPE if pipes else None
        with log.open("ab") as output:
            try:
                self.popen = subprocess.Popen(
                    command,
                    stdin=pipe or subprocess.DEVNULL,
                    stdout=pipe or output,
                    stderr=output,
                    env=os.environ | dict(env),
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineError(f"{command[0]} cannot be started: {error.strerror}.") from error

    def check(self) -> None:
        """Raises: EngineError: it ended."""
        code = self.popen.poll()
        if code is not None:
            raise EngineError(f"The process ended with {code}: {self.last_words()}")

    def last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing."

    def stop(self) -> None:
        """Ask the process to end, so that it can clean up; then end what is left of it and below it."""
        everyone = tree(self.popen.pid)
        self.popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(STOP_S)
        for process in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.popen.wait()
        psutil.wait_procs(everyone, STOP_S)
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class Transformers(Peer):
    """The library itself in a process that answers lines; ``way`` is ``generate`` or ``continuous``."""

    def __init__(self, name: str, way: str, dtype: str, folder: Path, python: str, log: Path) -> None:
        super().__init__(name, f"{way}, {dtype}, attention sdpa")
        self._command = [python, str(TRANSFORMERS), str(folder), way, dtype]
        self._log = log
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.popen.pid

    def start(self) -> float:
        begin = time.perf_counter()
        self._child = Child(self._command, {"HF_HUB_OFFLINE": "1"}, self._log, pipes=True)
        self.versions = self._line(START_S)
        return time.perf_counter() - begin

    def run(self, chats: Sequence[Chat], new: int) -> Measured:
        assert self._child is not None
        assert self._child.popen.stdin is not None
        self._child.popen.stdin.write((json.dumps({"chats": list(chats), "new": new}) + "\n").encode())
        self._child.popen.stdin.flush()
        row = self._line(RUN_S)
        return Measured(**{**row, "first_s": tuple(row["first_s"]), "first_tokens": len(chats)})

    def _line(self, timeout_s: float) -> Any:
        """The child's next line; one that takes too long is ended."""
        assert self._child is not None
        assert self._child.popen.stdout is not None
        watchdog = threading.Timer(timeout_s, self._child.popen.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            line = self._child.popen.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            self._child.popen.wait()
            self._child.check()
        return json.loads(line)

    def stop(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            child.stop()
