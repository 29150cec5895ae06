"""What is sent to the clipboard, and what is said of it."""

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui_infer.clipboard import MOST_BYTES, SCREEN_PART, copied, copy, inside_of, through_tmux

PLAIN = re.compile(r"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07")


def decoded(sequence: str) -> str:
    match = PLAIN.fullmatch(sequence)
    assert match
    return base64.b64decode(match[1]).decode()


@given(st.text(max_size=300))
def test_a_text_goes_out_whole_and_as_nothing_but_letters(text: str) -> None:
    sent = copied(text, {"TERM": "xterm-256color", "SSH_TTY": "/dev/pts/3"})
    clean = text.encode("utf-8", "replace").decode()
    assert decoded(sent.sequence) == clean
    assert sent.sequence.count("\x1b") == 1


def test_in_tmux_it_goes_through_to_the_terminal_and_to_tmux_itself() -> None:
    sent = copied("a → b", {"TMUX": "/tmp/tmux-0/default,1,0", "TERM": "screen-256color"})
    wrapped, plain = re.fullmatch(r"(\x1bPtmux;.*?\x1b\\)(\x1b\].*)", sent.sequence, re.DOTALL).groups()  # type: ignore[union-attr]
    assert decoded(plain) == "a → b"
    inner = wrapped.removeprefix("\x1bPtmux;").removesuffix("\x1b\\")
    assert inner.replace("\x1b\x1b", "\x1b") == plain
    assert "set-clipboard" in sent.words()


def test_in_gnu_screen_it_goes_in_parts_that_screen_takes() -> None:
    sent = copied("x" * 5000, {"STY": "12.pts-0", "TERM": "screen"})
    parts = re.findall(r"\x1bP(.*?)\x1b\\", sent.sequence, re.DOTALL)
    assert all(len(part) <= SCREEN_PART for part in parts)
    assert decoded("".join(parts)) == "x" * 5000


@pytest.mark.parametrize(
    ("environment", "inside"),
    [
        ({"TERM": "xterm"}, ""),
        ({"TERM": "tmux-256color", "SSH_CONNECTION": "1"}, "tmux"),
        ({"TERM": "screen-256color", "SSH_CONNECTION": "1"}, ""),
        ({"TERM": "screen", "STY": "x"}, "screen"),
        ({"TERM": "screen", "STY": "x", "TMUX": "y"}, "tmux"),
        ({"TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver", "TMUX": "of the server"}, "browser"),
        ({}, ""),
    ],
)
def test_what_stands_in_between_is_read_from_the_environment(
    environment: dict[str, str], inside: str
) -> None:
    assert inside_of(environment) == inside


def test_a_long_text_is_cut_between_two_characters_and_that_is_said() -> None:
    text = "é" * MOST_BYTES
    sent = copied(text, {})
    assert decoded(sent.sequence) == "é" * (MOST_BYTES // 2)
    assert f"The first {MOST_BYTES // 2:,} of {MOST_BYTES:,} characters" in sent.words()
    assert decoded(copied("aé", {}, most_bytes=2).sequence) == "a"


def test_in_a_served_tab_it_goes_to_the_page_as_it_is_and_the_browser_is_named() -> None:
    sent = copied("some text", {"TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver", "STY": "1.x"})
    assert decoded(sent.sequence) == "some text"
    assert sent.words() == (
        "9 characters sent to the browser. If the browser refuses, the page has a button for it."
    )


def test_the_user_is_told_how_much_went_and_what_to_do_where_nothing_arrives() -> None:
    written: list[str] = []
    told: list[str] = []
    copy("some text", written.append, told.append, {})
    assert told == [
        "9 characters sent through the terminal (OSC 52). "
        "If nothing arrives, your terminal does not allow it."
    ]
    assert decoded(written[0]) == "some text"
    copy("", written.append, told.append, {})
    assert (len(written), told[1]) == (1, "There is nothing to copy.")


def test_every_escape_is_doubled_for_tmux() -> None:
    assert through_tmux("\x1b]52;c;QQ==\x1b\\") == "\x1bPtmux;\x1b\x1b]52;c;QQ==\x1b\x1b\\\x1b\\"
