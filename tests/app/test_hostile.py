"""What comes from outside and cannot be right: imported numbers, names, disks that fail for a while."""

import asyncio
import json
import os
import sqlite3
import threading
from pathlib import Path

import msgspec
import pytest
from textual import events
from textual.widget import Widget
from textual.widgets import Input, TextArea

from engine.errors import EngineError, ModelError
from engine.models.source import resolve
from engine.request import SamplingParams
from tests.app.driving import ask, running, screen_text, settled
from tests.app.scripted import ScriptedClient
from tests.app.stored import opened, rows, running_kept
from tests.waiting import wait_until
from tui_infer.chat_files import FORMAT, VERSION
from tui_infer.chat_transfer import read_chats
from tui_infer.export import write_steps
from tui_infer.model_catalog import facts_of
from tui_infer.sanitize import sanitize
from tui_infer.screens.ask import Ask
from tui_infer.set_params import changed
from tui_infer.store import chat_write, keeper

# --- the disk --------------------------------------------------------------------------------------


async def test_a_disk_that_was_full_for_a_while_is_written_to_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, failed = chat_write.write_chat, 0

    def full(*values: object) -> None:
        nonlocal failed
        failed += 1
        if failed < 3:
            raise sqlite3.OperationalError("database or disk is full")
        written(*values)  # type: ignore[arg-type]

    monkeypatch.setattr(chat_write, "write_chat", full)
    monkeypatch.setattr(keeper, "RETRY_S", 0.05)
    async with running_kept(ScriptedClient("an answer", rate=1e5), tmp_path) as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        await wait_until(lambda: ("an answer",) in rows(tmp_path, "SELECT text FROM turns"))
        told = ["Chats are not saved", "Chats are saved again"]
        await wait_until(lambda: [toast.title for toast in app._notifications] == told)


# --- imported chats --------------------------------------------------------------------------------


def chat_file(folder: Path, chat: dict[str, object]) -> Path:
    """An export with this one chat; ``1e999`` in place of 7.25, which Python would not write."""
    text = json.dumps({"format": FORMAT, "version": VERSION, "chats": [chat]})
    path = folder / "chats.json"
    path.write_text(text.replace("7.25", "1e999"))
    return path


def said(**answer: object) -> dict[str, object]:
    """A chat of one prompt and one answer."""
    whole = {"role": "assistant", "text": "an answer", "token_ids": [1, 2], "asked": 1, "end": 3, **answer}
    return {"history_ids": [9, 1, 2], "turns": [{"role": "user", "text": "a question"}, whole]}


NUMBERS = {"prompt_tokens": 1, "output_tokens": 2, "cached_tokens": 0}


@pytest.mark.parametrize(
    "chat",
    [
        said(token_ids=[1, 2**31]),
        said(token_ids=[-1]),
        said(seed=2**63),
        said(stats={**NUMBERS, "ttft_s": 7.25}),
        said(stats={**NUMBERS, "decode_tokens_per_s": -1}),
        said(others=[{"turns": [{"role": "assistant", "text": "other", "token_ids": [2**40]}]}]),
        said(others=[{"turns": [{"role": "assistant", "text": "other"}], "ids": [2**40]}]),
        {**said(), "history_ids": [2**40, 1, 2]},
        {**said(), "params": {"stop_token_ids": [2**70]}},
        {**said(), "params": {"stop_token_ids": [-1]}},
        {**said(), "params": {"stop": ["\ud800"]}},
    ],
)
def test_an_import_with_a_number_that_no_engine_has_is_refused(
    tmp_path: Path, chat: dict[str, object]
) -> None:
    with pytest.raises(EngineError, match=r"cannot be right|out of range|surrogate"):
        read_chats(chat_file(tmp_path, chat))


async def test_the_largest_numbers_that_are_imported_are_saved_and_sent(tmp_path: Path) -> None:
    most = said(token_ids=[1, 2**31 - 1], seed=2**63 - 1, stats={**NUMBERS, "ttft_s": 1e18})
    most |= {"model": "/models/smollm2", "history_ids": [9, 1, 2**31 - 1], "system": "\ud800\x1b[/red]"}
    most["params"] = {"stop_token_ids": [2**31 - 1], "stop": ["[/red]"]}
    path = chat_file(tmp_path, most)
    async with running_kept(ScriptedClient("more", rate=1e5), tmp_path) as (app, pilot):
        await ask(app, pilot, f"/import {path}")
        await wait_until(lambda: len(app.state.sessions) == 2)
        await ask(app, pilot, "go on")
        await settled(app)
        assert isinstance(app.client, ScriptedClient)
        msgspec.msgpack.encode(app.client.sent)
        await wait_until(lambda: ("more",) in rows(tmp_path, "SELECT text FROM turns"))
        assert [toast.title for toast in app._notifications] == ["Imported"]


@pytest.mark.parametrize("ids", ["9" * 30, "-1", "9" * 400])
def test_a_stop_token_that_no_vocabulary_has_is_refused(ids: str) -> None:
    assert "stop_token_ids" in str(changed(SamplingParams(), ["stop_token_ids", ids]))


