"""Several chats at once, as a user meets them: sending to all, queues, and the compare view."""

from pathlib import Path

import pytest

from engine.commands import Submit
from tests.app.driving import ask, focused_pane, pane_of, running, screen_text
from tests.app.recorded import replaying
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.commands import TuiCommands
from tui_infer.config import Settings
from tui_infer.recording.format import Heard, Sent
from tui_infer.recording.reader import read_recording
from tui_infer.screens.ask import Ask
from tui_infer.screens.compare import CompareScreen
from tui_infer.screens.compare_form import CompareForm
from tui_infer.slash import COMMANDS

STREAM = "word " * 2000
LAYOUT = Settings(layout="4")


def sent(client: ScriptedClient) -> list[tuple[str, str]]:
    """Sessions and prompts that went to the engine."""
    return [
        (command.session, command.prompt[-1].content)  # type: ignore[union-attr]
        for command in client.sent
        if isinstance(command, Submit)
    ]


def toasts(app: TuiInferApp) -> str:
    return "\n".join(f"{toast.title}: {toast.message}" for toast in app._notifications)


async def chats(app: TuiInferApp, pilot, count: int) -> list[str]:  # type: ignore[no-untyped-def]
    for _ in range(count - 1):
        await pilot.press("ctrl+n")
        await pane_of(app)
    return list(app.state.sessions)


def compare_screen(app: TuiInferApp) -> CompareScreen | None:
    return app.screen if isinstance(app.screen, CompareScreen) else None


# --- sending to all --------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "shown"), [((160, 48), 3), ((80, 24), 3)])
async def test_alt_a_sends_to_all_shown_panes_until_it_is_switched_off(
    size: tuple[int, int], shown: int
) -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client, size=size, settings=LAYOUT) as (app, pilot):
        ids = await chats(app, pilot, 3)
        await wait_until(lambda: "Alt+a to all" in screen_text(app))
        await pilot.press("alt+a")
        await wait_until(lambda: f"⇉ to all {shown} shown, Alt+a ends it" in screen_text(app))
        assert screen_text(app).count("⇉ ○") == shown
        assert screen_text(app).count("╔") == shown
        assert screen_text(app).count(f"Ask all {shown} shown") == shown
        await ask(app, pilot, "hello")
        assert sent(client) == [(chat, "hello") for chat in ids]
        await wait_until(lambda: not app.state.active)
        await ask(app, pilot, "again")
        assert len(sent(client)) == 6
        await wait_until(lambda: not app.state.active)
        await pilot.press("alt+a")
        await wait_until(lambda: "⇉" not in screen_text(app))
        await ask(app, pilot, "only here")
        assert sent(client)[6:] == [(app.state.focused, "only here")]
        assert app.state.prompts == ["hello", "again", "only here"]


async def test_what_is_typed_in_the_other_panes_is_kept_when_a_prompt_goes_to_all() -> None:
    async with running(ScriptedClient("ok"), size=(160, 48), settings=LAYOUT) as (app, pilot):
        await pilot.press(*"half")
        ids = await chats(app, pilot, 2)
        await pilot.press("alt+a")
        await ask(app, pilot, "hello")
        await pilot.press("tab")
        assert (await pane_of(app)).prompt.text == "half"
        assert app.state.focused == ids[0]


async def test_a_busy_chat_queues_what_goes_to_all_and_one_that_cannot_take_it_is_named() -> None:
    client = ScriptedClient(STREAM)
    async with running(client, size=(160, 48), settings=LAYOUT) as (app, pilot):
        ids = await chats(app, pilot, 3)
        app.state.sessions[ids[0]].read_only = "Its model is gone."
        await ask(app, pilot, "a long story")
        await pilot.press("alt+a")
        await ask(app, pilot, "hello")
        assert sent(client) == [(ids[2], "a long story"), (ids[1], "hello")]
        assert app.state.sessions[ids[2]].queue == ["hello"]
        await wait_until(lambda: "Not sent to A: A: Its model is gone." in toasts(app))
        assert "sent to B, queued in C" in toasts(app)
        assert (await pane_of(app)).prompt.text == ""


