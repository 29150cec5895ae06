"""The list above the prompt, the search of earlier prompts and files in a prompt, as they are used."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from engine.commands import Submit
from tests.app.driving import ask, pane_of, running, screen_text
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Preset, Settings
from tui_infer.mentions import Included, include
from tui_infer.token_count import Count
from tui_infer.widgets.chat.assist import Assist
from tui_infer.widgets.chat.prompt import Prompt


def sent(client: ScriptedClient) -> list[str]:
    """Texts that went to the model."""
    return [command.prompt[-1].content for command in client.sent if isinstance(command, Submit)]  # type: ignore[union-attr]


def toasts(app: TuiInferApp) -> str:
    return "\n".join(f"{toast.title}: {toast.message}" for toast in app._notifications)


async def type_text(pilot: Pilot[int], text: str) -> None:
    names = {" ": "space", "/": "slash", "@": "at", ".": "full_stop", '"': "quotation_mark"}
    await pilot.press(*[names.get(character, character) for character in text])


async def parts(app: TuiInferApp) -> tuple[Prompt, Assist]:
    prompt = (await pane_of(app)).prompt
    assert prompt.assist is not None
    return prompt, prompt.assist


async def listed(app: TuiInferApp) -> list[str]:
    """Labels in the list of the focused pane; none where it is not shown."""
    choices = (await pane_of(app)).choices
    return [row.label for row in choices._rows] if choices.display else []


async def answered(app: TuiInferApp, pilot: Pilot[int], *texts: str) -> None:
    for text in texts:
        before = len(app.state.current.turns)
        await ask(app, pilot, text)
        await wait_until(lambda: len(app.state.current.turns) > before and not app.state.current.busy)  # noqa: B023


# --- commands --------------------------------------------------------------------------------------


async def test_a_slash_opens_the_list_and_tab_completes_the_name_then_the_argument() -> None:
    async with running(ScriptedClient("ok", graphs=True)) as (app, pilot):
        prompt, _ = await parts(app)
        await type_text(pilot, "/")
        await wait_until(lambda: "/system" in screen_text(app))
        assert "/new" in screen_text(app)
        await type_text(pilot, "mo")
        await pilot.press("tab")
        assert prompt.text == "/mode "
        await wait_until(lambda: "graph" in screen_text(app))
        assert await listed(app) == ["graph", "eager"]
        await pilot.press("down", "tab")
        assert prompt.text == "/mode eager"
        await pilot.pause()
        assert await listed(app) == []
        await pilot.press("enter")
        await wait_until(lambda: app.state.mode == "eager")
        assert prompt.text == ""


async def test_the_right_arrow_completes_at_the_end_and_moves_elsewhere() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        prompt, _ = await parts(app)
        await type_text(pilot, "/clea")
        await pilot.press("right")
        assert prompt.text == "/clear"
        await pilot.press("left", "left", "right")
        assert prompt.text == "/clear"
        assert prompt.cursor_location == (0, 5)


async def test_enter_on_an_exact_command_runs_it() -> None:
    client = ScriptedClient("ok")
    async with running(client) as (app, pilot):
        prompt, _ = await parts(app)
        await type_text(pilot, "/mode")
        await pilot.press("enter")
        await wait_until(lambda: "Mode: eager" in toasts(app))
        assert prompt.text == ""
        assert client.sent == []


async def test_enter_on_the_start_of_a_command_completes_it_first() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        prompt, _ = await parts(app)
        await type_text(pilot, "/the")
        await pilot.press("enter")
        assert prompt.text == "/theme "
        assert toasts(app) == ""


async def test_a_value_that_was_chosen_runs_with_enter() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        before = app.theme
        await type_text(pilot, "/theme ")
        names = await listed(app)
        assert names == app.theme_names
        other = next(number for number, name in enumerate(names) if number and name != before)
        await pilot.press(*["down"] * other, "enter")
        await wait_until(lambda: app.theme == names[other])
        assert (await pane_of(app)).prompt.text == ""


async def test_tab_changes_the_chat_where_nothing_is_offered() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        await pilot.press("ctrl+n")
        await pane_of(app)
        second = app.state.focused
        await type_text(pilot, "hello")
        await pilot.press("tab")
        assert app.state.focused != second


async def test_escape_closes_the_list_before_it_stops_the_answer() -> None:
    async with running(ScriptedClient("word " * 2000)) as (app, pilot):
        await ask(app, pilot, "go on")
        await wait_until(lambda: app.state.current.status == "streaming")
        await type_text(pilot, "/")
        await wait_until(lambda: "/system" in screen_text(app))
        await pilot.press("escape")
        assert await listed(app) == []
        assert app.state.current.busy
        assert (await pane_of(app)).prompt.text == "/"
        await pilot.press("escape")
        await wait_until(lambda: not app.state.current.busy)


@pytest.mark.parametrize("text", ["/etc/passwd is what?", "1/2 of it", "// comment", "me@host and a@b"])
async def test_plain_text_is_sent_with_one_enter_as_it_was_typed(text: str) -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client) as (app, pilot):
        await type_text(pilot, text)
        assert await listed(app) == []
        await pilot.press("enter")
        await wait_until(lambda: sent(client) == [text])


async def test_a_paste_and_a_recalled_prompt_open_no_list() -> None:
    async with running(ScriptedClient("ok", rate=1000)) as (app, pilot):
        prompt, assist = await parts(app)
        prompt.post_message(events.Paste("/mode"))
        await wait_until(lambda: prompt.text == "/mode")
        await pilot.pause()
        assert not assist.open
        await pilot.press("enter", "up")
        assert prompt.text == "/mode"
        await pilot.pause()
        assert not assist.open
        await pilot.press("up", "down", "down")
        assert prompt.text == ""


async def test_the_list_goes_with_the_chat_that_it_belongs_to() -> None:
    async with running(ScriptedClient("ok"), size=(100, 30)) as (app, pilot):
        await pilot.press("ctrl+n")
        await type_text(pilot, "/")
        _, assist = await parts(app)
        assert assist.open
        await pilot.press("alt+1")
        await pane_of(app)
        await wait_until(lambda: not assist.open)
        assert "/system" not in screen_text(app)


async def test_presets_and_letters_of_chats_are_offered() -> None:
    settings = Settings(presets={"precise": Preset(temperature=0.0)})
    async with running(ScriptedClient("ok"), settings=settings) as (app, pilot):
        await pilot.press("ctrl+n")
        await pane_of(app)
        await type_text(pilot, "/preset ")
        assert await listed(app) == ["precise"]
        await pilot.press("tab", "enter")
        await wait_until(lambda: app.state.current.params.temperature == 0.0)
        await type_text(pilot, "/chat a")
        await pilot.press("enter")
        await wait_until(lambda: app.state.current.letter == "A")


async def test_markup_in_a_file_name_and_in_a_title_is_shown_literally(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b[red].md").write_text("x")
    async with running(ScriptedClient("ok")) as (app, pilot):
        app.state.rename(app.state.focused, "[/red] [link=x]")
        await type_text(pilot, "/chat ")
        await wait_until(lambda: "[/red] [link=x]" in screen_text(app))
        prompt, _ = await parts(app)
        prompt.clear_sent()
        await type_text(pilot, "@b")
        await wait_until(lambda: "b[red].md" in screen_text(app))


# --- earlier prompts -------------------------------------------------------------------------------


async def test_a_search_goes_from_new_to_old_and_enter_takes_what_was_found() -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client) as (app, pilot):
        await answered(app, pilot, "a cat sleeps", "a dog", "the cat wakes")
        prompt, assist = await parts(app)
        await pilot.press("ctrl+r")
        await type_text(pilot, "cat")
        await wait_until(lambda: "search: cat" in screen_text(app))
        assert await listed(app) == ["the cat wakes", "a cat sleeps"]
        await pilot.press("ctrl+r")
        await wait_until(lambda: "2 of 2" in screen_text(app))
        await pilot.press("enter")
        assert prompt.text == "a cat sleeps"
        assert not assist.open
        assert sent(client) == ["a cat sleeps", "a dog", "the cat wakes"]


async def test_a_search_leaves_the_draft_alone_until_enter_and_it_comes_back_past_the_newest() -> None:
    async with running(ScriptedClient("ok", rate=1000)) as (app, pilot):
        await answered(app, pilot, "first", "second")
        await type_text(pilot, "my draft")
        prompt, assist = await parts(app)
        await pilot.press("ctrl+r")
        await type_text(pilot, "fir")
        assert prompt.text == app.state.current.draft == "my draft"
        await pilot.press("escape")
        assert not assist.open
        assert prompt.text == app.state.current.draft == "my draft"
        await pilot.press("ctrl+r", "f", "enter")
        assert prompt.text == "first"
        await pilot.press("down", "down")
        assert prompt.text == "my draft"


async def test_a_search_that_finds_nothing_says_so_and_enter_changes_nothing() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        await type_text(pilot, "draft")
        await pilot.press("ctrl+r", "x", "enter")
        await wait_until(lambda: "no earlier prompt fits" in screen_text(app))
        await pilot.press("escape")
        assert (await pane_of(app)).prompt.text == "draft"


async def test_what_is_pasted_into_a_search_is_searched_for() -> None:
    async with running(ScriptedClient("ok", rate=1000)) as (app, pilot):
        await answered(app, pilot, "alpha beta", "gamma")
        prompt, _ = await parts(app)
        await pilot.press("ctrl+r")
        prompt.post_message(events.Paste("beta\n"))
        await wait_until(lambda: "search: beta" in screen_text(app))
        assert await listed(app) == ["alpha beta"]
        assert prompt.text == ""


async def test_the_search_comes_from_a_panel_of_the_inspector_too() -> None:
    async with running(ScriptedClient("ok", rate=1000), size=(160, 48)) as (app, pilot):
        await answered(app, pilot, "alpha")
        await pilot.press("ctrl+o", "ctrl+r")
        await wait_until(lambda: "search:" in screen_text(app))
        await pilot.press("enter")
        assert (await pane_of(app)).prompt.text == "alpha"


# --- files -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main.py").write_text("print(1)\n")
    (tmp_path / "my notes.md").write_text("notes\n")
    return tmp_path


async def test_a_file_is_completed_and_its_text_goes_with_the_prompt(folder: Path) -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client) as (app, pilot):
        prompt, _ = await parts(app)
        await type_text(pilot, "what is @ma")
        await wait_until(lambda: "main.py" in screen_text(app))
        await pilot.press("tab")
        assert prompt.text == "what is @main.py"
        await pilot.press("enter")
        assert prompt.text == ""
        await wait_until(lambda: sent(client) == ["what is main.py\n\nmain.py:\n\n```py\nprint(1)\n```"])
        assert app.state.current.title == "what is main.py"
        assert app.state.prompts == ["what is @main.py"]


async def test_a_name_with_blanks_is_completed_in_quotes(folder: Path) -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        prompt, _ = await parts(app)
        await type_text(pilot, "@my")
        await wait_until(lambda: "my notes.md" in screen_text(app))
        await pilot.press("tab")
        assert prompt.text == '@"my notes.md"'


async def test_a_file_that_cannot_be_sent_brings_the_prompt_back(folder: Path) -> None:
    (folder / "big.log").write_bytes(b"x" * 300_000)
    client = ScriptedClient("ok")
    async with running(client) as (app, pilot):
        prompt, _ = await parts(app)
        prompt.insert("sum up @big.log")
        await pilot.press("enter")
        await wait_until(lambda: "300,000 bytes" in toasts(app))
        await wait_until(lambda: prompt.text == "sum up @big.log")
        assert app.state.current.draft == "sum up @big.log"
        assert "262,144" in toasts(app)
        assert client.sent == []
        assert app.state.current.turns == []


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files are read only when this is set."""
    goes_on = threading.Event()

    def include_later(text: str, folder: Path) -> Included:
        goes_on.wait(20)
        return include(text, folder)

    monkeypatch.setattr("tui_infer.drafts.include", include_later)
    yield goes_on
    goes_on.set()


