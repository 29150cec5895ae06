"""Slash commands: what counts as one, what it does, and that none of it reaches the model."""

import pytest
from textual.containers import VerticalScroll

from engine.commands import SetMode, Submit
from engine.records import PassedOver
from tests.app.driving import ask, pane_of, running, screen_text
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.screens.help import HelpScreen
from tui_infer.slash import COMMANDS, Call, Say, Unknown, obey, read

STREAM = "word " * 2000


def prompts(client: ScriptedClient) -> list[str]:
    """Texts that went to the model."""
    return [command.prompt[-1].content for command in client.sent if isinstance(command, Submit)]  # type: ignore[union-attr]


def modes(client: ScriptedClient) -> list[str]:
    return [command.mode for command in client.sent if isinstance(command, SetMode)]


def toasts(app: TuiInferApp) -> str:
    return "\n".join(f"{toast.title}: {toast.message}" for toast in app._notifications)


# --- what counts as a command ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/mode", ()),
        ("/mode graph", ("graph",)),
        ("/MODE   Graph  ", ("Graph",)),
        ("\n/mode eager\n", ("eager",)),
        ("/mode is what in vim?", ("is", "what", "in", "vim?")),
    ],
)
def test_a_first_word_that_is_a_command_takes_the_rest_as_words(text: str, words: tuple[str, ...]) -> None:
    assert read(text) == Call(COMMANDS["mode"], words)


@pytest.mark.parametrize("text", ["/exprt chat a.md", "/sett temperature 0", "/Modle smollm2"])
def test_a_first_word_that_is_nearly_a_command_is_not_sent_to_the_model(text: str) -> None:
    assert read(text) == Unknown(text.split()[0])


def test_a_command_of_the_app_is_no_text_where_there_are_others() -> None:
    assert read("/export chat a.md", {}) == Unknown("/export")
    assert read(" /export chat a.md", {}) == Say("/export chat a.md")
    assert read("/code this in C", {}) == Say("/code this in C")


@pytest.mark.parametrize("text", ["/mdoe", "/foo", "/tmp ", "/set-x", "\n/foo\n"])
def test_a_single_word_that_looks_like_a_command_is_refused(text: str) -> None:
    assert read(text) == Unknown(text.strip())


@pytest.mark.parametrize(
    "text",
    [
        "/etc/passwd is what?",
        "/etc/passwd",
        "/foo bar baz",
        "/ is the root",
        "/",
        "//",
        "// a comment\nint main() {}",
        "//comment without a space",
        "/* a comment */",
        "/2 of it",
        "a /mode in the middle",
        "one\n/mode graph",
        " leading space",
        "",
    ],
)
def test_everything_else_is_text_as_it_stands(text: str) -> None:
    assert read(text) == Say(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("//mode", "/mode"),
        (" /mode graph", "/mode graph"),
        ("   /foo", "/foo"),
        ("//foo", "/foo"),
        ("//mode is what?", "/mode is what?"),
    ],
)
def test_a_space_or_a_second_slash_makes_text_of_a_command(text: str, said: str) -> None:
    assert read(text) == Say(said)


def test_every_command_is_called_by_its_name() -> None:
    for name, command in COMMANDS.items():
        assert read(f"/{name}") == Call(command, ())
        assert command.help


# --- what they do ----------------------------------------------------------------------------------


async def test_mode_switches_the_engine_while_the_chat_streams_and_nothing_goes_to_the_model() -> None:
    client = ScriptedClient(STREAM, graphs=True)
    async with running(client, size=(120, 40)) as (app, pilot):
        await ask(app, pilot, "go on")
        await wait_until(lambda: app.state.current.status == "streaming")
        await ask(app, pilot, "/mode eager")
        await wait_until(lambda: app.state.mode == "eager")
        assert (await pane_of(app)).prompt.text == ""
        await wait_until(lambda: "· eager" in screen_text(app))
        await ask(app, pilot, "/mode graph")
        await wait_until(lambda: "· graph" in screen_text(app))
        assert modes(client) == ["eager", "graph"]
        assert prompts(client) == ["go on"]
        assert app.state.current.status == "streaming"
        assert [turn.role for turn in app.state.current.turns] == ["user", "assistant"]


