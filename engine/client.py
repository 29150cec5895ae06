"""EngineClient: starts, watches and restarts the engine process from an asyncio app. Torch-free."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from engine.commands import AnyCommand, Load, Shutdown
from engine.config import EngineConfig
from engine.process import WORKER, EngineProcess
from engine.records import AnyEvent, EngineStatus, Failed, Progress, Ready
from engine.wire import WireError, event_reader, frame

ClientState = Literal["idle", "loading", "ready", "dead", "closed"]
OnEvent = Callable[[AnyEvent], None]

RECEIVE_BYTES = 1 << 18  # read per wake-up: a burst of telemetry cannot hold the app's loop for long
CLOSE_S = 3.0  # longer than the worker gives itself
LINGER_S = 1.0  # for a process that lost its connection by itself
POLL_S = 0.01


class Client:
    """What every client has: a state kept by the events, and a place they go to.

    Attributes:
        config: what the engine is, or will be, loaded with.
        state: ``idle`` before the first start, then ``loading``, ``ready``, ``dead``, ``closed``.
        status: what the engine said of itself when it became ready.
        pid: the engine's process, None while there is none.
    """

    def __init__(self, config: EngineConfig, on_event: OnEvent | None = None) -> None:
        self.config = config
        self.state: ClientState = "idle"
        self.status: EngineStatus | None = None
        self.pid: int | None = None
        self._on_event = on_event
        self._held: list[AnyEvent] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changing = asyncio.Lock()

    @property
    def on_event(self) -> OnEvent | None:
        """Takes every event, on the loop's thread. While it is None events are kept for it."""
        return self._on_event

    @on_event.setter
    def on_event(self, on_event: OnEvent | None) -> None:
        self._on_event = on_event
        if on_event is not None and self._loop is not None:
            self._loop.call_soon(self._hand_over)

    def launch(self) -> None:
        """Start the engine loading; needs no event loop, so that loading overlaps the app's imports."""
        raise NotImplementedError

    async def start(self) -> None:
        """Launch if needed and begin to deliver events on the running loop."""
        raise NotImplementedError

    def send(self, command: AnyCommand) -> None:
        """Send a command; never blocks, and drops it while there is no engine."""
        raise NotImplementedError

    async def restart(self, config: EngineConfig | None = None) -> None:
        """End the engine, dead or alive, and start another one, with ``config`` where given."""
        async with self._changing:
            await self._stop()
            self.config = config or self.config
            self.launch()
            await self.start()

    async def close(self) -> None:
        """End the engine; the client cannot be used again."""
        async with self._changing:
            await self._stop()
            self.state = "closed"

    async def _stop(self) -> None:
        raise NotImplementedError

    def _deliver(self, event: AnyEvent) -> None:
        """Bring the state up to date, then pass the event on."""
        match event:
            case Ready():
                self.state, self.status = "ready", event.status
            case Failed(fatal=True):
                self.state = "dead"
        self._held.append(event)
        self._hand_over()

    def _hand_over(self) -> None:
        while self._held and self._on_event is not None and self._loop is not None:
            event = self._held.pop(0)
            try:
                self._on_event(event)
            except Exception as error:
                # A handler's fault must not swallow the events behind it.
                context = {"message": f"handling of {type(event).__name__} failed", "exception": error}
                self._loop.call_exception_handler(context)


