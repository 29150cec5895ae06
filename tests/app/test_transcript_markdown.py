"""What a transcript shows must not depend on how the text arrived."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.color import Color
from textual.strip import Strip

from tui_infer.session import Turn, TurnStatus
from tui_infer.widgets.chat.document import ChatDocument, Look
from tui_infer.widgets.chat.markdown import MarkdownText
from tui_infer.widgets.chat.palette import Palette, make_palette

VARIABLES = {"foreground": "#dddddd", "primary": "#67b9fb", "secondary": "#8897ec", "accent": "#f2a95e"}
DARK = make_palette(VARIABLES, Color.parse("#13151a"), "one-dark")
LIGHT = make_palette({**VARIABLES, "foreground": "#222222"}, Color.parse("#f8f7f4"), "xcode")

TEXTS = {
    "fence": "Code:\n\n```python\ndef f(x):\n    return '''a\n\nb''' + x  # comment\n\n```\n\nafter",
    "open fence": "```js\nconst a = 1;\n\nlet b",
    "fence in a list": "- one\n\n  ```sh\n  ls -l\n  ```\n- two",
    "table": "Cities\n\n| a | b |\n|---|--:|\n| 1 | long cell with **bold** words |\n| x | |\n\nend",
    "table after text": "intro\na | b\n--|--\n1 | 2\n",
    "tight list": "- a\n- b\n  - c\n    1. d\n- e\n",
    "loose list": "1. a\n\n2. b\n\n   more of b\n\n10. c",
    "two lists": "- a\n- b\n\ntext\n\n* c\n* d\n\n---\n",
    "setext": "Title\n=====\n\nSub\n---\ntext\n***\n",
    "quote": "> a\n> b\nlazy\n\n> - list\n>\n> ```\n> code\n> ```\n",
    "cjk": "日本語の文章はスペースがないので、どこでも改行できます。**強調**も`コード`も。\n\n- 一\n- 二\n",
    "emoji": "Party 🎉 and family 👩‍👩‍👧‍👦 and flag 🇫🇷 and heart ❤️ done, e\u0301 too.\n",
    "right to left": "שלום עולם, **חשוב**: 123 abc.\n\n- مرحبا بالعالم `code`\n- واحد\n\n"
    "| א | ب |\n|---|---|\n| ג | ت |\n",
    "links": "[text](http://x.y/z) and <http://a.b> and ![alt](pic.png) and [ref]\n\n[ref]: http://later.example\n",
    "html": "<b>not</b> html <!-- c -->\n\n<div>\nblock\n</div>\n",
    "markup": "[/red] [bold]x[/] [00] [link=x]y\n\n    indented [/]\n",
    "entities": "&lt;a&gt; &#27;[31m &#8238;x &amp; &copy;\n",
    "breaks": "one\ntwo  \nthree\\\nfour\n\n\n\nfive",
    "long word": "x" * 100 + " y " + "日" * 60 + "\n\n`" + "c" * 90 + "`",
}


def show(document: ChatDocument) -> list[Strip]:
    return [strip for y in range(document.height) if (strip := document.strip(y)) is not None]


def styled(strips: list[Strip]) -> list[list[tuple[str, str]]]:
    """Text and style of every cell, however the segments are cut."""
    return [[(character, str(style)) for text, style, _ in strip for character in text] for strip in strips]


def render(pieces: list[str], look: Look, end: TurnStatus = "done") -> list[list[tuple[str, str]]]:
    """The final view of an answer that arrived in these pieces, each drawn on its own."""
    turn, document = Turn("assistant", status="open"), ChatDocument()
    for piece in pieces:
        turn.append(piece, [0])
        document.sync([turn], look)
    turn.close(end)
    document.sync([turn], look)
    return styled(show(document))


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def look(width: int = 40, palette: Palette = DARK) -> Look:
    return Look(width, palette, "#67b9fb")


@pytest.mark.parametrize("size", [1, 3, 17])
@pytest.mark.parametrize("name", TEXTS)
def test_the_final_view_equals_a_one_shot_render(name: str, size: int) -> None:
    text = TEXTS[name]
    assert render(cut(text, size), look()) == render([text], look())


def test_the_final_view_of_everything_together_equals_a_one_shot_render() -> None:
    text = "\n\n".join(TEXTS.values())
    whole = render([text], look())
    for size in (1, 3, 17):
        assert render(cut(text, size), look()) == whole


FRAGMENTS = st.sampled_from(
    ["- a", "1. b", "2", "2. c", "| a | b |", "|--|--|", "```", "```py", "    code", "> q", "# h", "===",
     "---", "text **b**", "", " ", "\n", "* ", "**", "`x`", "日本", "  deep", "[r]: u", "[r]", "<div>", "~~~",
     "+ x"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(FRAGMENTS, min_size=1, max_size=14), st.integers(1, 9))
def test_any_sequence_of_blocks_survives_any_cut(lines: list[str], size: int) -> None:
    text = "\n".join(lines)
    assert render(cut(text, size), look(30)) == render([text], look(30))


PIECES = st.sampled_from(
    ["a", "b c", "word ", "1", ".", ") ", "1. ", "- ", "+ ", "* ", "*", "**", "_", "`", "```", "# ", "> ",
     "|", "| a | b |", "|--|", "---", "=", "\n", "\n\n", " ", "  ", "    ", "\t", "[l](u", ")", "&amp", ";",
     "<http://a.b>", "\\", "~~", "é", "日本", ":", "!["]
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(st.lists(PIECES, min_size=2, max_size=30))
def test_a_piece_that_only_adds_words_gives_what_the_whole_text_gives(pieces: list[str]) -> None:
    growing = MarkdownText()
    for count in range(1, len(pieces) + 1):
        text, fresh = "".join(pieces[:count]), MarkdownText()
        growing.update(text, final=False)
        fresh.update(text, final=False)
        lines = [[block.lines(30, DARK) for block in markdown.blocks()] for markdown in (growing, fresh)]
        assert lines[0] == lines[1], text


def test_a_word_at_the_end_of_a_long_list_is_no_reason_to_parse_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "".join(f"{n}. **Item** {n}, some words\n" for n in range(1, 40)) + "40. The"
    markdown = MarkdownText()
    markdown.update(text, final=False)
    parsed: list[str] = []
    monkeypatch.setattr(MarkdownText, "_blocks", staticmethod(lambda text: parsed.append(text) or []))
    for word in (" last", " item", " is", " *this* one."):
        text += word
        markdown.update(text, final=False)
    assert parsed == []
    last = markdown.blocks()[-1].lines(40, DARK)[-1]
    assert "".join(part for part, _ in last) == "40. The last item is this one."


@pytest.mark.parametrize("name", TEXTS)
def test_the_partial_view_is_the_view_of_the_partial_text(name: str) -> None:
    """The last delta is always shown: nothing is held back until the block is complete."""
    text = TEXTS[name]
    turn, document = Turn("assistant", status="open"), ChatDocument()
    for end in range(1, len(text), 5):
        turn.text, turn.version = text[:end], end
        document.sync([turn], look())
        fresh = ChatDocument()
        fresh.sync([Turn("assistant", text[:end], status="open")], look())
        assert [strip.text for strip in show(document)] == [strip.text for strip in show(fresh)]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("width", [12, 27, 40, 100])
def test_every_line_is_exactly_as_wide_as_the_pane(name: str, width: int) -> None:
    document = ChatDocument()
    document.sync([Turn("user", TEXTS[name]), Turn("assistant", TEXTS[name])], look(width))
    for strip in show(document):
        assert strip.cell_length == cell_len(strip.text) == width


@pytest.mark.parametrize("name", TEXTS)
def test_another_theme_and_width_and_back_give_the_same_view(name: str) -> None:
    turn, document = Turn("assistant", status="open"), ChatDocument()
    for piece in cut(TEXTS[name], 17):
        turn.append(piece, [0])
        document.sync([turn], look())
    before = styled(show(document))
    document.sync([turn], look(palette=LIGHT))
    light = ChatDocument()
    light.sync([Turn("assistant", TEXTS[name], status="open")], look(palette=LIGHT))
    assert styled(show(document)) == styled(show(light))
    document.sync([turn], look(23))
    document.sync([turn], look())
    assert styled(show(document)) == before


def test_a_code_fence_keeps_its_lines_when_the_theme_changes_and_the_stream_ends() -> None:
    turn, document = Turn("assistant", status="open"), ChatDocument()
    turn.append("```python\nx = 1\ny = 2", [1])
    document.sync([turn], look())
    document.sync([turn], look(palette=LIGHT))
    turn.append("\n```", [2])
    turn.close("done")
    document.sync([turn], look(palette=LIGHT))
    text = "\n".join(strip.text for strip in show(document))
    assert "x = 1" in text
    assert "y = 2" in text


def test_finished_blocks_are_not_rendered_again() -> None:
    text = MarkdownText()
    text.update("one\n\ntwo\n\nthree", final=False)
    first, second = text.finished[0], text.finished[1] if len(text.finished) > 1 else text.tail[0]
    lines = first.lines(40, DARK)
    text.update("one\n\ntwo\n\nthree\n\nfour", final=False)
    assert text.finished[0] is first
    assert second in text.blocks()
    assert first.lines(40, DARK) is lines


def test_control_characters_that_markdown_decodes_are_not_drawn() -> None:
    document = ChatDocument()
    document.sync([Turn("assistant", "a &#27;[31m &#155; &#13; &#8238; b")], look())
    text = "".join(strip.text for strip in show(document))
    assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in text)
    assert "\u202e" not in text


def test_no_character_of_a_long_code_line_is_lost() -> None:
    line = "".join(chr(97 + index % 26) for index in range(200))
    document = ChatDocument()
    document.sync([Turn("assistant", f"```\n{line}\n```")], look(33))
    assert "".join(strip.text.strip() for strip in show(document)) == line


def test_a_long_code_line_goes_on_behind_a_space_and_its_rows_are_marked_without_a_character() -> None:
    line = "    result = first_one + second_one + compute(third) + 界界界 # this is why"
    document = ChatDocument()
    document.sync([Turn("assistant", f"```python\n{line}\nx\n```")], look(33))
    rows = [strip for strip in show(document) if strip.text.strip()][1:]
    words = [strip.text.strip() for strip in rows]
    assert " ".join(words) == f"{line.strip()} x"
    marks = [any(s.style is not None and s.style.reverse for s in strip) for strip in rows]
    assert marks == [False, *[True] * (len(rows) - 2), False]
    assert len(rows) > 3


def test_prompts_are_shown_as_they_were_typed() -> None:
    document = ChatDocument()
    document.sync([Turn("user", "# not a heading\n* [/red] *x*")], look())
    text = [strip.text.rstrip() for strip in show(document)]
    assert text[:2] == ["▌ # not a heading", "▌ * [/red] *x*"]


def test_thirty_thousand_tokens_take_a_new_width_in_a_fraction_of_a_second() -> None:
    texts = [text for name, text in TEXTS.items() if "fence" not in name]
    turn = Turn("assistant", "\n\n".join(texts) * 120)
    assert len(turn.text) > 100_000
    document = ChatDocument()
    document.sync([turn], look(60))
    started = time.process_time()
    document.sync([turn], look(61))
    assert time.process_time() - started < 2.0
