"""One engine for several clients: sessions are kept apart, what concerns the whole engine goes to all."""

import asyncio
import contextlib
import itertools
from collections import deque
from pathlib import Path

import msgspec

from engine.client import Client
from engine.commands import AnyCommand, Cancel, Inspect, Load, RunUntil, Shutdown, Submit
from engine.records import (
    AnyEvent,
    BlockDetail,
    Delta,
    Failed,
    Finished,
    Paused,
    Ready,
    Rejected,
    Started,
    Steps,
)
from engine.wire import FrameReader, WireError, command_reader, frame
from tui_infer.recording.recorder import snapshot_of
from tui_infer.state import AppState

STEPS_AT_START = 2000  # of the engine's past, for a client that comes later
MOST_UNSENT = 32 << 20  # bytes: a client that reads nothing is let go
RECEIVE_BYTES = 1 << 16
OTHER = "Another tab had the engine started again; answers under way are stopped."


class Tab:
    """One connection. Its sessions have its prefix in the engine, and none for itself."""

    def __init__(self, number: int, writer: asyncio.StreamWriter) -> None:
        self.prefix = f"tab{number}:"
        self.active: set[tuple[str, int]] = set()  # the engine's session and epoch of answers under way
        self.inspected: set[int] = set()
        self._writer = writer

    def tell(self, event: AnyEvent) -> None:
        """Send an event without waiting; one that has fallen too far behind is let go."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > MOST_UNSENT:
            transport.abort()
        else:
            self._writer.write(frame(event))

    def close(self) -> None:
        self._writer.close()


class Broker:
    """Owns the engine's client and listens on ``path``, which should be in a folder of its user's only."""

    def __init__(self, client: Client, path: Path) -> None:
        self.path = path
        self.tabs: list[Tab] = []
        self._client = client
        self._state = AppState(client.send)  # what the engine said so far, for those who come later
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._restart: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to listen, and the engine to load."""
        self._server = await asyncio.start_unix_server(self._serve, path=self.path)
        self._client.on_event = self._heard
        await self._client.start()

    async def close(self) -> None:
        """Let all clients go, and end the engine."""
        if self._server is not None:
            self._server.close()
        for tab in self.tabs:
            tab.close()
        if self._restart is not None:
            self._restart.cancel()
        await self._client.close()
        self.path.unlink(missing_ok=True)

    # --- from the engine ---------------------------------------------------------------------------

    def _heard(self, event: AnyEvent) -> None:
        match event:
            case Started() | Delta() | Finished() | Rejected():
                self._tell_owner(event)
                return
            case BlockDetail():
                for tab in self.tabs:
                    if event.block in tab.inspected:
                        tab.inspected.discard(event.block)
                        tab.tell(event)
                return
        self._state.apply(event)
        self._state.notices.clear()
        for tab in self.tabs:
            tab.tell(_as_seen_by(tab, event))

    def _tell_owner(self, event: Started | Delta | Finished | Rejected) -> None:
        for tab in self.tabs:
            if event.session.startswith(tab.prefix):
                if isinstance(event, Finished | Rejected):
                    tab.active.discard((event.session, event.epoch))
                session = event.session.removeprefix(tab.prefix)
                tab.tell(msgspec.structs.replace(event, session=session))

    def _tell_past(self, tab: Tab) -> None:
        """Bring a new client to where the engine is."""
        state = self._state
        if state.phase == "loading":
            tab.tell(state.progress)
        elif state.failure is not None:
            tab.tell(state.failure)
        elif state.status is not None:
            reason = state.mode_reason if state.mode == "eager" else ""
            tab.tell(Ready(msgspec.structs.replace(state.status, mode=state.mode, mode_reason=reason)))
            tab.tell(Steps(list(deque(state.history, maxlen=STEPS_AT_START))))
            tab.tell(snapshot_of(state.mirror))
            if state.paused:
                tab.tell(Paused(True))

    # --- from the clients --------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tab = Tab(next(self._numbers), writer)
        self._tell_past(tab)
        self.tabs.append(tab)
        commands: FrameReader[AnyCommand] = command_reader()
        try:
            while data := await reader.read(RECEIVE_BYTES):
                for command in commands.feed(data):
                    self._take(tab, command)
        except (OSError, WireError):
            pass  # its end, or no client of ours
        finally:
            self.tabs.remove(tab)
            for session, epoch in tab.active:
                self._client.send(Cancel(session, epoch))
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _take(self, tab: Tab, command: AnyCommand) -> None:
        match command:
            case Submit():
                session = tab.prefix + command.session
                tab.active.add((session, command.epoch))
                self._client.send(msgspec.structs.replace(command, session=session))
            case Cancel():
                self._client.send(msgspec.structs.replace(command, session=tab.prefix + command.session))
            case RunUntil() if command.session:
                self._client.send(msgspec.structs.replace(command, session=tab.prefix + command.session))
            case Inspect():
                tab.inspected.add(command.block)
                self._client.send(command)
            case Load():
                self._load(tab, command)
            case Shutdown():
                pass  # of a client that leaves; the engine stays for the others
            case _:
                self._client.send(command)

    def _load(self, tab: Tab, command: Load) -> None:
        """One load at a time: who asks meanwhile gets what the first one asked for."""
        if self._state.phase == "loading":
            return
        self._state.restarting()
        for other in self.tabs:
            other.active.clear()
            if other is not tab:
                other.tell(Failed("engine restarted", OTHER, "It is back in a moment."))
        self._restart = asyncio.get_running_loop().create_task(self._client.restart(command.config))


def _as_seen_by(tab: Tab, event: AnyEvent) -> AnyEvent:
    """A client's own sessions have the names by which it knows them."""
    if isinstance(event, Paused):
        return msgspec.structs.replace(event, reason=event.reason.replace(tab.prefix, ""))
    if isinstance(event, Failed):
        return msgspec.structs.replace(event, message=event.message.replace(tab.prefix, ""))
    return event
