"""``tui-infer doctor``: what this machine, this installation and this terminal can do, and what is wrong."""

import importlib.metadata
import importlib.util
import json
import locale
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from engine.version import __version__
from tui_infer.locations import model_cache_dir
from tui_infer.sanitize import one_line

SMALLEST = (60, 16)  # columns and rows under which panes cannot be read
SIZES = {"memory", "memory_available", "size"}  # keys whose numbers are bytes
MULTIPLEXERS = {"TMUX": "tmux", "STY": "screen", "ZELLIJ": "zellij"}


@dataclass(frozen=True, slots=True)
class Examination:
    """Facts by section and name, and a sentence for everything that is wrong."""

    sections: dict[str, dict[str, Any]]
    problems: list[str]


def examine() -> Examination:
    """Look at everything; imports torch. Raises nothing: what fails is a problem to report."""
    problems: list[str] = []
    sections: dict[str, dict[str, Any]] = {"python": _python()}
    try:
        from engine.doctor import examine as examine_engine

        sections |= examine_engine()
    except Exception as error:  # a broken torch is what a doctor is called for
        sections["torch"] = {"error": f"{type(error).__name__}: {error}"}
        problems.append(
            f"torch cannot be used: {error} Install it again: pip install --force-reinstall torch"
        )
    sections["nvml"] = _nvml()
    sections["models"] = _models()
    sections["terminal"] = _terminal()
    problems += _problems(sections)
    return Examination(sections, problems)


def report(found: Examination, as_json: bool) -> int:
    """Print an examination; 0 when nothing stands in the way of running, else 1."""
    if as_json:
        click.echo(json.dumps({**found.sections, "problems": found.problems}, indent=2))
    else:
        click.echo("\n".join(_lines(found)))
    return 1 if "error" in found.sections["torch"] else 0


# --- sections --------------------------------------------------------------------------------------


def _python() -> dict[str, Any]:
    return {
        "tui_infer": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "textual": _version("textual"),
    }


def _nvml() -> dict[str, Any]:
    """What the driver library says; it knows cards that torch does not use."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        return {"nvml": f"not available: {one_line(str(error))}", "cards": []}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        cards = [
            f"{_text(pynvml.nvmlDeviceGetName(h))} {_text(pynvml.nvmlDeviceGetUUID(h))}" for h in handles
        ]
        return {"nvml": f"driver {_text(pynvml.nvmlSystemGetDriverVersion())}", "cards": cards}
    except Exception as error:
        return {"nvml": f"the driver answers with an error: {one_line(str(error))}", "cards": []}
    finally:
        pynvml.nvmlShutdown()


def _models() -> dict[str, Any]:
    from engine.models.source import KNOWN_MODELS

    known = {
        name: f"{model.title}, package {model.wheel} "
        + ("is installed" if importlib.util.find_spec(model.package) else f"is missing: hub {model.hub_id}")
        for name, model in KNOWN_MODELS.items()
    }
    converted = [
        {"name": folder.name, "size": _size(folder)}
        for folder in _folders(model_cache_dir())
        if (folder / "config.json").is_file()
    ]
    return {**known, "folder": str(model_cache_dir()), "converted": converted, "hub_cache": _hub_cache()}


def _hub_cache() -> list[dict[str, Any]]:
    try:
        from huggingface_hub import scan_cache_dir

        repos = [repo for repo in scan_cache_dir().repos if repo.repo_type == "model"]
    except Exception:  # no cache folder yet, or one that cannot be read; nothing depends on it
        return []
    return [
        {"name": repo.repo_id, "size": repo.size_on_disk} for repo in sorted(repos, key=lambda r: r.repo_id)
    ]


def _terminal() -> dict[str, Any]:
    size = shutil.get_terminal_size()
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    return {
        "terminal": ", ".join(name for name, stream in streams.items() if stream.isatty()) or "none",
        "term": os.environ.get("TERM", ""),
        "program": os.environ.get("TERM_PROGRAM", ""),
        "colours": _colours(),
        "columns": size.columns,
        "rows": size.lines,
        "multiplexer": next((name for key, name in MULTIPLEXERS.items() if os.environ.get(key)), "none"),
        "ssh": bool(os.environ.get("SSH_CONNECTION")),
        "locale": os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or "C",
        "encoding": locale.getpreferredencoding(False),
    }


def _colours() -> str:
    if os.environ.get("NO_COLOR"):
        return "none: NO_COLOR is set"
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "16 million"
    return "256" if "256" in os.environ.get("TERM", "") else "16"


# --- judgement -------------------------------------------------------------------------------------


def _problems(sections: dict[str, dict[str, Any]]) -> Iterator[str]:
    terminal = sections["terminal"]
    if terminal["term"] in ("", "dumb"):
        yield f"TERM is {terminal['term']!r}: the app cannot draw. Set it to what the terminal is."
    elif terminal["columns"] < SMALLEST[0] or terminal["rows"] < SMALLEST[1]:
        size = f"{terminal['columns']}x{terminal['rows']}"
        yield f"The terminal has {size} cells; panes need {SMALLEST[0]}x{SMALLEST[1]}."
    if terminal["encoding"].replace("-", "").upper() != "UTF8":
        yield f"The locale's encoding is {terminal['encoding']}. Set LANG to a UTF-8 locale, such as C.UTF-8."
    if terminal["multiplexer"] == "tmux" and terminal["colours"] in ("16", "256"):
        yield "tmux shows fewer colours here; in .tmux.conf: set -as terminal-features ',*:RGB'"
    device = sections.get("device", {})
    if sections["nvml"]["cards"] and not device.get("gpus"):
        build = sections["torch"].get("cuda", "unknown")
        yield f"There is an NVIDIA card that torch does not use; CUDA of torch: {build}."
    models = sections["models"]
    if not models["converted"] and not models["hub_cache"] and "is missing" in models["smollm2"]:
        yield "No model is here yet: the default one is fetched from the hub at the first start."


# --- printing --------------------------------------------------------------------------------------


def _lines(found: Examination) -> Iterator[str]:
    for title, facts in found.sections.items():
        yield click.style(title, bold=True)
        for name, value in facts.items():
            label = name.replace("_", " ")
            for index, text in enumerate(_texts(name, value)):
                yield f"  {label if index == 0 else '':<17} {one_line(text, 1000)}"
    if found.problems:
        yield click.style("to put right", bold=True, fg="yellow")
        yield from (f"  {one_line(problem, 1000)}" for problem in found.problems)


def _texts(name: str, value: Any) -> list[str]:
    """A value as the lines it takes."""
    if isinstance(value, list):
        return [" ".join(_texts("", item)) for item in value] or ["none"]
    if isinstance(value, dict):
        return [" ".join(text for key, part in value.items() for text in _texts(key, part))]
    if isinstance(value, bool) or value is None:
        return [{True: "yes", False: "no", None: "-"}[value]]
    if name in SIZES:
        return [f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"]
    return [str(value) or "-"]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        return []


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        if path.is_file():
            total += path.stat().st_size
    return total
