"""The app as a user meets it, against a scripted engine."""

from functools import partial
from time import monotonic

import msgspec
import pytest
from textual import events

from engine.commands import Cancel, Message, StepOnce, Submit
from engine.records import Progress
from tests.app.driving import ask, focused_pane, pane_of, running, screen_text, settled
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.screens.ask import Ask, Rename
from tui_infer.screens.help import HelpScreen
from tui_infer.screens.main import MainScreen

STREAM = "word " * 2000


def title(app: TuiInferApp) -> str:
    return screen_text(app).splitlines()[0]


def submits(client: ScriptedClient) -> list[Submit]:
    return [command for command in client.sent if isinstance(command, Submit)]


async def test_four_chats_stream_at_the_same_time() -> None:
    client = ScriptedClient(STREAM)
    async with running(client, size=(160, 48)) as (app, pilot):
        for number in range(4):
            if number:
                await pilot.press("ctrl+n")
            await ask(app, pilot, f"question {number}")
        await wait_until(lambda: all(s.status == "streaming" for s in app.state.sessions.values()))
        await wait_until(lambda: "4 active" in screen_text(app))
        panes = app.main.visible_panes
        assert [pane.session.title for pane in panes if pane.session] == [f"question {n}" for n in range(4)]
        await wait_until(lambda: screen_text(app).count("word word") >= 4)
        await wait_until(lambda: "tok/s" in screen_text(app))


async def test_the_window_is_there_while_the_model_loads_and_early_prompts_wait() -> None:
    client = ScriptedClient("the answer", rate=1000, hold=True)
    async with running(client) as (app, pilot):
        await wait_until(lambda: "reading weights" in screen_text(app))
        assert "43%" in screen_text(app)
        await ask(app, pilot, "early bird")
        await wait_until(lambda: "waiting" in screen_text(app))
        assert client.sent == []
        client.become_ready()
        await wait_until(lambda: "the answer" in screen_text(app))
        assert "reading weights" not in screen_text(app)


async def test_escape_stops_the_focused_answer_and_keeps_its_text() -> None:
    client = ScriptedClient(STREAM)
    async with running(client, size=(120, 30)) as (app, pilot):
        await ask(app, pilot, "one")
        first = app.state.current
        await pilot.press("ctrl+n")
        await ask(app, pilot, "two")
        second = app.state.current
        await wait_until(lambda: first.status == second.status == "streaming")
        await pilot.press("escape")
        assert second.status == "cancelled"
        assert first.status == "streaming"
        assert [command for command in client.sent if isinstance(command, Cancel)] == [Cancel(second.id, 1)]
        await wait_until(lambda: "■ stopped" in screen_text(app))
        assert second.turns[-1].text.startswith("word")
        await ask(app, pilot, "again")
        await wait_until(lambda: second.status == "streaming")


async def test_a_dead_engine_is_a_banner_with_its_reason_and_f7_starts_another() -> None:
    client = ScriptedClient(STREAM)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "one")
        await wait_until(lambda: "word word" in screen_text(app))
        client.fail()
        await wait_until(lambda: "killed by signal 9 [/red]" in screen_text(app))
        assert "F7" in screen_text(app)
        assert "word word" in screen_text(app)
        await wait_until(lambda: "✗ the engine stopped" in screen_text(app))
        await pilot.press("f7")
        await wait_until(lambda: app.state.phase == "ready")
        assert client.restarts == 1
        await wait_until(lambda: "killed by signal" not in screen_text(app))
        await ask(app, pilot, "two")
        await wait_until(lambda: app.state.current.status == "streaming")


async def test_f2_without_cuda_says_why_steps_stay_eager() -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        await pilot.press("f2")
        await wait_until(lambda: "no CUDA device" in screen_text(app))


