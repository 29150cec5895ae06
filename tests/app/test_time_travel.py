"""Looking back in the app: keys, timeline, panels and transcripts of a past step while the engine goes on."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from engine.records import Delta, Ready, Started, StepRow, Steps
from tests.app.driving import ask, pane_of, running, screen_text, settled
from tests.app.inspector_app import InspectorApp
from tests.app.recorded import replaying, simulated_entries, written
from tests.app.scripted import ScriptedClient, engine_status, step
from tests.app.simulation import Simulation
from tests.waiting import wait_until
from tui_infer.answer_trace import AnswerTrace
from tui_infer.app import TuiInferApp
from tui_infer.history import StepHistory
from tui_infer.mirror import BlockMirror
from tui_infer.past import Timeline
from tui_infer.past_turns import turns_at
from tui_infer.session import SessionState
from tui_infer.state import AppState
from tui_infer.time_travel import view_at
from tui_infer.widgets.inspector.timeline import TimelineStrip, marks_of
from tui_infer.widgets.inspector.view import InspectorView

ANSWER = " ".join(f"word{number}" for number in range(600))


async def looking_back(app: TuiInferApp, pilot: Pilot[int], steps: int = 150) -> None:
    """An answer is under way, and the past is looked at."""
    await ask(app, pilot, "Count")
    await wait_until(lambda: app.state.newest_step >= steps, what="steps")
    await pilot.press("f9")
    await wait_until(lambda: app.main.focused is app.main.timeline, what="the timeline")


def shown_step(app: TuiInferApp) -> int:
    assert app.state.moment is not None
    return app.state.moment.step


async def pressed(app: TuiInferApp, pilot: Pilot[int], *keys: str) -> int:
    await pilot.press(*keys)
    await pilot.pause()
    return shown_step(app)


async def test_keys_move_by_one_ten_and_a_hundred_steps_to_the_ends_and_to_a_number() -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=(140, 40)) as (app, pilot):
        await looking_back(app, pilot)
        start = shown_step(app)
        assert await pressed(app, pilot, "left") == start - 1
        assert await pressed(app, pilot, "shift+left") == start - 11
        assert await pressed(app, pilot, "pageup") == start - 111
        assert await pressed(app, pilot, "pagedown") == start - 11
        assert await pressed(app, pilot, "shift+right") == start - 1
        assert await pressed(app, pilot, "right") == start
        assert await pressed(app, pilot, "home") == 0
        assert await pressed(app, pilot, "left") == 0
        assert await pressed(app, pilot, *"124", "backspace", "3", "enter") == 123
        assert await pressed(app, pilot, *"99999", "enter") >= start
        assert "step 99,999 was not run yet" in screen_text(app)
        await wait_until(lambda: app.state.newest_step > shown_step(app) + 5, what="more steps")
        newest = app.state.newest_step
        assert await pressed(app, pilot, "end") >= newest


async def test_the_view_stands_still_and_the_engine_goes_on() -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=(160, 48)) as (app, pilot):
        await looking_back(app, pilot)
        at = await pressed(app, pilot, *"60", "enter")
        assert at == 60
        text = screen_text(app)
        newest = app.state.newest_step
        assert "◀ the past: step 60" in text
        assert "F9 now" in text
        assert "◀ step 60" in text  # the Batch panel
        assert "GPU ─ now" in text
        transcript = (await pane_document(app))[:]
        await wait_until(lambda: app.state.newest_step > newest + 60, what="more steps")
        await pilot.pause(0.2)
        assert shown_step(app) == 60
        assert await pane_document(app) == transcript
        assert app.state.current.busy
        await wait_until(lambda: f"{app.state.newest_step - 60} steps back" in screen_text(app))
        await pilot.press("f9")
        await pilot.pause()
        assert app.state.moment is None
        assert not app.main.timeline.display
        assert (await pane_of(app)).prompt.has_focus
        assert "the past" not in screen_text(app)
        assert len(await pane_document(app)) > len(transcript)


async def pane_document(app: TuiInferApp) -> str:
    """What the focused chat's transcript would show in full, without spaces."""
    pane = next(pane for pane in app.main.visible_panes if pane.session is app.state.current)
    document = pane.transcript._document
    lines = (document.strip(y) for y in range(document.height))
    return "".join("".join(line.text.split()) for line in lines if line is not None)


async def test_a_transcript_shows_the_text_that_was_there_then() -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=(140, 40)) as (app, pilot):
        await looking_back(app, pilot)
        trace = app.state.current.turns[-1].trace
        assert trace is not None
        for wanted in (140, 100, 30, 101, 7):
            at = await pressed(app, pilot, *str(wanted), "enter")
            chars = trace.ends[trace.tokens_at(at) - 1]
            assert await pane_document(app) == "▌Count" + "".join(ANSWER[:chars].split())
        await wait_until(lambda: f"step 7 · {app.state.newest_step - 7} steps back" in screen_text(app))


