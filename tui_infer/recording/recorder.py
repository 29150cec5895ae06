"""A recorder: listens to what the app and its engine say to each other, and hands it to the writer."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import PurePath

import msgspec

from engine.commands import AnyCommand, Cancel, Load, Pause, RunUntil, SetMode, Shutdown, StepOnce, Submit
from engine.records import AnyEvent, BlockOwner, BlockSnapshot, EngineStatus, Paused, Progress, Ready, Steps
from tui_infer.mirror import BlockMirror
from tui_infer.nvml import GpuReading
from tui_infer.recording.format import (
    AnyEntry,
    ChatLook,
    Chats,
    Content,
    End,
    Heard,
    Reading,
    Restarting,
    Said,
    Sent,
    Tags,
)
from tui_infer.recording.writer import RecordingWriter
from tui_infer.session import SessionState
from tui_infer.state import AppState

STEPS_AN_ENTRY = 512
RECORDED = Submit | Cancel | SetMode | Pause | StepOnce | RunUntil
NOT_RECORDED = Progress  # of a load that nobody will wait for again


class Recorder:
    """Turns events, commands and changes of the chats into entries, from ``begin`` to ``close``.

    ``begin`` writes where things stand, so that a recording can start at any moment: the chats with their
    texts, the steps so far, the pool of blocks.
    """

    def __init__(self, writer: RecordingWriter) -> None:
        self.writer = writer
        self._chats: Chats | None = None
        self._loading = False

    def begin(self, state: AppState, gpu: GpuReading) -> None:
        """Write where things stand."""
        for entry in starting_entries(state, self.writer.now):
            self.writer.put(entry)
        self.writer.put(Reading(self.writer.now, _portable(gpu)))
        self.chats(state)
        self._loading = state.phase == "loading"

    def heard(self, event: AnyEvent) -> None:
        """The engine said something."""
        if isinstance(event, Ready):
            event = Ready(public_status(event.status))
        if not isinstance(event, NOT_RECORDED):
            self._put(Heard(self.writer.now, event))

    def sent(self, command: AnyCommand) -> None:
        """The app told the engine something."""
        if not isinstance(command, Load | Shutdown) and isinstance(command, RECORDED):
            self._put(Sent(self.writer.now, command))

    def chats(self, state: AppState) -> None:
        """Chats may have come, gone, or got another title or the focus."""
        chats = chats_of(state, self.writer.now)
        before = self._chats
        if before is None or (before.chats, before.focused) != (chats.chats, chats.focused):
            self._chats = chats
            self._put(chats)

    def content(self, session: SessionState) -> None:
        """A chat's turns were made others than its events tell."""
        self._put(_content(session, self.writer.now))

    def phase(self, state: AppState) -> None:
        """The engine may have been started again."""
        loading = state.phase == "loading"
        if loading and not self._loading:
            self._put(Restarting(self.writer.now))
        self._loading = loading

    def reading(self, gpu: GpuReading) -> None:
        """The card was read."""
        self._put(Reading(self.writer.now, _portable(replace(gpu, past={}))))

    def end(self) -> None:
        """End the recording in order, without waiting for the disk."""
        self._put(End(self.writer.now))
        self.writer.end()

    def _put(self, entry: AnyEntry) -> None:
        self.writer.put(entry)


def starting_entries(state: AppState, t: float) -> Iterator[AnyEntry]:
    """What brings an empty state to where this one is."""
    yield chats_of(state, t)
    if state.status is not None and state.phase != "loading":
        status = msgspec.structs.replace(
            public_status(state.status), mode=state.mode, mode_reason=state.mode_reason
        )
        yield Heard(t, Ready(status))
        steps, dropped = iter(state.history), state.history.dropped
        while records := list(islice(steps, STEPS_AN_ENTRY)):
            yield Heard(t, Steps(records, dropped))
            dropped = 0
        yield Heard(t, snapshot_of(state.mirror))
    for session in state.sessions.values():
        if session.turns:
            yield _content(session, t)
    if state.tags:
        yield Tags(t, dict(state.tags))
    if state.paused:
        yield Heard(t, Paused(True))
    if state.failure is not None:
        yield Heard(t, state.failure)


def chats_of(state: AppState, t: float) -> Chats:
    """The open chats and the focused one."""
    chats = [
        ChatLook(session.id, session.letter, session.color, session.title, session.titled)
        for session in state.sessions.values()
    ]
    return Chats(t, chats, state.focused)


def snapshot_of(mirror: BlockMirror) -> BlockSnapshot:
    """The pool as the mirror knows it."""
    blocks = range(1, min(mirror.num_blocks, mirror.high_water + 1))  # above it nothing was ever held
    owners = [
        BlockOwner(block, request, index)
        for block in blocks
        for request, index in mirror.references(block).items()
    ]
    return BlockSnapshot(mirror.step, owners, [block for block in blocks if mirror.published(block)])


def public_status(status: EngineStatus) -> EngineStatus:
    """The status without what tells of the machine's user: folders, and the number of the card."""
    return msgspec.structs.replace(
        status,
        model=_last_part(status.model),
        model_path=_last_part(status.model_path),
        device_uuid=None,
        pid=0,
    )


def _content(session: SessionState, t: float) -> Content:
    turns = [
        Said(
            turn.role,
            turn.text,
            list(turn.token_ids),
            turn.status,
            turn.note,
            turn.stats,
            turn.asked,
            turn.end,
            turn.seed,
        )
        for turn in session.turns
    ]
    return Content(
        t, session.id, session.epoch, session.status, session.request, list(session.history_ids), turns
    )


def _last_part(path: str) -> str:
    """A Hugging Face id stays whole; of a folder or file only its name."""
    pure = PurePath(path)
    return pure.name if pure.is_absolute() or path.startswith((".", "~")) else path


def _portable(gpu: GpuReading) -> GpuReading:
    """With plain mappings, which is what the encoder takes."""
    return replace(gpu, missing=dict(gpu.missing), past=dict(gpu.past))
