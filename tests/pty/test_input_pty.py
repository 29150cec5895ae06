"""What a terminal's bytes do in the real app, without waiting for the model."""

from collections.abc import Callable

from tests.pty.terminal import Terminal
from tests.pty.test_app_pty import start  # noqa: F401

START = Callable[..., Terminal]
OSC_52 = "\x1b]52;c;aGVsbG8=\x07"


def test_a_paste_with_escapes_and_controls_presses_no_key(start: START) -> None:  # noqa: F811
    terminal = start(size=(80, 30))
    terminal.wait_for("Ask something", 30)
    terminal.paste(f"\x1b[31mfirst\x1b[0m\n\x1b\n\x03\x03\x0e second\n{OSC_52}\x1b[20~third\n\x1bOP fourth")
    screen = terminal.wait_for("fourth")
    places = [screen.index(word) for word in ("first", "second", "third", "fourth")]
    assert places == sorted(places)
    terminal.send(" typed")
    screen = terminal.wait_for("fourth typed")
    assert "␛[31mfirst␛[0m" in screen
    assert "2 ○ B" not in screen, "a chat was opened"
    assert "waiting" not in screen, "a line was sent"
    assert "again to quit" not in screen
    assert "Esc back" not in screen, "the help was opened"
    assert OSC_52.encode() not in terminal.output, "the clipboard was written"


def test_alt_and_a_digit_go_to_the_chat_of_that_number(start: START) -> None:  # noqa: F811
    terminal = start(size=(120, 30))
    terminal.wait_for("Ask something", 30)
    terminal.send("\x0e")  # ctrl+n
    terminal.wait_for("2 ○ B")
    terminal.send("\x1b1")
    terminal.send("for the first")
    terminal.send("\x1b2")
    terminal.send("for the second")
    terminal.wait_for(lambda text: "for the first" in text and "for the second" in text)
    assert "¡" not in terminal.text()
    row = next(line for line in terminal.lines() if "for the first" in line)
    assert row.index("for the first") < row.index("for the second")


def test_a_burst_of_typing_and_chat_keys_ends_where_each_part_was_meant(start: START) -> None:  # noqa: F811
    terminal = start(size=(80, 30))
    terminal.wait_for("Ask something", 30)
    terminal.send("for A\x0efor B\rdraft B\t and A\x1b[Zand B\x0efor C\r")
    terminal.wait_for("3 ◌ C for C")
    terminal.send("\x1b1")
    terminal.wait_for("for A and A")
    terminal.send("\x1b2")
    screen = terminal.wait_for("draft Band B")
    assert "for B" in screen
    terminal.send("\x1b3")
    terminal.wait_for("3 ◌ C for C")


def test_ctrl_r_searches_earlier_prompts_and_keeps_the_draft(start: START) -> None:  # noqa: F811
    terminal = start(size=(90, 30))
    terminal.wait_for("Ask something", 30)
    for text in ("/system about a cat", "/set", "/layout 1"):
        terminal.send(f"{text}\r")
        terminal.wait_for(lambda screen: "Ask something" in screen)
    terminal.send("draft")
    terminal.wait_for("draft")
    terminal.send("\x12")  # ctrl+r
    terminal.wait_for("search:")
    terminal.send("cat")
    screen = terminal.wait_for(lambda text: "search: cat" in text and "1 of 1" in text)
    assert "draft" in screen
    terminal.send("\x1b")
    terminal.wait_for(lambda text: "search:" not in text)
    assert "▌ draft" in terminal.text()
    terminal.send("\x12cat\r")
    terminal.wait_for(lambda text: "▌ /system about a cat" in text)


def test_a_burst_of_a_command_and_enter_runs_it(start: START) -> None:  # noqa: F811
    terminal = start(size=(90, 30))
    terminal.wait_for("Ask something", 30)
    terminal.send("/set temperature 0.25\r")
    terminal.wait_for("T 0.25")
    terminal.send("/lay\t1\r")
    terminal.wait_for(lambda text: "Ask something" in text and "/lay" not in text)
