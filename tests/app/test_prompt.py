import gc
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual import events
from textual.binding import Binding
from textual.document._document import Document
from textual.document._wrapped_document import WrappedDocument

from engine.commands import Submit
from tests.app.driving import ask, pane_of, running
from tests.app.scripted import ScriptedClient
from tests.budgets import most
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.screens.main import MainScreen
from tui_infer.widgets.chat.prompt import NEWLINE_KEYS, Prompt
from tui_infer.widgets.chat.quick_wrap import QuickWrap


def submits(client: ScriptedClient) -> list[str]:
    """Texts of the prompts that were sent."""
    return [command.prompt[-1].content for command in client.sent if isinstance(command, Submit)]  # type: ignore[union-attr]


async def paste(prompt: Prompt, text: str) -> None:
    prompt.post_message(events.Paste(text))


async def test_enter_sends_and_ctrl_j_breaks_the_line() -> None:
    client = ScriptedClient("ok")
    async with running(client) as (app, pilot):
        await pilot.press("a", "ctrl+j", "b")
        assert (await pane_of(app)).prompt.text == "a\nb"
        await pilot.press("enter")
        await wait_until(lambda: submits(client) == ["a\nb"])
        assert (await pane_of(app)).prompt.text == ""


@pytest.mark.parametrize("key", sorted(NEWLINE_KEYS))
async def test_each_newline_key_breaks_the_line_and_sends_nothing(key: str) -> None:
    client = ScriptedClient("ok")
    async with running(client) as (app, pilot):
        await pilot.press("a", key, "b")
        assert (await pane_of(app)).prompt.text == "a\nb"
        assert submits(client) == []


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
async def test_a_paste_of_many_lines_is_kept_whole_and_not_sent(ending: str) -> None:
    client = ScriptedClient("ok")
    async with running(client) as (app, pilot):
        prompt = (await pane_of(app)).prompt
        await paste(prompt, ending.join(["def f():", "    return 1", "", "f()", ""]))
        await wait_until(lambda: prompt.text == "def f():\n    return 1\n\nf()\n")
        await pilot.pause()
        assert submits(client) == []
        assert app.state.current.draft == prompt.text


async def test_escape_sequences_in_a_paste_are_made_visible() -> None:
    async with running(ScriptedClient("ok")) as (app, _):
        prompt = (await pane_of(app)).prompt
        await paste(prompt, "a\x1b]52;c;eA==\x07b")
        await wait_until(lambda: prompt.text == "a␛]52;c;eA==␇b")


async def test_pasting_20_000_lines_takes_under_a_second(request: pytest.FixtureRequest) -> None:
    gc.collect()
    gc.freeze()  # what other tests left in this process is not the app's to search for garbage
    request.addfinalizer(gc.unfreeze)
    text = "\n".join(f"{number:05d} some words of a line in a log file" for number in range(20_000))
    took: list[float] = []
    typed: list[float] = []
    while len(took) < 3 and (not took or min(took) >= 1.0 or min(typed) >= 0.5):
        # The quickest of three: a busy neighbour makes even CPU time longer.
        async with running(ScriptedClient("ok")) as (app, pilot):
            prompt = (await pane_of(app)).prompt
            started = time.process_time()
            await paste(prompt, text)
            await wait_until(lambda: prompt.document.line_count == 20_000)  # noqa: B023
            await pilot.pause()
            took.append(time.process_time() - started)
            assert prompt.text == text
            started = time.process_time()
            await pilot.press("x")
            typed.append(time.process_time() - started)
    assert min(took) < most(1.0)
    assert min(typed) < most(0.5)


async def test_history_gives_the_unsent_draft_back_past_the_newest_entry() -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client) as (app, pilot):
        for text in ("first", "second"):
            await ask(app, pilot, text)
            await wait_until(lambda: not app.state.current.busy)
        prompt = (await pane_of(app)).prompt
        prompt.insert("draft\nof two lines")
        await pilot.press("up")  # within the draft
        assert prompt.text == "draft\nof two lines"
        await pilot.press("up")
        assert prompt.text == "second"
        await pilot.press("up")
        assert prompt.text == "first"
        await pilot.press("up")
        assert prompt.text == "first"
        await pilot.press("down", "down")
        assert prompt.text == "draft\nof two lines"
        await pilot.press("down")
        assert prompt.text == "draft\nof two lines"


async def test_each_chat_keeps_its_own_draft() -> None:
    async with running(ScriptedClient("ok"), size=(80, 24)) as (app, pilot):
        app.state.layout.name = "1"
        await pilot.press("a", "b")
        await pilot.press("ctrl+n")
        await pane_of(app)
        await pilot.press("c")
        await pilot.press("shift+tab")
        assert (await pane_of(app)).prompt.text == "ab"
        await pilot.press("tab")
        assert (await pane_of(app)).prompt.text == "c"