async def test_escape_gives_up_a_number_first_and_then_returns_to_now_without_stopping_the_answer() -> None:
    async with running(ScriptedClient(ANSWER, rate=200)) as (app, pilot):
        await looking_back(app, pilot, 20)
        await pilot.press("1", "2")
        assert "go to step 12" in screen_text(app)
        await pilot.press("escape")
        assert app.state.moment is not None
        assert not app.time.typed
        await pilot.press("escape")
        assert app.state.moment is None
        assert app.state.current.busy


async def test_a_prompt_can_be_typed_in_the_past_and_sending_it_returns_to_now() -> None:
    async with running(ScriptedClient(ANSWER[:600], rate=400), size=(120, 30)) as (app, pilot):
        await ask(app, pilot, "First")
        await settled(app)
        assert app.state.newest_step > 0
        await pilot.press("f9", *"hello")
        pane = await pane_of(app)
        assert pane.prompt.text == "hello"
        assert app.state.moment is not None
        await pilot.press("enter")
        await pilot.pause()
        assert app.state.moment is None
        assert app.state.current.turns[-2].text == "hello"


async def test_escape_and_tab_and_a_command_leave_the_keys_with_the_timeline() -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=(140, 40)) as (app, pilot):
        await looking_back(app, pilot)
        words = app.main.timeline
        assert "number Enter go there" in words.render_line(2).text
        await pilot.press("ctrl+o")
        await pilot.pause()
        assert app.main.inspector.has_panel_focus
        assert "Esc back to ← → and numbers" in words.render_line(2).text
        await pilot.press("escape")
        assert await pressed(app, pilot, *"60", "enter") == 60
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert "/past 400 goes there" in words.render_line(2).text
        await pilot.press(*"/past", "space", *"50", "enter")
        await wait_until(lambda: app.state.moment is not None and shown_step(app) == 50, what="step 50")
        assert await pressed(app, pilot, "tab", "left") == 49


async def test_from_a_panel_into_the_past_and_back_into_the_panel_and_escape_stops_no_answer() -> None:
    async with running(ScriptedClient(ANSWER, rate=100), size=(140, 40)) as (app, pilot):
        await ask(app, pilot, "Count")
        await wait_until(lambda: app.state.newest_step >= 20, what="steps")
        await pilot.press("ctrl+o", "3", "enter")
        await wait_until(lambda: app.main.inspector.opened_block is not None, what="the card")
        await pilot.press("f9", "left", "f9")
        await wait_until(lambda: app.main.inspector.map.has_focus, what="the map")
        await pilot.press("escape", "escape")  # out of the card, and out of the map
        await pane_of(app)
        assert app.state.current.busy
        await pilot.press("ctrl+o", "f9", *"hi", "enter")  # queued: it is still answering
        assert app.state.moment is not None


async def test_what_is_typed_at_once_after_a_slash_is_of_the_command() -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=(140, 40)) as (app, pilot):
        await looking_back(app, pilot)
        for character in "/past 60":  # as from a paste: the timeline took all keys before one was understood
            app.main.on_timeline_strip_key(TimelineStrip.Key("", character))
        assert (await pane_of(app)).prompt.text == "/past 60"


async def test_a_click_on_the_timeline_goes_there() -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=(120, 30)) as (app, pilot):
        await looking_back(app, pilot)
        newest = shown_step(app)
        await pilot.click(app.main.timeline, offset=(1, 0))
        await wait_until(lambda: shown_step(app) == 0, what="the first step")
        middle = 1 + len(app.main.timeline._marks.ran) // 2
        await pilot.click(app.main.timeline, offset=(middle, 1))
        await wait_until(lambda: abs(shown_step(app) - newest // 2) <= 3, what="the middle")
        for row in (0, 1):
            assert app.main.timeline.render_line(row).text.index("┃") == middle


async def test_the_timeline_says_what_its_marks_mean() -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=(80, 24)) as (app, pilot):
        await looking_back(app, pilot, 20)
        happened, ran = (app.main.timeline.render_line(row).text for row in (0, 1))
        assert happened.rstrip().endswith("▾ evicted × preempted")
        assert ran.rstrip().endswith("━ graph ╌ eager ▪ prefill")


async def test_the_kept_range_and_its_memory_grow_while_the_past_is_looked_at() -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=(170, 40)) as (app, pilot):
        await looking_back(app, pilot, 20)
        end = shown_step(app)
        await pilot.press("left")
        strip = app.main.timeline
        await wait_until(lambda: app.state.newest_step >= end + 60, what="more steps")

        def right() -> bool:
            newest = app.state.newest_step
            text = strip.render_line(2).text
            return f"0–{newest} kept" in text and f"▸ {newest - end} came since" in text

        await wait_until(right, what="the new bounds")
        past = app.state.past
        assert past is not None
        assert past.bytes_with(60) > past.num_bytes
        assert "▸" in strip.render_line(1).text
        assert await pressed(app, pilot, "end") >= end + 60


