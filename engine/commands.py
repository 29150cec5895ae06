"""What the engine is asked for: every value that goes from a reader to the engine process. Torch-free.

Commands are a msgspec union tagged by class name, sent as length-prefixed msgpack (``engine.wire``). What
comes back are the events of ``engine.records``.
"""

from typing import Literal

import msgspec

from engine.config import EngineConfig
from engine.records import WIRE_VERSION, StepMode
from engine.request import SamplingParams


class Message(msgspec.Struct, frozen=True):
    """One chat message."""

    role: str
    content: str


class Command(msgspec.Struct, frozen=True, tag=True):
    """Base of all commands."""


class Load(Command, frozen=True, tag=True):
    """First command of a connection: load this model."""

    config: EngineConfig
    version: int = WIRE_VERSION


class Submit(Command, frozen=True, tag=True):
    """Start an answer in a session.

    ``prompt`` is plain text, token ids, or chat messages. With ``history`` (the token ids of the
    conversation so far, prompt and answers) only the new messages are rendered and appended, so that
    the prefix cache is hit; without it the whole list is rendered by the chat template. With a history and
    no messages the answer follows the history as it is; its last ``answered`` tokens are then the answer's
    own beginning, which goes on (``params.max_tokens`` counts what is new).
    """

    session: str
    epoch: int
    prompt: str | list[int | Message]
    params: SamplingParams = SamplingParams()
    history: list[int] | None = None
    priority: int = 0
    answered: int = 0


class Cancel(Command, frozen=True, tag=True):
    """Stop the answer of this session and epoch; unknown ones are ignored."""

    session: str
    epoch: int


class SetMode(Command, frozen=True, tag=True):
    """Switch graph and eager, effective at the next step."""

    mode: StepMode


class Pause(Command, frozen=True, tag=True):
    """Stop or resume the step loop; requests are still admitted to the queue."""

    paused: bool


class StepOnce(Command, frozen=True, tag=True):
    """Run one step of a paused engine."""


RunUntilKind = Literal[
    "allocation", "eviction", "prefix_hit", "preemption", "graph_change", "eager", "finished", "step"
]


class RunUntil(Command, frozen=True, tag=True):
    """Let the step loop run, and pause it right behind the first step that fulfils the condition.

    allocation, eviction, prefix_hit, preemption, finished: such a change of ``session``, or of any where it
    is empty. graph_change: a decode step replays another size than the decode step before it, or one of the
    two ran eager. eager: a decode step runs eager. step: the step of number ``step`` was run.

    A later ``RunUntil`` replaces it, ``Pause(True)`` ends it, ``StepOnce`` does nothing meanwhile. Where
    there is nothing to do it waits for work; when that work ends first, the loop is paused too. What can
    never be met (an unknown session, a step in the past) is answered by ``Failed`` and changes nothing.
    """

    kind: RunUntilKind
    session: str = ""
    step: int = 0


class Inspect(Command, frozen=True, tag=True):
    """Ask for what only the engine knows of a block; answered by ``BlockDetail``, or by ``Failed`` for an id
    that does not exist. The null block has no references and no tokens.
    """

    block: int


class Shutdown(Command, frozen=True, tag=True):
    """Leave cleanly."""


AnyCommand = Load | Submit | Cancel | SetMode | Pause | StepOnce | RunUntil | Inspect | Shutdown
