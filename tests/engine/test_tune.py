"""Tuning with a scripted clock: the search over interpreted kernels, and what it leaves out."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

import engine.models.tune as tune_module
from engine.errors import DeviceError, EngineError
from engine.kernels.candidates import candidates
from engine.kernels.tiles import MEASURED, ROW_CLASSES, Shape, Tile, fits, key_of, shared_bytes, tile_for
from engine.models.decode_path import DecodePath
from engine.models.tune import difference, step_of, tune
from tests.engine.decode_cases import MODELS, Case, decoder_of, few_programs  # noqa: F401
from tests.engine.interpreted import interpreter  # noqa: F401

pytestmark = pytest.mark.usefixtures("few_programs")
USUAL = Tile(32, 64, 1)  # of one row, by ``few_programs``
FAST, SLOW, BAD = Tile(64, 64, 1), Tile(16, 64, 1), Tile(8, 64, 1)
HOPPER_SHARED = 227 * 1024


class Clock:
    """A step takes a millisecond for each product, or what its tile costs, which may be an error."""

    def __init__(self, decoder, costs, *, rows=1):
        self.path, self.costs, self.rows = decoder.path, costs, rows
        self.calls = []

    def __call__(self, step):
        self.calls.append(dict(self.path.tiles))
        kinds = ("qkv", "join" if self.rows == 1 else "out", "gate_up", "down", "head")
        costs = [self.costs.get(self.path.tiles.get((kind, self.rows), USUAL), 1.0) for kind in kinds]
        for cost in costs:
            if isinstance(cost, Exception):
                raise cost
        return sum(costs), step()


@pytest.fixture
def decoder():
    made = decoder_of(MODELS["qwen2"], torch.float32)
    del made.layers[1:]
    made.path = DecodePath(made)
    return made


@pytest.fixture
def case():
    return Case(MODELS["qwen2"], torch.float32, [40])


@pytest.fixture
def listed(monkeypatch):
    """What is tried, whatever the shape; nothing is known of this card."""

    def use(*tiles):
        monkeypatch.setattr(tune_module, "candidates", lambda shape, most_shared: tiles)
        monkeypatch.setattr(tune_module, "tile_for", lambda shape: USUAL)

    return use


@pytest.fixture
def tried(listed, monkeypatch):
    """As ``listed``, and steps take no time: their logits are made up, and by tile other ones."""

    def use(*tiles, other=None, at=None):
        def step_of(path, cache, rows, vocab, context):
            def step():
                logits = torch.arange(1.0, 145.0).view(2, 72)
                changes = [(other or {}).get(tile) for tile in path.tiles.values()]
                for change in filter(None, changes):
                    logits = change(logits) if at in (None, context) else logits
                return logits

            return step

        monkeypatch.setattr(tune_module, "step_of", step_of)
        listed(*tiles)

    return use


def test_the_fastest_tile_of_each_product_is_found_over_real_steps(decoder, case, listed):
    listed(FAST)
    clock = Clock(decoder, {FAST: 0.5})
    before = case.cache.pages.clone()
    events = []
    found = tune(decoder, case.cache, (1,), events.append, timer=clock, context=40)
    assert [shape.kind for shape in found] == ["gate_up", "down", "qkv", "join", "head"]
    assert {tuned.after for tuned in found.values()} == {FAST}
    assert [tuned.before_ms for tuned in found.values()] == [5.0, 4.5, 4.0, 3.5, 3.0]
    assert [tuned.after_ms for tuned in found.values()] == [4.5, 4.0, 3.5, 3.0, 2.5]
    assert all((tuned.before, tuned.tried, tuned.left_out) == (USUAL, 1, ()) for tuned in found.values())
    assert torch.equal(case.cache.pages, before)
    assert decoder.path.tiles == {}
    assert "1 rows, gate_up: 32×64/1 (1 of 2)" in [event.detail for event in events]


def test_one_product_is_changed_at_a_time_and_the_best_stays(decoder, case, tried):
    tried(FAST, SLOW)
    clock = Clock(decoder, {FAST: 0.5, SLOW: 2.0})
    tune(decoder, case.cache, (1,), timer=clock)
    for call in clock.calls:
        assert Counter(call.values())[SLOW] <= 1
    assert clock.calls[-1] == {
        ("gate_up", 1): FAST,
        ("down", 1): FAST,
        ("qkv", 1): FAST,
        ("join", 1): FAST,
        ("head", 1): SLOW,
    }


def test_of_several_rows_the_fastest_tile_is_tried_in_its_other_form_too(decoder, case, tried):
    fast, slow = Tile(32, 64, 4, 1, 2), Tile(16, 64, 4, 1, 2)
    tried(fast, slow)
    early = replace(fast, early=True)
    clock = Clock(decoder, {fast: 0.5, early: 0.25, slow: 0.75}, rows=8)
    found = tune(decoder, case.cache, (8,), timer=clock)
    assert [shape.kind for shape in found] == ["gate_up", "down", "qkv", "out", "head"]
    assert {tuned.after for tuned in found.values()} == {early}
    assert {tile for call in clock.calls for tile in call.values() if tile.early} == {early}


def test_a_tile_that_does_not_compile_is_left_out_with_its_reason(decoder, case, tried):
    tried(BAD, FAST)
    clock = Clock(decoder, {FAST: 0.5, BAD: ValueError("out of resource: shared memory\nmore")})
    found = tune(decoder, case.cache, (1,), timer=clock)
    for tuned in found.values():
        assert tuned.after == FAST
        assert tuned.tried == 1
        assert tuned.left_out == ((BAD, "ValueError: out of resource: shared memory"),)


@pytest.mark.parametrize("context", [1, 512])
@pytest.mark.parametrize("wrong", [float("nan"), 1.1], ids=["not a number", "off"])
def test_a_fast_tile_with_other_logits_is_left_out(wrong, context, decoder, case, tried):
    def other(logits):
        logits = logits.clone()
        logits[1] *= wrong
        return logits

    tried(BAD, SLOW, other={BAD: other}, at=context)
    found = tune(decoder, case.cache, (1,), timer=Clock(decoder, {BAD: 0.1, SLOW: 2.0}))
    assert {tuned.after for tuned in found.values()} == {USUAL}
    assert all(tuned.left_out[0][1].startswith("its logits are off by") for tuned in found.values())


def test_counters_of_a_step_that_broke_off_are_zero_again(decoder, case, tried):
    tried(BAD)
    decoder.path._scratch.tiles_done[3] = 1
    decoder.path._scratch.pieces_done[0] = 1
    tune(decoder, case.cache, (1,), timer=Clock(decoder, {BAD: RuntimeError("launch failed")}))
    assert not decoder.path._scratch.tiles_done.any()
    assert not decoder.path._scratch.pieces_done.any()


def test_logits_that_are_only_rounded_otherwise_are_the_same(decoder, case, tried):
    tried(FAST, other={FAST: lambda logits: logits.to(torch.bfloat16).float()})
    found = tune(decoder, case.cache, (1,), timer=Clock(decoder, {FAST: 0.5}))
    assert {tuned.after for tuned in found.values()} == {FAST}


def test_a_gain_below_the_clocks_wavering_changes_nothing(decoder, case, tried):
    tried(FAST)
    found = tune(decoder, case.cache, (1,), timer=Clock(decoder, {FAST: 0.999}))
    assert {(tuned.before, tuned.after) for tuned in found.values()} == {(USUAL, USUAL)}
    assert all(tuned.after_ms == tuned.before_ms for tuned in found.values())


def test_a_card_that_broke_ends_the_search_and_the_tiles_are_as_before(decoder, case, tried, monkeypatch):
    def broken():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    tried(BAD)
    monkeypatch.setattr(decoder.path, "reset", broken)
    decoder.path.tiles = {("down", 8): SLOW}
    with pytest.raises(DeviceError, match="Tuning broke the device: RuntimeError: launch failed"):
        tune(decoder, case.cache, (1,), timer=Clock(decoder, {BAD: RuntimeError("launch failed")}))
    assert decoder.path.tiles == {("down", 8): SLOW}


def test_a_step_that_fails_as_it_is_says_so(decoder, case, tried):
    tried(FAST)
    clock = Clock(decoder, {USUAL: RuntimeError("no kernel image")})
    with pytest.raises(
        EngineError, match="1 rows fails with the tiles in use: RuntimeError: no kernel image"
    ):
        tune(decoder, case.cache, (1,), timer=clock)


def test_a_decoder_without_these_kernels_has_nothing_to_tune(case):
    with pytest.raises(EngineError, match="nothing to tune"):
        tune(decoder_of(MODELS["qwen2"], torch.float32), case.cache, (1,), timer=lambda step: (1.0, step()))


@pytest.mark.parametrize("rows", [1, 2])
def test_a_step_is_the_same_each_time_and_reads_real_blocks(rows, decoder, case):
    step = step_of(decoder.path, case.cache, rows, vocab=72, context=40)
    with torch.inference_mode():
        first = step()
        assert first.shape == (rows, 72)
        assert torch.equal(first, step())
        case.cache.pages[:, :, 1:] *= 2
        assert difference(step(), first) > 0.01


@torch.inference_mode()
def test_products_of_a_step_are_those_that_the_kernels_ask_tiles_for(decoder, case):
    asked = set()
    usual = decoder.path.tile
    for rows in (1, 2):
        asked.clear()
        decoder.path.tile = lambda *shape: asked.add(Shape(*shape)) or usual(*shape)
        step_of(decoder.path, case.cache, rows, 72, 20)()
        assert set(decoder.path.products(rows)) == asked


@pytest.mark.parametrize("rows", ROW_CLASSES)
@pytest.mark.parametrize("kind", ["qkv", "out", "join", "gate_up", "down", "head"])
@pytest.mark.parametrize("ins", [64, 576, 1536, 18944])
def test_whatever_is_tried_fits_kernels_and_card(kind, ins, rows):
    shape = Shape(kind, 4096, ins, rows)
    for tile in candidates(shape, HOPPER_SHARED):
        assert fits(tile, shape)
        assert tile.ins * tile.cuts < 2 * ins or tile.ins * tile.cuts <= 64
        assert shared_bytes(tile, shape) <= HOPPER_SHARED
    assert not [tile for tile in candidates(shape, 1) if tile.stages > 1]
    assert fits(tile_for(shape), shape)


def test_every_tile_of_the_table_would_be_found_again():
    for key, tile in MEASURED.items():
        # The best of them is tried with its first tile read early too.
        assert replace(tile, early=False) in candidates(Shape(*key), HOPPER_SHARED)


@pytest.mark.parametrize(
    ("tile", "kind", "rows"),
    [
        (Tile(3, 512, 1), "qkv", 1),
        (Tile(4, 0, 1), "qkv", 1),
        (Tile(4, 512, 64), "qkv", 1),
        (Tile(4, 4096, 1), "qkv", 1),
        (Tile(8, 256, 2), "qkv", 8),
        (Tile(16, 256, 2, 4), "qkv", 8),
        (Tile(16, 32, 4, 4), "qkv", 8),
        (Tile(16, 256, 2, 1, 0), "qkv", 8),
        (Tile(16, 512, 2, 1, 4, 8), "qkv", 8),
        (Tile(16, 256, 2, 1, 4, 2), "gate_up", 8),
        (Tile(16, 256, 2, 1, 4, 2), "head", 8),
        (Tile(128, 256, 2, 1, 4, 2), "head", 32),
    ],
    ids=str,
)
def test_a_tile_that_the_kernels_cannot_take_does_not_fit(tile, kind, rows):
    assert not fits(tile, Shape(kind, 151936, 1536, rows))


def test_rows_share_the_tile_of_their_class():
    assert [key_of(Shape("qkv", 5, 6, rows))[-1] for rows in (1, 2, 8, 9, 17, 32)] == [1, 8, 8, 16, 32, 32]
