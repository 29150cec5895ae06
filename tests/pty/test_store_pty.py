"""Chats of the real app on a real terminal: killed, ended by a signal, two at once, kept or not."""

import re
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pty.terminal import Terminal
from tests.pty.test_app_pty import ready, start  # noqa: F401

START = Callable[..., Terminal]
SIZE = (160, 40)
PROMPTS = [
    "Tell me a long story about a river and a small town.",
    "Describe a walk through a forest in autumn at length.",
    "Explain in many words how bread is made at home.",
    "Write about the life of a lighthouse keeper in detail.",
]


@pytest.fixture
def folder(own_folders: Path) -> Path:
    return own_folders / "data"


@pytest.fixture
def long_answers(start: START, own_folders: Path) -> START:  # noqa: F811
    """Answers that are longer than the test, in four panes and nothing beside them.

    Slow enough that the first prompt is still in view when the last answer begins.
    """
    config = own_folders / "config" / "config.toml"
    config.write_text(
        'temperature = 0.0\nmax_tokens = 900\nignore_eos = true\nlayout = "4"\ninspector = "hidden"\n'
        '[engine]\nquant = "none"\n'
    )
    return start


def panes(terminal: Terminal) -> list[str]:
    """The letters and digits in each of the four panes, without the frame."""
    rows = [line.ljust(SIZE[0]) for line in terminal.lines()[2:-1]]
    half_row, half_column = len(rows) // 2, SIZE[0] // 2
    texts = []
    for top in (rows[:half_row], rows[half_row:]):
        for left in (0, half_column):
            inside = [line[left : left + half_column] for line in top]
            inside = [line for line in inside if not re.match(r"\s*[╭╰]", line)]
            texts.append(letters(" ".join(inside)).removesuffix("Asksomething"))
    return texts


def answers(folder: Path) -> dict[str, str]:
    """The text of each chat's answer in the file, by the chat's title."""
    connection = sqlite3.connect(folder / "chats.db")
    try:
        query = """
            SELECT chats.title, turns.text || coalesce((
                SELECT group_concat(text, '') FROM (
                    SELECT text FROM pieces
                    WHERE chat = turns.chat AND position = turns.position ORDER BY number
                )
            ), '')
            FROM turns JOIN chats ON chats.id = turns.chat WHERE turns.role = 'assistant'
        """
        return dict(connection.execute(query).fetchall())
    finally:
        connection.close()


def letters(text: str) -> str:
    return "".join(re.findall(r"\w", text))


def test_after_a_kill_in_four_streams_every_chat_is_there_with_what_was_shown_a_second_before(
    long_answers: START, folder: Path
) -> None:
    terminal = long_answers(size=SIZE)
    ready(terminal)
    for number, prompt in enumerate(PROMPTS):
        if number:
            terminal.send("\x0e")  # ctrl+n
            terminal.wait_for(f"{number + 1} ○ {'ABCD'[number]}")
        terminal.send(prompt)
        terminal.wait_for(lambda _, prompt=prompt: letters(prompt) in "".join(panes(terminal)))
        terminal.send("\r")
    terminal.wait_for(
        lambda _: all(
            letters(prompt) in text and len(text) > len(letters(prompt)) + 60
            for prompt, text in zip(PROMPTS, panes(terminal))
        ),
        150,
    )
    shown = panes(terminal)
    time.sleep(1.0)
    assert terminal.text().count("tok/s") >= 4, "all four stream"
    terminal.process.kill()
    terminal.process.wait()

    again = long_answers(size=SIZE)
    again.wait_for(lambda text: text.count("interrupted") == 4, 30)
    texts = answers(folder)
    for prompt, before, now in zip(PROMPTS, shown, panes(again)):
        told = before[before.index(letters(prompt)) + len(letters(prompt)) :]
        whole = letters(texts[prompt])
        assert told in whole, f"{prompt}: shown was {told!r}, kept is {whole!r}"
        assert letters(prompt) in now
        assert told in now
    assert "busy" not in again.text()
    ready(again)
    again.send("What did I ask?\r")
    again.wait_for("tok/s", 60)


def test_a_prompt_half_typed_is_there_after_sigterm(start: START, folder: Path) -> None:  # noqa: F811
    terminal = start()
    terminal.wait_for("Ask something", 30)
    terminal.send("half a thou")
    terminal.wait_for("half a thou")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.wait_exit() == 143
    assert list((folder / "runs").iterdir()) == []
    again = start()
    again.wait_for("▌ half a thou", 30)
    again.send("ght")
    again.wait_for("half a thought")


def test_two_apps_on_one_database_lose_nothing(start: START) -> None:  # noqa: F811
    first = start()
    first.wait_for("Ask something", 30)
    first.send("draft of the first")
    first.wait_for("draft of the first")
    time.sleep(1.5)
    second = start()
    second.wait_for("Another tui-infer has 1 open chat", 30)
    second.send("draft of the second")
    second.wait_for("draft of the second")
    first.send(" goes on")
    first.wait_for("first goes on")
    time.sleep(1.5)
    first.process.kill()
    second.process.kill()
    third = start(size=(160, 30))
    third.wait_for(lambda text: "draft of the first goes on" in text and "draft of the second" in text, 30)


def test_without_history_nothing_is_written(start: START, folder: Path) -> None:  # noqa: F811
    terminal = start("--no-history")
    terminal.wait_for("Ask something", 30)
    terminal.send("a secret")
    terminal.wait_for("a secret")
    time.sleep(1.0)
    terminal.send("\x03")
    terminal.wait_for("again to quit")
    terminal.send("\x03")
    assert terminal.wait_exit() == 0
    assert not folder.exists()