async def test_a_prompt_that_no_chat_can_take_stays_where_it_was_typed() -> None:
    async with running(ScriptedClient("ok"), size=(160, 48), settings=LAYOUT) as (app, pilot):
        for chat in await chats(app, pilot, 2):
            app.state.sessions[chat].read_only = "Its model is gone."
        await pilot.press("alt+a")
        await ask(app, pilot, "hello")
        assert (await pane_of(app)).prompt.text == "hello"


async def test_alone_the_switch_says_that_only_one_chat_is_shown() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        await pilot.press("alt+a")
        await wait_until(lambda: "Only one chat is shown" in toasts(app))


async def test_all_goes_once_to_every_open_chat_and_to_only_to_those_named() -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client, size=(100, 30)) as (app, pilot):
        ids = await chats(app, pilot, 6)
        await ask(app, pilot, "/all two\nlines")
        assert sent(client) == [(chat, "two\nlines") for chat in ids]
        await wait_until(lambda: "sent to A, B, C, D, E and F" in toasts(app))
        await wait_until(lambda: not app.state.active)
        await ask(app, pilot, "/to a,F,a  hi  there")
        assert sent(client)[6:] == [(ids[0], "hi  there"), (ids[5], "hi  there")]
        await ask(app, pilot, "/to X hi")
        await wait_until(lambda: "There is no chat X; open are A, B, C, D, E and F." in toasts(app))
        assert (await pane_of(app)).prompt.text == "/to X hi"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a.py").write_text("print('a')\n")
    (tmp_path / "image").write_bytes(b"\0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


WITH_FILE = "What does a.py do?\n\na.py:\n\n```py\nprint('a')\n```"


@pytest.mark.parametrize(
    ("typed", "count"),
    [("/all {}", 2), ("/to A,B {}", 2), ("/compare n=2 {}", 2), ("/compare n=3 system=@a.py {}", 3)],
)
async def test_the_files_that_a_prompt_names_go_wherever_it_is_sent(
    folder: Path, typed: str, count: int
) -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client, size=(160, 48)) as (app, pilot):
        await chats(app, pilot, 2)
        typed = typed.format("What does @a.py do?")
        await ask(app, pilot, typed)
        await wait_until(lambda: len(sent(client)) == count)
        assert {text for _, text in sent(client)} == {WITH_FILE}
        assert app.state.prompts[-1] == typed


async def test_a_prompt_with_a_file_goes_to_all_shown_chats_and_waits_in_queues_as_a_whole(
    folder: Path,
) -> None:
    client = ScriptedClient(STREAM)
    async with running(client, size=(160, 48), settings=LAYOUT) as (app, pilot):
        first, second = await chats(app, pilot, 2)
        await ask(app, pilot, "a long story")
        await pilot.press("alt+a")
        await ask(app, pilot, "What does @a.py do?")
        await wait_until(lambda: app.state.sessions[second].queue == [WITH_FILE])
        (folder / "a.py").unlink()  # it is the file as it was when it was sent
        assert sent(client)[1:] == [(first, WITH_FILE)]
        await pilot.press("escape", "enter")
        assert sent(client)[2:] == [(second, WITH_FILE)]


@pytest.mark.parametrize("typed", ["/all see @image", "/to A see @image", "/compare n=2 see @image"])
async def test_a_command_whose_file_cannot_be_sent_comes_back_into_the_prompt(
    folder: Path, typed: str
) -> None:
    client = ScriptedClient("ok")
    async with running(client) as (app, pilot):
        await ask(app, pilot, typed)
        await wait_until(lambda: "Not sent: image is no text" in toasts(app))
        assert (await pane_of(app)).prompt.text == typed
        assert client.sent == []
        assert len(app.state.sessions) == 1


