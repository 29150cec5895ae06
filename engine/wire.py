"""Framing of the wire: a little-endian uint32 length, then that many bytes of msgpack. Torch-free."""

import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from engine.commands import AnyCommand
from engine.records import AnyEvent

_LENGTH = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()

MAX_FRAME = 256 << 20  # bytes; a longer frame can only be a reader that lost its place

T = TypeVar("T")


class WireError(Exception):
    """The peer sent bytes that are no message of this version."""


def frame(message: AnyCommand | AnyEvent) -> bytes:
    """One message as it goes over the socket."""
    buffer = bytearray(_LENGTH.size)
    _ENCODER.encode_into(message, buffer, _LENGTH.size)
    _LENGTH.pack_into(buffer, 0, len(buffer) - _LENGTH.size)
    return bytes(buffer)


class FrameReader(Generic[T]):
    """Turns a byte stream, cut anywhere, back into messages."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[T]") -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[T]:
        """Yield every message that ``data`` completes.

        Raises:
            WireError: the bytes are no frame, or the frame is no known message.
        """
        self._buffer += data
        start = 0
        try:
            while (body := self._next_body(start)) is not None:
                start = body[1]
                yield self._decode(body)
        finally:
            del self._buffer[:start]

    def _next_body(self, start: int) -> tuple[int, int] | None:
        if len(self._buffer) - start < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        if length > MAX_FRAME:
            raise WireError(f"a frame of {length} bytes; the limit is {MAX_FRAME}.")
        begin = start + _LENGTH.size
        return (begin, begin + length) if len(self._buffer) >= begin + length else None

    def _decode(self, body: tuple[int, int]) -> T:
        # The copy keeps the buffer free of exported views, so that it can shrink in ``feed``.
        try:
            return self._decoder.decode(bytes(self._buffer[body[0] : body[1]]))
        except msgspec.MsgspecError as error:
            raise WireError(str(error)) from error


def command_reader() -> FrameReader[Any]:
    """A reader of commands, as the engine process needs it."""
    return FrameReader(msgspec.msgpack.Decoder(AnyCommand))


def event_reader() -> FrameReader[Any]:
    """A reader of events, as the app needs it."""
    return FrameReader(msgspec.msgpack.Decoder(AnyEvent))
