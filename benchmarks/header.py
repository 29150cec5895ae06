"""What every result says of the run it came from."""

import datetime
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "textual", "triton", "flash-attn")


def header() -> dict[str, Any]:
    """Command, machine, versions and date of this run."""
    return {
        "command": shlex.join(["python", *_relative(sys.orig_argv[1:])]),
        "machine": machine(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "date": datetime.date.today().isoformat(),
    }


def machine() -> str:
    """Processor, cores and GPU in one line."""
    import os

    from engine.device import cpu_name

    parts = [f"{cpu_name()}, {os.cpu_count()} cores"]
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available():
            parts.append(f"{torch.cuda.device_count()}x {torch.cuda.get_device_name()}")
    return "; ".join(parts)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _relative(arguments: list[str]) -> list[str]:
    """Arguments without the folders of this machine."""
    here = str(Path.cwd()) + "/"
    return [argument.removeprefix(here) for argument in arguments]
