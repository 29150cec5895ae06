"""From eager step to eager step, and from change to change: in time, in the Step panel, by the palette."""

from textual.pilot import Pilot

from engine.commands import SetMode
from engine.records import StepRow, Steps
from tests.app.driving import ask, running, screen_text
from tests.app.scripted import ScriptedClient, step
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.commands import TuiCommands
from tui_infer.config import Settings
from tui_infer.landmarks import landmarks, next_landmark, none_left
from tui_infer.screens.help import all_sections
from tui_infer.widgets.inspector.step import StepPanel

# how each of the steps 0, 1, … runs: p prefills, g replays a graph, e is eager
RUN = "pggeegpgge"
WIDE = (160, 48)


def records(run: str = RUN) -> list:
    made = []
    for index, kind in enumerate(run):
        row = StepRow(1, index + 1, 1, kind == "p")
        made.append(step(index, [row], card="graph" if kind == "g" else "eager"))
    return made


def test_eager_steps_are_those_that_decode_and_changes_are_where_graph_or_mode_differ() -> None:
    assert list(landmarks(records(), "eager")) == [3, 4, 9]
    assert list(landmarks(records(), "change")) == [3, 5, 9]
    assert list(landmarks(records(), "eager", first=4)) == [4, 9]


def test_another_graph_size_and_another_reason_are_changes_too() -> None:
    one, two = [StepRow(1, 5, 1, False)], [StepRow(1, 5, 1, False), StepRow(2, 5, 1, False)]
    steps = [step(0, one, card="graph"), step(1, two, card="graph"), step(2, two, card="eager")]
    steps.append(step(3, two))  # eager, for want of a card
    assert list(landmarks(steps, "change")) == [1, 2, 3]


def test_the_nearest_one_before_and_after_is_found_and_none_beyond_the_ends() -> None:
    steps = records()
    assert [next_landmark(steps, "eager", -1, at) for at in (10, 9, 4, 3)] == [9, 4, 3, None]
    assert [next_landmark(steps, "eager", 1, at) for at in (0, 3, 4, 9)] == [3, 4, 9, None]
    assert next_landmark(steps, "eager", -1, 4, first=4) is None


def test_where_there_is_none_the_reason_names_the_steps_that_were_looked_at() -> None:
    assert none_left("eager", -1, 40, 7) == (
        "No earlier step that decoded eagerly: of steps 7 to 39, every one that decodes replays a graph."
    )
    assert none_left("change", 1, 40, 41).endswith("of step 41, all that decode run the same way.")
    assert none_left("eager", 1, 40, 40) == "After step 40 there is none: it is the newest."


async def told(app: TuiInferApp, pilot: Pilot[int], run: str = RUN) -> None:
    """The engine made these steps."""
    app.state.apply(Steps(records(run)))
    await wait_until(lambda: app.state.newest_step == len(run) - 1, what="steps")
    await pilot.pause()


def at(app: TuiInferApp) -> int | None:
    return app.state.moment.step if app.state.moment is not None else None


def toasts(app: TuiInferApp) -> list[str]:
    return [toast.message for toast in app._notifications]


async def test_brackets_go_from_eager_step_to_eager_step_and_braces_from_change_to_change() -> None:
    async with running(ScriptedClient("x", graphs=True), size=WIDE) as (app, pilot):
        await told(app, pilot)
        await pilot.press("f9", "left")
        seen = []
        for key in "[[[]{}}]":
            await pilot.press(key)
            await pilot.pause()
            seen.append(at(app))
        assert seen == [4, 3, 3, 4, 3, 5, 9, 9]
        assert toasts(app) == [
            "No earlier step that decoded eagerly: of steps 0 to 2, every one that decodes replays a graph.",
            "After step 9 there is none: it is the newest.",
        ]
        text = screen_text(app)
        assert "[ ] eager step" in text
        assert "{ } change" in text


