"""The models of this machine: known names, converted files, the Hugging Face cache, folders. Torch-free.

Listing reads directories and headers, so it belongs on a thread.
"""

import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from engine.models.convert import MANIFEST, is_whole
from engine.models.shapes import PREFIX, SHAPES
from engine.models.source import KNOWN_MODELS, file_of_package
from engine.paths import kind_of, model_cache_dir, user_path
from tui_infer.model_files import ModelFacts, facts_of_folder, facts_of_gguf

Kind = Literal["known", "converted", "hub", "folder", "gguf", "shape"]

KIND_WORDS: dict[Kind, str] = {
    "known": "known name",
    "converted": "converted GGUF file",
    "hub": "Hugging Face cache",
    "folder": "folder",
    "gguf": "GGUF file",
    "shape": "random weights",
}
MOST_FOLDERS, DEPTH = 2000, 3  # of folders to look into


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that can be loaded; ``model`` is what the engine is given. ``path`` None is not here yet."""

    model: str
    title: str
    kind: Kind
    facts: ModelFacts
    path: Path | None = None

    @property
    def words(self) -> str:
        """What a filter looks into."""
        return f"{self.title} {self.model} {self.facts.architecture}".casefold()


def local_models(folders: Sequence[Path] = (), current: str = "") -> list[LocalModel]:
    """All that is found, each once; ``folders`` are searched too, and ``current`` is listed in any case."""
    found: dict[str, LocalModel] = {}
    for model in [*_converted(), *_known_elsewhere(), *_hub(), *_in_folders(folders), *_shapes()]:
        found.setdefault(model.model, model)
    if current and current not in found:
        at = user_path(current)
        kind = kind_of(at)
        if kind == "folder":
            found = {
                current: LocalModel(current, at.resolve().name, "folder", facts_of_folder(at), at),
                **found,
            }
        elif kind == "file":
            found = {current: LocalModel(current, at.stem, "gguf", facts_of_gguf(at), at), **found}
    return list(found.values())


def facts_of(model: str) -> ModelFacts | None:
    """What can be told of any name that the engine takes; None where nothing is here."""
    for local in local_models(current=model):
        if local.model == model:
            return local.facts
    return None


def _converted() -> Iterator[LocalModel]:
    """GGUF files that were converted; a known one by its name."""
    known = {model.sha256: name for name, model in KNOWN_MODELS.items()}
    for folder in _folders(model_cache_dir()):
        if not is_whole(folder):
            continue
        try:
            source = json.loads((folder / MANIFEST).read_text("utf-8"))["source"]
            name = known.get(source["sha256"], "")
            title = KNOWN_MODELS[name].title if name else folder.name.rpartition("-")[0]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield LocalModel(
            name or str(folder), title, "known" if name else "converted", facts_of_folder(folder), folder
        )


def _known_elsewhere() -> Iterator[LocalModel]:
    """Known names whose file was not converted yet, or is not here."""
    for name, known in KNOWN_MODELS.items():
        file = file_of_package(known.package, known.file)
        facts = facts_of_gguf(file) if file is not None else ModelFacts(disk_bytes=known.size)
        yield LocalModel(name, known.title, "known", facts, file)


def _hub() -> Iterator[LocalModel]:
    """Snapshots of the main branch, and GGUF files in them."""
    from huggingface_hub import constants

    for folder in _folders(Path(constants.HF_HUB_CACHE)):
        kind, _, name = folder.name.partition("--")
        if kind != "models":
            continue
        try:
            snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        repo = name.replace("--", "/")
        if kind_of(snapshot / "config.json") == "file":
            yield LocalModel(repo, repo.rpartition("/")[2], "hub", facts_of_folder(snapshot), snapshot)
        for file in sorted(snapshot.rglob("*.gguf")):
            model = f"{repo}/{file.relative_to(snapshot).as_posix()}"
            yield LocalModel(model, file.stem, "hub", facts_of_gguf(file), file)


def _in_folders(folders: Sequence[Path]) -> Iterator[LocalModel]:
    """Model folders and GGUF files, some levels deep."""
    waiting = deque((folder, 0) for folder in folders)
    seen = 0
    while waiting and seen < MOST_FOLDERS:
        folder, depth = waiting.popleft()
        seen += 1
        yield from _in_folder(folder)
        if depth < DEPTH:
            waiting.extend((below, depth + 1) for below in _folders(folder))


def _in_folder(folder: Path) -> Iterator[LocalModel]:
    if kind_of(folder / "config.json") == "file" and any(folder.glob("*.safetensors")):
        yield LocalModel(str(folder), folder.resolve().name, "folder", facts_of_folder(folder), folder)
    for file in sorted(folder.glob("*.gguf")):
        yield LocalModel(str(file), file.stem, "gguf", facts_of_gguf(file), file)


def _shapes() -> Iterator[LocalModel]:
    for name, shape in SHAPES.items():
        facts = ModelFacts(
            parameters=shape.parameters,
            kv_numbers=2 * shape.layers * shape.kv_heads * shape.head_dim,
            context=shape.max_positions,
            architecture=shape.model_type,
        )
        yield LocalModel(PREFIX + name, name, "shape", facts)


def _folders(folder: Path) -> list[Path]:
    """Folders in a folder, hidden ones left out; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry) for entry in sorted(entries, key=lambda entry: entry.name) if _visible(entry)]
    except OSError:
        return []


def _visible(entry: "os.DirEntry[str]") -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:
        return False


def titled(models: Sequence[LocalModel]) -> list[LocalModel]:
    """Titles that occur twice get what tells them apart."""
    titles = [model.title for model in models]
    return [
        replace(model, title=f"{model.title} ({model.path.parent.name if model.path else model.model})")
        if titles.count(model.title) > 1 and model.kind != "known"
        else model
        for model in models
    ]
