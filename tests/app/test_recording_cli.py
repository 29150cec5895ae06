"""``--record`` and ``replay`` on the command line: files made, refusals, exit codes."""

import json
import os
from pathlib import Path

import pytest

from engine.records import Delta, Finished, Started
from tests.app.recorded import FullDisk, simulated_entries, written
from tui_infer.cli import main
from tui_infer.locations import demo_recording
from tui_infer.recording import writer
from tui_infer.recording.format import MAGIC, Heard
from tui_infer.recording.reader import read_recording

TINY = ("--device", "cpu", "--dtype", "float32", "--kv-memory", "8MiB", "--threads", "1")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return call


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not there"),
        (b"", "is empty"),
        (b"#!/bin/sh\n", "no recording of tui-infer"),
        (MAGIC + b"\x09\x00more", "has format 9"),
        (MAGIC + b"\x01\x00", "damaged at its start"),
        (MAGIC[:4], "cut off"),
    ],
)
def test_a_file_that_cannot_be_played_is_one_line_and_exit_code_2(
    call, tmp_path: Path, content: bytes | None, words: str
) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "x.tirec"
    if content is not None:
        path.write_bytes(content)
    code, out, err = call("replay", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert words in err


def test_replay_wants_one_recording_and_a_terminal(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = written(tmp_path / "r.tirec", simulated_entries())
    code, _, err = call("replay", path, "--demo")
    assert code == 2
    assert f"Either --demo or {path}" in err
    code, _, err = call("replay", path)
    assert code == 2
    assert "needs a terminal" in err
    assert f"'tui-infer replay {path} --steps OUT.csv' writes the steps" in err
    assert "tui-infer run" not in err
    if not demo_recording().is_file():
        code, _, err = call("replay", "--demo")
        assert code == 2
        assert "no demo recording" in err


def test_replay_without_a_name_says_what_is_there(call, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    here, data = tmp_path / "here", tmp_path / "data"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TUI_INFER_DATA_DIR", str(data))
    demo = "--demo plays the one that comes with tui-infer."
    code, out, err = call("replay")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Name a recording; there is none in this folder." in err
    assert demo in err

    own = data / "recordings"
    own.mkdir(parents=True)
    (own / "old.tirec").touch()
    code, _, err = call("replay")
    assert f"as in tui-infer replay {own / 'old.tirec'}." in err
    assert f"In {own}: old.tirec." in err

    for age, name in enumerate(["g", "f", "e", "d", "c", "b", "a b\x1b[2J"]):
        (here / f"{name}.tirec").touch()
        os.utime(here / f"{name}.tirec", (age, age))
    (here / "notes.txt").touch()
    code, _, err = call("replay")
    assert (code, err.count("\n")) == (2, 1)
    assert "as in tui-infer replay 'a b␛[2J.tirec'." in err
    assert "In this folder: a b␛[2J.tirec, b.tirec, c.tirec, d.tirec, e.tirec and 2 more; In" in err
    assert "notes" not in err
    assert demo in err


def test_a_torn_file_gives_its_steps_and_a_note(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = written(tmp_path / "r.tirec", simulated_entries())
    path.write_bytes(path.read_bytes() + b"\x01\x02")
    code, out, err = call("replay", path, "--steps", tmp_path / "s.json")
    assert code == 0
    assert "60 steps" in out
    assert "cut off" in err
    assert len(json.loads((tmp_path / "s.json").read_text())["steps"]) == 60


def test_the_app_refuses_to_record_over_a_file(call, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("tui_infer.terminal.require_terminal", lambda: None)
    path = tmp_path / "there.tirec"
    path.write_bytes(b"precious")
    code, _, err = call("--record", path)
    assert code == 2
    assert "is there already" in err
    assert path.read_bytes() == b"precious"
    code, _, err = call("--no-text")
    assert code == 2
    assert "--no-text goes with --record" in err


def test_run_records_what_it_answered(call, tiny_model_dir: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "run.tirec"
    prompts = ("-p", "hello world", "-p", "red green", "-p", " ".join(["blue"] * 3000))
    code, out, _ = call(
        "run", "--model", tiny_model_dir, *TINY, *prompts, "--max-tokens", 12, "--ignore-eos",
        "--json", "--record", path,
    )  # fmt: skip
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 2  # the third prompt is too long
    recording = read_recording(path)
    assert recording.note == ""
    assert recording.steps >= 12
    events = [entry.event for entry in recording.entries if isinstance(entry, Heard)]
    for number in (0, 1):
        session = f"chat-{number + 1}"
        deltas = [event for event in events if isinstance(event, Delta) and event.session == session]
        assert "".join(delta.text for delta in deltas) == answers[number]["text"]
        assert [token for delta in deltas for token in delta.token_ids] == answers[number]["token_ids"]
        assert [end for delta in deltas for end in delta.ends][-1] == len(answers[number]["text"])
        (started,) = (event for event in events if isinstance(event, Started) and event.session == session)
        assert "".join(started.pieces)
    assert sum(isinstance(event, Finished) for event in events) == 2
    code, out, _ = call("replay", path, "--steps", tmp_path / "s.csv")
    assert code == 0


def test_a_recording_that_breaks_off_costs_the_exit_code_and_not_the_answers(
    call, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "run.tirec"
    monkeypatch.setattr(writer, "_open", lambda path: FullDisk(path.open("xb", buffering=0), 1000))
    code, out, err = call(
        "run", "--model", tiny_model_dir, *TINY, "-p", "hello world", "--max-tokens", 12, "--ignore-eos",
        "--json", "--record", path,
    )  # fmt: skip
    assert code == 1
    assert len(json.loads(out)["token_ids"]) == 12
    assert f"error: The recording cannot be written to {path}: No space left on device. It ends early." in err


def test_an_engine_that_cannot_be_loaded_leaves_no_file(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "run.tirec"
    code, _, err = call("run", "--model", tmp_path / "nothing", "-p", "hello", "--record", path)
    assert code == 2
    assert err.startswith("error: ")
    assert not path.exists()
