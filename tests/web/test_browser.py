"""``tui-infer serve`` with the real engine, in a real Chromium."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("textual_serve")
pytest.importorskip("selenium")

from tests.waiting import wait_until_sync
from tests.web.chromium import Browser, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is one")

ENTER, ESCAPE = "\ue007", "\ue00c"


@pytest.fixture
def served(own_folders: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and the address that it printed."""
    config = own_folders / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text("temperature = 0.0\nmax_tokens = 400\n")
    command = [sys.executable, "-m", "tui_infer", "serve", "--port", "0"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert "tui-infer is at http://127.0.0.1:" in first, first
    yield process, first.split()[-1]
    if process.poll() is None:
        process.kill()
        process.wait()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path / "profile")
    yield made
    made.close()


def commands(process: subprocess.Popen[str], word: str) -> list[psutil.Process]:
    """The server's processes that were started with this word."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # or one that is about to be gone
            if word in child.cmdline():
                found.append(child)
    return found


def test_a_prompt_typed_in_the_browser_is_answered_and_two_tabs_share_one_engine(
    served: tuple[subprocess.Popen[str], str], browser: Browser
) -> None:
    process, address = served
    first = browser.open(address)
    first.wait_for("○ idle", 120)
    empty = first.picture()
    first.type("What is the capital of France? Answer in one sentence.")
    first.wait_for("Answer in one sentence.")
    first.type(ENTER)
    first.wait_for("The capital of France is Paris.")
    first.wait_for("tok/s")
    assert first.picture() != empty, "the page draws what it is told"

    second = browser.open(address.partition("?")[0])
    text = second.wait_for("○ idle")
    assert "Paris" not in text, "each tab has chats of its own"
    assert len(commands(process, "engine.worker")) == 1
    assert len(commands(process, "serve-tab")) == 2
    second.type("Write a very long story about the sea.", ENTER)
    second.wait_for(lambda text: "1 active" in text)
    first.wait_for(lambda text: "1 active" in text)  # the same engine
    second.close()
    wait_until_sync(lambda: len(commands(process, "serve-tab")) == 1, 30)
    first.wait_for(lambda text: "0 active" in text)  # and nobody waits for that answer
    assert {url.split("/")[2] for url in browser.asked_for()} == {address.split("/")[2]}

    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert "has ended" in first.said()


def test_a_server_that_is_killed_leaves_neither_engine_nor_apps(
    served: tuple[subprocess.Popen[str], str], browser: Browser
) -> None:
    process, address = served
    browser.open(address).wait_for("○ idle", 120)
    left = [*commands(process, "engine.worker"), *commands(process, "serve-tab")]
    assert len(left) == 2
    process.kill()
    process.wait()
    wait_until_sync(lambda: not any(child.is_running() and child.status() != "zombie" for child in left), 20)


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(
    served: tuple[subprocess.Popen[str], str],
) -> None:
    port = served[1].split(":")[2].partition("/")[0]
    command = [sys.executable, "-m", "tui_infer", "serve", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"error: Port {port} cannot be used: Address already in use. Give another --port.\n"