async def test_a_file_larger_than_every_context_opens_no_columns(folder: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save(str(folder / "tokenizer.json"))
    (folder / "long.txt").write_text("word " * 3000)
    async with running(client := ScriptedClient("ok", hold=True)) as (app, pilot):
        client.become_ready(model_path=str(folder))
        await wait_until(lambda: app.state.phase == "ready")
        for typed in ("/compare n=2 @long.txt", "/all @long.txt"):
            await ask(app, pilot, typed)
            await wait_until(lambda: "the context has 2,048" in toasts(app))
            assert (await pane_of(app)).prompt.text == typed
            assert client.sent == []
            assert len(app.state.sessions) == 1
            app.clear_notifications()
            await pilot.press("ctrl+u")


async def test_the_form_of_the_comparison_sends_files_and_stays_where_one_cannot_be_sent(
    folder: Path,
) -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client, size=(100, 30)) as (app, pilot):
        (await pane_of(app)).prompt.insert("What does @image do?")
        await pilot.press("alt+c")
        await wait_until(lambda: isinstance(app.screen, CompareForm))
        await pilot.press("enter")
        await wait_until(lambda: "Not started: image is no text" in toasts(app))
        assert isinstance(app.screen, CompareForm)
        (folder / "a.py").rename(folder / "image")
        await pilot.press("enter")
        await wait_until(lambda: compare_screen(app) is not None)
        assert WITH_FILE.replace("a.py", "image").replace("```py", "```") == sent(client)[0][1]
        assert app.state.prompts == ["What does @image do?"]


# --- the queue -------------------------------------------------------------------------------------


async def test_prompts_typed_while_an_answer_streams_are_shown_and_go_out_in_order() -> None:
    client = ScriptedClient("word " * 400)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "one")
        for number in range(2, 6):
            await ask(app, pilot, f"question {number}")
        await wait_until(lambda: "queued: question 2" in screen_text(app))
        assert "queued: question 3" in screen_text(app)
        assert "… and 2 more" in screen_text(app)
        client.rate = 1e6
        await wait_until(lambda: len(sent(client)) == 5 and not app.state.active)
        assert [text for _, text in sent(client)] == ["one", *(f"question {n}" for n in range(2, 6))]
        await wait_until(lambda: "queued:" not in screen_text(app))
        assert focused_pane(app) is not None


async def test_escape_pauses_the_queue_and_enter_in_an_empty_prompt_goes_on() -> None:
    client = ScriptedClient(STREAM)
    async with running(client) as (app, pilot):
        for text in ("one", "two", "three"):
            await ask(app, pilot, text)
        await pilot.press("escape")
        await wait_until(lambda: "‖ paused · Enter goes on · ↑ edits" in screen_text(app))
        assert [text for _, text in sent(client)] == ["one"]
        await pilot.press("enter")
        assert [text for _, text in sent(client)] == ["one", "two"]
        await wait_until(lambda: "‖ paused" not in screen_text(app))
        assert "queued: three" in screen_text(app)


async def test_up_in_an_empty_prompt_takes_the_last_queued_prompt_back_to_edit() -> None:
    async with running(ScriptedClient(STREAM)) as (app, pilot):
        for text in ("one", "two", "//help"):
            await ask(app, pilot, text)
        assert app.state.current.queue == ["two", "/help"]
        await pilot.press("up")
        assert (await pane_of(app)).prompt.text == " /help"  # as it must be typed to be text
        await pilot.press("ctrl+u", "up")
        assert (await pane_of(app)).prompt.text == "two"
        await pilot.press("s", "enter")
        assert app.state.current.queue == ["twos"]
        await pilot.press("up", "ctrl+u", "up")
        assert (await pane_of(app)).prompt.text == "one"  # the history of prompts


async def test_a_dead_engine_keeps_the_queue_until_the_user_goes_on_after_the_restart() -> None:
    client = ScriptedClient(STREAM)
    async with running(client) as (app, pilot):
        for text in ("one", "two"):
            await ask(app, pilot, text)
        client.fail()
        await wait_until(lambda: "‖ paused" in screen_text(app))
        await pilot.press("f7")
        await wait_until(lambda: app.state.phase == "ready")
        await pilot.pause()
        assert [text for _, text in sent(client)] == ["one"]
        await pilot.press("enter")
        assert [text for _, text in sent(client)] == ["one", "two"]


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((160, 48), "‖ queue paused · Enter in an empty prompt sends the next · ↑ takes the last back"),
        ((80, 24), "‖ paused · Enter goes on · ↑ edits"),
        ((44, 13), "‖ paused · Enter goes on · ↑ edits"),
    ],
)
async def test_a_paused_queue_says_so_at_any_width(size: tuple[int, int], words: str) -> None:
    settings = Settings(layout="2" if size[0] == 80 else "1")
    async with running(ScriptedClient(STREAM), size=size, settings=settings) as (app, pilot):
        await pilot.press("ctrl+n")
        for text in ("one", "two " * 40):
            await ask(app, pilot, text)
        await pilot.press("escape")
        await wait_until(lambda: words in screen_text(app))