async def test_mode_alone_tells_the_mode_and_its_reason() -> None:
    client = ScriptedClient("x")
    async with running(client) as (app, pilot):
        await ask(app, pilot, "/mode")
        await wait_until(lambda: "Mode: eager" in screen_text(app))
        assert "no CUDA device" in toasts(app)
        assert client.sent == []
    client = ScriptedClient("x", graphs=True)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "/mode")
        await wait_until(lambda: "Mode: graph" in screen_text(app))
        assert "1, 2, 4, 8, 16, 32 rows" in toasts(app)
    client = ScriptedClient("x", graphs=True, hold=True)
    async with running(client) as (app, pilot):
        failure = PassedOver("batch 32", "graph 32 could not be captured: out of memory")
        client.become_ready(graph_sizes=(1, 2), graph_failures=(failure,))
        await ask(app, pilot, "/mode")
        await wait_until(lambda: "Mode: graph" in screen_text(app))
        assert "captured for 1, 2 rows. No graph for batch 32: out of memory." in toasts(app)


async def test_a_mode_that_cannot_be_had_says_why() -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        await ask(app, pilot, "/mode graph")
        await wait_until(lambda: "Steps stay eager" in screen_text(app))
        assert "no CUDA device" in screen_text(app)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/mdoe", "/mdoe is no command"),
        ("/mode turbo", "graph or eager"),
        ("/mode graph eager", "graph or eager"),
        ("/help me with vim", "no help on"),
    ],
)
async def test_what_cannot_be_done_says_so_and_keeps_the_draft(text: str, words: str) -> None:
    client = ScriptedClient("x")
    async with running(client) as (app, pilot):
        await ask(app, pilot, text)
        await wait_until(lambda: words in toasts(app))
        assert "A space or a second / in front sends it as text" in toasts(app)
        assert toasts(app).count("\n") == 0
        assert (await pane_of(app)).prompt.text == text
        assert app.state.current.draft == text
        assert client.sent == []
        assert app.state.prompts == []


async def test_a_command_waits_in_the_prompt_while_the_engine_loads() -> None:
    client = ScriptedClient("x", hold=True)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "/mode eager")
        await wait_until(lambda: "not ready yet" in screen_text(app))
        assert (await pane_of(app)).prompt.text == "/mode eager"
        assert client.sent == []


async def test_paths_are_sent_and_escaped_commands_lose_their_mark_but_not_in_the_history() -> None:
    client = ScriptedClient("x", rate=1000)
    async with running(client) as (app, pilot):
        for text in ("/etc/passwd is what?", "//mode", " /foo"):
            await ask(app, pilot, text)
            await wait_until(lambda: app.state.current.turns and not app.state.current.busy)
        assert prompts(client) == ["/etc/passwd is what?", "/mode", "/foo"]
        assert modes(client) == []
        for text in (" /foo", "//mode", "/etc/passwd is what?"):
            await pilot.press("up")
            assert (await pane_of(app)).prompt.text == text


async def test_a_command_is_in_the_history_of_prompts() -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        await ask(app, pilot, "/mode")
        await pilot.press("up")
        assert (await pane_of(app)).prompt.text == "/mode"


@pytest.mark.parametrize("size", [(120, 50), (80, 24)])
async def test_help_shows_every_command(size: tuple[int, int]) -> None:
    async with running(ScriptedClient("x"), size=size) as (app, pilot):
        await ask(app, pilot, "/help")
        await wait_until(lambda: isinstance(app.screen, HelpScreen))
        await wait_until(lambda: "Help" in screen_text(app))
        box = app.screen.query_one("#right").query_ancestor(VerticalScroll)
        shown = ""
        for y in range(0, box.max_scroll_y + 10, 10):
            box.scroll_to(y=y, animate=False)
            await pilot.pause()
            shown += screen_text(app)
        for command in COMMANDS.values():
            assert f"/{command.name} " in shown
            assert command.description.split()[0] in shown


LONG = "9" * 5000
ODD = {
    "superscript load": "/load ²",
    "long load": f"/load {LONG}",
    "long step": f"/past {LONG}",
    "long condition": f"/until step {LONG}",
    "superscript count": "/ab ²",
    "nobody's folder": "/record ~nobody-at-all/x",
    "nobody's file": "/export steps ~nobody-at-all/x.csv",
}


@pytest.mark.parametrize("name", ODD)
async def test_numbers_and_names_that_python_does_not_take_end_no_app(
    name: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running(ScriptedClient("ok", graphs=True)) as (app, pilot):
        said = read(ODD[name])
        assert isinstance(said, Call)
        obey(app, said)
        await pilot.pause()
        assert app.is_running
        app.recordings.finish()
