"""Tiled weights from the cache folder: the same bytes as laid out anew, and never those of another file."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import pytest
import torch

import engine.models.kept_tiles as kept_tiles
from engine import Engine, EngineConfig, SamplingParams
from engine.models.kept_tiles import FOLDER, KeptTiles, kept
from engine.models.loader import resolve
from engine.models.quantised import QuantisedWeights
from engine.models.weights import Shards
from engine.native.library import native_missing
from tests.engine.test_architectures import write_model

pytestmark = pytest.mark.skipif(bool(native_missing()), reason=f"no C decoder: {native_missing()}")

GREEDY = SamplingParams(temperature=0, max_tokens=12)
CHAT = [{"role": "user", "content": "hello world"}]
NAMES = ["model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tiny_model_dir, tmp_path) -> Path:
    copy = tmp_path / "model"
    copy.mkdir()
    for file in tiny_model_dir.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def matrices() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(rows, 64, generator=generator) for rows in (40, 128)]


def packing_of(folder: Path, quant: str = "int4") -> KeptTiles:
    bits = {"int4": 4, "int8": 8}[quant]
    weights = QuantisedWeights(bits, Shards(folder).shapes, torch.bfloat16, tiled=True)  # type: ignore[arg-type]
    found = kept(weights, resolve(str(folder)), quant)
    assert isinstance(found, KeptTiles)
    return found


def files_in(cache: Path) -> list[Path]:
    return list((cache / FOLDER).iterdir()) if (cache / FOLDER).is_dir() else []


def unmade(*_):
    raise AssertionError("it was laid out again")


def test_what_is_read_is_what_was_laid_out(folder, own_cache, monkeypatch):
    first = packing_of(folder)
    fused, head = first.weight(NAMES, matrices()), first.head(matrices()[0])
    note = first.note()
    first.keep()
    assert len(files_in(own_cache)) == 1
    monkeypatch.setattr(QuantisedWeights, "weight", unmade)
    monkeypatch.setattr(QuantisedWeights, "head", unmade)
    second = packing_of(folder)
    assert second.note() == note
    for found, expected in ((second.weight(NAMES, matrices()), fused), (second.head(matrices()[0]), head)):
        assert found.shape == expected.shape
        for mine, theirs in zip(found.parts, expected.parts, strict=True):
            assert (mine.kind, mine.outputs, mine.inputs) == (theirs.kind, theirs.outputs, theirs.inputs)
            assert torch.equal(mine.data, theirs.data)
            assert mine.data.data_ptr() % kept_tiles.ALIGNMENT == 0
            assert torch.equal(mine.values(), theirs.values())


def test_a_second_engine_lays_nothing_out_and_answers_the_same(
    tiny_model_dir, tmp_path, own_cache, monkeypatch
):
    folder = tmp_path / "heads of 32"  # which the C decoder wants
    folder.mkdir()
    write_model(folder, tiny_model_dir, "llama", {"model_type": "llama", "head_dim": 32})
    config = EngineConfig(model=str(folder), device="cpu", quant="int8", num_blocks=40)

    def answer() -> tuple[list[int], tuple[str, ...], int]:
        engine = Engine(config)
        (completion,) = engine.generate([CHAT], GREEDY)
        status = engine.status()
        engine.close()
        return completion.token_ids, status.notes, status.weight_bytes

    first = answer()
    assert len(files_in(own_cache)) == 1
    monkeypatch.setattr(QuantisedWeights, "weight", unmade)
    assert answer() == first


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_weights_of_a_file_that_changed_are_not_found(folder, own_cache, name):
    def stored() -> bool:
        return packing_of(folder)._table is not None

    first = packing_of(folder)
    first.weight(NAMES, matrices())
    first.keep()
    assert stored()
    os.utime(folder / name, ns=(1, 1))
    assert not stored()


def test_other_bits_and_other_code_have_files_of_their_own(folder, own_cache, monkeypatch):
    first = packing_of(folder)
    first.weight(NAMES, matrices())
    first.keep()
    assert packing_of(folder, "int8")._table is None
    with monkeypatch.context() as patch:
        patch.setattr(kept_tiles, "_stamp", lambda path: (str(path), 0, 0))
        assert packing_of(folder)._table is None
    assert packing_of(folder)._table is not None


@pytest.mark.parametrize("damage", ["cut", "longer", "no table", "empty"])
def test_a_damaged_file_is_laid_out_and_written_again(folder, own_cache, damage):
    first = packing_of(folder)
    expected = first.weight(NAMES, matrices())
    first.keep()
    (file,) = files_in(own_cache)
    whole = file.read_bytes()
    file.write_bytes(
        {"cut": whole[:-1], "longer": whole + b"x", "no table": b"\xff" * len(whole), "empty": b""}[damage]
    )
    second = packing_of(folder)
    assert second._table is None
    assert torch.equal(second.weight(NAMES, matrices()).parts[0].data, expected.parts[0].data)
    second.keep()
    assert file.read_bytes() == whole


def rewritten(whole: bytes, **changes: int) -> bytes:
    """A file whose table is another, with its right CRC: what only the checks of the pieces notice."""
    length = int.from_bytes(whole[:8], "little")
    table = msgspec.json.decode(whole[12 : 12 + length])
    piece = table["weights"]["|".join(NAMES)][1]
    for name, value in changes.items():
        (table if name == "nbytes" else piece)[name] = value
    head = msgspec.json.encode(table)
    return (
        len(head).to_bytes(8, "little") + zlib.crc32(head).to_bytes(4, "little") + head + whole[12 + length :]
    )


def harmed(whole: bytes, damage: str) -> bytes:
    if damage == "zeroed":
        return whole[:-2000] + bytes(1000) + whole[-1000:]
    if damage == "one bit":
        return whole[:-1000] + bytes([whole[-1000] ^ 1]) + whole[-999:]
    if damage == "a digit of the table":
        at = whole.index(b'"outputs":40') + len(b'"outputs":')
        return whole[:at] + b"9" + whole[at + 1 :]
    if damage == "length":
        return (2**63).to_bytes(8, "little") + whole[8:]
    return whole[:7]


def is_laid_out_and_written_again(folder: Path, file: Path, harm: bytes, whole: bytes) -> None:
    file.write_bytes(harm)
    second = packing_of(folder)
    assert second._table is None
    assert not file.exists()
    made = second.weight(NAMES, matrices())
    assert [part.outputs for part in made.parts] == [40, 128]
    second.keep()
    assert file.read_bytes() == whole
    assert packing_of(folder)._table is not None


@pytest.mark.parametrize("damage", ["zeroed", "one bit", "a digit of the table", "length", "head alone"])
def test_a_file_of_other_content_is_laid_out_and_written_again(folder, own_cache, damage):
    first = packing_of(folder)
    first.weight(NAMES, matrices())
    first.keep()
    (file,) = files_in(own_cache)
    whole = file.read_bytes()
    is_laid_out_and_written_again(folder, file, harmed(whole, damage), whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"outputs": 990000},
        {"outputs": 0, "tiles": 0},
        {"inputs": 96},
        {"inputs": -64},
        {"kind": 5},
        {"kind": 8},
        {"at": -64},
        {"at": 32},
        {"at": 1 << 40},
        {"tiles": 9},
        {"tiles": -8},
        {"tile_bytes": 0},
        {"words": 0},
        {"nbytes": -64},
        {"nbytes": 64},
    ],
    ids=str,
)
def test_pieces_that_do_not_fit_their_file_are_never_read(folder, own_cache, changes):
    first = packing_of(folder)
    first.weight(NAMES, matrices())
    first.keep()
    (file,) = files_in(own_cache)
    whole = file.read_bytes()
    assert rewritten(whole) == whole
    is_laid_out_and_written_again(folder, file, rewritten(whole, **changes), whole)


def test_a_file_of_weights_of_another_shape_is_laid_out_and_written_again(folder, own_cache):
    first = packing_of(folder)
    first.weight(NAMES, [torch.cat((weight, weight)) for weight in matrices()])
    first.keep()
    (file,) = files_in(own_cache)
    second = packing_of(folder)
    assert second._table is not None
    assert second.weight(NAMES, matrices()).shape == (168, 64)
    assert not file.exists()
    second.keep()
    assert packing_of(folder).weight(NAMES, matrices()).shape == (168, 64)
    assert file.exists()


def test_what_is_half_of_the_file_is_not_written_as_a_whole(folder, own_cache):
    first = packing_of(folder)
    first.weight(NAMES, matrices())
    first.head(matrices()[1])
    first.keep()
    second = packing_of(folder)
    second.weight(NAMES, matrices())
    second.head(matrices()[0])  # another shape: the file goes, what came from it stays
    second.keep()
    assert not files_in(own_cache)


def test_what_killed_starts_left_goes_and_what_others_write_stays(folder, own_cache):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    place = own_cache / FOLDER
    place.mkdir(parents=True)
    killed, ours, old = (
        place / f".{name}.tiles.{pid}.tmp"
        for name, pid in (("a", gone.pid), ("b", os.getpid()), ("c", os.getpid()))
    )
    for path in (killed, ours, old):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    packing = packing_of(folder)
    packing.weight(NAMES, matrices())
    packing.keep()
    assert not killed.exists()
    assert not old.exists()
    assert ours.exists()
    assert len(files_in(own_cache)) == 2


def test_a_weight_that_the_file_lacks_is_laid_out(folder):
    first = packing_of(folder)
    first.weight(NAMES, matrices())
    first.keep()
    other = ["model.layers.1.mlp.down_proj"]
    found = packing_of(folder).weight(other, matrices()[:1])
    assert found.shape == (40, 64)


def test_only_the_files_used_last_are_kept_and_a_full_disk_gets_none(folder, own_cache, monkeypatch):
    monkeypatch.setattr(kept_tiles, "KEPT", 2)
    for number in range(4):
        os.utime(folder / "config.json", ns=(number + 1, number + 1))
        packing = packing_of(folder)
        packing.weight(NAMES, matrices())
        packing.keep()
    assert len(files_in(own_cache)) == 2
    assert packing_of(folder)._table is not None
    monkeypatch.setattr(kept_tiles, "SPARE", 1 << 62)
    packing = packing_of(folder, "int8")
    packing.weight(NAMES, matrices())
    packing.keep()
    assert len(files_in(own_cache)) == 2


def test_random_weights_are_not_kept(tiny_model_dir):
    weights = QuantisedWeights(4, Shards(tiny_model_dir).shapes, torch.bfloat16, tiled=True)
    assert kept(weights, resolve("shape:tiny"), "int4") is weights
