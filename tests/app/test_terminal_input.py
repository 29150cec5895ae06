"""From the terminal's characters to events."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual.message import Message

from tui_infer.terminal_input import TerminalParser

HOSTILE = "\x1b[31mred\x1b[0m\r\x03\x0e\x1b]52;c;aGk=\x07\r\x1b\x1b[20~end \x1b"


def parse(*reads: str) -> list[Message]:
    parser = TerminalParser()
    return [message for read in reads for message in parser.feed(read)]


def described(messages: list[Message]) -> list[str]:
    return [
        f"paste {message.text!r}" if isinstance(message, events.Paste) else message.key
        for message in messages
        if isinstance(message, (events.Paste, events.Key))
    ]


def test_a_paste_with_escapes_is_one_event_of_exactly_its_text() -> None:
    messages = parse(f"a\x1b[200~{HOSTILE}\x1b[201~b")
    assert described(messages) == ["a", f"paste {HOSTILE!r}", "b"]


@given(st.lists(st.integers(0, 60), max_size=8))
def test_a_paste_is_the_same_wherever_the_reads_are_cut(cuts: list[int]) -> None:
    text = f"a\x1b[200~{HOSTILE}\x1b[201~\x1b[A"
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    reads = [text[start:end] for start, end in pairwise(edges)]
    assert described(parse(*reads)) == ["a", f"paste {HOSTILE!r}", "up"]


@pytest.mark.parametrize("digit", "0123456789")
def test_escape_and_a_digit_are_alt_and_the_digit(digit: str) -> None:
    (key,) = parse(f"\x1b{digit}")
    assert isinstance(key, events.Key)
    assert (key.key, key.character) == (f"alt+{digit}", None)


def test_alt_with_letters_and_escapes_in_a_burst_are_those_keys_and_no_text() -> None:
    assert described(parse("\x1ba\x1bc", "\x1b[A\x1bp\x1b1x")) == [
        "alt+a", "alt+c", "up", "alt+p", "alt+1", "x"
    ]  # fmt: skip


def test_alt_b_and_alt_f_stay_what_terminals_send_for_words() -> None:
    assert described(parse("\x1bb\x1bf")) == ["ctrl+left", "ctrl+right"]


def test_a_lone_escape_is_the_escape_key_after_its_delay() -> None:
    parser = TerminalParser()
    assert list(parser.feed("\x1b")) == []
    assert list(parser.tick()) == []
    time.sleep(0.11)
    assert described(list(parser.tick())) == ["escape"]
    assert described(list(parser.feed("x"))) == ["x"]


def test_a_paste_whose_first_sequence_comes_slowly_is_still_a_paste() -> None:
    parser = TerminalParser()
    assert list(parser.feed("\x1b[20")) == []
    time.sleep(0.15)
    assert list(parser.tick()) == []
    assert described(list(parser.feed("0~\r\x1b[201~"))) == ["paste '\\r'"]


def test_a_large_paste_in_small_reads_is_parsed_in_no_time() -> None:
    text = "\x1b[200~" + "\x1b[32ma line of a log\x1b[0m\r" * 20_000 + "\x1b[201~"
    started = time.process_time()
    (paste,) = parse(*(text[start : start + 4096] for start in range(0, len(text), 4096)))
    assert time.process_time() - started < 0.2
    assert isinstance(paste, events.Paste)
    assert paste.text.count("\r") == 20_000
