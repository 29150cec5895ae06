"""What a terminal gets when something is copied: plain, as over SSH, and inside tmux and GNU screen."""

import base64
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pty.terminal import Terminal
from tests.waiting import wait_until_sync

QUESTION = "What is the capital of France? Answer in one sentence."
ANSWER = "The capital of France is Paris."
BARE = re.compile(rb"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07")
IN_TMUX = re.compile(rb"\x1bPtmux;\x1b(\x1b\]52;c;[A-Za-z0-9+/=]*\x07)\x1b\\")
IN_SCREEN = re.compile(rb"\x1bP(\x1b\]52;c;[A-Za-z0-9+/=]*\x07)\x1b\\")


@pytest.fixture(params=["plain", "tmux", "screen"])
def terminal(request: pytest.FixtureRequest, own_folders: Path) -> Iterator[tuple[str, Terminal]]:
    config = own_folders / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text('temperature = 0.0\nmax_tokens = 40\ninspector = "hidden"\n')
    around = {
        "plain": {"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22", "TMUX": "", "STY": ""},
        "tmux": {"TMUX": "/tmp/tmux-0/default,1,0", "TERM": "screen-256color", "STY": ""},
        "screen": {"STY": "1.pts-0.host", "TMUX": ""},
    }[request.param]
    env = {"OMP_NUM_THREADS": "1", **around}
    terminal = Terminal([sys.executable, "-m", "tui_infer"], (100, 30), env)
    yield request.param, terminal
    terminal.close()


def test_a_copied_answer_reaches_the_terminal_and_the_user_is_told(terminal: tuple[str, Terminal]) -> None:
    inside, app = terminal
    app.wait_for("Ask something", 30)
    app.wait_for("○ idle", 120)
    app.send(f"{QUESTION}\r")
    app.wait_for(lambda text: ANSWER in text and "tok/s" in text and "○ idle" in text, 60)
    app.send("\x0c")  # ctrl+l
    app.wait_for("c copy")
    app.send("c")
    app.wait_for(f"{len(ANSWER)} characters sent")
    found = {"plain": BARE, "tmux": IN_TMUX, "screen": IN_SCREEN}[inside]
    match = wait_until_sync(lambda: found.search(app.output), 10, "the copied text")
    sequence = match[0] if inside == "plain" else match[1]
    content = BARE.fullmatch(sequence)
    assert content is not None
    assert base64.b64decode(content[1]).decode() == ANSWER
    assert len(BARE.findall(app.output)) == (2 if inside == "tmux" else 1), "tmux itself gets it too"