@pytest.mark.parametrize(
    ("words", "left", "said"),
    [
        ("/queue", ["two", "three"], "1. two · 2. three"),
        ("/queue clear", [], "2 prompts taken out"),
        ("/queue drop 1", ["three"], "Taken out: two"),
        ("/queue drop 3", ["two", "three"], "There is no prompt 3; 2 wait in chat A."),
        ("/queue drop ²", ["two", "three"], "There is no prompt ²"),
        ("/queue up", ["two", "three"], "It takes next, clear, drop N, or nothing."),
    ],
)
async def test_the_queue_is_changed_by_command(words: str, left: list[str], said: str) -> None:
    async with running(ScriptedClient(STREAM)) as (app, pilot):
        for text in ("one", "two", "three"):
            await ask(app, pilot, text)
        await ask(app, pilot, words)
        assert app.state.current.queue == left
        await wait_until(lambda: said in toasts(app))


# --- comparing -------------------------------------------------------------------------------------


async def test_compare_shows_columns_side_by_side_with_their_numbers() -> None:
    client = ScriptedClient("the same words in every column", rate=200)
    async with running(client, size=(160, 48)) as (app, pilot):
        await ask(app, pilot, "/compare temperature=0,0.7,1.2 Tell me")
        await wait_until(lambda: compare_screen(app) is not None)
        await wait_until(lambda: screen_text(app).count("finish: stop") == 3)
        await wait_until(lambda: screen_text(app).count("equal to B") == 2)
        shown = screen_text(app)
        assert "compare Tell me" in shown
        for label in ("temperature 0 ", "temperature 0.7", "temperature 1.2"):
            assert label in shown
        assert shown.count("first 50 ms") == 3
        assert shown.count("· 8 tok") == 3
        assert shown.count("the same words in every column") == 3
        assert app.state.prompts == ["/compare temperature=0,0.7,1.2 Tell me"]
        assert [text for _, text in sent(client)] == ["Tell me"] * 3
        submits = [command for command in client.sent if isinstance(command, Submit)]
        assert [command.params.temperature for command in submits] == [0.0, 0.7, 1.2]


class Varied(ScriptedClient):
    """Another answer for every request."""

    def __init__(self, *answers: str, rate: float = 400.0) -> None:
        super().__init__("", rate=rate)
        self._answers = iter(answers)
        self._own: dict[str, str] = {}

    def send(self, command) -> None:  # type: ignore[no-untyped-def]
        if isinstance(command, Submit):
            self._own[command.session] = next(self._answers)
        super().send(command)

    async def _stream(self, command: Submit) -> None:
        twin = ScriptedClient(self._own[command.session], rate=self.rate)
        twin.on_event = self.on_event
        twin._requests = self._requests
        await twin._stream(command)


async def test_words_that_differ_from_the_first_column_are_marked_and_counted() -> None:
    client = Varied("The cat sat on the mat.", "The dog sat on the mat.", "The cat sat on the mat.")
    async with running(client, size=(160, 48)) as (app, pilot):
        await ask(app, pilot, "/compare n=3 Go")
        await wait_until(lambda: "equal for 4 characters, then…" in screen_text(app))
        await wait_until(lambda: screen_text(app).count("finish: stop") == 3)
        await wait_until(lambda: "equal to B" in screen_text(app))
        await pilot.press("right")
        assert marked(app) == ["cat ", "dog "]  # in the first, what the chosen one has not
        await pilot.press("right")
        assert marked(app) == ["dog "]
        await pilot.press("m")
        assert marked(app) == []


def marked(app: TuiInferApp) -> list[str]:
    """Underlined text of the columns, from left to right."""
    screen = compare_screen(app)
    assert screen is not None
    lines = [screen.view.render_line(y) for y in range(screen.view.size.height)]
    return [part.text for line in lines for part in line if part.style is not None and part.style.underline]


