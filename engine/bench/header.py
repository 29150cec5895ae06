"""What every result says of the run it came from."""

import datetime
import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "textual", "triton", "flash-attn", "flash-attn-3")


def header() -> dict[str, Any]:
    """Command, machine, versions and date of this run."""
    return {
        "command": command(),
        "machine": machine(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))} | _cuda_versions(),
        "date": datetime.date.today().isoformat(),
    }


def command() -> str:
    """The command line for the same folder; where Python and its scripts are installed is left out."""
    first, *rest = sys.orig_argv[1:] or [""]
    if Path(first).name == "tui-infer":
        return shlex.join(["tui-infer", *_relative(rest)])
    return shlex.join(["python", *_relative([first, *rest])])


def machine() -> str:
    """Processor, cores and GPU in one line."""
    from engine.device import cpu_name

    parts = [f"{cpu_name()}, {os.cpu_count()} cores"]
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available():
            parts.append(f"{torch.cuda.device_count()}x {torch.cuda.get_device_name()}")
    return "; ".join(parts)


def _cuda_versions() -> dict[str, str]:
    """CUDA as torch was built for it and the driver, where a GPU is used."""
    if "torch" not in sys.modules:
        return {}
    import torch

    if not torch.cuda.is_available():
        return {}
    found = {"cuda": torch.version.cuda or "unknown"}
    try:
        import pynvml

        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
        found["driver"] = driver.decode() if isinstance(driver, bytes) else str(driver)
    except Exception:  # no library, no permission: a header without the driver is still a header
        pass
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _relative(arguments: list[str]) -> list[str]:
    """Arguments without the folders of this machine."""
    here = str(Path.cwd()) + "/"
    return [argument.removeprefix(here) for argument in arguments]
