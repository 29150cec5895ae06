"""What is offered while a prompt is typed: commands, arguments, files; and earlier prompts. No app."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tui_infer.completion import Offer, Paths, World, offer
from tui_infer.path_names import path_choices
from tui_infer.recall import Search
from tui_infer.run_until import CONDITIONS
from tui_infer.slash import COMMANDS

WORLD = World(
    commands=COMMANDS,
    themes=["dark", "light", "paper light"],
    letters={"A": "Paris", "B": "regex"},
    parameters={"temperature": "0.7", "top_p": "0.95", "seed": "none", "ignore_eos": "false"},
    presets={"precise": "temperature 0"},
    models={"smollm2": "SmolLM2-135M"},
    conditions={condition.word: condition.words for condition in CONDITIONS},
)


def texts(line: str, *, first: bool = True) -> list[str]:
    found = offer(line, WORLD, first=first)
    return [choice.text for choice in found.choices] if isinstance(found, Offer) else []


def test_a_slash_offers_every_command_with_its_arguments_and_help() -> None:
    found = offer("/", WORLD)
    assert isinstance(found, Offer)
    assert [choice.label for choice in found.choices] == [f"/{name}" for name in COMMANDS]
    for choice in found.choices:
        assert choice.help == COMMANDS[choice.label[1:]].description


def test_what_is_typed_filters_the_commands_and_their_start_counts_more() -> None:
    assert texts("/mod")[0] == "/mode "
    labels = texts("/la")
    assert labels == ["/layout "]
    assert texts("/port") == ["/export ", "/import "]
    assert texts("/QUI") == ["/quit"]


@pytest.mark.parametrize(
    "line", ["", "hello", "a /mode", "//mode", "/etc/passwd", "/foo", "/foo bar", "/ is the root", "1/2"]
)
def test_plain_text_is_offered_nothing(line: str) -> None:
    assert offer(line, WORLD) is None


def test_commands_are_offered_on_the_first_line_only() -> None:
    assert offer("/mo", WORLD, first=False) is None


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("/mode ", ["graph", "eager"]),
        ("/mode e", ["eager"]),
        ("/mode eager", []),
        ("/mode eager ", []),
        ("/theme li", ["light", "paper light"]),
        ("/layout ", ["1", "2", "4"]),
        ("/preset ", ["precise"]),
        ("/chat ", ["A", "B"]),
        ("/chat b", ["B"]),
        ("/to ", ["A ", "B "]),
        ("/queue d", ["drop"]),
        ("/set te", ["temperature "]),
        ("/set temperature 0.2 se", ["seed "]),
        ("/set seed ", ["none"]),
        ("/set ignore_eos ", ["true", "false"]),
        ("/set temperature=0.2 top", ["top_p "]),
        ("/export sc", ["screenshot "]),
        ("/until ev", ["eviction"]),
        ("/until eviction ", ["A", "B"]),
        ("/until step ", []),
        ("/bench ", ["ab"]),
        ("/model s", ["smollm2"]),
        ("/retry ", ["new", "seed"]),
    ],
)
def test_arguments_with_known_values_are_offered(line: str, offered: Sequence[str]) -> None:
    assert texts(line)[: len(offered)] == list(offered)
    assert bool(texts(line)) == bool(offered)


def test_a_command_with_free_text_says_how_it_goes_on() -> None:
    found = offer("/system ", WORLD)
    assert isinstance(found, Offer)
    assert found.choices == ()
    assert "TEXT" in found.usage
    assert offer("/system You", WORLD) is None


@pytest.mark.parametrize(
    "line", ["/export chat ", "/record ", "/import ru", "/export steps /tm", "/model ~/mo"]
)
def test_arguments_that_are_files_are_looked_up(line: str) -> None:
    found = offer(line, WORLD)
    assert found == Paths(len(line) - len(line.split(" ")[-1]), line.split(" ")[-1])


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("see @", Paths(4, "", mention=True)),
        ("@src/ma", Paths(0, "src/ma", mention=True)),
        ('(@"my no', Paths(1, "my no", mention=True)),
        ("/all what is @no", Paths(13, "no", mention=True)),
        ("me@host", None),
        ("a @@x", None),
        ("@done now", None),
    ],
)
def test_a_word_that_begins_with_an_at_sign_is_looked_up_as_a_file(line: str, wanted: Paths | None) -> None:
    assert offer(line, WORLD) == wanted


# --- files -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("notes.md", "Notes 2.md", ".hidden", "nothing.txt", "b[red].md"):
        (tmp_path / name).write_text("x")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "inner.py").write_text("x")
    return tmp_path


def names(folder: Path, typed: str, *, mention: bool = True) -> list[str]:
    return [choice.text for choice in path_choices(Paths(0, typed, mention=mention), folder)]


def test_folders_come_first_and_names_with_blanks_are_quoted(folder: Path) -> None:
    assert names(folder, "n") == ["@new/", '@"Notes 2.md"', "@notes.md", "@nothing.txt"]
    assert names(folder, "N") == ['@"Notes 2.md"']
    assert names(folder, "new/") == ["@new/inner.py"]
    assert names(folder, "n", mention=False) == ["new/", "Notes 2.md", "notes.md", "nothing.txt"]


def test_hidden_files_are_offered_where_a_dot_is_typed(folder: Path) -> None:
    assert not any("hidden" in name for name in names(folder, ""))
    assert names(folder, ".h") == ["@.hidden"]


def test_a_folder_that_cannot_be_read_offers_nothing(folder: Path) -> None:
    assert names(folder, "nowhere/") == []
    assert names(folder, "notes.md/") == []
    assert names(folder, "~nobody-at-all/") == []
    assert names(folder, "a\0b/") == []


# --- earlier prompts -------------------------------------------------------------------------------


def test_a_search_finds_the_newest_first_and_equal_prompts_once() -> None:
    search = Search(["one cat", "a dog", "Two Cats", "one cat"])
    assert [search.prompts[place] for place in search.hits] == ["one cat", "Two Cats", "a dog"]
    search.type("cat")
    assert search.hits == [3, 2]
    search.move(1)
    assert search.chosen == 2
    search.move(1)
    assert search.chosen == 2
    search.type("Cat")
    assert search.hits == [2]
    search.type("bird")
    assert search.chosen is None


def test_a_hit_far_behind_in_a_long_prompt_is_in_view() -> None:
    search = Search(["line of a log\n" * 300 + "needle here" + " and more" * 300])
    search.type("needle")
    line = search.line(search.hits[0])
    assert line.startswith("…")
    assert "needle here" in line[:60]
    assert "\n" not in line