class EngineClient(Client):
    """The engine in a child process.

    Args:
        config: passed to the engine in its first command.
        on_event: takes the events; may be set later, they are kept until then.
        log_path: takes the output of the process, appended.
        command: how the worker is started.
    """

    owns_engine = True  # the connection is over when the engine is

    def __init__(
        self,
        config: EngineConfig,
        on_event: OnEvent | None = None,
        *,
        log_path: Path | None = None,
        command: Sequence[str] = WORKER,
    ) -> None:
        super().__init__(config, on_event)
        self.log_path = log_path
        self._command = tuple(command)
        self._process: EngineProcess | None = None
        self._reader = event_reader()
        self._unsent = bytearray()
        self._writing = False
        self._ending: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Start the process while it is not known yet what it will load: it imports torch meanwhile.

        ``config`` may be changed until ``launch``, which also reports what fails here.
        """
        if self._process is None and self.state == "idle":
            with contextlib.suppress(OSError):
                self._process = self._open()

    def launch(self) -> None:
        if self.state == "closed" or (self._process is not None and self.state != "idle"):
            return
        self.state, self.status = "loading", None
        self._reader = event_reader()
        self._unsent = bytearray()
        try:
            self._process = self._process or self._open()
        except OSError as error:
            hint = "Check the Python installation and the log folder, then restart the engine."
            self._deliver(
                Failed("engine not started", f"The engine process cannot be started: {error}.", hint)
            )
            return
        self.pid = self._process.pid
        self._greet()

    def _open(self) -> EngineProcess:
        return EngineProcess(self.log_path, self._command)

    def _greet(self) -> None:
        self.send(Load(config=self.config))

    def poll(self) -> Progress | None:
        """The last progress of what came so far, while there is no event loop; all of it is kept."""
        process = self._process
        if process is None or self._loop is not None:
            return None
        with contextlib.suppress(OSError, WireError):  # either comes again, to who can say it
            if data := process.sock.recv(RECEIVE_BYTES, socket.MSG_PEEK):
                told = [event for event in event_reader().feed(data) if isinstance(event, Progress)]
                return told[-1] if told else None
        return None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self.state == "idle":
            self.launch()
        if self._process is not None:
            self._loop.add_reader(self._process.sock, self._readable)
            self._flush()
        self._hand_over()

    def send(self, command: AnyCommand) -> None:
        if self._process is None or self.state not in ("loading", "ready"):
            return
        self._unsent += frame(command)
        self._flush()

    def kill(self) -> None:
        """End the process now, from any state and without a loop: the last resort of an app that fell."""
        if self._process is not None:
            process = self._detach()
            process.kill()
        self.state = "closed"

    # --- the socket ------------------------------------------------------------------------------

    def _readable(self) -> None:
        assert self._process is not None
        try:
            data = self._process.sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._ended("")
            return
        process = self._process
        try:
            for event in self._reader.feed(data):
                if self._process is not process:
                    return  # a handler closed this connection
                self._deliver(event)
        except WireError as error:
            self._ended(f"It sent what this app cannot read: {error}")
            return
        if self.state == "dead" and self._ending is None and self.owns_engine:
            self._ended("")

    def _flush(self) -> None:
        """Write what the socket takes, and wait for room with the loop's help."""
        if self._process is None:
            return
        try:
            while self._unsent:
                sent = self._process.sock.send(self._unsent)
                del self._unsent[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._unsent.clear()  # its end shows on the reading side
        self._watch_writable(bool(self._unsent))

    def _watch_writable(self, wanted: bool) -> None:
        if self._loop is None or self._process is None or wanted == self._writing:
            return
        self._writing = wanted
        if wanted:
            self._loop.add_writer(self._process.sock, self._flush)
        else:
            self._loop.remove_writer(self._process.sock)

    def _detach(self) -> EngineProcess:
        """Forget the connection; nothing of it is delivered from here on."""
        assert self._process is not None
        process, self._process = self._process, None
        self.pid = None
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(process.sock)
            self._loop.remove_writer(process.sock)
        self._writing = False
        return process

    # --- its end ---------------------------------------------------------------------------------

    def _ended(self, why: str) -> None:
        """The connection is over though nobody asked: reap the process and say why."""
        process = self._detach()
        told = self.state == "dead"
        self.state = "dead"
        assert self._loop is not None
        self._ending = self._loop.create_task(self._bury(process, why, told))

    async def _bury(self, process: EngineProcess, why: str, told: bool) -> None:
        try:
            await _wait_for_end(process, LINGER_S)
            message = why or process.end_of()
        finally:  # also when the app's loop ends meanwhile
            process.kill()
            self._ending = None
        if not told and self.state == "dead":
            where = f" Log: {self.log_path}." if self.log_path else ""
            self._deliver(Failed("engine stopped", message, f"Restart the engine to go on.{where}"))

    async def _stop(self) -> None:
        if self._ending is not None:
            await self._ending
        if self._process is None:
            return
        self.send(Shutdown())
        process = self._detach()
        with contextlib.suppress(OSError):
            # Should the socket be full, the end of the stream says the same as the command.
            process.sock.shutdown(socket.SHUT_WR)
        try:
            await _wait_for_end(process, CLOSE_S)
        finally:
            process.kill()


async def _wait_for_end(process: EngineProcess, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while process.running and time.monotonic() < deadline:  # noqa: ASYNC110 - a process has no event
        await asyncio.sleep(POLL_S)