async def test_one_column_is_taken_and_the_others_are_closed_after_a_question() -> None:
    async with running(ScriptedClient("ok", rate=1000), size=(160, 48)) as (app, pilot):
        await ask(app, pilot, "/compare n=4 Go")
        await wait_until(lambda: screen_text(app).count("finish: stop") == 4)
        await pilot.press("right", "enter")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("n")
        await wait_until(lambda: compare_screen(app) is not None)
        assert len(app.state.sessions) == 5
        await pilot.press("enter")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        pane = await pane_of(app)
        assert [session.letter for session in app.state.sessions.values()] == ["A", "C"]
        assert pane.session is not None
        assert pane.session.letter == "C"
        await ask(app, pilot, "and on")
        await wait_until(lambda: len(app.state.current.turns) == 4)


async def test_all_columns_are_kept_as_chats_and_can_be_looked_at_again() -> None:
    async with running(ScriptedClient("ok", rate=1000), size=(160, 48)) as (app, pilot):
        await ask(app, pilot, "/compare n=2 Go")
        await wait_until(lambda: screen_text(app).count("finish: stop") == 2)
        await pilot.press("right", "k")
        await pane_of(app)
        assert app.state.current.letter == "C"
        assert len(app.state.sessions) == 3
        assert app.state.current.title == "seed 2: Go"
        await wait_until(lambda: screen_text(app).count(" ok ") >= 2)
        await pilot.press("alt+c")
        await wait_until(lambda: screen_text(app).count("finish: stop") == 2)
        await pilot.press("alt+c")
        await pane_of(app)


async def test_escape_stops_the_columns_first_and_then_goes_back_with_all_kept() -> None:
    client = ScriptedClient(STREAM)
    async with running(client, size=(160, 48)) as (app, pilot):
        await ask(app, pilot, "/compare n=3 Go")
        await wait_until(lambda: app.state.active == 3)
        await wait_until(lambda: "Esc stop" in screen_text(app))
        await pilot.press("escape")
        assert not app.state.active
        assert compare_screen(app) is not None
        await wait_until(lambda: screen_text(app).count("cancelled: stopped") == 3)
        await wait_until(lambda: "Esc back" in screen_text(app))
        await pilot.press("escape")
        await pane_of(app)
        assert len(app.state.sessions) == 4


async def test_at_80x24_one_column_is_shown_and_the_arrows_go_through_all() -> None:
    client = Varied("alpha one", "beta two", "gamma three")
    async with running(client, size=(80, 24)) as (app, pilot):
        await ask(app, pilot, "/compare n=3 Go")
        await wait_until(lambda: "alpha one" in screen_text(app))
        await wait_until(lambda: not app.state.active and len(sent(client)) == 3)
        assert "3 columns" in screen_text(app)
        assert "beta" not in screen_text(app)
        await pilot.press("right")
        await wait_until(lambda: "beta two" in screen_text(app))
        assert "alpha" not in screen_text(app)
        await pilot.press("3")
        await wait_until(lambda: "gamma three" in screen_text(app))
        await pilot.press("tab")
        await wait_until(lambda: "alpha one" in screen_text(app))


async def test_eight_columns_fit_by_moving_along() -> None:
    async with running(ScriptedClient("ok", rate=1000), size=(160, 48)) as (app, pilot):
        await ask(app, pilot, "/compare n=8 Go")
        await wait_until(lambda: app.several.comparison is not None and not app.state.active)
        await wait_until(lambda: "8 columns" in screen_text(app))
        assert "seed 1 " in screen_text(app)
        assert "seed 8" not in screen_text(app)
        await pilot.press("left")
        await wait_until(lambda: "seed 8" in screen_text(app))