async def test_f2_switches_while_four_chats_stream_and_the_panels_show_mode_size_and_ratio() -> None:
    client = ScriptedClient(STREAM, graphs=True, rate=100)
    async with running(client, size=(160, 48)) as (app, pilot):
        for number in range(4):
            if number:
                await pilot.press("ctrl+n")
            await ask(app, pilot, f"question {number}")
        await wait_until(lambda: "4 active → graph 4" in screen_text(app))
        assert "· graph" in title(app)
        assert "as fast as eager" not in screen_text(app)
        await pilot.press("f2")
        await wait_until(lambda: "4 active → eager" in screen_text(app))
        assert "· eager" in title(app)
        assert "eager: eager mode was chosen" in screen_text(app)
        await wait_until(lambda: "graph 4.0× as fast as eager at batch 4" in screen_text(app))
        await pilot.press("f2")
        await wait_until(lambda: "4 active → graph 4" in screen_text(app))
        assert "· graph" in title(app)
        assert all(session.status == "streaming" for session in app.state.sessions.values())


async def test_the_switch_shows_at_once_while_nothing_streams() -> None:
    async with running(ScriptedClient("x", graphs=True), size=(160, 48)) as (app, pilot):
        await wait_until(lambda: "○ graph" in screen_text(app))
        await pilot.press("f2")
        await wait_until(lambda: "○ eager" in screen_text(app))
        assert "· eager" in title(app)
        assert "eager: eager mode was chosen" in screen_text(app)


@pytest.mark.parametrize("width", [160, 80, 60, 44])
async def test_the_title_keeps_the_mode_at_any_width(width: int) -> None:
    client = ScriptedClient("x", hold=True, graphs=True)
    async with running(client, size=(width, 24)) as (app, pilot):
        client.become_ready(model_name="Some-Very-Long-Model-Name-With-1.5B-Parameters-Instruct")
        await wait_until(lambda: "· graph" in title(app))
        assert "Some-V" in title(app)
        if width >= 80:
            assert "cuda:0 bf16" in title(app)
        place = title(app).index("graph")
        await pilot.click(offset=(place + 1, 0))  # the mode is also a button
        await wait_until(lambda: "· eager" in title(app))


@pytest.mark.parametrize("width", [160, 80])
async def test_the_banner_counts_the_graphs_that_are_captured(width: int) -> None:
    client = ScriptedClient("x", hold=True)
    async with running(client, size=(width, 24)) as (app, _):
        for number, size in enumerate((32, 16, 8)):
            client._emit(Progress("capturing graphs", f"batch {size} ({number + 1} of 6)", number / 6))
        await wait_until(lambda: "batch 8 (3 of 6)" in screen_text(app))
        line = next(line for line in screen_text(app).splitlines() if "capturing graphs" in line)
        assert "33%" in line
        assert "…" not in line


async def test_pause_and_step_reach_the_engine_and_show() -> None:
    client = ScriptedClient("x")
    async with running(client) as (app, pilot):
        await pilot.press("f3")
        await wait_until(lambda: "paused" in screen_text(app))
        await pilot.press("f4")
        await pilot.press("f3")
        await wait_until(lambda: not app.state.paused)
        assert [type(command).__name__ for command in client.sent] == ["Pause", "StepOnce", "Pause"]


async def test_a_step_with_nothing_to_do_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ScriptedClient("A long answer. " * 40, rate=20)
    async with running(client) as (app, pilot):
        await pilot.press("f4")
        await wait_until(lambda: "Nothing to step" in screen_text(app))
        await pilot.press("f3")
        await ask(app, pilot, "Go on")
        await wait_until(lambda: app.state.current.busy)
        monkeypatch.setattr(app.state, "notice", lambda *said: pytest.fail(said[0]))
        await pilot.press("f4")
        assert isinstance(client.sent[-1], StepOnce)


async def test_keys_for_the_engine_are_refused_kindly_while_it_loads() -> None:
    client = ScriptedClient("x", hold=True)
    async with running(client) as (app, pilot):
        await pilot.press("f2", "f3", "f4")
        await wait_until(lambda: "not ready yet" in screen_text(app))
        assert client.sent == []


# --- chats -----------------------------------------------------------------------------------------


