"""The file of tuned tiles: kept, found again, and never an error."""

import json
import multiprocessing
from pathlib import Path

import pytest

import engine.kernels.tile_cache as cache_module
from engine.kernels.tile_cache import card_name, keep, tile_file, tuned
from engine.kernels.tiles import MEASURED, Shape, Tile, tile_for

CARD = "NVIDIA-H200-sm90"
KEY = ("qkv", 2048, 1536, 8)  # is in the table too
TILE = Tile(32, 512, 4, 2, 5)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache" / "tiles"
    forget()


def forget() -> None:
    """As a new process."""
    tuned.cache_clear()
    tile_for.cache_clear()


def test_what_was_kept_is_found_by_the_next_process(folder, capsys):
    assert keep(CARD, {KEY: TILE}) == ""
    assert keep(CARD, {("head", 72, 64, 1): Tile(4, 64, 1)}) == ""
    forget()
    assert tuned(CARD) == {KEY: TILE, ("head", 72, 64, 1): Tile(4, 64, 1)}
    assert tuned("NVIDIA-L4-sm89") == {}
    assert [path.name for path in folder.iterdir()] == [f"{CARD}.json"]
    assert capsys.readouterr().err == ""


def test_a_tuned_tile_goes_before_the_table_and_the_table_before_the_rule():
    shape, unlisted = Shape(*KEY[:3], rows=5), Shape("qkv", 2049, 1536, 5)
    assert tile_for(shape, CARD) == tile_for(shape) == MEASURED[KEY] != TILE
    usual = tile_for(unlisted, CARD)
    keep(CARD, {KEY: TILE})
    assert tile_for(shape, CARD) == TILE
    assert tile_for(shape) == tile_for(shape, "NVIDIA-L4-sm89") == MEASURED[KEY]
    assert tile_for(unlisted, CARD) == tile_for(unlisted) == usual
    keep(CARD, {("qkv", 2049, 1536, 8): TILE})
    assert tile_for(unlisted, CARD) == TILE


def test_the_file_is_read_once_and_not_where_there_is_no_card(monkeypatch):
    keep(CARD, {KEY: TILE})
    reads = []
    read = cache_module._read
    monkeypatch.setattr(cache_module, "_read", lambda path: reads.append(path) or read(path))
    for outs in range(100, 110):
        tile_for(Shape("qkv", outs, 1536, 8), CARD)
        tile_for(Shape("qkv", outs, 1536, 8))
    assert reads == [tile_file(CARD)]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"tiles": []}', "\udcff\x00", "[" * 100_000],
    ids=["empty", "half", "list", "null", "no versions", "no text", "deep"],
)
def test_a_broken_file_is_none_with_a_note_and_is_replaced(text, folder, capsys):
    folder.mkdir(parents=True)
    tile_file(CARD).write_bytes(text.encode(errors="surrogateescape"))
    assert tile_for(Shape(*KEY), CARD) == MEASURED[KEY]
    note = capsys.readouterr().err
    assert note.startswith(f"tuned tiles in {tile_file(CARD)} cannot be read: ")
    assert note.count("\n") == 1
    assert keep(CARD, {KEY: TILE}) == ""
    forget()
    assert tuned(CARD) == {KEY: TILE}


def changed(change) -> None:
    keep(CARD, {KEY: TILE})
    value = json.loads(tile_file(CARD).read_text("utf-8"))
    change(value)
    tile_file(CARD).write_text(json.dumps(value), "utf-8")
    forget()


@pytest.mark.parametrize(
    ("name", "value"), [("outs", 3), ("ins", 2048.0), ("warps", True), ("cuts", 0), ("stages", "4"), ("x", 1)]
)
def test_a_file_with_an_impossible_tile_is_none(name, value, capsys):
    changed(lambda file: file["tiles"][0]["tile"].update({name: value}))
    assert tuned(CARD) == {}
    assert "cannot be read: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["triton", "kernels"])
def test_tiles_of_other_kernels_or_another_compiler_are_not_used_and_not_kept(name, capsys):
    changed(lambda file: file.update({name: "0.1"}))
    assert tile_for(Shape(*KEY), CARD) == MEASURED[KEY]
    note = capsys.readouterr().err
    assert f"are not used: they were made for {name} 0.1, and this is " in note
    keep(CARD, {("head", 72, 64, 1): Tile(4, 64, 1)})
    assert list(tuned(CARD)) == [("head", 72, 64, 1)]


def test_a_folder_that_cannot_be_written_to_is_a_note(monkeypatch, capsys):
    def refused(**names):  # root, whom tests may run as, can write everywhere
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache_module.tempfile, "mkstemp", refused)
    refuses(capsys, "Permission denied")


def test_a_file_in_the_place_of_the_folder_is_a_note(folder, capsys):
    folder.parent.write_text("here")
    refuses(capsys, "File exists" if tile_file(CARD).parent.exists() else "Not a directory")


def refuses(capsys, reason) -> None:
    said = keep(CARD, {KEY: TILE})
    assert said == f"tuned tiles cannot be kept in {tile_file(CARD)}: {reason}"
    assert said + "\n" in capsys.readouterr().err
    assert tile_for(Shape(*KEY), CARD) == MEASURED[KEY]


def test_a_write_that_breaks_off_leaves_the_file_as_it_was(folder, monkeypatch):
    keep(CARD, {KEY: TILE})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.os, "fsync", full)
    assert keep(CARD, {("head", 72, 64, 1): Tile(4, 64, 1)}).endswith("No space left on device")
    assert tuned(CARD) == {KEY: TILE}
    assert [path.name for path in folder.iterdir()] == [f"{CARD}.json"]


def write_many(number: int) -> None:
    for turn in range(10):
        assert keep(CARD, {("qkv", 1000 * number + turn, 1536, 8): TILE}) == ""


def test_of_writers_at_the_same_time_none_loses_what_another_added(folder, capfd):
    writers = [multiprocessing.get_context("fork").Process(target=write_many, args=(n,)) for n in (1, 2, 3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        forget()
        tuned(CARD)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    forget()
    assert {outs for _, outs, _, _ in tuned(CARD)} == {
        1000 * n + turn for n in (1, 2, 3) for turn in range(10)
    }
    assert "cannot be read" not in capfd.readouterr().err
    assert [path.name for path in folder.iterdir()] == [f"{CARD}.json"]


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("NVIDIA H200", (9, 0), CARD),
        ("NVIDIA GeForce RTX 4090 / 24 GB", (8, 9), "NVIDIA-GeForce-RTX-4090-24-GB-sm89"),
        ("../..", (8, 0), "card-sm80"),
    ],
)
def test_a_cards_name_is_a_plain_file_name(name, capability, expected):
    assert card_name(name, capability) == expected
    assert Path(tile_file(expected)).parent.name == "tiles"
