"""Parameters and system prompt of a chat: by command, by form, by preset; and commands about the chat."""

from pathlib import Path

import pytest
from textual.widgets import Input, Static

from engine.commands import Submit
from engine.request import SamplingParams
from tests.app.driving import ask, pane_of, running, screen_text
from tests.app.scripted import ScriptedClient
from tests.app.stored import rows, running_kept
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Preset, Settings
from tui_infer.meter import Draft, meter
from tui_infer.parameters import marks, set_system
from tui_infer.presets import Sampling
from tui_infer.screens.ask import Ask
from tui_infer.screens.compare_form import PromptText
from tui_infer.screens.main import MainScreen
from tui_infer.screens.parameters import Cycle, ParametersForm
from tui_infer.session import SessionState, Turn
from tui_infer.token_count import Count

SETTINGS = Settings(
    presets={
        "precise": Preset(temperature=0.0, top_p=0.9),
        "poet": Preset(temperature=1.5, system="You are a poet.", stop=("END",)),
    }
)


def toasts(app: TuiInferApp) -> str:
    return "\n".join(f"{toast.title}: {toast.message}" for toast in app._notifications)


def submits(client: ScriptedClient) -> list[Submit]:
    return [command for command in client.sent if isinstance(command, Submit)]


async def answered(app: TuiInferApp, pilot, text: str) -> None:  # type: ignore[no-untyped-def]
    before = len(app.state.current.turns)
    await ask(app, pilot, text)
    await wait_until(lambda: len(app.state.current.turns) > before and not app.state.current.busy)


# --- /set ------------------------------------------------------------------------------------------


async def test_set_changes_the_chat_from_its_next_prompt_on() -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client) as (app, pilot):
        await answered(app, pilot, "one")
        await ask(app, pilot, "/set temperature 0.2 top-p=0.5 --seed 7 stop END,\\n\\n")
        await wait_until(lambda: "temperature 0.2, was 0.7" in toasts(app))
        await answered(app, pilot, "two")
        before, after = (command.params for command in submits(client))
        assert before.temperature == 0.7
        assert (after.temperature, after.top_p, after.seed) == (0.2, 0.5, 7)
        assert after.stop == ("END", "\n\n")
        await ask(app, pilot, "/set seed none stop none")
        assert app.state.current.params.seed is None
        assert app.state.current.params.stop == ()
        assert app.state.params.seed is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("temperature 200", "temperature=200.0 is out of range; it must be from 0 to 100."),
        ("top_p 0", "top_p=0.0 is out of range; it must be above 0 to 1."),
        ("max_tokens many", "max_tokens=many is not understood; it must be a whole number from 1 to"),
        ("temprature 1", "Did you mean temperature?"),
        ("seed", "seed has no value"),
        ("[/red] 1", "“[/red]” is no parameter"),
    ],
)
async def test_a_value_that_cannot_be_names_value_and_range_and_keeps_what_was_typed(
    words: str, said: str
) -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        before = app.state.current.params
        await ask(app, pilot, f"/set {words}")
        await wait_until(lambda: said in toasts(app))
        assert (await pane_of(app)).prompt.text == f"/set {words}"
        assert app.state.current.params == before


async def test_set_alone_lists_every_parameter() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        await ask(app, pilot, "/set")
        await wait_until(lambda: "Parameters of A" in toasts(app))
        for name in SamplingParams.__struct_fields__:
            assert f"{name} " in toasts(app)


async def test_a_pane_says_what_of_its_chat_is_not_as_usual() -> None:
    async with running(ScriptedClient("ok"), size=(100, 30)) as (app, pilot):
        assert "⚙" not in screen_text(app)
        await ask(app, pilot, "/set temperature 0.2 seed 7")
        await wait_until(lambda: "⚙ T 0.2 · seed 7" in screen_text(app))
        await pilot.press("ctrl+n")
        await pane_of(app)
        assert screen_text(app).count("⚙") == 1
        await pilot.press("alt+1")
        await ask(app, pilot, "/set temperature 0.7 seed none")
        await wait_until(lambda: "⚙" not in screen_text(app))


def test_marks_name_everything_that_differs() -> None:
    usual = Sampling(SamplingParams(seed=3), "Be brief.")
    session = SessionState("chat-1", "A", 0, params=SamplingParams(top_k=40, stop=("x",)), system="")
    assert marks(session, usual) == ["top-k 40", "no seed", "stop", "no system"]
    assert marks(SessionState("chat-1", "A", 0, params=usual.params, system=usual.system), usual) == []


# --- /system ---------------------------------------------------------------------------------------


