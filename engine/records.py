"""What the engine tells: records of its steps, what it is made of, what becomes of answers. Torch-free.

``StepRecord`` is the only source that panels, logs, recordings and benchmarks read. Events come from the
engine as a msgspec union tagged by class name, sent as length-prefixed msgpack (``engine.wire``); what goes
to it is in ``engine.commands``. Every event that belongs to a chat carries its session id and its request
epoch.
"""

from typing import Literal

import msgspec

WIRE_VERSION = 1

StepKind = Literal["prefill", "decode", "mixed"]
StepMode = Literal["graph", "eager"]
BlockChangeKind = Literal["allocate", "share", "copy", "publish", "release", "evict"]


class StepTimes(msgspec.Struct, frozen=True, array_like=True):
    """Where a step's milliseconds went.

    ``launch`` is host time spent issuing work; on a CPU it contains the computation itself and
    ``device`` is None. ``device`` comes from CUDA events, read a step later. ``read`` is the wait for
    the sampled tokens and their way into requests and text.

    Where steps are launched ahead, ``total`` is the time since the end of the step before, and the other host
    times are what was spent meanwhile: on the launch of the next step, and on the tokens of this one.
    """

    total: float
    schedule: float
    launch: float
    device: float | None
    read: float


class BlockCounts(msgspec.Struct, frozen=True, array_like=True):
    """``used + cached + free`` is every block but the null block."""

    used: int
    cached: int
    free: int


class BlockChange(msgspec.Struct, frozen=True, array_like=True):
    """One change of one KV block, in the order in which they happened.

    allocate: ``request`` takes a free block as its logical block ``index``.
    share:    ``request`` adds a reference to a used or cached block (prefix hit or fork).
    copy:     like allocate, the content was copied from a shared partial block.
    publish:  the full block entered the prefix index.
    release:  ``request`` dropped its reference; without references a published block is cached,
              another one is free.
    evict:    a cached block left the prefix index and is free (``request`` is -1).
    """

    kind: BlockChangeKind
    block: int
    request: int = -1
    index: int = -1


class StepRow(msgspec.Struct, frozen=True, array_like=True):
    """One request's part of a step: ``tokens`` were computed, ``context`` are in the cache after it."""

    request: int
    context: int
    tokens: int
    prefill: bool


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One engine step, immutable. Counts are tokens or requests, times are milliseconds.

    ``t`` is Unix time in seconds at the start of the step. ``reason`` says why the decode batch ran
    eager (empty when a graph was replayed). ``graph_size`` is the padded batch size of the replayed
    graph. ``active`` counts the rows of this step's decode batch plus its prefills. ``cached_tokens``
    are prompt tokens that prefix hits of this step made it unnecessary to compute. ``block_changes`` are
    those since the record before; of a step launched ahead, the blocks that it took may be in that one. A row
    whose request ended while the step was under way is in no count: what it computed came too late.
    """

    index: int
    t: float
    kind: StepKind
    mode: StepMode
    reason: str
    graph_size: int | None
    active: int
    waiting: int
    prefill_tokens: int
    cached_tokens: int
    decode_tokens: int
    ms: StepTimes
    blocks: BlockCounts
    rows: tuple[StepRow, ...] = ()
    block_changes: tuple[BlockChange, ...] = ()
    preempted: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()


class PassedOver(msgspec.Struct, frozen=True):
    """An attention back end that was not chosen, and why."""

    name: str
    reason: str


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is made of, known once it is ready. Sizes are bytes."""

    model: str
    model_name: str
    model_path: str
    architecture: str
    model_impl: str
    device: str
    device_name: str
    device_uuid: str | None
    dtype: str
    attention: str
    attention_reason: str
    attention_passed_over: tuple[PassedOver, ...]
    mode: StepMode
    mode_reason: str
    graph_sizes: tuple[int, ...]
    block_size: int
    num_blocks: int
    block_bytes: int
    weight_bytes: int
    kv_bytes: int
    graph_bytes: int
    max_batch: int
    max_model_len: int
    prefill_chunk: int
    prefix_cache: bool
    vocab_size: int
    threads: int
    torch: str
    transformers: str
    pid: int
    load_s: float
    notes: tuple[str, ...] = ()
    activation_bytes: int = 0  # peak of the largest prefill and of sampling, kept free beside the cache
    graph_capture_s: float | None = None
    graph_failures: tuple[PassedOver, ...] = ()  # batch sizes that run eager, and why
    weights: str = ""  # int4 or int8 where most of a layer is kept in so few bits, else as ``dtype`` says