async def test_what_was_typed_since_stays_behind_a_prompt_that_comes_back(
    folder: Path, slow_disk: threading.Event
) -> None:
    (folder / "image").write_bytes(b"\0\1")
    async with running(ScriptedClient("ok")) as (app, pilot):
        prompt, _ = await parts(app)
        prompt.insert("see @image")
        await pilot.press("enter", "n", "e", "x", "t")
        assert prompt.text == "next"
        slow_disk.set()
        await wait_until(lambda: "null bytes" in toasts(app))
        await wait_until(lambda: prompt.text == "see @image\nnext")
        assert app.state.current.draft == prompt.text


async def test_a_file_larger_than_the_context_is_refused_with_the_tokens(folder: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save(str(folder / "tokenizer.json"))
    (folder / "long.txt").write_text("word " * 2100)
    client = ScriptedClient("ok", hold=True)
    async with running(client) as (app, pilot):
        client.become_ready(model_path=str(folder))
        prompt, _ = await parts(app)
        prompt.insert("read @long.txt")
        await pilot.press("enter")
        await wait_until(lambda: "the context has 2,048" in toasts(app))
        await wait_until(lambda: prompt.text == "read @long.txt")
        assert client.sent == []


async def test_while_files_are_read_no_later_prompt_overtakes_them(
    folder: Path, slow_disk: threading.Event
) -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client) as (app, pilot):
        prompt, _ = await parts(app)
        prompt.insert("first @main.py")
        await pilot.press("enter")
        for text in ("second @main.py", "plain"):
            prompt.clear_sent()
            prompt.insert(text)
            await pilot.press("enter")
            await wait_until(lambda: "being read still" in toasts(app))
            assert prompt.text == text
            app.clear_notifications()
        assert sent(client) == []
        slow_disk.set()
        await wait_until(lambda: len(sent(client)) == 1)
        assert sent(client)[0].startswith("first main.py")
        await wait_until(lambda: not app.state.current.busy)
        await pilot.press("enter")
        await wait_until(lambda: sent(client)[1:] == ["plain"])