async def test_a_system_prompt_in_a_new_chat_goes_with_the_first_prompt() -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "/system You are [a] poet.\nBe brief.")
        await wait_until(lambda: "System prompt of A: You are [a] poet." in toasts(app))
        assert "read again" not in toasts(app)
        await answered(app, pilot, "hello")
        roles = [(message.role, message.content) for message in submits(client)[0].prompt]  # type: ignore[union-attr]
        assert roles == [("system", "You are [a] poet.\nBe brief."), ("user", "hello")]


async def test_another_system_prompt_has_the_conversation_read_again_and_says_so() -> None:
    client = ScriptedClient("fine", rate=1000)
    async with running(client) as (app, pilot):
        await answered(app, pilot, "one")
        assert app.state.current.history_ids
        await ask(app, pilot, "/system Be brief.")
        await wait_until(lambda: "read again with it at the next prompt" in toasts(app))
        assert app.state.current.history_ids == []
        assert all(turn.asked is None and turn.end is None for turn in app.state.current.turns)
        await answered(app, pilot, "two")
        last = submits(client)[-1]
        assert last.history is None
        assert [message.role for message in last.prompt] == ["system", "user", "assistant", "user"]  # type: ignore[union-attr]
        await ask(app, pilot, "/system")
        await wait_until(lambda: "System prompt of A: Be brief." in toasts(app))
        await ask(app, pilot, "/system none")
        assert app.state.current.system == ""


async def test_a_system_prompt_set_while_an_answer_streams_waits_for_its_end() -> None:
    client = ScriptedClient("word " * 2000, rate=100)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "one")
        session = app.state.current
        await wait_until(lambda: session.status == "streaming")
        await ask(app, pilot, "/system Be brief.")
        await wait_until(lambda: "after the answer under way" in toasts(app))
        assert session.history_ids
        await pilot.press("escape")
        await wait_until(lambda: not session.busy)
        assert session.history_ids == []
        assert not session.reread
        await ask(app, pilot, "two")
        assert submits(client)[-1].history is None
        assert submits(client)[-1].prompt[0].role == "system"  # type: ignore[union-attr]


def test_the_same_system_prompt_again_keeps_what_is_cached() -> None:
    session = SessionState(
        "chat-1", "A", 0, system="Be brief.", history_ids=[1, 2], turns=[Turn("user", "x")]
    )
    assert not set_system(session, " Be brief.\n")
    assert session.history_ids == [1, 2]


# --- the form --------------------------------------------------------------------------------------


async def form_of(app: TuiInferApp, pilot) -> ParametersForm:  # type: ignore[no-untyped-def]
    await pilot.press("alt+p")
    await wait_until(lambda: isinstance(app.screen, ParametersForm) and app.screen.query("#keys"))
    assert isinstance(app.screen, ParametersForm)
    return app.screen


def said_of(form: ParametersForm, name: str) -> str:
    return str(form.query_one(f"#{name}-says", Static).content)


async def test_the_form_shows_the_chat_and_enter_applies_what_was_typed() -> None:
    async with running(ScriptedClient("ok"), size=(80, 24)) as (app, pilot):
        form = await form_of(app, pilot)
        assert form.query_one("#temperature", Input).value == "0.7"
        await pilot.press(*["backspace"] * 3, "0", "full_stop", "2", "tab", "delete", "0", "full_stop", "5")
        await pilot.press("enter")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        assert app.state.current.params.temperature == 0.2
        assert app.state.current.params.top_p == 0.5
        assert app.state.params.temperature == 0.7


@pytest.mark.parametrize("keys", [["0"], ["tab", "up", "0"]])
async def test_a_field_that_gets_the_focus_is_selected_and_what_changed_is_told(keys: list[str]) -> None:
    async with running(ScriptedClient("ok"), size=(80, 24)) as (app, pilot):
        form = await form_of(app, pilot)
        await pilot.press(*keys)
        assert form.query_one("#temperature", Input).value == "0"
        await pilot.press("enter")
        await wait_until(
            lambda: "Parameters of chat A: temperature 0, from the next prompt on." in toasts(app)
        )
        assert app.state.current.params.temperature == 0
        await form_of(app, pilot)
        await pilot.press("enter")
        await wait_until(lambda: "Parameters of chat A: Nothing was changed." in toasts(app))


