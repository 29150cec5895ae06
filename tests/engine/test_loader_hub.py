"""Fetching from a hub: what is asked for, shown and kept, and what goes wrong. The hub is a stand-in."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.gguf_files import write_gguf
from tests.engine.hub_server import COMMIT, Hub, serve

# The hub client reads its settings at import, so each case is a process of its own.
SCRIPT = """
import json, sys
from engine.errors import ModelError
from engine.models.source import resolve
events = []
try:
    source = resolve(sys.argv[1], sys.argv[2] or None, events.append)
    found = {"name": source.name, "path": str(source.path), "origin": source.origin}
except ModelError as error:
    found = {"message": error.message, "hint": error.hint}
steps = [(event.stage, event.fraction) for event in events]
print(json.dumps(found | {"steps": steps, "torch": "torch" in sys.modules}))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        yield running


@pytest.fixture
def repo(tiny_model_dir: Path, tmp_path: Path, hub: Hub) -> Path:
    """A model repository as people publish them, with files nobody here needs."""
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "repo"))
    for name in (
        "pytorch_model.bin",
        "model.onnx",
        "README.md",
        "consolidated.safetensors",
        "onnx/model.safetensors",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not needed")
    hub.repos["someone/tiny"] = folder
    return folder


def run(url: str, home: Path, model: str, revision: str = "", **environment: str) -> dict[str, Any]:
    names = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home / "hf"),
        "TUI_INFER_CACHE_DIR": str(home / "cache"),
        "NO_PROXY": "*",
    }
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, model, revision],
        env=kept | names | environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


def test_a_hub_model_is_fetched_once_and_only_what_is_needed(hub: Hub, repo: Path, tmp_path: Path) -> None:
    first = run(hub.url, tmp_path, "someone/tiny")
    folder = Path(first["path"])
    assert first["name"] == "tiny"
    assert folder.name == COMMIT
    needed = ["config.json", "generation_config.json", "model.safetensors"]
    assert sorted(file.name for file in folder.iterdir()) == [
        *needed,
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert hub.fetched() == {file.name for file in folder.iterdir()}
    assert (folder / "model.safetensors").read_bytes() == (repo / "model.safetensors").read_bytes()

    fractions = [fraction for stage, fraction in first["steps"] if stage == "downloading"]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert not first["torch"]

    hub.requests.clear()
    second = run(hub.url, tmp_path, "someone/tiny")
    assert second["path"] == first["path"]
    assert hub.requests == []


def test_a_fetched_model_needs_no_network(hub: Hub, repo: Path, tmp_path: Path) -> None:
    first = run(hub.url, tmp_path, "someone/tiny")
    assert run("http://127.0.0.1:9", tmp_path, "someone/tiny")["path"] == first["path"]
    assert run("http://127.0.0.1:9", tmp_path, "someone/tiny", HF_HUB_OFFLINE="1")["path"] == first["path"]


def test_a_download_that_was_interrupted_goes_on(hub: Hub, repo: Path, tmp_path: Path) -> None:
    first = Path(run(hub.url, tmp_path, "someone/tiny")["path"])
    (first / "model.safetensors").unlink()
    hub.requests.clear()
    assert Path(run(hub.url, tmp_path, "someone/tiny")["path"]) == first
    assert (first / "model.safetensors").is_file()
    assert "tokenizer.json" not in hub.fetched()


def test_one_shard_of_several_is_not_taken_for_the_model(hub: Hub, repo: Path, tmp_path: Path) -> None:
    weights = repo / "model.safetensors"
    shutil.copy(weights, repo / "model-00001-of-00002.safetensors")
    weights.rename(repo / "model-00002-of-00002.safetensors")
    names = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (repo / "model.safetensors.index.json").write_text(json.dumps(names))
    folder = Path(run(hub.url, tmp_path, "someone/tiny")["path"])
    (folder / "model-00002-of-00002.safetensors").unlink()
    (folder / "model.safetensors.index.json").unlink()
    assert Path(run(hub.url, tmp_path, "someone/tiny")["path"]) == folder
    assert (folder / "model-00002-of-00002.safetensors").is_file()


def test_a_gguf_file_of_a_repository_is_fetched_and_converted(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    folder.mkdir()
    write_gguf(folder / "tiny-Q4_1.gguf")
    hub.repos["someone/tiny-GGUF"] = folder
    refused = run(hub.url, tmp_path, "someone/tiny-GGUF")
    assert "holds GGUF files (tiny-Q4_1.gguf)" in refused["message"]
    assert refused["hint"].endswith("--model someone/tiny-GGUF/tiny-Q4_1.gguf")
    found = run(hub.url, tmp_path, "someone/tiny-GGUF/tiny-Q4_1.gguf")
    assert (Path(found["path"]) / "model.safetensors").is_file()
    assert ["downloading", 1.0] in found["steps"]
    hub.requests.clear()
    assert run(hub.url, tmp_path, "someone/tiny-GGUF/tiny-Q4_1.gguf")["path"] == found["path"]
    assert hub.requests == []


def test_an_unknown_id_is_said_with_the_ways_out(hub: Hub, tmp_path: Path) -> None:
    for model in ("someone/nothing", "smolm2", "not a name", "a/b--c/../d.gguf"):
        answer = run(hub.url, tmp_path, model)
        assert "neither a known name" in answer["message"], model
        assert "spelling" in answer["hint"]


def test_a_gated_model_says_where_to_accept_the_terms(hub: Hub, tmp_path: Path) -> None:
    hub.repos["big/gated"] = 403
    answer = run(hub.url, tmp_path, "big/gated")
    assert "gated" in answer["message"]
    assert "HF_TOKEN" in answer["hint"]


def test_an_unknown_revision_is_named(hub: Hub, repo: Path, tmp_path: Path) -> None:
    assert "no revision 'v9'" in run(hub.url, tmp_path, "someone/tiny", "v9")["message"]


def test_an_unknown_file_is_named(hub: Hub, repo: Path, tmp_path: Path) -> None:
    assert "no file 'none.gguf'" in run(hub.url, tmp_path, "someone/tiny/none.gguf")["message"]


def test_pickled_weights_of_a_repository_are_not_fetched(hub: Hub, repo: Path, tmp_path: Path) -> None:
    (repo / "model.safetensors").unlink()
    answer = run(hub.url, tmp_path, "someone/tiny")
    assert "pickled weights only" in answer["message"]
    assert hub.fetched() == set()


def test_a_repository_without_weights_is_refused(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "README.md").write_text("a data set, perhaps")
    hub.repos["someone/words"] = tmp_path / "repo"
    assert "has no weights" in run(hub.url, tmp_path, "someone/words")["message"]


def test_no_network_is_one_sentence(tmp_path: Path) -> None:
    answer = run("http://127.0.0.1:9", tmp_path, "someone/tiny")
    assert "cannot be reached" in answer["message"]
    assert "--model a folder" in answer["hint"]


def test_offline_mode_is_named(tmp_path: Path) -> None:
    answer = run("http://127.0.0.1:9", tmp_path, "someone/tiny", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in answer["message"]


def test_a_hub_that_fails_says_its_number(hub: Hub, tmp_path: Path) -> None:
    hub.repos["someone/ill"] = 418
    assert "answered 418" in run(hub.url, tmp_path, "someone/ill")["message"]