class Event(msgspec.Struct, frozen=True, tag=True):
    """Base of all events."""


class Progress(Event, frozen=True, tag=True):
    """Loading goes on. ``fraction`` is 0 to 1, None when unknown."""

    stage: str
    detail: str = ""
    fraction: float | None = None


class Ready(Event, frozen=True, tag=True):
    """The engine takes requests."""

    status: EngineStatus


class Started(Event, frozen=True, tag=True):
    """A request was accepted; ``prompt_ids`` is the whole prompt as it will be computed.

    ``pieces`` is the text of each of these tokens, in the order of ``prompt_ids``; parts of a character
    that is split over tokens show as U+FFFD. ``seed`` is what the answer draws with, given or the engine's
    own. ``text`` is the beginning of an answer that goes on, as far as its tokens make it certain.
    """

    session: str
    epoch: int
    request: int
    prompt_ids: list[int]
    pieces: list[str] = []
    seed: int | None = None
    text: str = ""


class Delta(Event, frozen=True, tag=True):
    """New text of an answer; ``token_ids`` are the tokens since the last delta.

    ``ends`` has one number a token: how many characters of the whole answer were there after it. Text that
    comes without a token, when an answer is cut, belongs to the last one.
    """

    session: str
    epoch: int
    text: str
    token_ids: list[int]
    ends: list[int] = []


class Finished(Event, frozen=True, tag=True):
    """An answer ended. ``error`` says why when ``reason`` is ``error``."""

    session: str
    epoch: int
    reason: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    ttft_s: float | None
    decode_tokens_per_s: float | None
    error: str = ""


class Rejected(Event, frozen=True, tag=True):
    """A request was refused and nothing of it is kept."""

    session: str
    epoch: int
    message: str
    hint: str = ""


class Steps(Event, frozen=True, tag=True):
    """Telemetry: all step records since the last batch, oldest first.

    ``dropped`` counts records that were given up under pressure just before these.
    """

    records: list[StepRecord]
    dropped: int = 0


class BlockOwner(msgspec.Struct, frozen=True, array_like=True):
    """A reference of ``request`` to ``block`` as its logical block ``index``."""

    block: int
    request: int
    index: int


class BlockSnapshot(Event, frozen=True, tag=True):
    """The whole pool after step ``step``; sent where records were dropped."""

    step: int
    owners: list[BlockOwner]
    published: list[int]


class ModeChanged(Event, frozen=True, tag=True):
    """What a ``SetMode`` led to; ``reason`` is set when graphs are not to be had."""

    mode: StepMode
    reason: str = ""


class Paused(Event, frozen=True, tag=True):
    """The step loop stopped or resumed; ``reason`` says what it stopped at, after ``RunUntil``."""

    paused: bool
    reason: str = ""


class BlockDetail(Event, frozen=True, tag=True):
    """What the engine knows of a block after step ``step``.

    ``hash`` is the key in the prefix index as text, empty while unpublished; ``last_used`` the step in which
    it was last taken, shared or released; ``token_ids`` and ``pieces`` are the tokens that it holds, as far
    as they are known (of a published block, or of its first owner).
    """

    block: int
    step: int
    references: int
    hash: str = ""
    last_used: int = 0
    token_ids: list[int] = []
    pieces: list[str] = []


class Failed(Event, frozen=True, tag=True):
    """The engine cannot go on: loading failed, the device failed, or the process died.

    ``fatal`` is False where the engine still runs.
    """

    title: str
    message: str
    hint: str = ""
    fatal: bool = True


AnyEvent = (
    Progress
    | Ready
    | Started
    | Delta
    | Finished
    | Rejected
    | Steps
    | BlockSnapshot
    | ModeChanged
    | Paused
    | BlockDetail
    | Failed
)
