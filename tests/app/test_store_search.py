"""Words are found in all chats, whatever they are written in, and mean nothing but themselves."""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.stored import chat, opened, put, rows
from tests.budgets import most
from tui_infer.store import schema
from tui_infer.store.search import MOST_WORDS, hit_in, words_of
from tui_infer.store.store import Store

SEARCH_S = 0.1  # of computing time, over 200 chats with 2,000 turns

TEXTS = {
    "german": "Grüße aus KÖLN, und 100 % Öl",
    "japanese": "東京タワーは港区にある。",
    "chinese": "你好，世界",
    "korean": "안녕하세요 세계",
    "russian": "Привет, МИР",
    "arabic": "مرحبا بالعالم",
    "emoji": "a family 👩‍👩‍👧 and a thumb 👍🏽",
    "quotes": """he said "don't" and 'do' and `so`""",
    "signs": "50% of snake_case * star \\ NEAR(a b) AND OR NOT col:x ^y {z}",
    "markup": "[/red] [bold]not bold[/] [link=x]",
    "code": "def f(x):\n    return x != 1;",
    "many lines": "first\n\nsecond line\tthird",
}


@pytest.fixture(params=["index", "no index"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A chat for each text, with and without SQLite's full-text search."""
    if request.param == "no index":
        monkeypatch.setattr(schema, "INDEX", "CREATE VIRTUAL TABLE turn_index USING not_there (text)")
    store = opened(tmp_path)
    assert store.indexed == (request.param == "index")
    put(store, *[chat("a prompt", text, title=name, titled=True) for name, text in TEXTS.items()])
    yield store
    store.close()


def found(store: Store, query: str) -> list[str]:
    titles = {row.key: row.meta.title for row in store.chats()}
    return sorted(titles[hit.key] for hit in store.search(words_of(query)))


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("köln", ["german"]),
        ("GRÜßE", ["german"]),
        ("öl", ["german"]),
        ("東京", ["japanese"]),
        ("京", ["japanese"]),
        ("タワー", ["japanese"]),
        ("世界", ["chinese"]),
        ("세계", ["korean"]),
        ("привет мир", ["russian"]),
        ("بالعالم", ["arabic"]),
        ("👍🏽", ["emoji"]),
        ("👩‍👩‍👧", ["emoji"]),
        ("don't", ["quotes"]),
        ('"don\'t"', ["quotes"]),
        ('said "', ["quotes"]),
        ("%", ["german", "signs"]),
        ("50%", ["signs"]),
        ("snake_case", ["signs"]),
        ("snakeXcase", []),
        ("_", ["signs"]),
        ("*", ["signs"]),
        ("sta*", []),
        ("\\", ["signs"]),
        ("near(a", ["signs"]),
        ("col:x ^y", ["signs"]),
        ("AND", ["emoji", "quotes", "signs"]),
        ("NOT star", ["signs"]),
        ("[/red]", ["markup"]),
        ("!= 1;", ["code"]),
        ("second first", ["many lines"]),
        ("first missing", []),
        ('"', ["quotes"]),
        ('""', []),
        ("markup", ["markup"]),
        ("", []),
        ("   ", []),
        ("\x00", []),
        ("'; DROP TABLE chats; --", []),
        ("x" * 5000, []),
    ],
)  # fmt: skip
def test_what_is_typed_is_found_literally_in_any_script(store: Store, query: str, titles: list[str]) -> None:
    assert found(store, query) == titles
    assert len(store.chats()) == len(TEXTS)


def test_the_newest_turn_with_all_words_is_the_hit_and_the_others_are_counted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, chat("red fox", "a red dog", "fox?", "no", "red red fox", "yes"))
    [hit] = store.search(words_of("fox red"))
    assert (hit.position, hit.turns) == (4, 2)
    assert "red red fox"[hit.start : hit.end] == "red"
    store.close()


def test_the_snippet_shows_the_place_with_the_words_marked() -> None:
    text = "x " * 300 + "the\nNEEDLE\tand the thread " + "y " * 300
    hit = hit_in("k", 1, 0, text, ("needle", "thread"))
    assert text[hit.start : hit.end] == "NEEDLE"
    assert [hit.snippet[start:end] for start, end in hit.marks] == ["NEEDLE", "thread"]
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert "\n" not in hit.snippet
    assert len(hit.snippet) <= 170


def test_a_snippet_of_the_very_start_or_end_has_no_ellipsis_there() -> None:
    hit = hit_in("k", 1, 0, "short", ("short",))
    assert (hit.snippet, hit.marks) == ("short", ((0, 5),))


def test_a_query_of_very_many_words_is_bounded() -> None:
    assert len(words_of(" ".join(f"w{number}" for number in range(1000)))) <= MOST_WORDS


def test_archived_chats_are_found_and_deleted_ones_are_not(tmp_path: Path) -> None:
    store = opened(tmp_path)
    kept, gone = chat("needle", "x"), chat("needle", "y")
    put(store, kept, gone, archived=True)
    store.delete(gone.key).result(10)
    assert [hit.key for hit in store.search(["needle"])] == [kept.key]
    store.close()


def test_what_an_app_without_the_index_wrote_is_found_and_indexed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(schema, "INDEX", "CREATE VIRTUAL TABLE turn_index USING not_there (text)")
        store = opened(tmp_path)
        put(store, *[chat(f"needle {number}", "answer") for number in range(600)])
        store.close()
    store = opened(tmp_path)
    assert len(store.search(["needle"])) == 600
    for _ in range(5):
        store.settle().result(20)
    assert rows(tmp_path, "SELECT count(*) FROM turns WHERE indexed = 0") == [(0,)]
    assert len(store.search(["needle"])) == 600
    store.close()


def test_a_changed_turn_is_found_by_its_new_text_only(tmp_path: Path) -> None:
    store, session = opened(tmp_path), chat("prompt", "before")
    put(store, session)
    session.turns[1].text = "behind"
    put(store, session)
    assert store.search(["before"]) == []
    assert len(store.search(["behind"])) == 1
    store.close()


def test_200_chats_with_2000_turns_are_searched_in_little_time(tmp_path: Path) -> None:
    text = "the engine computes a batch of tokens in one step and streams them to every chat "
    store = opened(tmp_path)
    for number in range(200):
        put(store, chat(*[f"{text * 12} number{number} 東京{turn}" for turn in range(10)]))
    assert rows(tmp_path, "SELECT count(*) FROM turns") == [(2000,)]
    for query, chats in (
        ("engine", 200),
        ("number137", 1),
        ("東京", 200),
        ("e", 200),
        ("batch tokens stream", 200),
        ("zzz", 0),
    ):
        started = time.process_time()
        hits = store.search(words_of(query))
        took = time.process_time() - started
        assert len(hits) == chats
        assert took < most(SEARCH_S), f"{query}: {took * 1000:.0f} ms"
    store.close()


def test_a_search_in_a_damaged_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    store = opened(tmp_path)
    connection = sqlite3.connect(tmp_path / "chats.db")
    connection.execute("DROP TABLE turn_index")
    connection.commit()
    connection.close()
    with pytest.raises(Exception, match="no such table"):
        store.search(["needle"])
    store.close()
