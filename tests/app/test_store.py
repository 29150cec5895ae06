"""Chats in the database: nothing is lost on the way there and back, whatever the file is like."""

import os
import sqlite3
import stat
import threading
from dataclasses import fields
from pathlib import Path

import pytest

from engine.request import SamplingParams
from tests.app.stored import chat, opened, put, rows
from tui_infer.session import SessionState, Tail, Turn, TurnStats
from tui_infer.store import schema
from tui_infer.store.errors import StoreError
from tui_infer.store.lazy import session_of
from tui_infer.store.rows import Draft, pack_ids, params_of, place_of, queue_of, stats_of, unpack_ids
from tui_infer.store.snapshot import Saved, meta_of, take
from tui_infer.store.store import Store, open_store


def of_store(store: Store, session: SessionState) -> SessionState:
    """The chat as the next start would have it."""
    row = next(row for row in store.chats() if row.key == session.key)
    return session_of(row, store.body)


# --- there and back --------------------------------------------------------------------------------


def test_a_chat_comes_back_as_it_was(tmp_path: Path) -> None:
    before = chat(
        "What? 東京 👍🏽",
        "So\n\n```py\nx\n```",
        "And?",
        "",
        title="named",
        titled=True,
        system="Be brief.",
        draft="not sent\nyet",
        params=SamplingParams(temperature=0.25, seed=2**63 - 1, stop=("END", "|")),
        queue=["one", "two"],
        unread=True,
        letter="AB",
    )
    before.turns[3].close("error", "the engine stopped")
    store = opened(tmp_path)
    put(store, before)
    after = of_store(store, before)
    for name in (
        "key", "letter", "title", "titled", "system", "params", "draft", "queue", "unread", "model",
        "history_ids",
    ):  # fmt: skip
        assert getattr(after, name) == getattr(before, name), name
    assert after.turns == [*map(_as_read, before.turns)]
    assert after.queue_paused
    assert after.status == "idle"
    store.close()


def _as_read(turn: Turn) -> Turn:
    """A turn without what belongs to one run: its caches' version and its way through the steps."""
    return Turn(
        turn.role, turn.text, list(turn.token_ids), turn.stats, turn.status, turn.note,
        asked=turn.asked, end=turn.end, seed=turn.seed, others=turn.others, place=turn.place,
    )  # fmt: skip


def test_other_versions_of_a_turn_come_back_with_the_versions_inside_them(tmp_path: Path) -> None:
    inner = Tail([Turn("assistant", "deep", [4], TurnStats(1, 1, 0, None, None))])
    tail = Tail([Turn("user", "old"), Turn("assistant", "older", [5, 6], others=[inner], place=1)], [5, 6], 2)
    before = chat("q", "a")
    before.turns[0].others, before.turns[0].place = [tail], 1
    store = opened(tmp_path)
    put(store, before)
    assert of_store(store, before).turns[0] == _as_read(before.turns[0])
    store.close()


def test_token_ids_of_32_bits_are_kept(tmp_path: Path) -> None:
    ids = [0, 1, 255, 256, 2**31, 2**32 - 1]
    assert unpack_ids(pack_ids(ids)) == ids


def test_values_that_another_version_wrote_are_read_as_far_as_they_are_known() -> None:
    params = params_of('{"temperature": 0.5, "mirostat": 2, "top_k": "many", "max_tokens": 0}')
    assert params == SamplingParams(temperature=0.5)
    assert params_of("not json") == SamplingParams()
    assert stats_of('{"prompt_tokens": "x"}') is None
    assert place_of("[3, 0.5]") == (3, 0.5)
    assert place_of("[]") is None
    assert queue_of('["a", 3]') == ("a",)


# --- only what changed is written ------------------------------------------------------------------


def test_an_answer_under_way_is_saved_in_pieces_and_never_written_twice(tmp_path: Path) -> None:
    session = chat("q")
    session.begin_answer()
    answer = session.answer
    assert answer is not None
    store, known = opened(tmp_path), Saved()
    written = 0
    for number in range(200):
        answer.append(f"word{number} ", [number])
        write, known = take(session, known, meta_of(session, None, ""), Draft())
        assert write is not None
        written += sum(len(part.text) for part in (*write.pieces, *write.turns))
        store.write(write).result(10)
    assert written == len("q") + len(answer.text)
    assert store.body(session.key).turns[1].text == answer.text
    assert store.body(session.key).turns[1].token_ids == answer.token_ids
    session.close_answer("done")
    write, known = take(session, known, meta_of(session, None, ""), Draft())
    assert write is not None
    store.write(write).result(10)
    assert rows(tmp_path, "SELECT count(*) FROM pieces") == [(0,)]
    assert store.body(session.key).turns[1].text == answer.text
    assert take(session, known, meta_of(session, None, ""), Draft())[0] is None
    store.close()


