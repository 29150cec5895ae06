import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui_infer.sanitize import one_line, sanitize, sanitize_paste

ATTACKS = [
    "\x1b]52;c;aGVsbG8=\x07",  # clipboard
    "\x1b[2J\x1b[H",  # clear the screen
    "\x1b]0;title\x1b\\",
    "\x9b31m",  # CSI in eight bits
    "\x1bP+q544e\x1b\\",
    "a\rb\x08c\x7f",
    "\u202edrawkcab\u202c",
    "\ud800",
]


@pytest.mark.parametrize("text", ATTACKS)
def test_no_control_character_is_left(text: str) -> None:
    clean = sanitize(text)
    assert not any(ord(character) < 0x20 and character not in "\n\t" for character in clean)
    assert not any(0x7F <= ord(character) < 0xA0 for character in clean)
    clean.encode("utf-8")


def test_an_escape_character_is_shown_not_swallowed() -> None:
    assert sanitize("\x1b[31mred") == "␛[31mred"


@given(st.text(alphabet=st.characters(), max_size=60), st.integers(0, 60))
def test_pieces_give_the_same_as_the_whole(text: str, cut: int) -> None:
    assert sanitize(text[:cut]) + sanitize(text[cut:]) == sanitize(text)


@given(st.text(max_size=80))
def test_sanitizing_twice_changes_nothing(text: str) -> None:
    assert sanitize(sanitize(text)) == sanitize(text)


def test_ordinary_text_of_any_script_is_untouched() -> None:
    text = "héllo 日本語 👩‍👩‍👧 עברית ¡ok!\n\tindented [/red] [link=x]"
    assert sanitize(text) == text


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_a_paste_keeps_all_its_lines(ending: str) -> None:
    assert sanitize_paste(ending.join(["one", "two", "", "three"])) == "one\ntwo\n\nthree"


def test_one_line_is_one_line_of_bounded_length() -> None:
    assert one_line("  a\n\tb \x1b ") == "a b ␛"
    assert one_line("x" * 300, 10) == "x" * 9 + "…"
