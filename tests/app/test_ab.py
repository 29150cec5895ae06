"""Graph against eager: which steps are measured, what comes of them, and the card in the app."""

import msgspec
import pytest

from engine.commands import Submit
from engine.records import StepMode, StepRecord
from tests.app.driving import ask, running
from tests.app.scripted import ScriptedClient
from tests.app.simulation import Simulation
from tests.waiting import wait_until
from tui_infer.ab import ROUND, SETTLE, AbRun
from tui_infer.history import decode_rows
from tui_infer.widgets.inspector.panel import Panel


def measure(
    simulation: Simulation, steps: int, lag: int = 0
) -> tuple[AbRun, list[StepRecord], list[StepMode]]:
    """A whole run; the engine obeys ``lag`` steps after it was told."""
    asked: list[StepMode] = []
    records: list[StepRecord] = []
    run = AbRun(steps, "graph", asked.append)
    run.begin()
    told: list[StepMode] = []
    while run.running and len(records) < 20_000:
        told.append(asked[-1])
        simulation.mode = told[-1 - min(lag, len(told) - 1)]
        record = simulation.run(1)[0]
        records.append(record)
        run.observe([record])
    return run, records, asked


@pytest.mark.parametrize("lag", [0, 40])
def test_as_many_steps_of_each_mode_are_taken_in_rounds_and_the_mode_comes_back(lag: int) -> None:
    run, records, asked = measure(Simulation(chats=3), 40, lag)
    assert run.outcome == "done"
    assert {mode: len(taken) for mode, taken in run.taken.items()} == {"eager": 40, "graph": 40}
    assert asked == ["eager", "graph"] * 3 + ["graph"]
    assert all(record.kind == "decode" for taken in run.taken.values() for record in taken)
    assert all(record.mode == mode for mode, taken in run.taken.items() for record in taken)
    assert any(record.kind == "mixed" for record in records)


def test_the_first_steps_behind_a_switch_are_left_out() -> None:
    run, records, _ = measure(Simulation(chats=1, follow_up=0.0), ROUND)
    decode = [record for record in records if record.kind == "decode"]
    for mode in ("eager", "graph"):
        own = [record for record in decode if record.mode == mode]
        assert run.taken[mode] == own[SETTLE : SETTLE + ROUND]  # type: ignore[index]


def test_rows_are_medians_by_batch_size_with_host_and_device_apart() -> None:
    run, _, _ = measure(Simulation(chats=4, seed=11), 90)
    rows = run.rows()
    assert len(rows) > 1
    assert sum(row.eager_steps for row in rows) == sum(row.graph_steps for row in rows) == 90
    for row in rows:
        taken = [record for record in run.taken["eager"] if decode_rows(record) == row.batch]
        totals = sorted(record.ms.total for record in taken)
        if totals:
            assert row.eager_ms is not None
            assert totals[(len(totals) - 1) // 2] <= row.eager_ms <= totals[len(totals) // 2]
        if row.eager_ms and row.graph_ms:
            assert row.ratio == pytest.approx(row.eager_ms / row.graph_ms)
    line = run.text().splitlines()[2].split()
    assert line[0] == str(rows[0].batch)


def test_where_no_graph_is_replayed_it_stops_with_the_engines_reason_and_the_mode_back() -> None:
    asked: list[StepMode] = []
    run = AbRun(15, "eager", asked.append)
    run.begin()
    simulation = Simulation(chats=1)
    simulation.mode = "eager"
    reason = "batch 40 is larger than the largest graph, 32"
    for record in simulation.run(300):
        if asked[-1] == "graph":
            record = msgspec.structs.replace(record, reason=reason)
        run.observe([record])
    assert run.outcome == "stopped"
    assert reason in run.note
    assert asked == ["eager", "graph", "eager"]


async def test_the_card_measures_streaming_chats_shows_them_and_closes() -> None:
    client = ScriptedClient("word " * 4000, rate=400, graphs=True)
    async with running(client, size=(160, 48)) as (app, pilot):
        await ask(app, pilot, "go on")
        await wait_until(lambda: app.state.active and len(app.state.history) > 20, what="steps")
        await ask(app, pilot, "/ab 15")
        await wait_until(lambda: app.state.ab is not None, what="a run")
        run = app.state.ab
        assert run is not None
        await wait_until(lambda: not run.running, what="the end of it")
        assert run.what == "1 chat"
        assert app.state.mode == "graph"
        row = run.rows()[0]
        assert (row.batch, row.eager_steps, row.graph_steps) == (1, 15, 15)
        assert row.ratio == pytest.approx(4.0)
        await pilot.pause(0.2)
        card = app.main.inspector.query_one("#ab", Panel)
        text = "\n".join(str(strip.text) for strip in card._strips)
        assert "4.00×" in text
        app.main.inspector.focus_panel("ab")
        await pilot.press("x")
        await wait_until(lambda: app.state.ab is None, what="the card closed")


async def test_without_graphs_the_reason_is_told_and_nothing_is_switched() -> None:
    client = ScriptedClient("word", graphs=False)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "/ab")
        await pilot.pause()
        assert app.state.ab is None
        assert any("no CUDA device" in toast.message for toast in app._notifications)


async def test_without_chats_synthetic_ones_are_measured_and_go_away_behind_it() -> None:
    client = ScriptedClient("word " * 4000, rate=400, graphs=True)
    async with running(client, size=(120, 40)) as (app, pilot):
        await ask(app, pilot, "/ab 15")
        await wait_until(lambda: app.state.ab is not None, what="a run")
        run = app.state.ab
        assert run is not None
        await wait_until(lambda: not run.running, what="the end of it")
        await wait_until(lambda: app.state.load.active == 0, what="the load to go")
        assert len(app.state.sessions) == 1
        assert run.what == "4 synthetic"
        asked = {command.session for command in client.sent if isinstance(command, Submit)}
        assert asked == {"load-1", "load-2", "load-3", "load-4"}
