"""The wheel holds all the app needs, and runs where nothing of this checkout is in sight."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from engine.version import __version__

ROOT = Path(__file__).parents[1]

APP = """
import asyncio
from pathlib import Path
import engine, tui_infer
from textual.css.stylesheet import Stylesheet
from tui_infer.app import TuiInferApp
from tui_infer.themes import load_themes

class NoEngine:
    state, pid, log_path, on_event = "idle", None, None, None
    def launch(self): pass
    def send(self, command): pass
    async def start(self): pass
    async def restart(self, config=None): pass
    async def close(self): pass
    def kill(self): pass

async def main():
    themes, problems = load_themes()
    app = TuiInferApp(NoEngine())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        sheets = sorted(Path(tui_infer.__file__).parent.rglob("*.tcss"))
        for path in sheets:
            sheet = Stylesheet(variables=app.get_css_variables())
            sheet.read(path)
            sheet.parse()
            assert sheet.rules, path
        return [theme.name for theme in themes], problems, len(sheets)

print(tui_infer.__file__)
print(engine.__file__)
print(*asyncio.run(main()), sep="|")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel; its dependencies are those of this environment.

    A plain path in a ``.pth`` file adds modules without running that folder's own ``.pth`` files, so an
    editable install of this checkout stays out of sight.
    """
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder)})
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--quiet",
        str(wheel),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def call(bin_folder: Path, *command: str, cwd: Path) -> str:
    """Run a command of the environment from another folder; its stdout."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(bin_folder / command[0]), *command[1:]],
        cwd=cwd, env=kept, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_themes_styles_types_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    themes = {f"tui_infer/_themes/{path.name}" for path in (ROOT / "themes").glob("*.toml")}
    styles = {str(path.relative_to(ROOT)) for path in (ROOT / "tui_infer").rglob("*.tcss")}
    modules = {
        str(path.relative_to(ROOT))
        for part in ("engine", "tui_infer")
        for pattern in ("*.py", "*.c", "*.h")
        for path in (ROOT / part).rglob(pattern)
    }
    assert "engine/native/step.c" in modules
    assert len(themes) >= 2
    assert styles
    expected = themes | styles | modules | {"engine/py.typed", "tui_infer/py.typed"}
    expected |= {"tui_infer/_demo/h200.tirec"}
    assert expected - names == set()
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/", 1)[0] for name in archive.namelist()}
    assert tops == {"engine", "tui_infer", f"tui_infer-{__version__}.dist-info"}
    assert wheel.stat().st_size < 2_000_000


def test_the_installed_command_says_its_version_and_folders(installed: Path, tmp_path: Path) -> None:
    assert call(installed, "tui-infer", "--version", cwd=tmp_path).strip() == f"tui-infer {__version__}"
    folders = call(installed, "tui-infer", "paths", cwd=tmp_path)
    assert f"{ROOT}{os.sep}" not in folders
    assert "_themes" in folders


def test_the_installed_app_starts_with_every_style_and_theme(installed: Path, tmp_path: Path) -> None:
    out = call(installed, "python", "-c", APP, cwd=tmp_path).splitlines()
    assert all(str(installed.parent) in line for line in out[:2]), "imported from elsewhere than the wheel"
    themes, problems, sheets = out[-1].split("|")
    assert problems == "[]"
    assert len(themes.split(",")) >= 2
    assert int(sheets) == len(list((ROOT / "tui_infer").rglob("*.tcss")))


def test_the_installed_command_answers(installed: Path, default_model_dir: Path, tmp_path: Path) -> None:
    question = "What is the capital of France? Answer in one sentence."
    options = ["--temperature", "0", "--max-tokens", "24", "--json", "--prompt", question]
    out = call(installed, "tui-infer", "run", *options, cwd=tmp_path)
    answer = json.loads(out)
    assert answer["text"] == "The capital of France is Paris."
    assert answer["finish_reason"] == "stop"
