"""The script that takes the picture on a card, driven here against a scripted engine with graphs."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.inprocess import InProcessClient
from tests.engine.fakes import FakeEngine

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import gpu_picture  # noqa: E402


def scripted(script: str, mode: str = "auto") -> InProcessClient:
    config = EngineConfig(model=f"fake?{script}", mode=mode)  # type: ignore[arg-type]
    return InProcessClient(config, make_engine=FakeEngine)


async def test_both_pictures_show_the_lit_graph_and_the_ratio_and_the_facts_name_them(tmp_path: Path) -> None:
    client = scripted("graphs=1&step_s=0.004")
    line = await gpu_picture.take(client, tmp_path, eager_steps=20, tokens=40)
    side, full = ((tmp_path / name).read_text("utf-8") for name in ("gpu.svg", "gpu-inspector.svg"))
    assert gpu_picture.not_shown(side) == gpu_picture.not_shown(full) == []
    assert side.count("sk&#160;something") == 4
    assert full.count("sk&#160;something") == 0
    assert line.startswith("mode graph · graph 4 · ratio ")
    assert "at batch 4" in line
    assert "4 streaming" in line
    assert "device n/a" in line  # the fake times no device
    assert "NVML: no NVIDIA GPU in use" in line
    assert client.state == "closed"


@pytest.mark.parametrize(
    ("script", "mode", "words"),
    [
        ("graphs=0", "auto", "no CUDA device"),
        ("graphs=1", "eager", "mode is eager"),
        ("graphs=1&load=error", "auto", "told not to load"),
    ],
)
async def test_without_graphs_there_is_no_picture_and_the_reason_is_given(
    tmp_path: Path, script: str, mode: str, words: str
) -> None:
    with pytest.raises(gpu_picture.NoGraphs, match=words):
        await gpu_picture.take(scripted(script, mode), tmp_path, eager_steps=20)
    assert not (tmp_path / "gpu.svg").exists()


def test_a_picture_that_lacks_something_is_told_from_one_that_does_not() -> None:
    good = "<text>4&#160;active</text><text>&#160;→&#160;</text><text>graph&#160;4</text>"
    good += "<text>4.1×</text><text>&#160;as fast as eager at batch 4</text><text>●&#160;4&#160;active</text>"
    assert gpu_picture.not_shown(good) == []
    assert gpu_picture.not_shown(good.replace("graph", "eager")) == ["the replayed graph"]
    assert gpu_picture.not_shown(good.replace("batch 4", "batch 3")) == ["the ratio"]
    assert gpu_picture.not_shown(good.replace("●", "○")) == ["the streaming chats"]


def test_without_a_cuda_device_the_script_says_so_and_exits_2(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/gpu_picture.py"), "--out", str(tmp_path / "made")],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("no picture: device='cuda' is not there")
    assert done.stdout == ""
    assert not list((tmp_path / "made").glob("*.svg"))
