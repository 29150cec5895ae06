"""Compiles the C sources of this package for this processor and loads them, once a process."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
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
    """Whether the next call takes seconds for compiling."""
    compiler = None if _against() else _compiler()
    return compiler is not None and not _target(compiler).exists()


@cache
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    reason = _against()
    if reason:
        return None, reason
    compiler = _compiler()
    if compiler is None:
        return None, f"no C compiler ({', '.join(COMPILERS)}) is on the path"
    try:
        return _typed(ctypes.CDLL(str(_built(compiler)))), ""
    except NativeError as error:
        return None, str(error)
    except (OSError, AttributeError) as error:
        return None, f"the C code does not load: {error}"


def _against() -> str:
    """Why the code cannot run whatever the compiler."""
    if os.environ.get("TUI_INFER_NATIVE", "").lower() in ("0", "off", "no", "false"):
        return "TUI_INFER_NATIVE switches it off"
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"the C code is for x86-64 under Linux, and this is {platform.machine()} under {sys.platform}"
    flags = cpu_flags()
    lacking = [flag.upper() for flag in NEEDED if flag not in flags]
    return f"this processor lacks {', '.join(lacking)}" if lacking else ""


def _compiler() -> str | None:
    """The compiler's path: ``CC`` where it is set, else the first there is."""
    wanted = os.environ.get("CC")
    for name in (wanted,) if wanted else COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    return None


def _built(compiler: str) -> Path:
    """The compiled library, made anew when sources, compiler or processor are others than they were."""
    target = _target(compiler)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        compiled, made = Path(folder) / "step.o", Path(folder) / target.name
        _run([compiler, *FLAGS, "-c", str(SOURCES / MAIN), "-o", str(compiled)], compiled)
        # Without OpenMP's own library: its functions are those that torch has loaded.
        _run([compiler, "-shared", str(compiled), "-o", str(made), "-lm"], made)
        os.replace(made, target)  # whole at once: another process may be looking
    return target


def _run(command: list[str], made: Path) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeError(f"{command[0]} did not run: {error}") from error
    if done.returncode or not made.exists():
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
        raise NativeError(f"{command[0]} failed: {said.strip()}")


def _target(compiler: str) -> Path:
    """Where the library is kept, by all that it depends on."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.read_bytes())
    about = os.stat(os.path.realpath(compiler))
    digest.update(repr((compiler, about.st_size, about.st_mtime_ns, FLAGS, sorted(cpu_flags()))).encode())
    return cache_dir() / "native" / f"{digest.hexdigest()[:20]}.so"


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    library.forward.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.forward.restype = None
    library.space_bytes.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.space_bytes.restype = ctypes.c_int64
    library.products.restype = ctypes.c_char_p
    return library
