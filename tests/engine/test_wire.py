"""The framing of the wire."""

import msgspec
import pytest

from engine.commands import Load, Message, Shutdown, Submit
from engine.config import EngineConfig
from engine.records import BlockChange, BlockCounts, Delta, StepRecord, StepRow, Steps, StepTimes
from engine.request import SamplingParams
from engine.wire import WireError, command_reader, event_reader, frame

RECORD = StepRecord(
    index=7,
    t=1.5,
    kind="mixed",
    mode="eager",
    reason="no CUDA",
    graph_size=None,
    active=2,
    waiting=1,
    prefill_tokens=9,
    cached_tokens=4,
    decode_tokens=1,
    ms=StepTimes(3.0, 0.1, 2.5, None, 0.4),
    blocks=BlockCounts(3, 2, 1),
    rows=(StepRow(1, 10, 1, False),),
    block_changes=(BlockChange("allocate", 5, 1, 0), BlockChange("evict", 6)),
    finished=(1,),
)

COMMANDS = [
    Load(EngineConfig(graph_sizes=(1, 2), kv_memory=1 << 30)),
    Submit("a", 1, "plain"),
    Submit("a", 2, [1, 2, 3], SamplingParams(stop=("x",), seed=5)),
    Submit("ü", 3, [Message("user", "a\x00\ud7ff😀")], history=[4, 5]),
    Shutdown(),
]
EVENTS = [Delta("a", 1, "é" * 100_000, [1]), Steps([RECORD] * 3, dropped=2)]


@pytest.mark.parametrize("piece", [1, 3, 17, 1 << 20])
def test_messages_survive_a_stream_cut_anywhere(piece):
    stream = b"".join(map(frame, COMMANDS))
    reader = command_reader()
    read = [
        message for at in range(0, len(stream), piece) for message in reader.feed(stream[at : at + piece])
    ]
    assert read == COMMANDS


def test_events_come_back_equal_and_large_ones_whole():
    assert list(event_reader().feed(b"".join(map(frame, EVENTS)))) == EVENTS


def test_a_frame_that_no_sender_writes_is_an_error_and_not_an_allocation():
    with pytest.raises(WireError, match="4294967295 bytes"):
        list(command_reader().feed(b"\xff\xff\xff\xff"))


@pytest.mark.parametrize("body", [b"\xc1", msgspec.msgpack.encode({"type": "Nonsense"}), b""])
def test_a_frame_with_no_known_message_is_an_error(body):
    with pytest.raises(WireError):
        list(command_reader().feed(len(body).to_bytes(4, "little") + body))
