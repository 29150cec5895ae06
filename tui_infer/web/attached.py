"""A client of an engine that another process owns, reached through a socket in the file system."""

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.client import EngineClient
from engine.commands import Load
from engine.config import EngineConfig
from engine.process import EngineProcess
from engine.records import AnyEvent, Ready


class Attachment(EngineProcess):
    """The connection in the place of a process: it runs as long as its owner does, and has no log."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        try:
            self.sock.connect(str(path))
        except OSError:
            self.sock.close()
            raise
        self.sock.setblocking(False)

    @property
    def pid(self) -> int:
        return 0

    @property
    def running(self) -> bool:
        return False

    def end_of(self) -> str:
        return "The server of this tab has ended."

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.close()


class AttachedClient(EngineClient):
    """Speaks to a ``Broker`` at ``path``. A restart asks it for another engine, which all its clients get.

    ``on_gone`` is called when the connection ends.
    """

    owns_engine = False

    def __init__(self, path: Path, config: EngineConfig) -> None:
        super().__init__(config)
        self._path = path
        self.on_gone: Callable[[], None] = lambda: None

    def _open(self) -> EngineProcess:
        return Attachment(self._path)

    def _greet(self) -> None:
        """The broker loads what it was started with."""

    async def restart(self, config: EngineConfig | None = None) -> None:
        async with self._changing:
            self.config = config or self.config
            if self._process is not None:
                self.state, self.status = "loading", None
                self.send(Load(config=self.config))

    def _deliver(self, event: AnyEvent) -> None:
        if isinstance(event, Ready):  # another client may have had another model loaded
            self.config = msgspec.structs.replace(self.config, model=event.status.model)
        super()._deliver(event)

    def _ended(self, why: str) -> None:
        super()._ended(why)
        self.on_gone()