async def test_tab_and_alt_numbers_go_to_chats() -> None:
    async with running(ScriptedClient("x"), size=(160, 48)) as (app, pilot):
        first = app.state.focused
        await pilot.press("ctrl+n")
        second = app.state.focused
        await pane_of(app)
        for key, expected in [
            ("tab", first),
            ("shift+tab", second),
            ("alt+1", first),
            ("alt+2", second),
            ("alt+9", second),
        ]:
            await pilot.press(key)
            assert app.state.focused == expected
            assert (await pane_of(app)).session is app.state.current


async def test_rename_takes_a_title_and_escape_changes_nothing() -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        await pilot.press("alt+r")
        await wait_until(lambda: isinstance(app.screen, Rename))
        await pilot.press(*"geo", "enter")
        await wait_until(lambda: "○ A geo" in screen_text(app))
        await pilot.press("alt+r")
        await wait_until(lambda: isinstance(app.screen, Rename))
        await pilot.press("x", "escape")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        assert app.state.current.title == "geo"


async def test_closing_a_chat_with_text_asks_and_its_stream_ends() -> None:
    client = ScriptedClient(STREAM)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "one")
        first = app.state.current
        await wait_until(lambda: first.status == "streaming")
        await pilot.press("ctrl+g")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("n")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        assert first.id in app.state.sessions
        await pilot.press("ctrl+g")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await wait_until(lambda: first.id not in app.state.sessions)
        assert Cancel(first.id, 1) in client.sent
        await pane_of(app)


async def test_an_empty_chat_closes_without_a_question() -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        await pilot.press("ctrl+n", "ctrl+g")
        await wait_until(lambda: len(app.state.sessions) == 1)
        await pane_of(app)


async def test_many_chats_keep_the_focused_one_in_the_bar() -> None:
    async with running(ScriptedClient("x"), size=(80, 24)) as (app, pilot):
        for _ in range(14):
            await pilot.press("ctrl+n")
        await pane_of(app)
        await wait_until(lambda: "15 ○ O" in screen_text(app).splitlines()[1])
        assert "+ new" in screen_text(app).splitlines()[1]


# --- layout ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(160, 48), (100, 30), (80, 24), (60, 20), (44, 13)])
async def test_every_size_shows_whole_lines_and_the_prompt(size: tuple[int, int]) -> None:
    client = ScriptedClient("# Title\n\ntext " * 30, rate=1e5)
    async with running(client, size=size) as (app, pilot):
        for number in range(4):
            if number:
                await pilot.press("ctrl+n")
            await ask(app, pilot, f"question {number}")
        await settled(app)
        lines = screen_text(app).splitlines()
        assert len(lines) == size[1]
        assert all(
            pane.prompt.size.height >= 1 and pane.transcript.size.height >= 3
            for pane in app.main.visible_panes
        )
        pane = await pane_of(app)
        assert pane.region.bottom <= size[1] - 1
        assert pane.region.right <= size[0]


async def test_below_the_least_size_a_message_is_shown_and_the_app_comes_back() -> None:
    async with running(ScriptedClient("x"), size=(80, 24)) as (app, pilot):
        await pilot.resize_terminal(38, 10)
        await wait_until(lambda: "Too small" in screen_text(app))
        await pilot.resize_terminal(80, 24)
        await wait_until(lambda: "Ask something" in screen_text(app))
        await pane_of(app)
        await pilot.press("a")
        assert app.state.current.draft == "a"


def panes_shown(app: TuiInferApp, count: int) -> bool:
    return len(app.main.visible_panes) == count


async def test_f5_cycles_one_two_and_four_panes() -> None:
    async with running(ScriptedClient("x"), size=(160, 48)) as (app, pilot):
        for _ in range(3):
            await pilot.press("ctrl+n")
        await wait_until(lambda: len(app.main.visible_panes) == 4)
        for expected in (1, 2, 4):
            await pilot.press("f5")
            await wait_until(partial(panes_shown, app, expected))
            assert focused_pane(app) is not None


