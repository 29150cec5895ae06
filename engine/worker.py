"""The engine process: ``python -m engine.worker --fd N`` serves one app over an inherited socket.

The process lives as long as its socket does. A reader thread watches it even while the main thread
loads weights or sits in a kernel, so that a killed app never leaves a card occupied.
"""

import argparse
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from engine.commands import Shutdown
from engine.records import AnyEvent
from engine.service import IMPORTING, EngineService, import_engine, load_engine
from engine.steppable import EngineFactory
from engine.wire import WireError, command_reader, frame

CONGESTED_BYTES = 1 << 20  # unsent bytes from which telemetry is given up and text is held together
LEAVE_S = 2.0  # for the step under way and for closing; after it the process ends regardless
RECEIVE_BYTES = 1 << 16

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class SocketOutlet:
    """Sends events from a thread of its own: the step loop never waits for a slow reader."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._changed = threading.Condition()
        self._frames: list[bytes] = []
        self._unsent = 0
        self._broken = False
        threading.Thread(target=self._write, name="engine-outlet", daemon=True).start()

    @property
    def congested(self) -> bool:
        """True while the app is more than ``CONGESTED_BYTES`` behind."""
        return self._unsent > CONGESTED_BYTES

    def send(self, event: AnyEvent) -> None:
        """Queue one event; the order is kept."""
        data = frame(event)
        with self._changed:
            if self._broken:
                return
            self._frames.append(data)
            self._unsent += len(data)
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> None:
        """Wait until everything is sent, at most ``timeout_s`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._unsent == 0, timeout_s)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._frames))
                frames, self._frames = self._frames, []
            data = b"".join(frames)
            try:
                self._sock.sendall(data)
            except OSError:
                self._broken = True  # the reader thread sees the end too and ends the process
            with self._changed:
                self._unsent = 0 if self._broken else self._unsent - len(data)
                self._changed.notify_all()


class Worker:
    """One connection: reads commands on a thread, serves them on the main thread."""

    def __init__(
        self, sock: socket.socket, make_engine: EngineFactory, prepare: Callable[[], None] | None
    ) -> None:
        self._sock = sock
        self._prepare = prepare
        self._outlet = SocketOutlet(sock)
        self._service = EngineService(self._outlet, make_engine)

    def serve(self) -> NoReturn:
        """Serve until told to leave or the app is gone, then end the process.

        ``os._exit`` on purpose: torch's own teardown takes long and can hang while graphs are alive;
        memory, device included, goes back to the system either way.
        """
        threading.Thread(target=self._read, name="engine-inbox", daemon=True).start()
        if self._prepare is not None:
            self._outlet.send(IMPORTING)
            with contextlib.suppress(Exception):  # it comes again where it is reported
                self._prepare()
        healthy = self._service.run()
        self._outlet.drain(LEAVE_S)
        _exit(0 if healthy else 1)

    def _read(self) -> None:
        reader = command_reader()
        try:
            while data := self._sock.recv(RECEIVE_BYTES):
                for command in reader.feed(data):
                    self._service.post(command)
                    if isinstance(command, Shutdown):
                        self._leave()
        except WireError as error:
            print(f"engine: unreadable command: {error}", file=sys.stderr)
        except OSError as error:
            print(f"engine: connection lost: {error}", file=sys.stderr)
        self._leave()

    def _leave(self) -> NoReturn:
        """End the process: gently when the loop runs, at once when it is still loading."""
        if self._service.ready:
            self._service.post(Shutdown())
            time.sleep(LEAVE_S)
        _exit(0)


def _exit(code: int) -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _die_with_parent() -> None:
    """Ask Linux to kill this process with its parent.

    The socket's end says the same, but no Python thread hears it while a library holds the
    interpreter lock for seconds, as loading CUDA's libraries does.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(
    arguments: Sequence[str] | None = None,
    make_engine: EngineFactory = load_engine,
    prepare: Callable[[], None] | None = None,
) -> NoReturn:
    """Entry point of the process. ``prepare`` is called before anything is said of what to load."""
    parser = argparse.ArgumentParser(prog="engine.worker", description="Serve one app over a socket.")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket")
    parser.add_argument(
        "--die-with-parent", action="store_true", help="Linux: be killed with the parent thread"
    )
    options = parser.parse_args(arguments)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # die of it, with no traceback
    if options.die_with_parent:
        _die_with_parent()
    os.set_inheritable(options.fd, False)  # a grandchild that holds the socket would hide our death
    Worker(socket.socket(fileno=options.fd), make_engine, prepare).serve()


if __name__ == "__main__":
    main(prepare=import_engine)
