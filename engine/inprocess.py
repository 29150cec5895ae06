"""InProcessClient: the engine on a thread of this process, behind the interface of EngineClient.

For tests and scripts; an app would share the interpreter lock with the engine and show its own
noise in every step time. Importing this module loads no torch, starting it does.
"""

import asyncio
import os
import threading

from engine.client import Client, OnEvent
from engine.commands import AnyCommand, Load, Shutdown
from engine.config import EngineConfig
from engine.records import AnyEvent
from engine.service import EngineService, load_engine
from engine.steppable import EngineFactory

JOIN_S = 10.0  # a load cannot be interrupted; its thread is a daemon and ends with the process


class _LoopOutlet:
    """Hands events to the client on its loop's thread; keeps them while there is no loop."""

    congested = False

    def __init__(self, client: "InProcessClient") -> None:
        self._client = client
        self._lock = threading.Lock()
        self._early: list[AnyEvent] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def send(self, event: AnyEvent) -> None:
        with self._lock:
            if self._loop is None:
                self._early.append(event)
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._deliver, event)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._loop = loop
            early, self._early = self._early, []
        for event in early:
            self._deliver(event)

    def close(self) -> None:
        """Nothing that is still under way is delivered."""
        self._closed = True

    def _deliver(self, event: AnyEvent) -> None:
        if not self._closed:
            self._client._deliver(event)


class InProcessClient(Client):
    """The engine on a daemon thread.

    Args:
        config: passed to the engine in its first command.
        on_event: takes the events on the loop's thread; may be set later.
        make_engine: builds the engine, on its thread.
    """

    log_path = None

    def __init__(
        self,
        config: EngineConfig,
        on_event: OnEvent | None = None,
        *,
        make_engine: EngineFactory = load_engine,
    ) -> None:
        super().__init__(config, on_event)
        self._make_engine = make_engine
        self._service: EngineService | None = None
        self._outlet: _LoopOutlet | None = None
        self._thread: threading.Thread | None = None

    def launch(self) -> None:
        if self._thread is not None or self.state == "closed":
            return
        self.state, self.status, self.pid = "loading", None, os.getpid()
        self._outlet = _LoopOutlet(self)
        self._service = EngineService(self._outlet, self._make_engine)
        self._thread = threading.Thread(target=self._service.run, name="engine", daemon=True)
        self._service.post(Load(config=self.config))
        self._thread.start()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self.state == "idle":
            self.launch()
        if self._outlet is not None:
            self._outlet.attach(self._loop)
        self._hand_over()

    def send(self, command: AnyCommand) -> None:
        if self._service is not None and self.state in ("loading", "ready"):
            self._service.post(command)

    def kill(self) -> None:
        """Ask the thread to end without waiting for it."""
        if self._service is not None and self._outlet is not None:
            self._outlet.close()
            self._service.post(Shutdown())
        self.state = "closed"

    async def _stop(self) -> None:
        if self._service is None or self._outlet is None or self._thread is None:
            return
        self._outlet.close()
        self._service.post(Shutdown())
        await asyncio.to_thread(self._thread.join, JOIN_S)
        self._service = self._outlet = self._thread = None
        self.pid = None