# --- the meter -------------------------------------------------------------------------------------


async def test_a_draft_that_was_guessed_is_counted_once_the_model_is_known(
    default_model_dir: Path, tmp_path: Path
) -> None:
    client = ScriptedClient("x", hold=True)
    async with running(client) as (app, pilot):
        await type_text(pilot, "12456")
        await wait_until(lambda: app.drafts.of(app.state.current).count == Count(2, exact=False))
        client.become_ready(model_path=str(default_model_dir))
        await wait_until(lambda: app.drafts.of(app.state.current).count == Count(5))
        await wait_until(lambda: "draft +5" in screen_text(app))
        client.become_ready(model_path=str(tmp_path))  # another model, without a tokenizer
        await wait_until(lambda: app.drafts.of(app.state.current).count == Count(2, exact=False))


async def test_the_border_says_what_the_draft_adds_and_the_context_has() -> None:
    async with running(ScriptedClient("word " * 40, rate=2000), size=(100, 30)) as (app, pilot):
        await answered(app, pilot, "hello")
        used = app.state.current.context_tokens
        await wait_until(lambda: f"{used:,} / 2,048 tokens" in screen_text(app))
        pane = await pane_of(app)
        assert pane._border_subtitle is not None
        assert pane._border_subtitle.plain == f"{used:,} / 2,048 tokens"  # at rest it holds no blocks
        await type_text(pilot, "12345678")
        await wait_until(lambda: "draft ~2" in screen_text(app))
        await pilot.press("ctrl+u")
        await wait_until(lambda: "draft" not in screen_text(app))