async def test_before_the_first_step_there_is_nothing_to_look_back_at() -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        await pilot.press("f9")
        await wait_until(lambda: any("no step" in toast.message for toast in app._notifications), what="it")
        assert app.state.moment is None


async def test_a_paused_engine_can_be_looked_back_at() -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=(140, 40)) as (app, pilot):
        await ask(app, pilot, "Count")
        await wait_until(lambda: app.state.newest_step >= 50, what="steps")
        await pilot.press("f3", "f9", "shift+left")
        await wait_until(lambda: app.state.paused, what="the pause")
        assert "◀ the past" in screen_text(app)
        await pilot.press("f9")
        await pilot.pause()
        assert "‖ paused" in screen_text(app)


@pytest.mark.parametrize("size", [(80, 24), (44, 13), (200, 60)])
async def test_the_timeline_fits_any_terminal(size: tuple[int, int]) -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=size) as (app, pilot):
        await looking_back(app, pilot, 20)
        await wait_until(lambda: f"step {shown_step(app)}" in screen_text(app).split("\n")[-2], what="it")
        lines = screen_text(app).split("\n")
        assert len(lines) == size[1]
        assert "┃" in lines[-3]
        assert ("number Enter" in lines[-2]) == (size[0] >= 80)
        assert ("[ ] eager" in lines[-2]) == (size[0] >= 80)


async def test_a_past_step_looks_as_it_did_when_it_was_the_newest() -> None:
    simulation = Simulation(num_blocks=420)
    timeline = Timeline(StepHistory(), BlockMirror(420, 16))
    simulation.mode = "eager"
    timeline.extend(simulation.run(300))
    simulation.mode = "graph"
    app = InspectorApp()
    generator = random.Random(4)
    chat = SessionState("s1", "B", 1)
    async with app.run_test(size=(150, 60)) as pilot:
        seen: dict[int, tuple[list[str], InspectorView]] = {}
        for _ in range(8):
            timeline.extend(simulation.run(generator.randint(20, 90)))
            simulation.history, simulation.mirror = timeline.history, timeline.mirror
            view = simulation.view(paused=True)
            app.inspector.show(view)
            await pilot.pause()
            seen[timeline.mirror.step] = app.lines(), view
        past = timeline.freeze()
        for at in generator.sample(sorted(seen), len(seen)):
            lines, view = seen[at]
            moment = past.moment(at)
            assert moment is not None
            then = view_at(simulation.view(), moment, chat)
            app.inspector.show(replace(then, focused=view.focused, focused_request=view.focused_request))
            await pilot.pause()
            pairs = zip(app.lines(), lines, strict=True)
            differ = [(now, before) for now, before in pairs if now != before]
            # Nothing but the words that say when it was: that it is the past, and that the card is not.
            assert all("paused" in before or "─ GPU ─" in before for _, before in differ)
            assert len(differ) == 2


def test_marks_tell_graph_eager_prefill_evictions_and_preemptions() -> None:
    simulation = Simulation(num_blocks=60, chats=6, prefix=8)
    simulation.past = {}
    timeline = Timeline(StepHistory(), BlockMirror(60, 16))
    simulation.mode = "eager"
    timeline.extend(_short(simulation, 120))
    simulation.mode = "graph"
    timeline.extend(_short(simulation, 200))
    past = timeline.freeze()
    marks = marks_of(past, 10_000)
    assert len(marks.ran) == len(marks.happened) == len(past)
    for happened, ran, record in zip(*marks, past.records, strict=True):
        evicted = any(change.kind == "evict" for change in record.block_changes)
        assert happened == ("×" if record.preempted else "▾" if evicted else " ")
        # what happened in a step hides never how it ran
        assert ran == ("▪" if record.kind == "prefill" else "━" if record.mode == "graph" else "╌")
    assert set(marks.happened) == {"×", "▾", " "}
    assert set(marks.ran) == {"━", "╌", "▪"}
    few = marks_of(past, 10)
    assert len(few.ran) == len(few.happened) == 10
    assert "×" in few.happened


def _short(simulation: Simulation, steps: int) -> list:
    """Steps of short chats: the pool is small."""
    made = []
    while len(made) < steps:
        if len(simulation.scheduler.requests) < 6 and simulation.random.random() < 0.3:
            simulation.past.clear()
            simulation.submit(simulation.next_id, simulation.random.randint(20, 150), 120)
        if record := simulation.step():
            made.append(record)
    return made


# --- texts -----------------------------------------------------------------------------------------