async def test_zoom_shows_the_focused_chat_alone() -> None:
    async with running(ScriptedClient("x"), size=(160, 48)) as (app, pilot):
        await pilot.press("ctrl+n", "f8")
        await wait_until(lambda: len(app.main.visible_panes) == 1)
        assert (await pane_of(app)).session is app.state.current
        await pilot.press("tab")
        await wait_until(lambda: app.main.visible_panes[0].session is app.state.current)
        await pilot.press("f8")
        await wait_until(lambda: len(app.main.visible_panes) == 2)


async def test_f6_shows_the_inspector_beside_alone_and_not_at_all() -> None:
    async with running(ScriptedClient("x"), size=(100, 30)) as (app, pilot):
        inspector = app.main.inspector
        assert inspector.display
        await pilot.press("f6")
        await wait_until(lambda: inspector.size.width == 100)
        await pilot.press("escape")
        await wait_until(lambda: 0 < inspector.size.width < 60)
        await pane_of(app)
        await pilot.press("f6", "f6")
        await wait_until(lambda: not inspector.display)
        await pane_of(app)
        await pilot.press("f6")
        await wait_until(lambda: inspector.display)


async def test_the_inspector_is_hidden_where_it_would_crowd_the_chat() -> None:
    async with running(ScriptedClient("x"), size=(80, 24)) as (app, _):
        assert not app.main.inspector.display


# --- help, commands, quit --------------------------------------------------------------------------


async def test_help_lists_every_key() -> None:
    async with running(ScriptedClient("x"), size=(120, 50)) as (app, pilot):
        await pilot.press("f1")
        await wait_until(lambda: isinstance(app.screen, HelpScreen))
        await wait_until(lambda: "CUDA graph or eager" in screen_text(app))
        shown = screen_text(app)
        for _ in range(3):  # it is longer than the screen
            await pilot.press("pagedown")
            shown += screen_text(app)
        for key in (
            "F1",
            "F2",
            "F3",
            "F4",
            "F5",
            "F6",
            "F7",
            "F8",
            "F9",
            "^n",
            "^p",
            "^r",
            "^t",
            "^c",
            "Esc",
            "Enter",
            "^j",
        ):
            assert key in shown, key
        await pilot.press("escape")
        await wait_until(lambda: isinstance(app.screen, MainScreen))


async def test_the_palette_runs_a_command() -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        await pilot.press("ctrl+p")
        await pilot.press(*"new chat")
        await pilot.pause(0.3)
        await pilot.press("enter")
        await wait_until(lambda: len(app.state.sessions) == 2)


async def test_ctrl_c_once_warns_and_twice_quits() -> None:
    app: TuiInferApp
    async with running(ScriptedClient("x")) as (app, pilot):
        await pilot.press("ctrl+c")
        await wait_until(lambda: "again to quit" in screen_text(app))
        assert app.return_value is None
        await pilot.press("ctrl+c")
        await wait_until(lambda: app.return_value == 0)
    assert app.return_code == 0


async def test_ctrl_c_copies_a_selection_and_does_not_count_as_quitting() -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        await pilot.press(*"abc", "shift+home", "ctrl+c")
        assert app.clipboard == "abc"
        await pilot.press("end", "ctrl+c")
        assert app.return_value is None


async def test_an_unknown_theme_gives_the_built_in_one_and_says_why() -> None:
    async with running(ScriptedClient("x"), settings=Settings(theme="no-such")) as (app, _):
        assert app.theme == "dark"
        await wait_until(lambda: "no-such" in screen_text(app))


async def test_no_timer_runs_while_nothing_changes() -> None:
    async with running(ScriptedClient("done", rate=1000)) as (app, pilot):
        await ask(app, pilot, "x")
        await wait_until(lambda: not app.state.current.busy)
        assert app.frames._timer is not None
        await wait_until(lambda: not app.frames._timer._active.is_set())  # type: ignore[union-attr]
        assert app.gpu._timer is not None
        assert not app.gpu._timer._active.is_set()