async def test_a_chat_that_cannot_be_written_keeps_no_other_from_being_saved(tmp_path: Path) -> None:
    async with running_kept(ScriptedClient("kept", rate=1e5), tmp_path) as (app, pilot):
        await ask(app, pilot, "the one")
        await settled(app)
        broken = app.state.current
        broken.turns[-1].token_ids = [2**40]
        broken.turns[-1].version += 1
        await pilot.press("ctrl+n")
        await ask(app, pilot, "the other")
        await settled(app)
        await wait_until(lambda: "Chats are not saved" in [toast.title for toast in app._notifications])
        await wait_until(lambda: ("the other",) in rows(tmp_path, "SELECT text FROM turns"))
        broken.turns[-1].token_ids = [2]


@pytest.mark.parametrize("opening", ["alt+r", "ctrl+f", "alt+p", "alt+c"])
async def test_a_paste_brings_no_escape_into_any_field(opening: str) -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        await pilot.press(opening)
        await wait_until(lambda: app.screen is not app.main and isinstance(app.focused, Input | TextArea))
        app.post_message(events.Paste("a\x1b[31m\x9b\ud800\u202eb"))
        await wait_until(lambda: "b" in shown(app.focused))
        assert sanitize(shown(app.focused)) == shown(app.focused)
        assert "a␛[31m" in shown(app.focused)


def shown(field: Widget | None) -> str:
    """What a field has."""
    return field.value if isinstance(field, Input) else field.text if isinstance(field, TextArea) else ""


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "a\0b", "~nobody/x", "[/red]", "/dev/null"])
def test_a_name_that_no_model_can_have_is_refused_in_words(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert facts_of(name) is None
    with pytest.raises(ModelError, match=r"neither a known name|no file or folder"):
        resolve(name)


def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    for suffix in ("json", "csv"):
        os.mkfifo(tmp_path / f"pipe.{suffix}")
    with pytest.raises(EngineError, match="no ordinary file"):
        read_chats(tmp_path / "pipe.json")
    with pytest.raises(EngineError, match="no ordinary file"):
        write_steps([], tmp_path / "pipe.csv")


async def test_the_app_goes_on_behind_a_model_whose_name_is_too_long_for_a_file() -> None:
    async with running(ScriptedClient("an answer", rate=1e5)) as (app, pilot):
        await ask(app, pilot, "/model " + "x" * 5000)
        assert isinstance(app.client, ScriptedClient)
        await wait_until(lambda: app.client.restarts)
        await ask(app, pilot, "hello")
        await settled(app)
        assert app.state.current.turns[-1].text == "an answer"


async def test_a_mistyped_model_does_not_end_answers_without_a_question() -> None:
    client = ScriptedClient("a long answer of many words " * 200, rate=20)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "hello")
        await wait_until(lambda: app.state.current.turns[-1].text != "")
        await ask(app, pilot, "/model shape:nope")
        await wait_until(lambda: isinstance(app.screen, Ask))
        assert isinstance(app.screen, Ask)
        assert app.screen._question == "Load shape:nope? Answers under way are stopped. Chats are kept."
        await pilot.press("n")
        await wait_until(lambda: not isinstance(app.screen, Ask))
        assert (client.restarts, app.state.active) == (0, 1)
        await ask(app, pilot, "/model shape:tiny")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await wait_until(lambda: client.restarts == 1)


async def test_what_is_written_is_written_although_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    store = opened(tmp_path)
    go_on = threading.Event()
    slow = store._submit(lambda _: go_on.wait(10))
    impatient = asyncio.create_task(asyncio.wait_for(asyncio.wrap_future(store.add_prompts(["one"])), 0.01))
    with pytest.raises(TimeoutError):
        await impatient
    go_on.set()
    await asyncio.wrap_future(slow)
    await asyncio.wait_for(asyncio.wrap_future(store.add_prompts(["two"])), 10)
    assert rows(tmp_path, "SELECT text FROM prompts") == [("one",), ("two",)]
    assert store.close()


async def test_a_database_that_is_deleted_while_the_app_runs_is_told_and_never_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "RETRY_S", 0.05)
    async with running_kept(ScriptedClient("an answer", rate=1e5), tmp_path / "data") as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        (tmp_path / "data").rename(tmp_path / "moved")
        await ask(app, pilot, "are you there?")
        await wait_until(lambda: "Chats are not saved" in [toast.title for toast in app._notifications])
        told = next(toast.message for toast in app._notifications if toast.title == "Chats are not saved")
        assert f"{tmp_path / 'data' / 'chats.db'} was deleted or moved" in told
        assert "/export chat FILE.json all" in told
        await wait_until(lambda: "✗ not saved" in screen_text(app).splitlines()[0], what="a lasting mark")
        (tmp_path / "moved").rename(tmp_path / "data")
        await wait_until(lambda: ("are you there?",) in rows(tmp_path / "data", "SELECT text FROM turns"))
        await wait_until(lambda: "Chats are saved again" in [toast.title for toast in app._notifications])
        await wait_until(lambda: "not saved" not in screen_text(app).splitlines()[0])