async def test_the_columns_scroll_together_follow_the_end_and_go_to_differences() -> None:
    text = "\n".join(f"line {number}" for number in range(80))
    client = Varied(text, text.replace("line 40", "LINE 40"), rate=4000)
    async with running(client, size=(120, 30)) as (app, pilot):
        await ask(app, pilot, "/compare n=2 Go")
        await wait_until(lambda: screen_text(app).count("finish: stop") == 2)
        await wait_until(lambda: screen_text(app).count("line 79") == 2)
        await pilot.press("home")
        await wait_until(lambda: screen_text(app).count("line 0 ") == 2)
        await wait_until(lambda: "then…" in screen_text(app))
        await pilot.press("right", "d")
        await wait_until(lambda: "LINE 40" in screen_text(app))
        await pilot.press("d")
        await wait_until(lambda: "No difference below" in toasts(app))
        await pilot.press("pageup", "end")
        await wait_until(lambda: screen_text(app).count("line 79") == 2)


async def test_the_form_takes_the_draft_counts_the_columns_and_starts() -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client, size=(100, 30)) as (app, pilot):
        await pilot.press(*"Tell", "ctrl+j", *"me", "alt+c")
        await wait_until(lambda: isinstance(app.screen, CompareForm))
        await wait_until(lambda: "3 columns: temperature 0, temperature 0.7" in screen_text(app))
        await pilot.press("tab", "tab", *"1,x")
        await wait_until(lambda: "“x” is no number" in screen_text(app))
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, CompareForm)
        await pilot.press("backspace", *"2", "enter")
        await wait_until(lambda: compare_screen(app) is not None)
        await wait_until(lambda: screen_text(app).count("finish: stop") == 2)
        assert sent(client)[0][1] == "Tell\nme"
        assert app.state.sessions["chat-1"].draft == "Tell\nme"


async def test_the_form_and_the_command_go_on_with_what_was_said_in_the_chat() -> None:
    client = ScriptedClient("ok", rate=1000)
    async with running(client, size=(120, 36)) as (app, pilot):
        await ask(app, pilot, "one")
        await wait_until(lambda: app.state.current.turns and not app.state.active)
        history = app.state.current.history_ids
        (await pane_of(app)).prompt.insert("two")
        await pilot.press("alt+c")
        await wait_until(lambda: "Go on with what was said in chat A" in screen_text(app))
        await pilot.press("shift+tab", "space")
        await wait_until(lambda: "goes on with chat A" in screen_text(app))
        await pilot.press("enter")
        await wait_until(lambda: screen_text(app).count("finish: stop") == 3)
        assert "compare, on from chat A" in screen_text(app)
        submits = [command for command in client.sent if isinstance(command, Submit)][1:]
        assert [command.history for command in submits] == [history] * 3
        assert "one" not in screen_text(app)
        await pilot.press("enter")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await pane_of(app)
        await wait_until(lambda: "one" in screen_text(app) and "two" in screen_text(app))
        await ask(app, pilot, "/compare with=chat n=2 three")
        await wait_until(lambda: compare_screen(app) is not None and not app.state.active)
        assert [len(session.turns) for session in app.several.comparison.columns(app.state)] == [6, 6]  # type: ignore[union-attr]


async def test_a_chat_that_answers_is_not_gone_on_with_and_the_command_stays() -> None:
    async with running(ScriptedClient(STREAM), size=(100, 30)) as (app, pilot):
        await ask(app, pilot, "one")
        await ask(app, pilot, "/compare with=chat n=2 two")
        await wait_until(lambda: "still answering" in toasts(app))
        assert (await pane_of(app)).prompt.text == "/compare with=chat n=2 two"
        await pilot.press("alt+c")
        await wait_until(lambda: isinstance(app.screen, CompareForm))
        await wait_until(lambda: "Columns" in screen_text(app))
        assert "Go on with" not in screen_text(app)


async def test_escape_leaves_the_form_and_nothing_was_started() -> None:
    async with running(ScriptedClient("ok"), size=(80, 24)) as (app, pilot):
        await ask(app, pilot, "/compare")
        await wait_until(lambda: isinstance(app.screen, CompareForm))
        await wait_until(lambda: "Type the prompt" in screen_text(app))
        await pilot.press("escape")
        await pane_of(app)
        assert len(app.state.sessions) == 1


async def test_a_comparison_that_makes_no_sense_is_named_and_stays_in_the_prompt() -> None:
    async with running(ScriptedClient("ok")) as (app, pilot):
        await ask(app, pilot, "/compare n=9 Go")
        await wait_until(lambda: "n=9 is no number of columns" in toasts(app))
        assert (await pane_of(app)).prompt.text == "/compare n=9 Go"
        assert len(app.state.sessions) == 1