async def test_the_border_warns_when_the_answer_will_not_fit_and_sends_all_the_same(folder: Path) -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client, size=(100, 30)) as (app, pilot):
        prompt, _ = await parts(app)
        prompt.insert("word " * 1500)
        await wait_until(lambda: "leaves 165 of 1,024 for the answer" in screen_text(app))
        prompt.insert("word " * 500)
        await wait_until(lambda: "too long for 2,048" in screen_text(app))
        await pilot.press("enter")
        await wait_until(lambda: len(sent(client)) == 1)


async def test_the_border_counts_files_and_says_why_one_cannot_be_read(folder: Path) -> None:
    (folder / "image").write_bytes(b"\0\1")
    async with running(ScriptedClient("ok"), size=(100, 30)) as (app, _):
        prompt, _assist = await parts(app)
        prompt.insert("see @main.py")
        await wait_until(lambda: "with 1 file" in screen_text(app))
        prompt.insert(" and @image")
        await wait_until(lambda: "image is no text" in screen_text(app))


async def test_nothing_counts_and_no_timer_runs_while_nobody_types() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        await type_text(pilot, "some text")
        await wait_until(lambda: "draft ~" in screen_text(app))
        await wait_until(lambda: app.drafts._timer is None and not app.drafts._counting)
        assert not app.drafts._due
