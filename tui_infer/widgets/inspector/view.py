"""What the inspector is given to draw: one immutable value, built by the app."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.records import BlockDetail, EngineStatus, StepMode
from tui_infer.ab import AbRun
from tui_infer.event_log import EventLog
from tui_infer.history import StepHistory
from tui_infer.mirror import BlockMirror
from tui_infer.nvml import GpuReading

# ``pieces(request, start, end)``: the text of each of these tokens, None where it is not known.
PieceSource = Callable[[int, int, int], list[str] | None]


SYNTHETIC_COLOR = -1  # of requests that no chat made


@dataclass(frozen=True)
class SessionTag:
    """How a chat is shown: its letter, and its colour as an index into the theme's session palette."""

    letter: str
    color: int
    title: str
    session: str


@dataclass(frozen=True)
class InspectorView:
    """The state at one moment.

    Attributes:
        status: what the engine is made of; None while it loads.
        history: every step record that is kept.
        mirror: the block pool after the last of them.
        tags: chats by request id, past requests too, so that cached blocks keep their owner.
        focused: the chat whose block table is shown.
        focused_request: its newest request; None before its first prompt.
        gpu: the newest reading.
        mode: ``graph`` or ``eager``, in effect from the next step on.
        mode_reason: why it is eager; empty in graph mode.
        paused: the step loop stands still.
        dead: the engine process is gone.
        detail: the engine's last answer about a block.
        pieces: text of the tokens of a request.
        ab: the comparison of graph and eager that runs or is done.
        log: what happened so far; without one it is drawn up from the history.
        queued: chats whose prompts wait for their first step, those sent during a pause too.
        at: the past step that is shown; None is now. History and mirror are then those of that step.
    """

    status: EngineStatus | None
    history: StepHistory
    mirror: BlockMirror
    tags: Mapping[int, SessionTag]
    focused: SessionTag | None
    focused_request: int | None
    gpu: GpuReading
    mode: StepMode
    mode_reason: str
    paused: bool
    dead: bool
    queued: int = 0
    at: int | None = None
    log: EventLog | None = None
    ab: AbRun | None = None
    detail: BlockDetail | None = None
    pieces: PieceSource | None = None


def graph_failures(status: EngineStatus) -> list[tuple[str, str]]:
    """Batch sizes whose graph could not be captured (``batch 16``), each with the reason."""
    failures = []
    for failure in status.graph_failures:
        _, _, short = failure.reason.partition("could not be captured: ")  # the name says of what already
        failures.append((failure.name, (short or failure.reason).rstrip(".")))
    return failures
