"""The file format: what goes in comes out, whatever happens to the file."""

import time
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.records import Ready, Steps
from tests.app.recorded import (
    SECRET_ANSWER,
    SECRET_PROMPT,
    SECRET_TITLE,
    FullDisk,
    simulated_entries,
    simulated_steps,
    written,
)
from tests.budgets import most
from tui_infer.recording.format import CHUNK, MAGIC, VERSION, End, Header, Heard, Reading, RecordingError
from tui_infer.recording.reader import MOST_BLOCKS, read_recording
from tui_infer.recording.recorder import public_status
from tui_infer.recording.redact import without_text
from tui_infer.recording.writer import RecordingWriter

START = len(MAGIC) + VERSION.size


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of several chunks."""
    path = tmp_path_factory.mktemp("whole") / "whole.tirec"
    writer = RecordingWriter(path)
    for number, entry in enumerate(simulated_entries()):
        writer.put(entry)
        if number % 6 == 5:
            while writer._queue.qsize() or not writer._plain:
                time.sleep(0.001)
            writer._flush()  # what a second would do
    writer.close()
    return path.read_bytes()


def chunk_ends(data: bytes) -> list[int]:
    ends, position = [], START
    while position < len(data):
        length, _ = CHUNK.unpack_from(data, position)
        position += CHUNK.size + length
        ends.append(position)
    return ends


def plain(path: Path) -> bytes:
    """Everything in the file, decompressed."""
    data, stream, out, position = path.read_bytes(), zlib.decompressobj(), b"", START
    for end in chunk_ends(data):
        out += stream.decompress(data[position + CHUNK.size : end])
        position = end
    return out


def refusal(path: Path, data: bytes | None = None) -> str:
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(RecordingError) as refused:
        read_recording(path)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)
    return str(refused.value)


def test_what_was_written_is_read_back_entry_by_entry(tmp_path: Path) -> None:
    entries = simulated_entries()
    recording = read_recording(written(tmp_path / "r.tirec", entries))
    assert recording.entries == entries
    assert recording.note == ""
    assert (recording.steps, recording.first_step, recording.last_step) == (60, 1, 60)
    assert recording.duration == entries[-1].t
    assert recording.header.texts


def test_the_first_steps_are_on_the_disk_a_second_later_without_any_close(tmp_path: Path) -> None:
    path = tmp_path / "r.tirec"
    writer = RecordingWriter(path)
    for entry in simulated_entries()[:-1]:
        writer.put(entry)
    deadline = time.monotonic() + 5
    while len(chunk_ends(path.read_bytes())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    recording = read_recording(path)  # what a crash now would leave
    assert recording.steps == 60
    assert "not closed" in recording.note
    writer.close()


@given(cut=st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_chunk_or_refused_in_one_line(
    whole: bytes, cut: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.tirec"
    length = int(cut * len(whole))
    path.write_bytes(whole[:length])
    all_entries = simulated_entries()
    ends = chunk_ends(whole)
    complete = sum(end <= length for end in ends)
    try:
        recording = read_recording(path)
    except RecordingError:
        recording = None
    if recording is None:
        assert complete < 2  # the header, and the chunk with Ready
        return
    assert complete >= 2
    assert len(ends) >= 5
    assert recording.entries == all_entries[: len(recording.entries)]
    assert bool(recording.note) == (length < len(whole))
    if complete == len(ends) - 1 and length > ends[-2]:
        assert "cut off" in recording.note


@given(position=st.integers(START, 1 << 30), value=st.integers(1, 255))
@settings(max_examples=150, deadline=None)
def test_a_flipped_byte_never_gives_other_entries_than_were_written(
    whole: bytes, position: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.tirec"
    data = bytearray(whole)
    data[START + position % (len(whole) - START)] ^= value
    path.write_bytes(data)
    try:
        recording = read_recording(path)
    except RecordingError:
        return
    assert recording.note
    assert recording.entries == simulated_entries()[: len(recording.entries)]


def test_each_kind_of_file_that_is_none_is_refused_by_its_own_sentence(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "x.tirec"
    assert "is not there" in refusal(path)
    assert "is a folder" in refusal(tmp_path)
    assert "is empty" in refusal(path, b"")
    assert "no recording of tui-infer" in refusal(path, b"PK\x03\x04 something else entirely")
    assert "cut off at its very start" in refusal(path, whole[:5])
    assert "cut off at its very start" in refusal(path, whole[:9])
    newer = refusal(path, MAGIC + VERSION.pack(2) + whole[START:])
    assert "has format 2" in newer
    assert "Update tui-infer" in newer
    assert "never was" in refusal(path, MAGIC + VERSION.pack(0) + whole[START:])
    assert "damaged at its start" in refusal(path, whole[:START])
    assert "before the engine was ready" in refusal(path, whole[: chunk_ends(whole)[0]])


def chunk(data: bytes) -> bytes:
    return CHUNK.pack(len(data), zlib.crc32(data)) + data


def test_a_file_made_to_take_all_memory_is_refused(tmp_path: Path) -> None:
    start = MAGIC + VERSION.pack(1)
    assert "damaged" in refusal(tmp_path / "a", start + CHUNK.pack(0xFFFFFFFF, 0))
    bomb = zlib.compressobj(9)
    data = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(600)) + bomb.flush(zlib.Z_SYNC_FLUSH)
    assert "far too large" in refusal(tmp_path / "b", start + chunk(data))
    entries = simulated_entries()
    ready = entries[1]
    assert isinstance(ready, Heard)
    assert isinstance(ready.event, Ready)
    huge = msgspec.structs.replace(ready.event.status, num_blocks=MOST_BLOCKS + 1)
    entries[1] = Heard(0.0, Ready(huge))
    assert "blocks" in refusal(written(tmp_path / "c", entries))


def test_without_text_no_word_of_prompt_answer_or_title_is_in_the_file(tmp_path: Path) -> None:
    told = plain(written(tmp_path / "told.tirec", simulated_entries()))
    silent = plain(written(tmp_path / "silent.tirec", simulated_entries(), texts=False))
    for word in [*SECRET_PROMPT.split(), *SECRET_ANSWER.split(), SECRET_TITLE, "flamingo"]:
        assert word.encode() in told
        assert word.encode() not in silent


def test_without_text_the_counts_of_tokens_and_every_step_stay(tmp_path: Path) -> None:
    entries = simulated_entries()
    silent = read_recording(written(tmp_path / "silent.tirec", entries, texts=False))
    assert not silent.header.texts
    assert silent.entries == [without_text(entry) for entry in entries]
    for before, after in zip(entries, silent.entries):
        if isinstance(before, Heard) and hasattr(before.event, "token_ids"):
            assert len(before.event.token_ids) == len(after.event.token_ids)  # type: ignore[union-attr]
            assert not any(after.event.token_ids)  # type: ignore[union-attr]
        if isinstance(before, Heard) and isinstance(before.event, Steps):
            assert before == after


def test_folders_and_the_number_of_the_card_stay_on_the_machine() -> None:
    status = simulated_steps(1)[0].status()
    status = msgspec.structs.replace(
        status, model="/home/ada/models/qwen", model_path="/home/ada/models/qwen"
    )
    public = public_status(status)
    assert (public.model, public.model_path, public.device_uuid) == ("qwen", "qwen", None)
    hub = msgspec.structs.replace(status, model="Qwen/Qwen2.5-1.5B", model_path="Qwen/Qwen2.5-1.5B")
    assert public_status(hub).model == "Qwen/Qwen2.5-1.5B"


def test_a_recording_never_replaces_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "r.tirec", simulated_entries())
    before = path.read_bytes()
    with pytest.raises(RecordingError, match="is there already"):
        RecordingWriter(path)
    with pytest.raises(RecordingError, match="No such file"):
        RecordingWriter(tmp_path / "no" / "folder.tirec")
    assert path.read_bytes() == before


def test_a_full_disk_ends_the_recording_once_and_leaves_what_was_written(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "r.tirec"
    writer = RecordingWriter(path, on_error=said.append)
    entries = simulated_entries()
    for entry in entries[:8]:
        writer.put(entry)
    while len(chunk_ends(path.read_bytes())) < 2:
        time.sleep(0.01)
    writer._file = FullDisk(writer._file, 100)  # type: ignore[assignment]
    for entry in entries[8:]:
        writer.put(entry)
    writer.close()
    writer.put(entries[-1])
    assert said == [f"The recording cannot be written to {path}: No space left on device."]
    recording = read_recording(path)
    assert recording.entries == entries[:8]
    assert "cut off" in recording.note


def test_twenty_thousand_steps_are_read_in_two_seconds(tmp_path: Path) -> None:
    sim, records = simulated_steps(20_000, chats=8)
    entries = [Heard(0.0, Ready(sim.status()))]
    entries += [Heard(n / 500, Steps(records[n : n + 50])) for n in range(0, len(records), 50)]
    path = written(tmp_path / "long.tirec", [*entries, Reading(40.0, sim.gpu()), End(40.0)])
    began = time.process_time()
    recording = read_recording(path)
    took = time.process_time() - began
    assert recording.steps == 20_000
    assert took < most(2.0), f"{took:.2f} s for {path.stat().st_size / 1e6:.1f} MB"


def test_handing_an_entry_over_takes_microseconds(tmp_path: Path) -> None:
    entries = simulated_entries()
    writer = RecordingWriter(tmp_path / "r.tirec")
    began = time.perf_counter()
    for _ in range(50):
        for entry in entries:
            writer.put(entry)
    each = (time.perf_counter() - began) / (50 * len(entries))
    writer.close()
    assert each < 200e-6, f"{each * 1e6:.0f} µs an entry"


def test_the_header_tells_who_wrote_the_file(tmp_path: Path) -> None:
    header = read_recording(written(tmp_path / "r.tirec", simulated_entries())).header
    assert isinstance(header, Header)
    assert abs(header.created - time.time()) < 60
    assert header.app == header.engine