async def test_a_column_that_fails_says_why_beside_the_others() -> None:
    client = ScriptedClient(STREAM)
    async with running(client, size=(120, 30)) as (app, pilot):
        await ask(app, pilot, "/compare n=2 Go")
        await wait_until(lambda: app.state.active == 2)
        client.fail()
        await wait_until(lambda: screen_text(app).count("error: the engine stopped") == 2)


async def test_all_of_it_is_in_the_palette_and_among_the_commands() -> None:
    async with running(ScriptedClient(STREAM), size=(160, 48)) as (app, pilot):
        for text in ("one", "two"):
            await ask(app, pilot, text)
        titles = [command.title for command in TuiCommands(app.screen)._commands()]
        for title in ("Send to all shown chats: on or off", "Compare answers side by side", "Compare: new…"):
            assert title in titles
        assert sum(title.startswith("Queue: ") for title in titles) == 3
        assert {"all", "to", "queue", "compare"} <= COMMANDS.keys()
        app.several.do("edit")
        assert (await pane_of(app)).prompt.text == "two"


async def test_what_a_queue_and_a_comparison_send_is_recorded_and_replayed_as_any_prompt(
    tmp_path: Path,
) -> None:
    path = tmp_path / "several.tirec"
    client = ScriptedClient("ok", rate=1000)
    async with running(client, size=(160, 48)) as (app, pilot):
        await ask(app, pilot, f"/record {path}")
        for text in ("one", "two"):
            await ask(app, pilot, text)
        await wait_until(lambda: len(sent(client)) == 2 and not app.state.active)
        await ask(app, pilot, "/compare n=2 Go")
        await wait_until(lambda: len(sent(client)) == 4 and not app.state.active)
        app.recordings.finish()
        live = [[turn.text for turn in session.turns] for session in app.state.sessions.values()]
    entries = read_recording(path).entries
    said = [
        type(entry.command if isinstance(entry, Sent) else entry.event).__name__
        for entry in entries
        if isinstance(entry, (Sent, Heard))
    ]
    said = [kind for kind in said if kind in ("Submit", "Finished")]
    assert said[:4] == ["Submit", "Finished"] * 2  # the queued one behind the end of the one before
    assert said.count("Submit") == said.count("Finished") == 4
    async with replaying(path, playing=True, speed=64) as (replay, _, __):
        await wait_until(lambda: replay.client.ended)  # type: ignore[attr-defined]
        shown = [[turn.text for turn in session.turns] for session in replay.state.sessions.values()]
        assert shown == live
        assert not any(session.queue for session in replay.state.sessions.values())


async def test_d_in_the_first_column_goes_to_the_first_difference_of_the_next_and_help_begins_there() -> None:
    client = Varied("same one", "same two")
    async with running(client, size=(160, 48)) as (app, pilot):
        await ask(app, pilot, "/compare n=2 Go")
        await wait_until(lambda: not app.state.active and len(sent(client)) == 2)
        screen = await wait_until(lambda: compare_screen(app))
        await wait_until(lambda: "then…" in screen_text(app) or "differs" in screen_text(app))
        assert screen.view.chosen == 0
        await pilot.press("d")
        assert screen.view.chosen == 1
        assert "No difference" not in screen_text(app)
        await pilot.press("f1")
        await wait_until(lambda: "Comparing (here)" in screen_text(app))
        await pilot.press("f1")


async def test_keys_of_the_compare_view_differ_while_it_answers_and_another_layout_is_told() -> None:
    client = ScriptedClient(STREAM)
    async with running(client, size=(160, 48)) as (app, pilot):
        await ask(app, pilot, "/compare n=3 Go")
        await wait_until(lambda: "Esc stop all  k back, they go on" in screen_text(app))
        await pilot.press("escape")
        await wait_until(lambda: "k Esc back, keep all as chats" in screen_text(app))
        await pilot.press("k")
        await pane_of(app)
        panes = len(app.main.visible_panes)
        assert panes > 1
        await wait_until(lambda: f"{panes} panes: 4 chats are open; F5 changes it." in screen_text(app))
