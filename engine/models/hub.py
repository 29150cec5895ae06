"""The Hugging Face cache and hub: what is there, and fetching only what a model needs."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.models.memory import size_text
from engine.models.source import PICKLED, TOKENIZER_FILES, OnProgress, weight_files
from engine.records import Progress

WANTED = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "tokenizer.model",
    "*.tiktoken",
    "vocab.txt",
    "merges.txt",
    "*.py",
)
UNWANTED = ("*/*", "consolidated*.safetensors", "*.onnx.json")


def download_model(repo_id: str, revision: str | None, progress: OnProgress) -> Path:
    """The folder of a repository's snapshot, from the cache when it is whole there, else fetched.

    A whole snapshot is used without asking the hub, so that later starts need no network.

    Raises:
        ModelError: unknown id or revision, gated, no network, no weights that may be read, no disk space.
    """
    cached = cached_snapshot(repo_id, revision)
    if cached is not None:
        return cached
    import huggingface_hub

    with _explained(repo_id, revision):
        progress(Progress("asking the hub", repo_id))
        info = huggingface_hub.HfApi().model_info(repo_id, revision=revision, files_metadata=True)
        sizes = {file.rfilename: int(file.size or 0) for file in info.siblings or ()}
        wanted = wanted_files(repo_id, sizes)
        total = sum(sizes[name] for name in wanted)
        _require_disk(repo_id, total)
        with _reporting(repo_id, total, progress) as bar:
            return Path(
                huggingface_hub.snapshot_download(
                    repo_id, revision=revision, allow_patterns=wanted, tqdm_class=bar, max_workers=4
                )
            )


def download_file(repo_id: str, file: str, revision: str | None, progress: OnProgress) -> Path:
    """One file of a repository, from the cache or fetched.

    Raises:
        ModelError: as ``download_model``.
    """
    import huggingface_hub

    with _explained(repo_id, revision, file):
        found = huggingface_hub.try_to_load_from_cache(repo_id, file, revision=revision)
        if isinstance(found, str):
            return Path(found)
        progress(Progress("asking the hub", repo_id))
        url = huggingface_hub.hf_hub_url(repo_id, file, revision=revision)
        total = int(huggingface_hub.get_hf_file_metadata(url).size or 0)
        _require_disk(repo_id, total)
        with _reporting(file, total, progress) as bar:
            return Path(huggingface_hub.hf_hub_download(repo_id, file, revision=revision, tqdm_class=bar))


def cached_snapshot(repo_id: str, revision: str | None) -> Path | None:
    """A snapshot in the Hugging Face cache with everything that is needed, or None."""
    import huggingface_hub

    try:
        config = huggingface_hub.try_to_load_from_cache(repo_id, "config.json", revision=revision)
    except ValueError:  # an id that is none; the hub's answer explains it
        return None
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    try:
        weights = weight_files(folder)
    except ModelError:
        return None
    tokenizer = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    # Fetched files arrive in about alphabetical order, several at once: these are among the last.
    needed = [*weights, folder / "tokenizer_config.json"]
    return folder if weights and tokenizer and all(file.is_file() for file in needed) else None


def wanted_files(repo_id: str, names: Any) -> list[str]:
    """Which files of a repository to fetch: weights as safetensors, configuration, tokenizer.

    Raises:
        ModelError: when there are no safetensors weights, saying what there is instead.
    """
    from huggingface_hub.utils import filter_repo_objects

    names = sorted(names)
    wanted = list(filter_repo_objects(names, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)))
    if any(name.endswith(".safetensors") for name in wanted):
        return wanted
    ggufs = [name for name in names if name.endswith(".gguf")]
    if ggufs:
        raise ModelError(
            f"{repo_id} holds GGUF files ({', '.join(ggufs[:4])}{', …' if len(ggufs) > 4 else ''}).",
            f"Name one of them: --model {repo_id}/{ggufs[0]}",
        )
    if any(name.endswith(PICKLED) for name in names):
        raise ModelError(
            f"{repo_id} has pickled weights only, and reading those can run code.",
            "Use a safetensors or GGUF version of the model.",
        )
    raise ModelError(f"{repo_id} has no weights.", "Check the id: it must name a language model.")


def _require_disk(repo_id: str, need: int) -> None:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if need > free:
        raise ModelError(
            f"{repo_id} needs {size_text(need)} of disk; {folder} has {size_text(free)} free.",
            "Free space there, or point HF_HOME at another disk.",
        )


@contextmanager
def _reporting(name: str, total: int, progress: OnProgress) -> Iterator[Any]:
    """A class in tqdm's shape that turns the bytes of all files into one fraction.

    The hub client updates a bar of bytes from several threads, and other bars that count files or
    network traffic; only the bytes written to disk are wanted, which the bar without ``transfer`` in
    its name counts.
    """
    lock, state = threading.Lock(), {"done": 0.0, "shown": 0.0}

    def add(count: float) -> None:
        with lock:
            state["done"] += count
            now = time.monotonic()
            if now - state["shown"] < 0.1 and state["done"] < total:
                return
            state["shown"] = now
            fraction = min(1.0, state["done"] / total) if total else None
            detail = f"{name}  {size_text(int(state['done']))} of {size_text(total)}"
        progress(Progress("downloading", detail, fraction))

    from tqdm import tqdm  # type: ignore[import-untyped]

    class Bytes(tqdm):
        """Draws nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            self.counts = kwargs.get("unit") == "B" and "Downloading bytes" not in str(kwargs.get("desc"))
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)
            if self.counts and kwargs.get("initial"):
                add(float(kwargs["initial"]))

        def update(self, n: float | None = 1) -> bool | None:
            if self.counts and n:
                add(float(n))
            return None

    yield Bytes