async def test_a_field_says_beside_it_what_the_engine_would_not_take() -> None:
    async with running(ScriptedClient("ok"), size=(80, 24)) as (app, pilot):
        form = await form_of(app, pilot)
        for name, value, words in [
            ("temperature", "200", "it must be from 0 to 100"),
            ("top_p", "0", "it must be above 0 to 1"),
            ("max_tokens", "1.5", "it must be a whole number from 1"),
            ("seed", "[/red]", "it must be a whole number from 0"),
            ("min_p", "", "it needs a value"),
        ]:
            field = form.query_one(f"#{name}", Input)
            before = field.value
            field.value = value
            await wait_until(lambda: words in said_of(form, name))  # noqa: B023
            await pilot.press("enter")
            assert app.screen is form
            assert field.has_focus
            field.value = before
            await wait_until(lambda: words not in said_of(form, name))  # noqa: B023
        await pilot.press("escape")


async def test_escape_leaves_the_form_without_change() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        before = app.state.current.params
        form = await form_of(app, pilot)
        form.query_one("#temperature", Input).value = "0"
        form.query_one("#system", PromptText).load_text("You are a poet.")
        await pilot.press("escape")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        assert app.state.current.params == before
        assert app.state.current.system == ""


@pytest.mark.parametrize(("turns", "whose"), [(0, "this"), (1, "all"), (2, "new")])
async def test_the_form_is_for_this_chat_for_all_or_for_new_ones(turns: int, whose: str) -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        await pilot.press("ctrl+n")
        await pane_of(app)
        form = await form_of(app, pilot)
        form.query_one("#temperature", Input).value = "0.1"
        form.query_one("#whose", Cycle).focus()
        await pilot.press(*["right"] * turns, "enter")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        first, second = app.state.sessions.values()
        got = [session.params.temperature for session in (first, second)]
        assert got == {"this": [0.7, 0.1], "all": [0.1, 0.1], "new": [0.7, 0.7]}[whose]
        await pilot.press("ctrl+n")
        await pane_of(app)
        assert app.state.current.params.temperature == (0.1 if whose == "new" else 0.7)


async def test_stop_texts_and_a_system_prompt_of_several_lines_are_edited_in_the_form() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        await ask(app, pilot, "/set stop a\\nb,END")
        form = await form_of(app, pilot)
        stop = form.query_one("#stop", PromptText)
        assert stop.text == "a\\nb\nEND"
        stop.load_text("User:\\n\n\\\\n\n")
        form.query_one("#system", PromptText).focus()
        await pilot.press("a", "ctrl+j", "b", "enter")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        assert app.state.current.params.stop == ("User:\n", "\\n")
        assert app.state.current.system == "a\nb"


async def test_a_preset_fills_the_form_and_is_a_command_too() -> None:
    async with running(ScriptedClient("ok"), settings=SETTINGS) as (app, pilot):
        form = await form_of(app, pilot)
        form.query_one("#preset", Cycle).focus()
        await pilot.press("right")
        await wait_until(lambda: form.query_one("#temperature", Input).value == "0")
        await pilot.press("right")
        await wait_until(lambda: form.query_one("#system", PromptText).text == "You are a poet.")
        assert form.query_one("#top_p", Input).value == "0.95"
        await pilot.press("enter")
        await wait_until(lambda: app.state.current.params.stop == ("END",))
        await ask(app, pilot, "/preset precise")
        assert app.state.current.params.temperature == 0.0
        assert app.state.current.system == "You are a poet."
        await ask(app, pilot, "/preset nobody")
        await wait_until(lambda: "“nobody” is no preset. There are precise, poet." in toasts(app))


# --- the meter -------------------------------------------------------------------------------------


class Status:
    """What the meter reads of an engine's status."""

    max_model_len = 2048


def metered(
    used: int, draft: int, max_tokens: int = 256, exact: bool = True, busy: bool = False, held: int = 0
) -> tuple[str, str]:
    session = SessionState("chat-1", "A", 0, params=SamplingParams(max_tokens=max_tokens))
    session.history_ids = [0] * used
    if busy:
        session.status = "streaming"
    said = meter(session, Status(), Draft(Count(draft, exact)), held)  # type: ignore[arg-type]
    return said.within(200), said.level


def test_the_meter_tells_tokens_blocks_and_the_draft() -> None:
    assert metered(0, 0) == ("", "plain")
    assert metered(1204, 0) == ("1,204 / 2,048 tokens", "plain")
    assert metered(1204, 0, busy=True, held=76) == ("1,204 / 2,048 tokens · 76 blocks", "plain")
    assert metered(1204, 0, busy=True) == ("1,204 / 2,048 tokens", "plain")  # it waits, or was preempted
    assert metered(0, 1) == ("draft +1 token", "plain")
    assert metered(1204, 31) == ("1,204 / 2,048 tokens · draft +31 tokens", "plain")
    assert metered(0, 31, exact=False) == ("draft ~31 tokens", "plain")


