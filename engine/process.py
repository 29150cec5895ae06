"""EngineProcess: the child process as seen from the app, with its socket, log and end. Torch-free."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from engine.threads import limit_spinning

WORKER = (sys.executable, "-P", "-m", "engine.worker")
LOG_TAIL = 16 << 10  # bytes searched for the last line

_NOISE = ("Extension modules:", "Current thread", "Thread 0x", "<no Python frame>")


class EngineProcess:
    """One run of the engine process.

    Args:
        log_path: takes the process's output, appended; None keeps it in an unnamed file, for the
            last line only.
        command: how the worker is started; ``--fd N`` is added.

    Raises:
        OSError: the process could not be started or the log not opened.
    """

    def __init__(self, log_path: Path | None, command: Sequence[str] = WORKER) -> None:
        self._log = _open_log(log_path)
        self._log_start = os.fstat(self._log.fileno()).st_size  # before it: other runs and the header
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        arguments = [*command, "--fd", str(theirs.fileno())]
        if threading.current_thread() is threading.main_thread():
            # Linux ties the signal to the thread that forked; another thread may well end before us.
            arguments.append("--die-with-parent")
        try:
            self._popen = subprocess.Popen(
                arguments,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=_environment(),
            )
        except BaseException:
            self.sock.close()
            self._log.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether the process still runs; reaps it when it ended."""
        return self._popen.poll() is None

    def end_of(self) -> str:
        """How the ended process ended, in words; with the last line of its log where there is one."""
        code = self._popen.poll()
        if code is None:
            how = "closed its connection"
        elif code < 0:
            how = f"was killed by signal {-code} ({_signal_name(-code)})"
        else:
            how = f"ended with exit code {code}"
        line = self.last_log_line()
        return f"The engine process {how}.{f' Its last words: {line}' if line else ''}".rstrip(".") + "."

    def last_log_line(self) -> str:
        """The last line of this run in the log that says something, or an empty string."""
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self._log.fileno()).st_size
            tail = os.pread(self._log.fileno(), LOG_TAIL, max(self._log_start, size - LOG_TAIL))
            lines = tail.decode(errors="replace").splitlines()
            fatal = [line for line in lines if line.startswith("Fatal Python error")]
            said = [line for line in lines if line.strip() and line[0] != " " and not line.startswith(_NOISE)]
            return (fatal or said or [""])[-1].strip()[:300]
        return ""

    def kill(self) -> None:
        """Kill the process group, reap the process and give back socket and log. Blocks for at most 2 s."""
        self.sock.close()
        if self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(2.0)
        self._log.close()


def _open_log(path: Path | None) -> IO[bytes]:
    if path is None:
        return tempfile.TemporaryFile()
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.open("ab+")
    log.write(f"--- engine started {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
    log.flush()
    return log


def _environment() -> dict[str, str]:
    """The child's environment: it finds the same ``engine`` package as we did, whatever its folder is.

    ``-P`` keeps the working directory, where a folder named ``engine`` may well lie, off its path.
    """
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    limit_spinning(environment)
    root = str(Path(__file__).resolve().parent.parent)
    if Path(root).name not in ("site-packages", "dist-packages"):
        paths = [root, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
