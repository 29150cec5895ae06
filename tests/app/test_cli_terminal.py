"""Ownership of the terminal, on real pseudo-terminals: whatever ends the app, it is given back."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until_sync

REPOSITORY = Path(__file__).resolve().parents[2]

APP = """
import sys, time
from pathlib import Path
from textual.app import App
from textual.widgets import Label
from tui_infer.terminal import run_app

class Small(App):
    BINDINGS = [("q", "exit_app", ""), ("x", "crash", ""), ("h", "hang", "")]

    def compose(self):
        yield Label("hello there")

    def action_exit_app(self):
        self.exit()

    def action_crash(self):
        raise ValueError("[/red] went wrong")

    def action_hang(self):
        time.sleep(60)

sys.exit(run_app(Small(), Path(sys.argv[1])))
"""

# On, and what must follow it: alternate screen, mouse, bracketed paste, cursor, focus reports, line wrap.
MODES = [
    (b"\x1b[?1049h", b"\x1b[?1049l"),
    (b"\x1b[?1000h", b"\x1b[?1000l"),
    (b"\x1b[?1003h", b"\x1b[?1003l"),
    (b"\x1b[?2004h", b"\x1b[?2004l"),
    (b"\x1b[?25l", b"\x1b[?25h"),
    (b"\x1b[?1004h", b"\x1b[?1004l"),
    (b"\x1b[?7l", b"\x1b[?7h"),
]


class Screen:
    """A process with a pseudo-terminal as its controlling one."""

    def __init__(self, arguments, **env):
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.slave = slave
        self.before = termios.tcgetattr(slave)
        self.output = b""
        self.process = subprocess.Popen(
            arguments,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=REPOSITORY,
            env={**os.environ, "TERM": "xterm-256color", **env},
            preexec_fn=_take_terminal,
        )

    def read(self, seconds):
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self.master], [], [], left)[0]:
                return
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            self.output += data

    def wait_for(self, text, seconds=20.0):
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < deadline, self.output[-2000:]
            self.read(0.05)

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self, seconds=8.0):
        """The exit code, with all output read."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "the app did not end"
            self.read(0.05)
        self.read(0.1)
        return self.process.returncode

    def assert_given_back(self):
        for on, off in MODES:
            assert self.output.rfind(off) > self.output.rfind(on) >= 0, (on, off)
        assert termios.tcgetattr(self.slave) == self.before

    def last_words(self):
        """What was printed after the terminal was given back."""
        words = self.output.rpartition(b"\x1b[?1004l")[2].decode().replace("\r\n", "\n")
        return re.sub(r"\x1b\[\?[0-9]+l", "", words)  # the driver switches the mouse off twice

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)


def _take_terminal():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def app(tmp_path):
    screen = Screen([sys.executable, "-c", APP, str(tmp_path / "app.log")])
    screen.log = tmp_path / "app.log"
    screen.wait_for(b"hello there")
    yield screen
    screen.close()


def test_quitting_gives_the_terminal_back_with_code_zero_and_no_word(app):
    app.type("q")
    assert app.end() == 0
    app.assert_given_back()
    assert app.last_words() == ""
    assert not app.log.exists()  # nothing happened that is worth a file


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 1)]
)
def test_a_signal_gives_the_terminal_back_with_its_exit_code(app, number, code):
    app.process.send_signal(number)
    assert app.end() == code
    app.assert_given_back()
    assert "Traceback" not in app.last_words()


def test_a_crash_is_one_line_with_the_traceback_in_the_log(app):
    app.type("x")
    assert app.end() == 1
    app.assert_given_back()
    words = app.last_words()
    assert words == f"error: the app crashed: ValueError: [/red] went wrong The traceback is in {app.log}\n"
    assert "action_crash" in app.log.read_text()


def test_a_signal_ends_an_app_that_hangs_and_gives_the_terminal_back(app):
    app.type("h")
    app.read(0.3)
    began = time.monotonic()
    app.process.send_signal(signal.SIGTERM)
    assert app.end() == 143
    assert time.monotonic() - began < 6
    app.assert_given_back()


def test_a_second_signal_does_not_wait(app):
    app.type("h")
    app.read(0.3)
    app.process.send_signal(signal.SIGTERM)
    app.read(0.2)
    began = time.monotonic()
    app.process.send_signal(signal.SIGTERM)
    assert app.end() == 143
    assert time.monotonic() - began < 1.5
    app.assert_given_back()


def test_a_terminal_that_is_closed_ends_the_app_with_129(app):
    os.close(app.slave)
    os.close(app.master)
    app.master = app.slave = -1
    assert app.process.wait(8) == 129


def test_a_terminal_that_cannot_draw_is_refused_in_one_line():
    screen = Screen([sys.executable, "-m", "tui_infer"], TERM="dumb")
    try:
        assert screen.end() == 2
        hint = "Use 'tui-infer run' for pipes and scripts."
        expected = f"error: The app cannot draw on a terminal with TERM='dumb'. {hint}\r\n"
        assert screen.output.decode() == expected
    finally:
        screen.close()


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_single_stream_that_is_no_terminal_is_named(stream, tmp_path):
    redirect = {"stdin": "</dev/null", "stdout": f">{tmp_path}/out", "stderr": f"2>{tmp_path}/out"}[stream]
    screen = Screen(["bash", "-c", f"{sys.executable} -m tui_infer {redirect}"])
    try:
        assert screen.end() == 2
        said = screen.output.decode() if stream != "stderr" else (tmp_path / "out").read_text()
        assert f"but {stream} is not a terminal." in said
    finally:
        screen.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_the_real_app_takes_its_engine_with_it(number, tiny_model_dir, own_folders):
    screen = Screen(
        [sys.executable, "-m", "tui_infer", "--model", str(tiny_model_dir), "--kv-memory", "8MiB"]
    )
    try:
        screen.wait_for(b"\x1b[?1004h")  # which only the app switches on, unlike its screen
        (engine,) = psutil.Process(screen.process.pid).children()
        assert "engine.worker" in engine.cmdline()
        screen.read(0.5)  # loading
        screen.process.send_signal(number)
        began = time.monotonic()
        code = screen.end()
        wait_until_sync(lambda: not engine.is_running(), timeout_s=3.0)
        assert time.monotonic() - began < 6.0
        assert code == {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 1}.get(number, -number)
        if number != signal.SIGKILL:
            screen.assert_given_back()
            assert screen.last_words() == ""
    finally:
        screen.close()


def test_the_real_app_shows_a_prompt_and_leaves_its_logs_where_they_belong(tiny_model_dir, own_folders):
    screen = Screen(
        [sys.executable, "-m", "tui_infer", "--model", str(tiny_model_dir), "--kv-memory", "8MiB"]
    )
    try:
        screen.wait_for(b"sdpa", seconds=60)  # the status of the engine that is ready
        screen.process.send_signal(signal.SIGTERM)
        assert screen.end() == 143
        screen.assert_given_back()
        (log,) = (own_folders / "log").glob("engine-*.log")
        assert log.read_text().startswith("--- engine started")
        assert "Traceback" not in log.read_text()
    finally:
        screen.close()


def test_a_running_app_searches_what_was_there_before_it_for_garbage_no_more():
    code = """
import gc
from tui_infer import terminal
class App:
    return_code = 0
    error_console = None
    def run(self):
        print(gc.get_freeze_count() > 10_000, gc.get_threshold() == terminal.GARBAGE_THRESHOLDS)
from pathlib import Path
import sys
sys.exit(terminal.run_app(App(), Path(sys.argv[1])))
"""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, f"{folder}/log"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("True True\n", 0), done.stderr