@contextmanager
def _explained(repo_id: str, revision: str | None, file: str = "") -> Iterator[None]:
    """The hub client's many errors, each as one sentence with the way out."""
    from huggingface_hub import errors

    where = f" at revision {revision!r}" if revision else ""
    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo_id} is gated: its owner wants you to accept terms first.",
            f"Accept them at https://huggingface.co/{repo_id}, then set HF_TOKEN or run `hf auth login`.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{repo_id} has no revision {revision!r}.", "Check --revision.") from error
    except errors.EntryNotFoundError as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _no_network(repo_id, error) from error
        raise ModelError(f"{repo_id}{where} has no file {file!r}.", "Check the file's name.") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ModelError(
            f"{repo_id!r} is neither a known name, a file, a folder nor a model on the hub.",
            "Check the spelling (owner/name); for a private model set HF_TOKEN or run `hf auth login`.",
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelError(
            f"{repo_id} is not in the Hugging Face cache, and HF_HUB_OFFLINE forbids fetching it.",
            "Unset HF_HUB_OFFLINE, or give --model a folder.",
        ) from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        raise ModelError(
            f"The hub answered {status or 'with an error'} for {repo_id}.",
            "Try again later, or give --model a folder.",
        ) from error
    except OSError as error:
        if isinstance(error, PermissionError | FileNotFoundError) or error.errno == 28:
            raise ModelError(
                f"{repo_id} cannot be written to the Hugging Face cache: {error}.",
                "Point HF_HOME at a folder with room.",
            ) from error
        raise _no_network(repo_id, error) from error
    except Exception as error:
        if type(error).__module__.startswith(("httpx", "httpcore", "requests", "urllib3")):
            raise _no_network(repo_id, error) from error
        raise


def _no_network(repo_id: str, error: Exception) -> ModelError:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    return ModelError(
        f"{repo_id} is not in the Hugging Face cache, and {endpoint} cannot be reached.",
        "Check the network, or give --model a folder or a .gguf file.",
    )
