"""Compiles the C sources of this package for this processor and loads them, once a process."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from engine.device import cpu_flags
from engine.paths import cache_dir

SOURCES = Path(__file__).parent
MAIN = "step.c"
COMPILERS = ("gcc", "cc", "clang")  # torch brings the OpenMP runtime of the first
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-fPIC")
TIMEOUT_S = 120
NEEDED = ("avx2", "fma", "f16c")  # as /proc/cpuinfo has them
SWITCH = "TUI_INFER_NATIVE"
YES, NO = ("", "true", "1", "yes", "on"), ("false", "0", "no", "off")
KEPT = 4  # libraries in the cache folder
DAY_S = 86400


class NativeError(Exception):
    """Why the C code does not run here, in words."""


def native() -> ctypes.CDLL:
    """The library, compiled on first use and kept in the cache folder.

    It has no OpenMP runtime of its own: it takes torch's, which has to be loaded, so that both share one
    set of threads.

    Raises:
        NativeError: no compiler, a processor without AVX2, or what the compiler said.
    """
    library, reason = _loaded()
    if library is None:
        raise NativeError(reason)
    return library


def native_missing() -> str:
    """Why the C code does not run here; empty where it does. Compiles it if that was never tried."""
    return _loaded()[1]


def native_products() -> str:
    """The instructions that multiply weights of 4 and 8 bits, by name.

    Raises:
        NativeError: see ``native``.
    """
    return str(native().products().decode())


def compiles_first() -> bool:
    """Whether the next call takes seconds for compiling; False where that cannot be told."""
    if _loaded.cache_info().currsize or _against():
        return False
    try:
        return _kept(_key(_compiler())) is None
    except (NativeError, OSError):
        return False


@cache
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    reason = _against()
    if reason:
        return None, reason
    try:
        key = _key(command := _compiler())
        if kept := _kept(key):
            with suppress(NativeError):  # made anew it may be another
                return _opened(kept), ""
        return _built(command, key), ""
    except NativeError as error:
        return None, str(error)
    except OSError as error:
        return None, f"the C code cannot be built in {_folder()}: {error}"


def _against() -> str:
    """Why the code cannot run whatever the compiler."""
    switch = os.environ.get(SWITCH, "").strip().lower()
    if switch in NO:
        return f"{SWITCH} switches it off"
    if switch not in YES:
        return f"{SWITCH} is {switch!r}, which is neither yes nor no"
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"the C code is for x86-64 under Linux, and this is {platform.machine()} under {sys.platform}"
    flags = cpu_flags()
    lacking = [flag.upper() for flag in NEEDED if flag not in flags]
    return f"this processor lacks {', '.join(lacking)}" if lacking else ""


def _compiler() -> list[str]:
    """The compiler's path and the words after it: ``CC`` where it is set, else the first there is.

    Raises:
        NativeError: there is none, or ``CC`` names none.
    """
    wanted = os.environ.get("CC", "").strip()
    if not wanted:
        if found := next(filter(None, map(shutil.which, COMPILERS)), None):
            return [found]
        raise NativeError(f"no C compiler ({', '.join(COMPILERS)}) is on the path")
    try:
        # A path with a blank in it is one word when it is there.
        name, *words = [wanted] if shutil.which(wanted) else shlex.split(wanted)
    except ValueError as error:
        raise NativeError(f"CC is {wanted!r}, which cannot be read: {error}") from error
    if path := shutil.which(name):
        return [path, *words]
    lacks = "cannot be run" if os.sep in name and os.path.exists(name) else "is not there"
    raise NativeError(f"CC names {name!r}, which {lacks}")


def _folder() -> Path:
    return cache_dir() / "native"


def _key(command: list[str]) -> str:
    """The first part of a library's name, by all that it depends on."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.read_bytes())
    abouts = []
    for word in command:  # of ``ccache gcc`` either may be another than it was
        with suppress(OSError):
            about = os.stat(os.path.realpath(shutil.which(word) or word))
            abouts.append((about.st_size, about.st_mtime_ns))
    digest.update(repr((command, abouts, FLAGS, sorted(cpu_flags()))).encode(errors="surrogateescape"))
    return digest.hexdigest()[:20]


def _name(key: str, library: Path) -> str:
    """A library's name in the cache: what it was made of, and the sum of what it is."""
    return f"{key}-{hashlib.sha256(library.read_bytes()).hexdigest()}.so"


def _kept(key: str) -> Path | None:
    """The library in the cache, if it is whole: loading a damaged one ends the process."""
    for path in _folder().glob(f"{key}-*.so"):
        with suppress(OSError):
            if path.name == _name(key, path):
                return path
    return None


def _opened(path: Path) -> ctypes.CDLL:
    """The library, loaded; NativeError where that fails."""
    try:
        library = ctypes.CDLL(str(path))
        library.forward.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.forward.restype = None
        library.space_bytes.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.space_bytes.restype = ctypes.c_int64
        library.products.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise NativeError(f"the C code does not load: {error}") from error
    return library


def _built(command: list[str], key: str) -> ctypes.CDLL:
    """The library, compiled and loaded, and kept only then; others of this key are no good and go."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"{key}-*.so"):
        path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own:
        compiled, made = Path(own) / "step.o", Path(own) / "step.so"
        _run([*command, *FLAGS, "-c", str(SOURCES / MAIN), "-o", str(compiled)], compiled)
        # Without OpenMP's own library: its functions are those that torch has loaded.
        _run([*command, "-shared", str(compiled), "-o", str(made), "-lm"], made)
        with made.open("rb") as file:
            os.fsync(file.fileno())
        library = _opened(made)
        with suppress(OSError):  # it is loaded; the next start may have to compile again
            os.replace(made, folder / _name(key, made))  # whole at once: another process may be looking
    _drop_old(folder)
    return library


def _drop_old(folder: Path) -> None:
    """Leave the newest libraries, and no folder of a start that was killed while it compiled."""
    with suppress(OSError):  # another process drops them as well
        for path in sorted(folder.glob("*.so"), key=os.path.getmtime)[:-KEPT]:
            path.unlink()
        for path in folder.glob("tmp*"):
            if path.stat().st_mtime < time.time() - DAY_S:
                shutil.rmtree(path, ignore_errors=True)


def _run(command: list[str], made: Path) -> None:
    """Run a compiler, in a group of its own: what it started ends with it when it takes too long."""
    heard = made.with_suffix(".txt")  # no pipe: a helper that runs on would hold it open
    try:
        with heard.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        try:
            status = process.wait(TIMEOUT_S)
        except BaseException:  # a key that interrupts does not reach that group either
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        said = heard.read_text("utf-8", errors="replace").strip()
    except subprocess.TimeoutExpired as error:
        raise NativeError(f"{command[0]} was not done after {TIMEOUT_S} seconds") from error
    except OSError as error:
        raise NativeError(f"{command[0]} did not run: {error}") from error
    if status or not os.path.isfile(made):
        line = next((line for line in said.splitlines() if "error" in line), said[-200:]).strip()
        silent = "said nothing" if status else "made nothing"
        raise NativeError(f"{command[0]} failed: {line or f'it ended with status {status} and {silent}'}")