async def test_the_keys_of_the_timeline_and_of_the_jumps_can_be_bound_and_hints_follow() -> None:
    bound = {"past-back": "h", "past-on": "j", "past-newest": "G", "jump-eager-back": "e,left_square_bracket"}
    settings = Settings(keys={**bound, "jump-change-on": "alt+v"})
    async with running(ScriptedClient("x", graphs=True), size=(200, 48), settings=settings) as (app, pilot):
        await told(app, pilot)
        await pilot.press("f9")
        seen = []
        for key in ("h", "h", "j", "G", "e", "[", "h", "alt+v", "]", "left"):
            await pilot.press(key)
            await pilot.pause()
            seen.append(at(app))
        assert seen == [8, 7, 8, 9, 4, 3, 2, 3, 4, 4]  # an arrow means nothing now
        text = screen_text(app)
        for hint in ("h j 1", "e ] eager step", "{ Alt+v change", "Home G"):
            assert hint in text
        await pilot.press("}")
        assert (at(app), app.state.current.draft) == (4, "}")
        app.main.inspector.focus_panel("step")
        await wait_until(lambda: "e ] eager step" in screen_text(app).splitlines()[-1])
        assert "{ Alt+v graph change" in screen_text(app).splitlines()[-1]
        await pilot.press("e")
        assert app.main.query_one(StepPanel).cursor == 4
        helps = {command.title: command.help for command in TuiCommands(app.screen)._commands()}
        assert helps["Look back: the eager step before"].startswith("e while")
        rows = {section.title: dict(section.rows) for section in all_sections(app.state.keys)}
        assert rows["Looking back"]["e ["] == "eager step before"
        assert rows["Looking back"]["F9 Esc"] == "return to now"
        assert rows["Panel Step"]["e ]"] == "eager step"


async def test_a_jump_goes_on_into_the_steps_that_came_since() -> None:
    async with running(ScriptedClient("x", graphs=True), size=WIDE) as (app, pilot):
        await told(app, pilot, "ggg")
        await pilot.press("f9")
        app.state.apply(Steps([step(index, [StepRow(1, index, 1, False)], card="eager") for index in (3, 4)]))
        await pilot.press("]")
        await pilot.pause()
        assert at(app) == 3


async def test_the_palette_goes_from_now_to_the_newest_eager_step() -> None:
    async with running(ScriptedClient("x", graphs=True), size=WIDE) as (app, pilot):
        await told(app, pilot)
        wanted = {
            "Look back: the eager step before": 9,
            "Look back: the change of graph or mode before": 5,
            "Look back: the next eager step": 9,
            "Look back: the next change of graph or mode": 9,
        }
        actions = {command.title: command.action for command in TuiCommands(app.screen)._commands()}
        for title, step_number in wanted.items():
            await app.run_action(actions[title])
            await pilot.pause()
            assert at(app) == step_number


async def test_without_a_step_a_jump_says_that_none_was_run() -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        app.action_jump("eager", -1)
        await pilot.pause(0.1)
        assert toasts(app) == ["The engine has run no step."]


async def test_the_cursor_of_the_step_panel_jumps_too_and_says_where_it_cannot() -> None:
    async with running(ScriptedClient("x", graphs=True), size=WIDE) as (app, pilot):
        await told(app, pilot)
        app.main.inspector.focus_panel("step")
        await pilot.pause()
        assert "[ ] eager step" in screen_text(app).splitlines()[-1]
        panel = app.main.query_one(StepPanel)
        seen = []
        for key in "[[[[]{}":
            await pilot.press(key)
            seen.append(panel.cursor)
        assert seen == [9, 4, 3, 3, 4, 3, 5]
        assert toasts(app) == [
            "No earlier step that decoded eagerly: of steps 0 to 2, every one that decodes replays a graph."
        ]


async def test_from_the_step_panel_of_the_past_the_next_eager_step_is_later_in_time() -> None:
    async with running(ScriptedClient("x", graphs=True), size=WIDE) as (app, pilot):
        await told(app, pilot)
        await pilot.press("f9", "5", "enter")
        app.main.inspector.focus_panel("step")
        await pilot.pause()
        await pilot.press("]")
        await wait_until(lambda: at(app) == 9, what="the next eager step")


async def test_a_switch_of_the_mode_can_be_found_again() -> None:
    async with running(ScriptedClient("word " * 400, rate=200, graphs=True), size=WIDE) as (app, pilot):
        await ask(app, pilot, "Count")
        await wait_until(lambda: app.state.newest_step >= 30, what="graph steps")
        app.state.send(SetMode("eager"))
        await wait_until(lambda: app.state.mode == "eager", what="eager mode")
        await wait_until(lambda: list(landmarks(app.state.history, "eager")), what="an eager step")
        first = app.state.history[next(landmarks(app.state.history, "eager"))]
        app.state.send(SetMode("graph"))
        await pilot.press("f9", "{", "{")
        await wait_until(lambda: at(app) == first.index, what="the change")
