"""Run until: what is typed or chosen, what is sent, and what is said when it stops."""

import pytest

from engine.commands import RunUntil
from engine.records import Failed, Paused
from tests.app.driving import ask, running, screen_text, settled
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.run_until import CONDITIONS, describe, parse, with_letters

LETTERS = {"A": "chat-1", "B": "chat-2"}


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("eviction", RunUntil("eviction")),
        ("Allocation b", RunUntil("allocation", session="chat-2")),
        ("prefix A", RunUntil("prefix_hit", session="chat-1")),
        ("preemption", RunUntil("preemption")),
        ("graph", RunUntil("graph_change")),
        ("eager", RunUntil("eager")),
        ("finished A", RunUntil("finished", session="chat-1")),
        ("step 1,200", RunUntil("step", step=1200)),
    ],
)
def test_each_condition_is_understood(typed: str, command: RunUntil) -> None:
    assert parse(typed.split(), LETTERS) == command


@pytest.mark.parametrize(
    "typed", ["", "rain", "step", "step x", "step 3 A", "eviction Z", "eager A", "graph A B"]
)
def test_what_is_not_understood_is_refused_with_a_reason(typed: str) -> None:
    assert isinstance(parse(typed.split(), LETTERS), str)


def test_descriptions_name_the_chat_and_reasons_too() -> None:
    assert describe(RunUntil("finished", session="chat-2"), LETTERS) == "an answer ends, of B"
    assert describe(RunUntil("step", step=1200), LETTERS) == "step 1,200"
    reason = "block 12 of chat-1 was evicted at step 9; chat-11 is none"
    assert with_letters(reason, [("chat-1", "A")]) == "block 12 of A was evicted at step 9; chat-11 is none"


async def test_the_dialog_sends_the_chosen_condition_and_the_title_tells_it() -> None:
    client = ScriptedClient("word " * 500, rate=100)
    async with running(client, size=(120, 30)) as (app, pilot):
        await pilot.press("f10")
        await pilot.pause()
        for condition in CONDITIONS:
            assert condition.words in screen_text(app)
        await pilot.press("down", "c", "enter")
        await wait_until(lambda: RunUntil("allocation", session="chat-1") in client.sent, what="the command")


@pytest.mark.parametrize("key", ["f10", "alt+r", "alt+p"])
async def test_a_dialog_s_styles_leave_the_screen_below_as_it_was(key: str) -> None:
    async with running(ScriptedClient("word"), size=(120, 40)) as (app, pilot):
        await ask(app, pilot, "Count")
        await settled(app)
        before = screen_text(app)
        await pilot.press(key)
        await pilot.pause()
        assert screen_text(app) != before
        await pilot.press("escape")
        await wait_until(lambda: screen_text(app) == before, what="the screen of before")


async def test_step_n_is_asked_for_its_number() -> None:
    client = ScriptedClient("word " * 500, rate=100)
    async with running(client, size=(80, 24)) as (_, pilot):
        await pilot.press("f10", "8")
        await pilot.pause()
        await pilot.press(*["backspace"] * 6, *"612", "enter")
        await wait_until(lambda: RunUntil("step", step=612) in client.sent, what="the command")


async def test_waiting_and_the_reason_of_the_pause_stand_in_the_title() -> None:
    client = ScriptedClient("word " * 500, rate=100)
    async with running(client, size=(120, 30)) as (app, pilot):
        app.state.run_until(RunUntil("eviction"))
        app.state.apply(Paused(False))
        await pilot.pause(0.2)
        assert "until a cached block is evicted" in screen_text(app).splitlines()[0]
        app.state.apply(Paused(True, "block 12 of chat-1 was evicted at step 9"))
        await pilot.pause(0.2)
        assert "block 12 of A was evicted at step 9" in screen_text(app).splitlines()[0]
        app.state.apply(Paused(False))
        await pilot.pause(0.2)
        assert "evicted" not in screen_text(app).splitlines()[0]


async def test_a_condition_that_the_engine_refuses_is_no_longer_waited_for() -> None:
    async with running(ScriptedClient("word")) as (app, _):
        app.state.run_until(RunUntil("step", step=1))
        app.state.apply(Failed("command ignored", "Step 1 cannot be waited for.", "Later.", fatal=False))
        assert app.state.until is None


async def test_the_slash_command_refuses_before_the_engine_is_ready() -> None:
    client = ScriptedClient("word", hold=True)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "/until eviction")
        await pilot.pause()
        assert not any(isinstance(command, RunUntil) for command in client.sent)
