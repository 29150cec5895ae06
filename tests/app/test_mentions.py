"""``@file`` in a prompt: what is a file and what is text, what is sent, and what is refused. No app."""

import os
from pathlib import Path

import pytest

from tui_infer.mentions import MOST_BYTES, MOST_FILES, MentionError, include, mentions
from tui_infer.token_count import TokenCounter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("print('a')\n")
    (tmp_path / "my notes.md").write_text("# Notes\n```\ncode\n```\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("b\r\nc\x1b[31m\n")
    return tmp_path


def test_a_files_text_stands_behind_the_prompt_in_a_fence_under_its_name(folder: Path) -> None:
    included = include("What does @a.py do?", folder)
    assert included.text == "What does a.py do?\n\na.py:\n\n```py\nprint('a')\n```"
    assert included.files == ("a.py",)


def test_a_fence_is_longer_than_those_in_the_file(folder: Path) -> None:
    text = include('Sum up @"my notes.md"', folder).text
    assert text == "Sum up my notes.md\n\nmy notes.md:\n\n````md\n# Notes\n```\ncode\n```\n````"


def test_line_ends_and_escape_sequences_of_a_file_are_made_harmless(folder: Path) -> None:
    assert "b\nc␛[31m\n```" in include("@sub/b.txt", folder).text


def test_a_file_named_twice_is_there_once(folder: Path) -> None:
    included = include("@a.py and @./a.py, and again @a.py", folder)
    assert included.files == ("a.py",)
    assert included.text.count("print") == 1


@pytest.mark.parametrize(
    "text",
    [
        "me@host.de",
        "mail a@a.py",
        "@@a.py",
        "@nobody said so",
        "@sub is a folder",
        "`@a.py` in code",
        "```\n@a.py\n```",
        "~~~\n@a.py",
        "@",
        "@ a.py",
        '@""',
        "@property\ndef x(self): ...",
        "[@/red]",
        "@/dev/zero",
        "@" + "x" * 5000,
        "@a\0b",
    ],
)
def test_what_is_no_file_stays_text(text: str, folder: Path) -> None:
    assert include(text, folder) == (text, ())


@pytest.mark.parametrize("text", ["@a.py.", "(@a.py)", "see @a.py, then", "@a.py?!"])
def test_punctuation_around_a_name_belongs_to_the_sentence(text: str, folder: Path) -> None:
    included = include(text, folder)
    assert included.files == ("a.py",)
    assert included.text.startswith(text.replace("@", ""))


def test_what_was_included_means_the_same_when_it_is_sent_once_more(folder: Path) -> None:
    (folder / "c.md").write_text("see @a.py\n")
    once = include("@c.md", folder)
    assert include(once.text, folder).text == once.text


def test_an_absolute_name_and_one_of_the_home_folder_are_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert include(f"@{folder}/a.py", Path("/")).files == (f"{folder}/a.py",)
    assert include("@~/a.py", Path("/")).files == ("~/a.py",)


def test_a_file_that_is_too_large_is_refused_with_the_numbers(folder: Path) -> None:
    (folder / "big").write_bytes(b"x" * (MOST_BYTES + 1))
    with pytest.raises(MentionError, match=r"big has 262,145 bytes; .* may have 262,144"):
        include("@big", folder)
    (folder / "half").write_bytes(b"x" * 200_000)
    (folder / "rest").write_bytes(b"x" * 100_000)
    with pytest.raises(MentionError, match=r"rest has 100,000 bytes.* of which 200,000 are taken"):
        include("@half @rest", folder)


def test_a_binary_file_and_one_that_is_not_utf_8_are_refused(folder: Path) -> None:
    (folder / "image").write_bytes(b"\x89PNG\0\0")
    (folder / "latin").write_bytes("größe".encode("latin-1"))
    with pytest.raises(MentionError, match="image is no text: it has null bytes"):
        include("@image", folder)
    with pytest.raises(MentionError, match="latin is not UTF-8: byte 2"):
        include("@latin", folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_says_why(folder: Path) -> None:
    (folder / "secret").write_text("x")
    (folder / "secret").chmod(0)
    with pytest.raises(MentionError, match="Permission denied"):
        include("@secret", folder)


def test_too_many_files_are_refused(folder: Path) -> None:
    for number in range(MOST_FILES + 1):
        (folder / f"f{number}").write_text("x")
    with pytest.raises(MentionError, match=f"{MOST_FILES + 1} files; it may have {MOST_FILES}"):
        include(" ".join(f"@f{number}" for number in range(MOST_FILES + 1)), folder)


def test_a_text_without_an_at_sign_is_not_searched() -> None:
    assert mentions("word " * 100_000) == []


# --- tokens ----------------------------------------------------------------------------------------


def test_tokens_are_counted_by_the_models_file_as_the_engine_does(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.add_special_tokens(["<|end|>"])
    model.save(str(tmp_path / "tokenizer.json"))
    counter = TokenCounter()
    assert counter.count("a b a", str(tmp_path)) == (3, True)
    assert counter.count("a <|end|>", str(tmp_path)).tokens > 2  # characters, not the control token
    assert counter.count("", str(tmp_path)) == (0, True)


def test_a_text_that_the_tokenizer_refuses_is_guessed(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="missing"))
    model.save(str(tmp_path / "tokenizer.json"))
    assert TokenCounter().count("abcdefgh", str(tmp_path)) == (2, False)


@pytest.mark.parametrize("content", [None, "", "{}", "no json"])
def test_without_a_tokenizer_the_count_is_a_marked_guess(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    count = TokenCounter().count("abcdefgh", str(tmp_path))
    assert count == (2, False)
    assert str(count) == "~2"
    assert TokenCounter().count("x", "") == (1, False)