def state_with_answer() -> AppState:
    """A chat whose prompt of three tokens became request 7."""
    state = AppState(lambda command: None)
    state.apply(Ready(engine_status()))
    state.submit(state.focused, "hi")
    state.apply(Started(state.focused, state.current.epoch, 7, [1, 2, 3]))
    return state


def say(state: AppState, text: str, ids: list[int], ends: list[int]) -> None:
    state.apply(Delta(state.focused, state.current.epoch, text, ids, ends))


def text_at(state: AppState, index: int) -> str | None:
    turns = turns_at(state.current, index)
    return turns[-1].text if turns else None


def run(state: AppState, index: int, context: int, tokens: int = 1, *, prefill: bool = False) -> None:
    state.apply(Steps([step(index, [StepRow(7, context, tokens, prefill)])]))


def test_text_appears_with_the_step_that_made_its_token() -> None:
    state = state_with_answer()
    run(state, 10, 2, 2, prefill=True)
    run(state, 11, 3, 1, prefill=True)
    run(state, 12, 4)
    run(state, 13, 5)
    say(state, "Hello ", [5, 6], [2, 6])
    say(state, "you", [7], [9])
    assert text_at(state, 9) is None
    assert [text_at(state, index) for index in (10, 11, 12, 13)] == ["", "He", "Hello ", "Hello you"]


def test_what_is_computed_again_after_a_preemption_was_there_before() -> None:
    state = state_with_answer()
    run(state, 1, 3, 3, prefill=True)
    run(state, 2, 4)
    say(state, "ab", [5, 6], [1, 2])
    run(state, 5, 2, 2, prefill=True)
    run(state, 6, 5, 3, prefill=True)
    say(state, "c", [7], [3])
    assert [text_at(state, index) for index in (1, 2, 5, 6)] == ["a", "ab", "ab", "abc"]


def test_characters_that_are_cleaned_away_are_not_counted() -> None:
    state = state_with_answer()
    run(state, 1, 3, 3, prefill=True)
    run(state, 2, 4)
    run(state, 3, 5)
    say(state, "a\r\rb", [5, 6], [3, 4])
    say(state, "\r\ncd", [7], [8])
    run(state, 4, 6)
    assert [text_at(state, index) for index in (1, 2, 3)] == ["a", "ab", "ab\ncd"]


def test_without_ends_text_is_there_with_its_last_token() -> None:
    trace = AnswerTrace()
    trace.receive("abcdef", 3, [], 0)
    assert list(trace.ends) == [0, 0, 6]
    trace.receive("gh", 1, [], 6)
    assert list(trace.ends) == [0, 0, 6, 8]


def test_a_new_engine_counts_its_steps_anew_and_old_answers_stay_visible() -> None:
    state = state_with_answer()
    run(state, 500, 3, 3, prefill=True)
    say(state, "old", [5], [3])
    state.current.close_answer("done")
    assert state.look_at(500)
    state.restarting()
    assert state.moment is None
    assert text_at(state, 0) == "old"


async def test_a_single_step_is_run_in_the_present() -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=(120, 30)) as (app, pilot):
        await looking_back(app, pilot, 20)
        await pilot.press("left", "f4")
        await pilot.pause()
        assert app.state.moment is None


async def test_a_new_engine_ends_the_look_into_the_past_of_the_old_one() -> None:
    async with running(ScriptedClient(ANSWER, rate=200), size=(120, 30)) as (app, pilot):
        await looking_back(app, pilot, 20)
        app.engine.restart()
        await wait_until(lambda: not app.main.timeline.display, what="the timeline to go")
        assert (await pane_of(app)).prompt.has_focus


async def test_the_engine_that_failed_can_still_be_looked_back_at() -> None:
    client = ScriptedClient(ANSWER, rate=200)
    async with running(client, size=(140, 40)) as (app, pilot):
        await ask(app, pilot, "Count")
        await wait_until(lambda: app.state.newest_step >= 50, what="steps")
        client.fail()
        await wait_until(lambda: app.state.phase == "failed")
        await pilot.press("f9", "4", "0", "enter")
        await pilot.pause()
        assert "◀ the past: step 40" in screen_text(app)
        assert "◀ step 40" in screen_text(app)
        await pilot.press("f9")


async def test_a_recording_can_be_looked_back_at_too(tmp_path: Path) -> None:
    path = written(tmp_path / "chat.tirec", simulated_entries(steps=60))
    async with replaying(path, size=(160, 48)) as (app, pilot, client):
        await client.seek_step(50)
        await pilot.press("f9", "shift+left")
        await pilot.pause()
        assert shown_step(app) == 40
        assert "◀ the past: step 40" in screen_text(app)
        await client.seek_step(20)
        await wait_until(lambda: not app.main.timeline.display, what="the timeline to go")
        assert app.state.moment is None
