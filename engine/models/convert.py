"""GGUF files turned once into safetensors and ``tokenizer.json``, kept in the cache folder.

A converted model is a folder ``<name>-<sha256>`` with a manifest. It is written beside its place and
renamed there, so that a reader sees all of it or nothing; sizes are checked whenever it is read.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.errors import ModelError
from engine.paths import model_cache_dir
from engine.records import Progress

FORMAT = 2
MANIFEST = "manifest.json"
LOCK_TIMEOUT_S = 900.0

OnProgress = Callable[[Progress], None]


def converted(gguf: Path, name: str, progress: OnProgress, sha256: str | None = None) -> Path:
    """The folder of a converted GGUF file; converts when the cache does not hold it whole.

    Args:
        gguf: the file.
        name: start of the folder's name.
        sha256: what the file must hash to; checked when the file is read, not on later starts.

    Raises:
        ModelError: when the file cannot be read or converted, or the cache cannot be written.
    """
    root = model_cache_dir()
    stamp = root / "sources" / _stamp_key(gguf)
    with contextlib.suppress(OSError):
        folder = root / stamp.read_text("utf-8").strip()
        if is_whole(folder):
            return folder
    digest = _sha256(gguf, progress)
    if sha256 is not None and digest != sha256:
        raise ModelError(
            f"{gguf} is damaged: its sha256 is {digest[:12]}…, not {sha256[:12]}….",
            "Install or fetch it again.",
        )
    folder = root / f"{_slug(name)}-{digest[:16]}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f".{folder.name}.lock", progress) as alone:
            if not is_whole(folder):
                if alone:
                    _remove_leftovers(root, folder.name)
                _convert_into(folder, gguf, digest, progress)
        stamp.parent.mkdir(exist_ok=True)
        _write_whole(stamp, folder.name)
    except OSError as error:
        raise ModelError(
            f"The converted model cannot be kept in {root}: {error.strerror or error}.",
            "Free space there, or point TUI_INFER_CACHE_DIR at another folder.",
        ) from error
    return folder


def is_whole(folder: Path) -> bool:
    """True when the folder is what its manifest says: format, names and sizes."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        if manifest["format"] != FORMAT:
            return False
        return all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _convert_into(folder: Path, gguf: Path, digest: str, progress: OnProgress) -> None:
    from engine.models.gguf_file import convert_file  # torch and transformers, only where needed

    work = folder.parent / f".{folder.name}.{os.getpid()}.{time.monotonic_ns():x}.tmp"
    work.mkdir()
    try:
        facts = convert_file(gguf, work, progress)
        progress(Progress("converting", "writing to disk", 0.97))
        files = {path.name: path.stat().st_size for path in sorted(work.iterdir())}
        manifest = {
            "format": FORMAT,
            "source": {"file": gguf.name, "bytes": gguf.stat().st_size, "sha256": digest},
            "files": files,
            **facts,
        }
        (work / MANIFEST).write_text(json.dumps(manifest, indent=2), "utf-8")
        for path in work.iterdir():
            _sync(path)
        _sync(work)
        _publish(work, folder)
        progress(Progress("converting", "done", 1.0))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _publish(work: Path, folder: Path) -> None:
    """Rename into place. A broken folder is moved away first; another writer's whole one is kept."""
    for _ in range(3):
        try:
            work.rename(folder)
            _sync(folder.parent)
            return
        except OSError:
            if not folder.exists():
                raise
        if is_whole(folder):
            return
        broken = folder.parent / f".{folder.name}.{os.getpid()}.{time.monotonic_ns():x}.old"
        with contextlib.suppress(FileNotFoundError):
            folder.rename(broken)
        shutil.rmtree(broken, ignore_errors=True)
    raise OSError(f"{folder} cannot be replaced")


@contextlib.contextmanager
def _locked(path: Path, progress: OnProgress) -> Iterator[bool]:
    """Hold the lock file if it can be had; yields whether it is held.

    The kernel drops the lock when its holder dies. Without file locks (some network file systems, or a
    holder that takes longer than ``LOCK_TIMEOUT_S``) two writers only waste work: ``_publish`` takes it.
    """
    try:
        import fcntl
    except ImportError:
        yield False
        return
    with path.open("w") as file:
        held = False
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while not held and time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                progress(Progress("converting", "another process is at it"))
                time.sleep(0.25)
            except OSError:
                break
        yield held


def _remove_leftovers(root: Path, name: str) -> None:
    """Folders of killed conversions; only the holder of the lock may do this."""
    for path in [*root.glob(f".{name}.*.tmp"), *root.glob(f".{name}.*.old")]:
        shutil.rmtree(path, ignore_errors=True)


def _stamp_key(gguf: Path) -> str:
    """Changes with the file, and costs no read of it."""
    stat = gguf.stat()
    text = f"{FORMAT}\0{gguf.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _sha256(path: Path, progress: OnProgress) -> str:
    digest, done, total = hashlib.sha256(), 0, max(1, path.stat().st_size)
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            done += len(chunk)
            progress(Progress("reading", path.name, done / total))
    return digest.hexdigest()


def _write_whole(path: Path, text: str) -> None:
    work = path.with_name(f".{path.name}.{os.getpid()}")
    work.write_text(text, "utf-8")
    work.replace(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _slug(name: str) -> str:
    return "".join(char if char.isalnum() or char in "._-" else "-" for char in name).strip(".-") or "model"