def test_the_meter_warns_when_the_answer_will_not_fit_and_when_the_draft_does_not() -> None:
    text, level = metered(1800, 31)
    assert (level, text.endswith("draft +31 tokens, leaves 209 of 256 for the answer")) == ("warning", True)
    text, level = metered(1800, 300)
    assert (level, text.endswith("draft +300 tokens: too long for 2,048")) == ("error", True)


def test_a_narrow_pane_gets_fewer_words_of_the_meter() -> None:
    session = SessionState("chat-1", "A", 0, params=SamplingParams(max_tokens=1024))
    session.history_ids = [0] * 1204
    said = meter(session, Status(), Draft(Count(31)))  # type: ignore[arg-type]
    assert said.within(40) == "1,204/2,048 · +31 leaves 805"
    assert said.within(14) == "+31 leaves 805"
    assert all(len(said.within(cells)) <= cells for cells in range(14, 120))


# --- commands about the chat -----------------------------------------------------------------------


async def test_new_rename_chat_layout_and_theme_do_what_they_say() -> None:
    async with running(ScriptedClient("ok"), size=(160, 48)) as (app, pilot):
        await ask(app, pilot, "/new The second [one]")
        assert app.state.current.title == "The second [one]"
        assert len(app.state.sessions) == 2
        await ask(app, pilot, "/rename other")
        assert app.state.current.title == "other"
        await ask(app, pilot, "/chat a")
        assert app.state.current.letter == "A"
        await ask(app, pilot, "/layout 1")
        await wait_until(lambda: len(app.main.visible_panes) == 1)
        await ask(app, pilot, "/theme light")
        assert app.theme == "light"
        for text, words in [
            ("/chat Z", "A, B"),
            ("/layout 3", "1, 2, 4"),
            ("/theme [/x]", "“[/x]” is no theme"),
            ("/bench x", "It takes ab"),
        ]:
            await ask(app, pilot, text)
            await wait_until(lambda: words in toasts(app))  # noqa: B023
            (await pane_of(app)).prompt.clear_sent()


async def test_clear_asks_where_nothing_is_kept_and_leaves_an_empty_chat_in_the_same_place() -> None:
    client = ScriptedClient("word " * 20, rate=1000)
    async with running(client) as (app, pilot):
        await answered(app, pilot, "one")
        await ask(app, pilot, "/set temperature 0.2")
        await pilot.press("ctrl+n")
        await pilot.press("alt+1")
        before = app.state.current
        await ask(app, pilot, "/clear")
        await wait_until(lambda: "1 prompt and what was" in screen_text(app))
        await pilot.press("n")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        assert app.state.current is before
        await ask(app, pilot, "/clear")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await wait_until(lambda: app.state.current is not before)
        now = app.state.current
        assert (now.letter, now.turns, now.history_ids) == ("A", [], [])
        assert now.params.temperature == 0.2
        assert now.key != before.key
        assert [session.letter for session in app.state.sessions.values()] == ["A", "B"]
        await answered(app, pilot, "two")
        assert now.turns[0].text == "two"


async def test_clear_keeps_what_was_said_where_chats_are_kept(tmp_path: Path) -> None:
    async with running_kept(ScriptedClient("ok", rate=1000), tmp_path) as (app, pilot):
        await answered(app, pilot, "one")
        await wait_until(lambda: rows(tmp_path, "SELECT archived FROM chats") == [(0,)])
        await ask(app, pilot, "/clear")
        await wait_until(lambda: app.state.current.turns == [])
        await wait_until(lambda: rows(tmp_path, "SELECT title, archived FROM chats") == [("one", 1)])


async def test_clearing_a_chat_that_streams_stops_its_answer() -> None:
    client = ScriptedClient("word " * 2000)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "one")
        before = app.state.current
        await wait_until(lambda: before.status == "streaming")
        app.chats._clear(before)
        assert not before.busy
        assert app.state.current.turns == []
        await wait_until(lambda: app.state.active == 0)
        await pilot.pause(0.1)
        assert app.state.current.turns == []


async def test_quit_ends_the_app_and_bench_tells_how() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        await ask(app, pilot, "/bench")
        await wait_until(lambda: "tui-infer bench decode --model smollm2" in toasts(app))
        await ask(app, pilot, "/quit")
        await wait_until(lambda: app.return_code == 0)


# --- numbers of an answer --------------------------------------------------------------------------


async def test_every_answer_ends_with_its_numbers_and_why_it_ended() -> None:
    async with running(ScriptedClient("word " * 20, rate=500), size=(100, 30)) as (app, pilot):
        await answered(app, pilot, "hello")
        await wait_until(lambda: "· first 50 ms · 0/12 cached · stop" in screen_text(app))
        assert "tok/s" in screen_text(app)
