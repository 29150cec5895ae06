"""The line mode on a real terminal, with the real engine."""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pty.terminal import Terminal


@pytest.fixture
def plain(own_folders: Path) -> Iterator[Terminal]:
    command = [
        sys.executable,
        "-m",
        "tui_infer",
        "chat",
        "--plain",
        "--temperature",
        "0",
        "--max-tokens",
        "200",
    ]
    terminal = Terminal(command, (80, 24), {"OMP_NUM_THREADS": "1"})
    yield terminal
    terminal.close()


def test_type_stop_an_answer_go_on_and_end_without_a_single_escape(plain: Terminal) -> None:
    plain.wait_for("you:", 120)
    plain.send("What is the capital of France? Answer in one sentence.\n")
    plain.wait_for("ai: The capital of France is Paris.\nyou:", 60)
    plain.send("/set ignore_eos=true max_tokens=4000\n")
    plain.wait_for("ignore eos True.\nyou:")
    plain.send("Tell me a long story about it.\n")
    plain.wait_for(lambda text: bool(re.search(r"(?s)story about it\.\nai: \w+", text)), 60)
    plain.send("\x03")
    plain.wait_for("(stopped)")
    plain.send("/stats\n")
    plain.wait_for("Context: ")
    plain.send("\x04")
    assert plain.wait_exit() == 0
    assert b"\x1b" not in plain.output
    assert plain.line_settings() == plain.settings


def test_ctrl_c_twice_ends_with_130(plain: Terminal) -> None:
    plain.wait_for("you:", 120)
    plain.send("\x03")
    plain.wait_for("Ctrl-C again")
    plain.send("\x03")
    assert plain.wait_exit() == 128 + signal.SIGINT
    assert b"Traceback" not in plain.output
