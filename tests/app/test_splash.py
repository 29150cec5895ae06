"""The window before the app: there at once, with nothing heavy imported, and always given back."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.records import Progress
from tests.pty.terminal import ALTERNATE_SCREEN, Terminal, assert_restored
from tui_infer.splash import ENTER, LEAVE, Splash

# Each takes a good part of the time in which the window has to be there.
NOT_BEFORE_THE_WINDOW = ["torch", "transformers", "textual", "rich", "numpy", "tokenizers", "sqlite3", "gguf"]

# The command up to where the window is drawn; no engine and no terminal is needed for that.
PROBE = """
import json, sys
import tui_infer.terminal
from engine.client import EngineClient
from tui_infer import cli
from tui_infer.splash import Splash

def drawn(self):
    print(json.dumps([done, [name for name in json.loads(sys.argv[1]) if name in sys.modules]]))
    raise SystemExit(0)

def prepared(self):
    done.append("pydantic" in sys.modules)

def launched(self):
    done.append(self.config.model)

done = []
EngineClient.prepare = prepared
EngineClient.launch = launched
tui_infer.terminal.require_terminal = lambda: None
Splash.__enter__ = drawn
cli.main(["--model", "some-model"])
"""

WAITING = """
import sys, time
from tui_infer.splash import Splash
with Splash("some-model"):
    time.sleep(60)
"""

BROKEN = """
import tui_infer.store.store
from tui_infer import cli

def broken(folder):
    raise ValueError("no chats today")

tui_infer.store.store.open_store = broken
cli.main(["--model", "/nowhere"])
"""


def test_the_engine_starts_and_the_window_is_drawn_before_anything_heavy_is_imported(own_folders):
    run = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(NOT_BEFORE_THE_WINDOW)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    done, imported = json.loads(run.stdout)
    assert done == [False, "some-model"], "the process starts first of all, and is then told what to load"
    assert imported == []


def test_it_says_what_loads_and_then_what_the_engine_says():
    written: list[str] = []
    with Splash("a\x1b[2Jmodel", written.append) as splash:
        assert written[0].startswith(ENTER)
        assert "loading" in written[1]
        assert "\x1b[2Jmodel" not in written[1], "a name acts upon no terminal"
        splash.show(None)
        assert len(written) == 2
        splash.show(Progress("starting", "importing torch"))
    assert "importing torch" in written[-1]
    assert LEAVE not in "".join(written), "the app goes on with this screen"


def test_an_error_before_the_app_gives_the_terminal_back():
    written: list[str] = []
    with pytest.raises(KeyError), Splash("model", written.append):
        raise KeyError
    assert written[-1] == LEAVE
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_before_the_app_gives_the_terminal_back(number, code):
    terminal = Terminal([sys.executable, "-c", WAITING], (80, 24), {})
    try:
        terminal.wait_for("some-model", 30)
        assert terminal.modes()[ALTERNATE_SCREEN]
        terminal.process.send_signal(number)
        assert terminal.wait_exit() == code
        assert not terminal.modes()[ALTERNATE_SCREEN]
        assert terminal.modes()[25], "the cursor is shown"
    finally:
        terminal.close()


def test_an_app_that_cannot_be_made_leaves_its_error_on_the_screen_that_was_there(own_folders: Path):
    terminal = Terminal([sys.executable, "-c", BROKEN], (80, 24), {"OMP_NUM_THREADS": "1"})
    try:
        assert terminal.wait_exit(60) == 1
        assert not terminal.modes()[ALTERNATE_SCREEN]
        assert terminal.output.index(LEAVE.encode()) < terminal.output.index(b"no chats today")
    finally:
        terminal.close()


def test_the_app_takes_the_screen_over_without_entering_it_again(own_folders: Path):
    command = [sys.executable, "-m", "tui_infer", "--model", "/nowhere"]
    terminal = Terminal(command, (100, 30), {"OMP_NUM_THREADS": "1"})
    try:
        terminal.wait_for("Ask something", 60)
        terminal.send("\x03")
        terminal.wait_for("again to quit")
        terminal.send("\x03")
        assert terminal.wait_exit() == 0
        assert terminal.output.count(b"\x1b[?1049h") == 1
        assert terminal.output.count(b"\x1b[?1049l") == 1
        assert_restored(terminal)
    finally:
        terminal.close()