async def test_the_card_is_read_while_the_engine_runs_on_it_and_only_then() -> None:
    client = ScriptedClient("x", hold=True)
    async with running(client, size=(120, 40)) as (app, _):
        client.become_ready(device="cuda:0", device_uuid="GPU-00000000-0000-0000-0000-000000000000")
        timer = app.gpu._timer
        assert timer is not None
        await wait_until(timer._active.is_set)
        first = app.gpu.reading
        await wait_until(lambda: app.gpu.reading is not first)
        client.fail()
        await wait_until(lambda: not timer._active.is_set())


async def test_a_click_focuses_the_chat_of_that_pane_and_of_that_tab() -> None:
    async with running(ScriptedClient("x"), size=(160, 48)) as (app, pilot):
        first = app.state.focused
        await pilot.press("ctrl+n")
        second = app.state.focused
        await wait_until(lambda: len(app.main.visible_panes) == 2)
        await pilot.pause()
        await pilot.click(app.main.visible_panes[0].transcript, offset=(5, 5))
        await wait_until(lambda: app.state.focused == first)
        await pilot.click(app.main.session_bar, offset=(22, 0))
        await wait_until(lambda: app.state.focused == second)
        assert (await pane_of(app)).session is app.state.current


async def test_the_scroll_bar_can_be_dragged() -> None:
    client = ScriptedClient("line\n\n" * 200, rate=1e6)
    async with running(client, size=(80, 24)) as (app, pilot):
        await ask(app, pilot, "go")
        await settled(app)
        transcript = (await pane_of(app)).transcript
        await wait_until(lambda: transcript.max_scroll_y > 100)
        right = transcript.size.width - 1
        await pilot.mouse_down(transcript, offset=(right, 5))
        await wait_until(lambda: 0 < transcript.scroll_y < transcript.max_scroll_y)
        assert not transcript.following
        await pilot.hover(transcript, offset=(right, transcript.size.height - 1))
        await pilot.mouse_up(transcript, offset=(right, transcript.size.height - 1))
        await wait_until(lambda: transcript.following)
        assert app.mouse_captured is None


async def test_a_click_into_another_prompt_focuses_its_chat() -> None:
    async with running(ScriptedClient("x"), size=(160, 48)) as (app, pilot):
        first = app.state.focused
        await pilot.press("ctrl+n")
        await wait_until(lambda: len(app.main.visible_panes) == 2)
        await pilot.pause()
        await pilot.click(app.main.visible_panes[0].prompt)
        await wait_until(lambda: app.state.focused == first)
        await pane_of(app)
        await pilot.press("a")
        assert app.state.sessions[first].draft == "a"


async def test_a_running_engine_is_only_restarted_after_a_question() -> None:
    client = ScriptedClient(STREAM)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "one")
        await wait_until(lambda: app.state.current.status == "streaming")
        await pilot.press("f7")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("n")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        assert client.restarts == 0
        await pilot.press("f7")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await wait_until(lambda: client.restarts == 1)
        assert app.state.current.status == "cancelled"


async def test_a_frame_before_the_first_screen_draws_nothing_and_loses_nothing() -> None:
    app = TuiInferApp(ScriptedClient("x"), settings=Settings())
    app.state.notice("early", "bird")
    app.frames.draw()
    assert app.frames._dirty == {("notice", "")}
    assert len(app.state.notices) == 1


@pytest.mark.parametrize(("device", "waits"), [("cpu", True), ("cuda:0", False)])
async def test_what_streams_waits_for_a_later_frame_on_the_engines_own_cores_alone(device, waits) -> None:
    async with running(ScriptedClient("x")) as (app, _):
        await wait_until(lambda: app.state.status is not None)
        app.state.status = msgspec.structs.replace(app.state.status, device=device)
        app.frames._drawn_s = monotonic()
        app.frames._dirty = {("steps", ""), ("turns", app.state.focused)}
        assert app.frames._waits == waits
        app.frames._dirty.add(("sessions", ""))
        assert not app.frames._waits
        app.frames._dirty = {("steps", "")}
        app.frames._drawn_s = monotonic() - 1
        assert not app.frames._waits