def test_turns_that_are_taken_away_are_gone_from_the_store_too(tmp_path: Path) -> None:
    session = chat("one", "two", "three", "four")
    store = opened(tmp_path)
    write, known = take(session, Saved(), meta_of(session, None, ""), Draft())
    assert write is not None
    store.write(write).result(10)
    session.turns, session.history_ids = session.turns[:2], session.history_ids[:5]
    write, known = take(session, known, meta_of(session, None, ""), Draft())
    assert write is not None
    assert (write.turns, write.length) == ((), 2)
    store.write(write).result(10)
    assert [turn.text for turn in store.body(session.key).turns] == ["one", "two"]
    assert store.body(session.key).history_ids == [7, 8, 1, 2, 70_000]
    assert store.search(["four"]) == []
    store.close()


def test_a_deleted_chat_leaves_no_row_behind(tmp_path: Path) -> None:
    session, other = chat("secret", "words", draft="d"), chat("other", "chat")
    store = opened(tmp_path)
    put(store, session, other)
    store.delete(session.key).result(10)
    for table in ("chats", "drafts", "histories"):
        assert rows(tmp_path, f"SELECT count(*) FROM {table}") == [(1,)], table
    assert rows(tmp_path, "SELECT count(*) FROM turns") == [(2,)]
    assert store.search(["secret"]) == []
    store.close()
    assert b"secret" not in (tmp_path / "chats.db").read_bytes()


# --- the file --------------------------------------------------------------------------------------


