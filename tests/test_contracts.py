"""Layers, proved in fresh interpreters: the app loads no torch, the engine loads no textual."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "transformers"}
NOT_IN_ENGINE = {"textual", "tui_infer"}
OPTIONAL = {"triton", "flash_attn", "flash_attn_interface"}

TORCH_FREE = [
    "engine",
    "engine.client",
    "engine.commands",
    "engine.config",
    "engine.errors",
    "engine.inprocess",
    "engine.paths",
    "engine.records",
    "engine.request",
    "engine.service",
    "engine.wire",
    "engine.worker",
]

PROBE = """
import importlib, json, sys
modules, forbidden, optional = json.loads(sys.argv[1])
found = {}
for name in modules:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in optional:
            raise
    for bad in forbidden:
        if bad in sys.modules:
            found.setdefault(bad, name)
print(json.dumps(found))
"""


def modules_of(package: str) -> list[str]:
    """Every module of a package by its dotted name, ``__main__`` aside, which runs when imported."""
    files = (REPOSITORY / package).rglob("*.py")
    names = (file.relative_to(REPOSITORY).with_suffix("").parts for file in files)
    return sorted(
        ".".join(part for part in name if part != "__init__") for name in names if name[-1] != "__main__"
    )


def first_to_load(modules: list[str], forbidden: set[str]) -> dict[str, str]:
    """Which module first brought in which of the forbidden packages."""
    argument = json.dumps([modules, sorted(forbidden), sorted(OPTIONAL)])
    run = subprocess.run(
        [sys.executable, "-c", PROBE, argument], cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_the_whole_app_loads_no_torch():
    modules = modules_of("tui_infer")
    assert "tui_infer.cli" in modules
    assert first_to_load(modules, HEAVY) == {}


@pytest.mark.parametrize("module", TORCH_FREE)
def test_what_the_app_takes_from_the_engine_loads_no_torch(module):
    assert first_to_load([module], HEAVY) == {}


def test_the_whole_engine_loads_no_textual():
    modules = modules_of("engine")
    assert "engine.core" in modules
    assert first_to_load(modules, NOT_IN_ENGINE) == {}


def test_the_command_line_loads_neither_torch_nor_textual():
    assert first_to_load(["tui_infer.cli"], {*HEAVY, "textual", "rich", "pydantic"}) == {}