async def test_what_is_typed_after_a_change_of_the_chat_goes_to_the_new_one() -> None:
    client = ScriptedClient("x", rate=1)
    async with running(client, size=(80, 24)) as (app, _):
        first = app.state.current
        for key in ["a", "ctrl+n", *"new", "enter", "b", "alt+1", "c", "tab", "d"]:
            app.post_message(events.Key(key, key if len(key) == 1 else None))  # as fast as a driver can
        await wait_until(lambda: app.state.focused != first.id and app.state.current.draft == "bd")
        assert first.draft == "ac"
        assert not first.turns
        assert [command.prompt[-1] for command in submits(client)] == [Message("user", "new")]


async def test_closing_a_chat_with_an_unsent_prompt_asks() -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        await pilot.press("ctrl+n", *"draft", "ctrl+g")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await wait_until(lambda: "unsent" in screen_text(app))
        await pilot.press("n")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        assert app.state.current.draft == "draft"


@pytest.mark.parametrize("size", [(44, 13), (60, 20), (77, 24)])
async def test_the_inspector_is_never_beside_chats_that_it_would_squeeze(size: tuple[int, int]) -> None:
    async with running(ScriptedClient("x"), size=size) as (app, pilot):
        await pilot.press("f6")
        await wait_until(lambda: app.main.inspector.size.width == size[0])
        await pilot.press("f6")
        await wait_until(lambda: not app.main.inspector.display)
        assert (await pane_of(app)).region.width == size[0]


async def test_the_inspector_beside_goes_when_the_terminal_shrinks_and_comes_back() -> None:
    async with running(ScriptedClient("x"), size=(80, 24)) as (app, pilot):
        await pilot.press("f6")
        await wait_until(lambda: app.main.inspector.size.width == 38)
        await pilot.resize_terminal(60, 20)
        await wait_until(lambda: not app.main.inspector.display)
        await pilot.resize_terminal(80, 24)
        await wait_until(lambda: app.main.inspector.display)


async def test_a_title_takes_the_width_that_its_pane_has_now() -> None:
    title = "a title of forty columns, more or less, x"
    async with running(ScriptedClient("x", rate=1000), size=(80, 24)) as (app, pilot):
        app.state.rename(app.state.focused, title)
        await pilot.press("f6")
        await wait_until(lambda: app.main.inspector.size.width == 38)
        await wait_until(lambda: title not in screen_text(app))
        await pilot.press("f6", "f6")
        await wait_until(lambda: title in screen_text(app))


async def test_a_notice_that_is_on_the_screen_is_not_added_again() -> None:
    async with running(ScriptedClient("x", hold=True)) as (app, pilot):
        await pilot.press("f2", "f2")
        await wait_until(lambda: "not ready yet" in screen_text(app))
        await pilot.press("f3", "f4", "f2")
        await wait_until(lambda: not app.state.notices)
        await pilot.pause(0.2)
        assert screen_text(app).count("not ready yet") == 1


async def test_f5_names_the_layout_once() -> None:
    async with running(ScriptedClient("x"), size=(160, 40)) as (app, pilot):
        await pilot.press("ctrl+n", "f5")
        await wait_until(lambda: "2×2 panes (2 shown)" in screen_text(app))
        await pilot.press("f5")
        await wait_until(lambda: "one pane" in screen_text(app) and "2×2" not in screen_text(app))


async def test_a_failed_start_says_how_to_go_on_with_another_model() -> None:
    client = ScriptedClient("x", hold=True)
    async with running(client, size=(80, 24)) as (app, pilot):
        await ask(app, pilot, "early")
        await wait_until(lambda: "waiting" in screen_text(app))
        client.fail()
        await wait_until(lambda: "/model NAME loads another model" in screen_text(app))
        await wait_until(lambda: "sent after a restart" in screen_text(app))
        assert "waiting" not in screen_text(app)
        await pilot.press("f3")  # nothing that waiting for it would help
        await wait_until(lambda: "It has stopped; F7 restarts it." in screen_text(app))
