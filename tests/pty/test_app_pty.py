"""The real app with the real engine on a real pseudo-terminal."""

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.pty.terminal import ALTERNATE_SCREEN, MOUSE, Terminal, assert_restored
from tests.waiting import wait_until_sync

START = Callable[..., Terminal]
READY_S = 120.0  # the first start converts the model


@pytest.fixture
def start(own_folders: Path) -> Iterator[START]:
    terminals: list[Terminal] = []
    config = own_folders / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text("temperature = 0.0\nmax_tokens = 40\n")

    def run(*arguments: str, size: tuple[int, int] = (100, 30)) -> Terminal:
        terminal = Terminal([sys.executable, "-m", "tui_infer", *arguments], size, {"OMP_NUM_THREADS": "1"})
        terminals.append(terminal)
        return terminal

    yield run
    for terminal in terminals:
        terminal.close()


def ready(terminal: Terminal) -> None:
    terminal.wait_for("Ask something", 30)
    terminal.wait_for("○ idle", READY_S)


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_start_type_see_the_streamed_answer_and_quit_with_the_terminal_restored(start: START) -> None:
    terminal = start()
    ready(terminal)
    assert terminal.modes()[ALTERNATE_SCREEN]
    assert all(terminal.modes()[mode] for mode in MOUSE)
    engine = children(terminal.process.pid)
    assert engine, "the engine is a process of its own"
    terminal.send("What is the capital of France? Answer in one sentence.")
    terminal.wait_for("Answer in one sentence.")
    terminal.send("\r")
    terminal.wait_for("Paris", 60)
    terminal.wait_for(lambda text: "tok/s" in text and "○ idle" in text, 60)
    terminal.send("\x03")
    terminal.wait_for("again to quit")
    terminal.send("\x03")
    assert terminal.wait_exit() == 0
    assert_restored(terminal)
    wait_until_sync(lambda: not any(process.is_running() for process in engine), 5, "the engine's end")


def test_two_chats_stream_at_once_and_the_batch_panel_says_so(start: START) -> None:
    terminal = start(size=(140, 44))
    ready(terminal)
    terminal.send("Count from one to fifty in words.\r")
    terminal.send("\x0e")  # ctrl+n
    terminal.wait_for("2 ○ B")
    terminal.send("Write a long story about a river.\r")
    terminal.wait_for(lambda text: "2 active" in text and text.count("tok/s") >= 2, 60)
    terminal.send("\x1b")  # Esc
    terminal.wait_for("■ stopped")


def test_a_paste_of_many_lines_arrives_whole_and_is_not_sent(start: START) -> None:
    terminal = start()
    ready(terminal)
    terminal.paste("first line\nsecond line\nthird line")
    terminal.wait_for(lambda text: "first line" in text and "third line" in text)
    assert "idle" in terminal.text()
    lines = [line for line in terminal.lines() if " line" in line]
    assert len(lines) == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_restores_the_terminal_and_gives_its_exit_code(
    start: START, number: signal.Signals, code: int
) -> None:
    terminal = start()
    terminal.wait_for("Ask something", 30)
    engine = children(terminal.process.pid)
    terminal.process.send_signal(number)
    assert terminal.wait_exit() == code
    assert_restored(terminal)
    wait_until_sync(lambda: not any(process.is_running() for process in engine), 5, "the engine's end")


def test_the_engine_is_gone_when_the_app_is_killed_while_it_loads(start: START) -> None:
    terminal = start()
    engine = wait_until_sync(lambda: children(terminal.process.pid), 30, "the engine's start")
    terminal.process.kill()
    wait_until_sync(lambda: not any(_alive(process) for process in engine), 3 + 2, "the engine's end")


def test_a_killed_engine_is_a_banner_and_f7_brings_another(start: START) -> None:
    terminal = start()
    ready(terminal)
    terminal.send("Write a long story about a river.\r")
    terminal.wait_for("tok/s", 60)
    for process in children(terminal.process.pid):
        process.kill()
    terminal.wait_for(lambda text: "restarts the engine" in text and "river" in text, 20)
    terminal.send("\x1b[18~")  # F7
    terminal.wait_for("○ idle", READY_S)
    terminal.send("Say hello.\r")
    terminal.wait_for(lambda text: text.count("tok/s") >= 1 and "restarts" not in text, 60)


def test_the_size_is_the_terminals_own_whatever_the_environment_says(
    start: START, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    terminal = start(size=(100, 30))
    terminal.wait_for("Ask something", 30)
    terminal.wait_for(lambda _: "F1 help" in terminal.lines()[-1], 5)


def test_the_window_is_there_before_the_model_is_and_a_prompt_typed_then_is_answered(start: START) -> None:
    started = time.monotonic()
    terminal = start()
    screen = terminal.wait_for("Ask something", 30)
    print(f"window after {time.monotonic() - started:.2f} s")
    assert "loading" in screen
    terminal.send("What is the capital of France? Answer in one sentence.\r")
    terminal.wait_for("Paris", READY_S)
    print(f"first answer after {time.monotonic() - started:.2f} s")


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_the_keyboard_escape_sequences_of_a_terminal_reach_their_actions(start: START) -> None:
    terminal = start()
    terminal.wait_for("Ask something", 30)
    terminal.send("\x1bOP")  # F1
    terminal.wait_for("Esc back")
    terminal.send("\x1b")
    terminal.wait_for(lambda text: "Ask something" in text and "Esc back" not in text)
    terminal.send("a\nb")  # ctrl+j is a line feed
    terminal.wait_for(lambda text: re.search(r"▌ a +│.*\n│▌ b +│", text) is not None)


def test_the_switch_typed_as_a_command_answers_with_the_engines_reason(
    start: START,
) -> None:
    terminal = start()
    ready(terminal)
    terminal.send("/mode graph\r")
    terminal.wait_for(lambda text: "Steps stay eager" in text and "no CUDA graphs on cpu" in text)
    terminal.send("/mdoe\r")
    terminal.wait_for("/mdoe is no command")
    assert "○ idle" in terminal.text()
    assert "1 ○ A new chat" in terminal.text(), "a prompt that was sent would be its title"
