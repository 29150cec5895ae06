"""GGUF conversion: right once, whole or not at all, and not again."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.errors import ModelError, OutOfMemory
from engine.models import convert, gguf_file, memory
from engine.models.convert import MANIFEST, converted, is_whole
from engine.models.source import resolve
from engine.records import Progress
from tests.engine.gguf_files import HIDDEN, VOCABULARY, write_gguf


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture(scope="module")
def converted_once(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Progress]]:
    """A conversion that several tests look at, and its progress."""
    events: list[Progress] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return converted(tiny_gguf, "tiny", events.append), events


def no_events(_: Progress) -> None:
    pass


def never(*_: object) -> dict[str, str]:
    raise AssertionError("converted again")


def test_weights_equal_the_dequantised_file(
    tiny_gguf: Path, converted_once: tuple[Path, list[Progress]]
) -> None:
    import gguf
    from safetensors.torch import load_file

    weights = load_file(converted_once[0] / "model.safetensors")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(str(tiny_gguf)).tensors}
    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.norm.weight": "output_norm.weight",
    }.items():
        tensor = tensors[theirs]
        expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        assert weights[ours].dtype == torch.float32
        assert torch.equal(weights[ours], expected), ours
    assert weights["model.embed_tokens.weight"].shape == (len(VOCABULARY), HIDDEN)


def test_the_converted_folder_loads_with_its_chat_template(
    converted_once: tuple[Path, list[Progress]],
) -> None:
    from transformers import AutoTokenizer

    from engine.models.loader import load
    from engine.models.source import ModelSource

    folder = converted_once[0]
    loaded = load(ModelSource("tiny", folder, "folder"), dtype=torch.float32, device="cpu")
    assert loaded.config.tie_word_embeddings
    assert loaded.eos_token_ids == {VOCABULARY.index("<|im_end|>")}
    assert loaded.max_model_len == 256
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert "<|im_start|>" in tokenizer.chat_template
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    logits = loaded.model(torch.tensor([[1, 2, 3]])).logits
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["a", "ĠĠ", "1", "2", "3", "4"]),
        ("llama-bpe", ["a", "Ġ", "Ġ", "123", "4"]),
        ("qwen2", ["a", "Ġ", "Ġ", "1", "2", "3", "4"]),
    ],
)
def test_text_is_split_as_the_files_header_says(
    cache: Path, tmp_path: Path, pre: str, pieces: list[str]
) -> None:
    from transformers import AutoTokenizer

    path = tmp_path / "tiny.gguf"
    write_gguf(path, pre=pre)
    tokenizer = AutoTokenizer.from_pretrained(resolve(str(path)).path)
    split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  1234")
    assert [piece for piece, _ in split] == pieces
    assert not tokenizer.clean_up_tokenization_spaces


def test_progress_rises_tensor_by_tensor_to_one(converted_once: tuple[Path, list[Progress]]) -> None:
    steps = [event for event in converted_once[1] if event.stage == "converting"]
    fractions = [event.fraction for event in steps if event.fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert sum(event.detail.startswith("blk.") for event in steps) == 18


def test_a_second_start_uses_the_cache(tiny_gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = converted(tiny_gguf, "tiny", no_events)
    monkeypatch.setattr(gguf_file, "convert_file", never)
    monkeypatch.setattr(convert, "_sha256", never)  # not even hashed again
    assert converted(tiny_gguf, "tiny", no_events) == first


def test_the_same_content_elsewhere_is_not_converted_again(
    tiny_gguf: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = converted(tiny_gguf, "tiny", no_events)
    copy = tmp_path / "tiny.gguf"
    copy.write_bytes(tiny_gguf.read_bytes())
    monkeypatch.setattr(gguf_file, "convert_file", never)
    assert converted(copy, "tiny", no_events) == first


def test_a_file_that_changed_is_converted_anew(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, seed=1)
    first = converted(path, "tiny", no_events)
    write_gguf(path, seed=2)
    os.utime(path, ns=(1, 1))
    second = converted(path, "tiny", no_events)
    assert second != first
    assert is_whole(second)


def cut_weights(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(100)


def drop_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def spoil_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("[1, 2")


def drop_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize("harm", [cut_weights, drop_manifest, spoil_manifest, drop_tokenizer])
def test_a_damaged_cache_is_built_again(tiny_gguf: Path, cache: Path, harm: Callable[[Path], None]) -> None:
    folder = converted(tiny_gguf, "tiny", no_events)
    harm(folder)
    assert not is_whole(folder)
    assert converted(tiny_gguf, "tiny", no_events) == folder
    assert is_whole(folder)
    assert not list(cache.glob(".*.tmp"))
    assert not list(cache.glob(".*.old"))


def test_leftovers_of_a_killed_conversion_go(tiny_gguf: Path, cache: Path) -> None:
    folder = converted(tiny_gguf, "tiny", no_events)
    leftover = cache / f".{folder.name}.99999.abc.tmp"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    drop_manifest(folder)
    converted(tiny_gguf, "tiny", no_events)
    assert not leftover.exists()


def test_a_failed_conversion_leaves_nothing_behind(
    tiny_gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(gguf: Path, target: Path, progress: object) -> dict[str, str]:
        (target / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_file, "convert_file", fails)
    with pytest.raises(ModelError, match=r"No space left.*TUI_INFER_CACHE_DIR"):
        converted(tiny_gguf, "tiny", no_events)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


def test_two_processes_at_once_both_succeed(tiny_gguf: Path, cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from engine.models.convert import converted;"
        "print(converted(Path(sys.argv[1]), 'tiny', lambda _: None))"
    )
    command = [sys.executable, "-c", code, str(tiny_gguf)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    results = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    folders = {out.strip() for out, _ in results}
    assert len(folders) == 1
    assert is_whole(Path(folders.pop()))


def test_two_writers_without_locks_both_succeed(
    tiny_gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = converted(tiny_gguf, "tiny", no_events)
    before = (folder / MANIFEST).stat().st_ino
    work = cache / ".other.tmp"
    work.mkdir()
    (work / MANIFEST).write_text("{}")
    convert._publish(work, folder)  # the place is taken by a whole folder: that one stays
    assert (folder / MANIFEST).stat().st_ino == before


def test_a_short_file_is_called_broken(cache: Path, tmp_path: Path, tiny_gguf: Path) -> None:
    for size in (0, 10, 100, 2000, tiny_gguf.stat().st_size - 500):
        path = tmp_path / f"cut{size}.gguf"
        path.write_bytes(tiny_gguf.read_bytes()[:size])
        with pytest.raises(ModelError, match="cannot be read as GGUF") as caught:
            resolve(str(path))
        assert "fetch it again" in caught.value.hint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("embedding_length", 4096),
        ("feed_forward_length", 11008),
        ("attention.head_count", 0),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 4),
    ],
)
def test_a_header_whose_counts_are_not_those_of_its_tensors_is_called_broken(
    cache: Path, tmp_path: Path, tiny_gguf: Path, key: str, value: int
) -> None:
    whole = tiny_gguf.read_bytes()
    at = whole.index(f"llama.{key}".encode() + b"\x04\0\0\0") + len(f"llama.{key}") + 4  # uint32
    path = tmp_path / "counts.gguf"
    path.write_bytes(whole[:at] + value.to_bytes(4, "little") + whole[at + 4 :])
    with pytest.raises(ModelError, match="cannot be read as GGUF") as caught:
        resolve(str(path))
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_memory_that_runs_out_is_not_blamed_on_the_file(
    cache: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(gguf_file, "_model", full)
    with pytest.raises(RuntimeError, match="allocate memory"):
        resolve(str(tiny_gguf))


def test_a_file_that_is_no_gguf_is_called_broken(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<html>not found</html>" * 50)
    with pytest.raises(ModelError, match="does not start with a GGUF header"):
        resolve(str(path))


def test_a_missing_tensor_is_named(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, skip="blk.1.ffn_up.weight")
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        resolve(str(path))


def test_an_unknown_architecture_is_named(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    write_gguf(path, architecture="wavenet")
    with pytest.raises(ModelError, match="wavenet") as caught:
        resolve(str(path))
    assert "safetensors" in caught.value.hint


def test_one_part_of_several_is_refused(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "part.gguf"
    write_gguf(path, parts=3)
    with pytest.raises(ModelError, match="one of 3 parts") as caught:
        resolve(str(path))
    assert "merge" in caught.value.hint


def test_another_hash_than_promised_is_refused(tiny_gguf: Path, cache: Path) -> None:
    with pytest.raises(ModelError, match="is damaged"):
        converted(tiny_gguf, "tiny", no_events, "0" * 64)


def test_too_little_memory_is_said_before_converting(
    tiny_gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda _: 1000)
    with pytest.raises(OutOfMemory, match=r"needs 820\.5 KiB; cpu has 1000 bytes"):
        converted(tiny_gguf, "tiny", no_events)


def test_a_cache_that_cannot_be_written_says_where(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TUI_INFER_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="TUI_INFER_CACHE_DIR"):
        converted(tiny_gguf, "tiny", no_events)
