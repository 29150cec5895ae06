"""``bench tiles`` with a scripted clock: its rows, its table, and the file that it leaves."""

import io
import json

import pytest
import torch
from rich.console import Console

import engine.bench.tiles as bench_module
import engine.models.tune as tune_module
from engine.bench.report import document, show
from engine.bench.tiles import TilesPlan, bench_tiles
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError
from engine.kernels.tile_cache import tile_file, tuned
from engine.kernels.tiles import Tile, tile_for
from engine.models.decode_path import DecodePath
from tests.engine.interpreted import interpreter  # noqa: F401

CARD = "Scripted-sm90"
CONFIG = EngineConfig(model="shape:tiny", device="cpu", dtype="float32", mode="graph")
FAST = Tile(2, 64, 1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch, small_copies):
    monkeypatch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path))
    tuned.cache_clear()
    tile_for.cache_clear()
    yield
    tuned.cache_clear()
    tile_for.cache_clear()


@pytest.fixture
def scripted(monkeypatch):
    """A decoder with kernels of ours, on a card whose steps take less with each ``FAST`` tile."""

    def path_of(decoder):
        path = DecodePath(decoder)
        path.card = CARD
        return path

    class Timer:
        def __init__(self, path):
            self.path = path

        def __call__(self, step):
            return 2.0 - 0.25 * list(self.path.tiles.values()).count(FAST), step()

    def tune(decoder, *rest):
        return tune_module.tune(decoder, *rest, timer=Timer(decoder.path))

    monkeypatch.setattr("engine.models.decoder.unfit_path", lambda decoder: "")
    monkeypatch.setattr("engine.models.decoder.DecodePath", path_of)
    monkeypatch.setattr(tune_module, "step_of", lambda *shape, **context: lambda: torch.ones(1, 8))
    monkeypatch.setattr(tune_module, "candidates", lambda shape, most_shared: (FAST, Tile(4, 64, 2)))
    monkeypatch.setattr(bench_module, "tune", tune)
    monkeypatch.setattr(bench_module, "check_device", lambda config: None)


def printed(value) -> str:
    out = io.StringIO()
    show(value, Console(file=out, width=120))
    return out.getvalue()


def test_what_is_fastest_is_shown_kept_and_used_by_the_next_engine(scripted):
    events = []
    found = bench_tiles([CONFIG], TilesPlan((1,)), events.append)
    rows = found["rows"]
    assert [row["product"] for row in rows][:3] == ["gate_up", "down", "qkv"]
    assert [(row["before_ms"], row["after_ms"]) for row in rows[:2]] == [(2.0, 1.75), (1.75, 1.5)]
    assert all(row["after"] == [2, 64, 1, 1, 1, 1, False] and row["left_out"] == [] for row in rows)
    assert set(tuned(CARD).values()) == {FAST}
    assert {key[-1] for key in tuned(CARD)} == {1}
    assert len(tuned(CARD)) == len(rows) == 5
    assert found["notes"] == [{"shape": "tiny", "text": f"kept in {tile_file(CARD)}"}]
    assert any("tiny, 1 rows, down: 2×64/1" in getattr(event, "detail", "") for event in events)
    text = printed(json.loads(json.dumps(document("tiles", {"rows": [1]}, found))))
    assert "2×64/1" in text
    assert f"kept in {tile_file(CARD)}" in text.replace("\n", "")
    again = bench_tiles([CONFIG], TilesPlan((1,)), lambda event: None)
    assert all(row["before"] == row["after"] for row in again["rows"])


def test_what_a_batch_size_gave_is_kept_when_a_later_one_fails(scripted, monkeypatch):
    usual = bench_module.tune

    def tune(decoder, cache, rows, progress):
        if rows == (8,):
            raise EngineError("the card fell out")
        return usual(decoder, cache, rows, progress)

    monkeypatch.setattr(bench_module, "tune", tune)
    with pytest.raises(EngineError, match="fell out"):
        bench_tiles([CONFIG], TilesPlan((1, 8)), lambda event: None)
    assert {key[-1] for key in tuned(CARD)} == {1}


def test_what_cannot_be_kept_is_said_and_shown_all_the_same(scripted, tmp_path):
    (tmp_path / "tiles").write_text("a file in the way")
    found = bench_tiles([CONFIG], TilesPlan((1,)), lambda event: None)
    assert len(found["rows"]) == 5
    assert "cannot be kept" in printed(document("tiles", {}, found)).replace("\n", " ")


@pytest.mark.parametrize(
    ("impl", "reason"),
    [("decoder", "it has no kernels for cpu"), ("transformers", "the model runs by transformers")],
)
def test_a_model_without_these_kernels_is_left_out_with_the_reason(impl, reason, monkeypatch):
    monkeypatch.setattr(bench_module, "check_device", lambda config: None)
    config = EngineConfig(model="shape:tiny", device="cpu", dtype="float32", model_impl=impl)
    found = bench_tiles([config], TilesPlan(), lambda event: None)
    assert found["rows"] == []
    assert f"not measured: there is nothing to tune: {reason}" in printed(document("tiles", {}, found))


@pytest.mark.parametrize("rows", [(), (2,), (1, 64)])
def test_rows_that_are_no_class_are_refused(rows):
    with pytest.raises(ConfigError, match="--rows takes 1, 8, 16, 32; it is"):
        TilesPlan(rows)
