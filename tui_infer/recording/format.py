"""The file format of recordings (``.tirec``), version 1.

    magic     8 bytes    89 54 49 52 45 43 0D 0A  (``TIREC`` between a byte that is no text and a line end,
                         so that transfers as text show)
    version   uint16     little-endian, as all numbers here
    chunks    until the end of the file:
        length  uint32   bytes of data
        crc     uint32   CRC-32 of data
        data             the next part of one zlib stream, ended by a sync flush

Each chunk decompresses, behind those before it, to whole frames: a uint32 length, then msgpack. The first
frame of a file is a ``Header``, all others are entries of ``AnyEntry``. A file that ends in the middle of a
chunk is whole up to that chunk; a recording that was closed in order ends with an ``End``. Readers ignore
fields that they do not know; a new kind of entry needs a new version.
"""

import struct

import msgspec

from engine.commands import AnyCommand
from engine.errors import EngineError
from engine.records import AnyEvent
from tui_infer.nvml import GpuReading
from tui_infer.session import Role, SessionStatus, TurnStats, TurnStatus
from tui_infer.widgets.inspector.view import SessionTag

MAGIC = b"\x89TIREC\r\n"
FORMAT_VERSION = 1
SUFFIX = ".tirec"
VERSION = struct.Struct("<H")
CHUNK = struct.Struct("<II")
LENGTH = struct.Struct("<I")
MOST_CHUNK_BYTES = 64 << 20  # compressed; a longer chunk can only be damage
MOST_PLAIN_BYTES = 512 << 20  # what one chunk may decompress to


class RecordingError(EngineError):
    """A recording cannot be read or written."""

    title = "recording"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote the file and when (Unix time); ``texts`` says whether prompts and answers are in it."""

    created: float
    app: str
    engine: str
    wire: int
    texts: bool


class Entry(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all entries; ``t`` is seconds since the recording began."""

    t: float


class Heard(Entry, frozen=True, array_like=True, tag="event"):
    """An event of the engine."""

    event: AnyEvent


class Sent(Entry, frozen=True, array_like=True, tag="command"):
    """A command to the engine."""

    command: AnyCommand


class ChatLook(msgspec.Struct, frozen=True, array_like=True):
    """How a chat is listed."""

    session: str
    letter: str
    color: int
    title: str
    titled: bool


class Chats(Entry, frozen=True, array_like=True, tag="chats"):
    """The open chats in their order, and the one with the focus; written when any of it changes."""

    chats: list[ChatLook]
    focused: str


class Said(msgspec.Struct, frozen=True, array_like=True):
    """One turn of a chat."""

    role: Role
    text: str
    token_ids: list[int]
    status: TurnStatus
    note: str
    stats: TurnStats | None
    asked: int | None = None
    end: int | None = None
    seed: int | None = None


class Content(Entry, frozen=True, array_like=True, tag="content"):
    """A chat as it was when the recording began, or as it was made: by a branch, another version, or before
    an answer is asked for that does not just follow. The command of that answer has the epoch of this entry.
    """

    session: str
    epoch: int
    status: SessionStatus
    request: int | None
    history_ids: list[int]
    turns: list[Said]


class Tags(Entry, frozen=True, array_like=True, tag="tags"):
    """Owners of blocks by request, when the recording began."""

    tags: dict[int, SessionTag]


class Reading(Entry, frozen=True, array_like=True, tag="gpu"):
    """What the card said; only the first has the past of its numbers."""

    reading: GpuReading


class Restarting(Entry, frozen=True, array_like=True, tag="restarting"):
    """A new engine process was started in place of the one before."""


class End(Entry, frozen=True, array_like=True, tag="end"):
    """The recording was closed in order."""


AnyEntry = Heard | Sent | Chats | Content | Tags | Reading | Restarting | End
