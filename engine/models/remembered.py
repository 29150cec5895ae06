"""What transformers said of a model at an earlier start, kept in the cache folder.

Importing transformers takes as long as importing torch. For a model that the fused decoder runs it is asked
once; later starts read its answers. They are looked up by everything that they depend on (the folder's
files by size and time, the versions of all that took part), so that none is ever stale: after any change
there is nothing to find, and transformers is asked again.
"""

import contextlib
import hashlib
import os
import shutil
from concurrent.futures import Future
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
from tokenizers import Tokenizer

from engine.models.leftovers import leftover_name, remove_leftovers
from engine.models.plain_tokenizer import PlainTokenizer, TokenizerFacts
from engine.models.skeleton import Bones, PlainConfig
from engine.models.source import ModelSource
from engine.paths import cache_dir
from engine.version import __version__

FORMAT = 1
FOLDER = "starts"
FACTS, TOKENIZER = "facts.json", "tokenizer.json"
KEPT = 8  # models, those used last; one takes a few megabytes
PACKAGES = ("torch", "transformers", "tokenizers", "jinja2")


class Facts(msgspec.Struct, frozen=True):
    """What ``loader.Loaded`` has beside the weights.

    Attributes:
        dtype: in which the module was built.
        bones: the module without its weights.
    """

    dtype: str
    bones: Bones
    tokenizer: TokenizerFacts
    eos_token_ids: list[int]
    max_model_len: int
    stop: list[str]
    notes: list[str]


class Remembered:
    """The answers for one folder."""

    def __init__(self, folder: Path, facts: Facts) -> None:
        self._folder = folder
        self.facts = facts
        self._reading: Future[Tokenizer] | None = None

    def begin(self) -> None:
        """Read the tokenizer's file on a thread: a tenth of a second in which weights can be read."""
        if self._reading is None:
            reading: Future[Tokenizer] = Future()
            self._reading = reading
            Thread(target=self._read_tokenizer, args=(reading,), name="tokenizer", daemon=True).start()

    def config(self) -> PlainConfig:
        """The model's configuration."""
        return PlainConfig(self.facts.bones.config)

    def tokenizer(self, source: ModelSource) -> PlainTokenizer:
        """The tokenizer; what it cannot do itself, transformers' does.

        Raises:
            ModelError: neither can be read.
        """

        def whole() -> Any:
            from engine.models.loader import read_tokenizer

            return read_tokenizer(source, False)

        self.begin()
        assert self._reading is not None
        reading, self._reading = self._reading, None  # every caller has a tokenizer of its own
        try:
            backend = reading.result()
        except Exception:  # the library has no class of its own; another process may just replace the folder
            backend = whole().backend_tokenizer
        return PlainTokenizer(backend, self.facts.tokenizer, whole)

    def _read_tokenizer(self, reading: "Future[Tokenizer]") -> None:
        try:
            reading.set_result(Tokenizer.from_file(str(self._folder / TOKENIZER)))
        except BaseException as error:
            reading.set_exception(error)


def recall(source: ModelSource) -> Remembered | None:
    """What an earlier start kept of a model, if nothing changed since."""
    if source.shape is not None:
        return None
    folder = _place(source.path)
    return None if folder is None else _read(folder)


def remember(source: ModelSource, facts: Facts, tokenizer: str) -> None:
    """Keep the answers; a cache that cannot be written keeps none.

    Args:
        tokenizer: text of the Rust half's file.
    """
    folder = _place(source.path)
    data = msgspec.json.encode(facts)
    if folder is None or source.shape is not None or msgspec.json.decode(data, type=Facts) != facts:
        return  # the last of numbers that JSON has no word for
    work = folder.with_name(leftover_name(folder.name))
    with contextlib.suppress(OSError):
        remove_leftovers(folder.parent)
        try:
            work.mkdir(parents=True)
            (work / TOKENIZER).write_text(tokenizer, "utf-8")
            (work / FACTS).write_bytes(data)
            if folder.exists():  # of another dtype, or broken
                shutil.rmtree(folder)
            work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        _forget_oldest(folder.parent)
    _read.cache_clear()


@lru_cache(maxsize=4)
def _read(folder: Path) -> Remembered | None:
    try:
        facts = msgspec.json.decode((folder / FACTS).read_bytes(), type=Facts)
        os.utime(folder)  # is used: the oldest go
    except (OSError, msgspec.MsgspecError):
        return None
    return Remembered(folder, facts)


def _place(model: Path) -> Path | None:
    """Where the answers for a folder lie: under a name that changes with whatever they depend on."""
    try:
        with os.scandir(model) as entries:
            files = sorted(
                (entry.name, (stat := entry.stat()).st_size, stat.st_mtime_ns)
                for entry in entries
                if entry.is_file()
            )
    except OSError:
        return None
    versions = [_version(package) for package in PACKAGES]
    text = repr((FORMAT, __version__, versions, str(model.resolve()), files))
    return cache_dir() / FOLDER / hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@cache
def _version(package: str) -> str:
    """Of an installed package, read from its metadata once: that takes milliseconds."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _forget_oldest(root: Path) -> None:
    folders = sorted(root.glob("[!.]*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in folders[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)