def test_the_database_is_for_its_owner_only_and_written_ahead(tmp_path: Path) -> None:
    store = opened(tmp_path / "data")
    put(store, chat("q", "a"))
    assert stat.S_IMODE((tmp_path / "data" / "chats.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    assert rows(tmp_path / "data", "PRAGMA journal_mode") == [("wal",)]
    assert rows(tmp_path / "data", "PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
    store.close()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    opened(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "chats.db")
    connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    connection.close()
    before = (tmp_path / "chats.db").read_bytes()
    store, notices = open_store(tmp_path)
    assert store is None
    [(title, text)] = notices
    assert title == "Chats are not kept"
    assert "newer tui-infer" in text
    assert "TUI_INFER_DATA_DIR" in text
    assert (tmp_path / "chats.db").read_bytes() == before
    assert list(tmp_path.glob("*broken*")) == []


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "chats.db")
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    store, [(_, text)] = open_store(tmp_path)
    assert store is None
    assert "another program" in text
    assert rows(tmp_path, "SELECT name FROM sqlite_schema") == [("recipes",)]


def test_a_broken_file_is_moved_aside_whole_and_chats_begin_anew(tmp_path: Path) -> None:
    junk = os.urandom(5000)
    (tmp_path / "chats.db").write_bytes(junk)
    store, [(title, text)] = open_store(tmp_path)
    assert store is not None
    assert title == "Chats could not be read"
    [moved] = tmp_path.glob("chats.db.broken-*")
    assert str(moved) in text
    assert moved.read_bytes() == junk
    put(store, chat("q", "a"))
    assert len(store.chats()) == 1
    store.close()


def test_pages_that_are_damaged_are_noticed_and_the_file_is_kept(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, *[chat(f"q{number}", "a" * 3000) for number in range(40)])
    store.close()
    data = bytearray((tmp_path / "chats.db").read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    (tmp_path / "chats.db").write_bytes(data)
    store, notices = open_store(tmp_path)
    assert [title for title, _ in notices] == ["Chats could not be read"]
    assert store is not None
    [moved] = [
        path for path in tmp_path.glob("chats.db.broken-*") if path.suffix[-4:] not in ("-wal", "-shm")
    ]
    assert moved.read_bytes() == bytes(data)
    store.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_means_no_store(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    store, [(_, text)] = open_store(tmp_path / "data")
    assert store is None
    assert "TUI_INFER_DATA_DIR" in text


def test_a_folder_that_is_a_file_means_no_store_and_says_which(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    store, [(_, text)] = open_store(tmp_path / "data")
    assert store is None
    assert str(tmp_path / "data") in text


# --- migrations ------------------------------------------------------------------------------------


def connection_of(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def test_an_older_database_is_brought_up_to_date_step_by_step(tmp_path: Path) -> None:
    connection = connection_of(tmp_path / "x.db")
    schema.migrate(connection, ("CREATE TABLE a (x TEXT);",))
    connection.execute("INSERT INTO a VALUES ('kept')")
    later = (
        "CREATE TABLE a (x TEXT);",
        "ALTER TABLE a ADD COLUMN y INTEGER NOT NULL DEFAULT 3;",
        "CREATE TABLE b (z);\nCREATE INDEX bz ON b (z);",
    )
    schema.migrate(connection, later)
    assert connection.execute("SELECT x, y FROM a").fetchall() == [("kept", 3)]
    assert connection.execute("PRAGMA user_version").fetchone() == (3,)
    connection.close()


def test_a_migration_that_fails_halfway_changes_nothing(tmp_path: Path) -> None:
    connection = connection_of(tmp_path / "x.db")
    schema.migrate(connection, ("CREATE TABLE a (x TEXT);",))
    with pytest.raises(sqlite3.Error):
        schema.migrate(connection, ("CREATE TABLE a (x TEXT);", "CREATE TABLE b (y);\nCREATE TABLE a (z);"))
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("a",)]
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert not connection.in_transaction
    connection.close()


def test_two_processes_that_migrate_at_once_do_it_once(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            connection = sqlite3.connect(tmp_path / "x.db", isolation_level=None, timeout=10)
            schema.migrate(connection)
            connection.close()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_every_statement_of_a_migration_is_run() -> None:
    assert sum(script.count(";") for script in schema.MIGRATIONS) == sum(
        len(schema._statements(script)) for script in schema.MIGRATIONS
    )


# --- prompts ---------------------------------------------------------------------------------------


def test_prompts_come_back_in_their_order_the_newest_as_far_as_they_fit(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add_prompts(["first", "second"]).result(10)
    store.add_prompts(["third", "x" * (5 << 20), "fifth"]).result(10)
    store.close()
    again = opened(tmp_path)
    assert again.claimed.prompts == ["fifth"]
    again.add_prompts([f"p{number}" for number in range(2500)]).result(10)
    again.close()
    last = opened(tmp_path)
    assert last.claimed.prompts == [f"p{number}" for number in range(500, 2500)]
    last.close()


def test_a_chat_that_cannot_be_read_is_empty_read_only_and_never_saved_over(tmp_path: Path) -> None:
    session = chat("q", "precious")
    store = opened(tmp_path)
    put(store, session)

    def fails(key: str) -> None:
        raise StoreError("disk I/O error.")

    row = next(iter(store.chats()))
    read = session_of(row, fails)  # type: ignore[arg-type]
    assert read.turns == []
    assert "disk I/O error" in read.read_only
    read.title = "other"
    write, _ = take(read, Saved(row.meta, row.draft), meta_of(read, None, ""), Draft())
    assert write is not None
    assert (write.turns, write.length, write.history) == ((), None, None)
    store.close()


# --- nothing is forgotten --------------------------------------------------------------------------

KEPT = {
    SessionState: "letter color title titled turns history_ids draft params system unread key model queue "
    "editing edit_stash reread",
    Turn: "role text token_ids stats status note asked end seed others place",
    Tail: "turns ids base",
    TurnStats: "prompt_tokens output_tokens cached_tokens ttft_s decode_tokens_per_s",
}
OF_ONE_RUN = {
    SessionState: "id draft_selection epoch request status recall stash first_delta_s last_delta_s "
    "tokens_at_first held queue_paused read_only begun",
    Turn: "version trace",
}


@pytest.mark.parametrize("kind", KEPT)
def test_every_field_of_a_chat_is_kept_or_known_to_belong_to_one_run(kind: type) -> None:
    known = {*KEPT[kind].split(), *OF_ONE_RUN.get(kind, "").split()}
    assert {field.name for field in fields(kind)} == known, "a new field needs a migration, or a place above"