async def test_the_prompt_grows_with_its_text_up_to_a_share_of_the_pane() -> None:
    async with running(ScriptedClient("ok"), size=(80, 30)) as (app, pilot):
        pane = await pane_of(app)
        assert pane.prompt.size.height == 1
        await pilot.press("a", "ctrl+j", "b", "ctrl+j", "c")
        await wait_until(lambda: pane.prompt.size.height == 3)
        await paste(pane.prompt, "\n".join("x" for _ in range(60)))
        await wait_until(lambda: pane.prompt.size.height > 6)
        assert pane.prompt.size.height <= pane.size.height * 0.4 + 1


async def test_a_chat_that_is_answering_queues_the_next_prompt_and_up_takes_it_back() -> None:
    client = ScriptedClient("word " * 400)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "one")
        await wait_until(lambda: app.state.current.busy)
        await pilot.press("t", "w", "o", "enter")
        assert (await pane_of(app)).prompt.text == ""
        assert app.state.current.queue == ["two"]
        await pilot.press("up")
        assert (await pane_of(app)).prompt.text == "two"
        assert app.state.current.queue == []
        assert submits(client) == ["one"]


@pytest.mark.parametrize("text", ["[/", "[/red]", "[00]", "[link=x]y", "[bold]"])
async def test_markup_in_prompts_titles_and_toasts_is_shown_literally(text: str) -> None:
    client = ScriptedClient(f"answer {text}", rate=1000)
    async with running(client) as (app, pilot):
        await ask(app, pilot, text)
        await wait_until(lambda: app.state.current.status == "idle")
        app.state.rename(app.state.focused, text)
        app.state.notice(text, text, "error")
        await pilot.press("ctrl+p")
        for character in "chat":
            await pilot.press(character)
        await pilot.pause()
        await pilot.press("escape")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        await pilot.press("ctrl+g")
        await pilot.pause()
        await pilot.press("escape", "alt+r")
        await pilot.pause()


def every_default_key() -> set[str]:
    keys: set[str] = set()
    for owner in (TuiInferApp, MainScreen, Prompt):
        for binding in owner.BINDINGS:
            assert isinstance(binding, Binding)
            keys.update(binding.key.split(","))
    return keys | NEWLINE_KEYS


def test_no_default_key_is_a_control_code_or_a_multiplexers_prefix() -> None:
    bad = {f"ctrl+{letter}" for letter in "imhbasqz"} | {"ctrl+left_square_bracket"}
    assert not every_default_key() & bad


async def test_the_running_app_binds_none_of_them_either() -> None:
    async with running(ScriptedClient("ok")) as (app, _):
        bad = {f"ctrl+{letter}" for letter in "imhbasqz"}
        assert not set(app.active_bindings) & bad


def test_no_key_of_the_app_is_taken_by_the_prompt() -> None:
    prompt = {key for binding in Prompt.BINDINGS for key in binding.key.split(",")}  # type: ignore[union-attr]
    screen = {key for binding in MainScreen.BINDINGS for key in binding.key.split(",")}  # type: ignore[union-attr]
    assert not prompt & screen


def test_every_key_of_the_app_has_its_own_id() -> None:
    for owner in (TuiInferApp, MainScreen):
        ids = [binding.id for binding in owner.BINDINGS]  # type: ignore[union-attr]
        assert all(ids)
        assert len(ids) == len(set(ids))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(["", "a", "word " * 5, "x" * 30, "\tt\tab", "日本語" * 4, "é e", "a b"]), min_size=1
    ),
    st.integers(0, 24),
)
def test_quick_wrapping_equals_textuals_own(lines: list[str], width: int) -> None:
    document = Document("\n".join(lines))
    quick, plain = QuickWrap(document, width), WrappedDocument(document, width)
    for name in ("_wrap_offsets", "_offset_to_line_info", "_line_index_to_offsets", "height"):
        assert getattr(quick, name) == getattr(plain, name)
    for index, line in enumerate(lines):
        assert quick.get_tab_widths(index) == plain.get_tab_widths(index), repr(line)


async def test_a_paste_of_one_huge_line_does_not_freeze() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        prompt = (await pane_of(app)).prompt
        started = time.process_time()
        await paste(prompt, "word " * 40_000)
        await wait_until(lambda: len(prompt.text) == 200_000)
        await pilot.pause()
        assert time.process_time() - started < 3.0


async def test_a_newline_key_replaces_the_selection() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        await pilot.press(*"abc", "shift+left", "ctrl+j")
        assert (await pane_of(app)).prompt.text == "ab\n"
