"""What a user does to the panels: focus, cursor, hide, enlarge, move, tabs, filters."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot

from tests.app.driving import ask, pane_of, running, screen_text
from tests.app.inspector_app import InspectorApp
from tests.app.scripted import ScriptedClient
from tests.app.simulation import Simulation
from tests.waiting import wait_until
from tui_infer.arrangement import PANELS, Arrangement
from tui_infer.widgets.inspector.events import EventsPanel
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.step import StepPanel

WITHOUT_CARD = [name for name in PANELS if name != "ab"]


@asynccontextmanager
async def shown(
    simulation: Simulation, size: tuple[int, int] = (60, 60)
) -> AsyncIterator[tuple[InspectorApp, Pilot[None]]]:
    app = InspectorApp()
    async with app.run_test(size=size) as pilot:
        app.inspector.show(simulation.view())
        await pilot.pause()
        app.inspector.show(simulation.view())
        await pilot.pause()
        yield app, pilot


def busy(steps: int = 400, **options: int) -> Simulation:
    simulation = Simulation(**options)  # type: ignore[arg-type]
    simulation.run(steps)
    return simulation


def text_of(app: InspectorApp, name: str) -> str:
    return "\n".join(strip.text for strip in app.query_one(f"#{name}", Panel)._strips)


def on_screen(app: InspectorApp) -> list[str]:
    """Panels that have a place, from top to bottom."""
    panels = [panel for panel in app.inspector.query(Panel) if panel.id in PANELS and panel.size.height]
    return [panel.id or "" for panel in sorted(panels, key=lambda panel: panel.region.y)]


# --- arrangement -----------------------------------------------------------------------------------


def test_the_last_panel_cannot_be_hidden() -> None:
    arrangement = Arrangement()
    for name in WITHOUT_CARD:
        arrangement.toggle(name)
    assert len(arrangement.shown(WITHOUT_CARD)) == 1


def test_moving_changes_places_within_the_column_and_stops_at_its_ends() -> None:
    arrangement = Arrangement()
    assert arrangement.move("table", -1, ["kv", "table", "events"])
    assert arrangement.shown(["kv", "table", "events"]) == ["table", "kv", "events"]
    assert not arrangement.move("table", -1, ["kv", "table", "events"])


def test_reset_brings_everything_back() -> None:
    arrangement = Arrangement()
    arrangement.toggle("kv")
    arrangement.move("gpu", -1, WITHOUT_CARD)
    arrangement.enlarge("step")
    arrangement.reset()
    assert arrangement.shown(WITHOUT_CARD) == WITHOUT_CARD
    assert not arrangement.enlarged


# --- in the inspector ------------------------------------------------------------------------------


async def test_hide_enlarge_move_and_show_all_by_keys() -> None:
    async with shown(busy()) as (app, pilot):
        assert on_screen(app) == WITHOUT_CARD
        app.inspector.focus_panel("kv")
        await pilot.press("shift+up")
        await pilot.pause()
        assert on_screen(app).index("kv") == WITHOUT_CARD.index("kv") - 1
        await pilot.press("z")
        await pilot.pause()
        assert on_screen(app) == ["kv"]
        assert app.query_one("#kv", Panel).size.height == 59
        await pilot.press("z", "x")
        await pilot.pause()
        assert "kv" not in on_screen(app)
        assert app.inspector.has_panel_focus
        await pilot.press("u")
        await pilot.pause()
        assert on_screen(app) == WITHOUT_CARD


async def test_the_focused_panel_is_framed_in_another_colour() -> None:
    async with shown(busy()) as (app, pilot):
        before = [str(strip) for strip in app.query_one("#step", Panel)._strips]
        app.inspector.focus_panel("step")
        await pilot.pause()
        after = [str(strip) for strip in app.query_one("#step", Panel)._strips]
        assert all(one != other for one, other in zip(before, after))
        app.inspector.focus_panel("kv")
        await pilot.pause()
        assert [str(strip) for strip in app.query_one("#step", Panel)._strips] == before


async def test_tabs_name_every_panel_and_numbers_and_clicks_bring_them_to_the_front() -> None:
    async with shown(busy(), size=(38, 20)) as (app, pilot):
        app.inspector.tabbed = True
        app.inspector.focus_panel("batch")
        await pilot.pause()
        top = app.lines()[0]
        assert top.split() == ["Batch", "Step", "KV", "Table", "Events", "GPU"]
        await pilot.press("5")
        await pilot.pause()
        assert on_screen(app) == ["events"]
        await pilot.click(app.inspector, offset=(top.index("KV"), 0))
        await pilot.pause()
        assert on_screen(app) == ["kv"]


async def test_a_panel_that_had_no_room_comes_up_with_the_focus() -> None:
    async with shown(busy(), size=(60, 14)) as (app, pilot):
        assert "events" not in on_screen(app)
        app.inspector.focus_panel("events")
        await pilot.pause()
        assert "events" in on_screen(app)


# --- step cursor -----------------------------------------------------------------------------------


async def test_the_step_under_the_cursor_shows_its_whole_record() -> None:
    simulation = busy(300, chats=3)
    async with shown(simulation) as (app, pilot):
        app.inspector.focus_panel("step")
        await pilot.pause()
        await pilot.press("comma", "comma", "comma")
        panel = app.query_one("#step", StepPanel)
        record = simulation.history[-3]
        assert panel.cursor == record.index
        text = text_of(app, "step")
        assert f"step {record.index} {record.kind}" in text
        assert f"{record.decode_tokens} decoded" in text
        for row in record.rows:
            if not row.prefill:
                assert f"{simulation.tags[row.request].letter} {row.context}" in text
        await pilot.press("end")
        assert panel.cursor is None


async def test_the_cursor_finds_the_slowest_step_of_each_column() -> None:
    simulation = busy(3000, chats=3)
    async with shown(simulation) as (app, pilot):
        app.inspector.focus_panel("step")
        await pilot.pause()
        panel = app.query_one("#step", StepPanel)
        per_column = app.inspector._series.steps_per_column
        assert per_column > 1
        for _ in range(5):
            await pilot.press("left")
            assert panel.cursor is not None
            column = panel.cursor // per_column
            steps = [r for r in simulation.history if r.index // per_column == column]
            assert panel.cursor == max(steps, key=lambda record: record.ms.total).index


async def test_a_click_on_the_chart_puts_the_cursor_there() -> None:
    simulation = busy(300, chats=3)
    async with shown(simulation) as (app, pilot):
        panel = app.query_one("#step", StepPanel)
        await pilot.click(panel, offset=(panel.size.width - 3, 6))
        await pilot.pause()
        assert panel.cursor is not None
        newest = simulation.history[-1].index // app.inspector._series.steps_per_column
        assert panel.cursor // app.inspector._series.steps_per_column == newest


async def test_every_reason_of_eager_steps_has_its_count_where_there_is_room() -> None:
    simulation = busy(200)
    simulation.mode = "eager"
    simulation.run(100)
    async with shown(simulation) as (app, pilot):
        app.inspector.enlarge("batch")
        await pilot.pause()
        text = text_of(app, "batch")
        for reason, count in simulation.history.eager_reasons.items():
            assert any(reason in line and f"{count:,} " in line for line in text.splitlines())


# --- events ----------------------------------------------------------------------------------------


async def test_events_filter_by_kind_and_chat_and_follow_again_at_the_end() -> None:
    simulation = busy(600, num_blocks=200)
    async with shown(simulation) as (app, pilot):
        app.inspector.enlarge("events")
        await pilot.pause()
        panel = app.query_one(EventsPanel)
        panel.only(kind="evicted")
        assert {entry.kind for entry in panel._shown} == {"evicted"}
        panel.only(session="s1")
        assert panel._shown
        for entry in panel._shown:
            tags = [simulation.tags.get(request) for request in (entry.request, entry.other)]
            assert "s1" in {tag.session for tag in tags if tag}
        panel.only()
        await pilot.press("up", "up", "up")
        selected = panel.selected
        simulation.run(60)
        app.inspector.show(simulation.view())
        await pilot.pause()
        assert panel.selected == selected
        assert selected in {entry.number for entry in panel._shown}
        await pilot.press("end")
        assert panel._shown[-1].step == max(entry.step for entry in panel._shown)
        assert panel.selected is None


@pytest.mark.parametrize("key", ["up", "pageup", "home"])
async def test_the_selected_event_is_always_in_view(key: str) -> None:
    async with shown(busy(600)) as (app, pilot):
        app.inspector.focus_panel("events")
        await pilot.pause()
        panel = app.query_one(EventsPanel)
        for _ in range(12):
            await pilot.press(key)
            assert panel.selected in {entry.number for entry in panel._shown}


# --- in the app ------------------------------------------------------------------------------------


async def test_from_the_prompt_into_the_panels_and_back_by_keyboard_alone() -> None:
    client = ScriptedClient("some words " * 30, rate=300)
    async with running(client, size=(160, 48)) as (app, pilot):
        await ask(app, pilot, "hello")
        await pilot.press("ctrl+o")
        await pilot.pause()
        assert app.main.inspector.has_panel_focus
        assert "enlarge" in screen_text(app).splitlines()[-1]
        await pilot.press("tab")
        await pilot.pause()
        assert app.state.arrangement.current == "step"
        await wait_until(lambda: not app.state.active, what="the answer")
        await pilot.pause(0.1)
        assert app.main.inspector.has_panel_focus  # an answer that ends takes no focus
        await pilot.press("escape")
        assert not app.main.inspector.has_panel_focus
        await pilot.press("x")
        assert app.main.visible_panes[0].prompt.text == "x"


async def test_under_100_columns_the_inspector_has_tabs() -> None:
    async with running(ScriptedClient("word"), size=(80, 24)) as (app, pilot):
        await pilot.press("ctrl+o")
        await pilot.pause()
        assert app.main.inspector.tabbed
        lines = screen_text(app).splitlines()
        assert any("Batch" in line and "Events" in line and "GPU" in line for line in lines)


async def test_the_arrangement_outlives_a_hidden_inspector() -> None:
    async with running(ScriptedClient("word"), size=(160, 48)) as (app, pilot):
        app.action_panel("toggle", "gpu")
        await pilot.press("f6", "f6", "f6")
        await pilot.pause()
        assert "gpu" in app.state.arrangement.hidden
        assert app.main.inspector.query_one("#gpu", Panel).size.height == 0


async def test_digits_are_a_block_in_kv_and_a_panel_elsewhere_and_the_keys_say_so() -> None:
    async with running(ScriptedClient("word " * 200, rate=100), size=(140, 48)) as (app, pilot):
        await ask(app, pilot, "Count")
        await wait_until(lambda: app.state.newest_step >= 20, what="steps")

        def keys() -> str:
            return screen_text(app).splitlines()[-1]

        await pilot.press("ctrl+o")
        await pilot.pause()
        assert "1-9 panel" in keys()
        await pilot.press("3")
        await pilot.pause()
        inspector = app.main.inspector
        assert inspector.map.has_focus
        assert "0-9 block number" in keys()
        assert "1-9 panel" not in keys()
        await pilot.press("3")
        await pilot.pause()
        assert "Enter go to block 3" in keys()
        assert "1-9 panel" not in keys()
        await pilot.press("escape")
        await pilot.pause()
        assert inspector.map.has_focus  # Esc cleared the number, and did no more
        assert "0-9 block number" in keys()
        await pilot.press("3", "space", "3", "7", "enter")
        assert inspector.map.cursor.block == 37
        await pilot.press("escape")
        await pane_of(app)
        assert app.state.current.busy
