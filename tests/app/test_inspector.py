"""The inspector in an app: the screen says what the records say, in every state and at every size."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache

import msgspec
import pytest
from textual.pilot import Pilot

from engine.records import BlockCounts, PassedOver, StepTimes
from tests.app.inspector_app import InspectorApp
from tests.app.simulation import GRAPH_SIZES, Simulation, loading_view
from tests.waiting import wait_until
from tui_infer.history import decode_rows
from tui_infer.nvml import GpuReading
from tui_infer.widgets.inspector import inspector as inspector_module
from tui_infer.widgets.inspector.lines import milliseconds
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.step import StepPanel
from tui_infer.widgets.inspector.view import InspectorView


@asynccontextmanager
async def shown(
    view: InspectorView, size: tuple[int, int] = (60, 45), theme: str = "dark"
) -> AsyncIterator[tuple[InspectorApp, Pilot[None]]]:
    app = InspectorApp(theme)
    async with app.run_test(size=size) as pilot:
        await show(app, pilot, view)
        yield app, pilot


async def show(app: InspectorApp, pilot: Pilot[None], view: InspectorView) -> None:
    app.inspector.show(view)
    await pilot.pause()  # a first view may lay the panels out anew
    app.inspector.show(view)
    await pilot.pause()


def panel(app: InspectorApp, name: str) -> list[str]:
    """Lines of one panel without its frame."""
    region = app.query_one(f"#{name}", Panel).region
    return [line[region.x + 2 : region.right - 2].rstrip() for line in app.lines()[region.y : region.bottom]]


def decoding(simulation: Simulation) -> Simulation:
    """Goes on until the latest step is a pure decode step after which somebody still runs."""
    record = simulation.run(1)[0]
    while record.kind != "decode" or len(record.finished) == len(record.rows):
        record = simulation.run(1)[0]
    return simulation


def on_gpu(steps: int = 600, **options: int) -> Simulation:
    simulation = Simulation(**options)  # type: ignore[arg-type]
    simulation.run(steps)
    return decoding(simulation)


def on_cpu(steps: int = 200) -> Simulation:
    simulation = Simulation(cuda=False, num_blocks=700, chats=3, max_batch=8)
    simulation.run(steps)
    return decoding(simulation)


# --- numbers ---------------------------------------------------------------------------------------


async def test_the_batch_panel_says_what_the_latest_record_says() -> None:
    simulation = on_gpu()
    async with shown(simulation.view()) as (app, pilot):
        for _ in range(5):
            record = decoding(simulation).history.latest
            assert record is not None
            await show(app, pilot, simulation.view())
            lines = panel(app, "batch")
            assert lines[1].startswith(f"{record.active} active → graph {record.graph_size}")
            wasted = (record.graph_size or 0) - decode_rows(record)
            assert (f"{wasted} row" in lines[1]) == (wasted > 0)
            letters = [simulation.tags[row.request].letter for row in record.rows]
            assert lines[2].startswith("".join(letters) + "▒" * wasted + "·")
            assert lines[2].endswith(f"{record.active} of 32 rows")
            assert lines[3].split()[1:] == [str(size) for size in GRAPH_SIZES]


async def test_the_replayed_graph_is_lit_and_only_that_one() -> None:
    simulation = on_gpu()
    async with shown(simulation.view()) as (app, _):
        record = simulation.history.latest
        assert record is not None
        strip = app.query_one("#batch", Panel).render_line(3)
        lit = [segment.text.strip() for segment in strip if segment.style and segment.style.bold]
        assert lit == [str(record.graph_size)]


async def test_hits_are_counted_under_each_graph_size() -> None:
    simulation = on_gpu(900)
    async with shown(simulation.view()) as (app, _):
        hits = panel(app, "batch")[4].split()
        assert hits[0] == "hits"
        counts = [str(simulation.history.graph_hits.get(size, 0)) for size in GRAPH_SIZES]
        assert hits[1:] == [*counts, "210", "MiB"]


async def test_on_a_cpu_the_engines_reason_for_eager_stands_there_in_its_words() -> None:
    simulation = on_cpu()
    async with shown(simulation.view()) as (app, _):
        lines = panel(app, "batch")
        assert "→ eager" in lines[1]
        assert lines[3].startswith("eager: no CUDA graphs on cpu")
        count = simulation.history.eager_reasons["no CUDA graphs on cpu"]
        assert lines[3].endswith(f"{count:,}×")


async def test_a_long_reason_takes_two_lines() -> None:
    simulation = on_cpu()
    reason = "this build of torch was compiled without CUDA, so that no graph can be captured"
    view = simulation.view()
    assert view.status is not None
    simulation.history.clear()
    view = replace(view, mode_reason=reason)
    async with shown(view) as (app, _):
        lines = panel(app, "batch")
        assert " ".join(lines[3:5]).replace("eager: ", "").split() == reason.split()


async def test_a_prefill_step_shows_its_tokens() -> None:
    simulation = Simulation(chats=0)
    simulation.submit(0, 200, 10)
    simulation.step()
    async with shown(simulation.view(focused=0)) as (app, _):
        record = simulation.history.latest
        assert record is not None
        assert record.kind == "prefill"
        assert panel(app, "batch")[1].startswith(f"1 active → prefill {record.prefill_tokens} tokens")


async def test_the_step_panel_says_what_the_records_say() -> None:
    simulation = on_gpu()
    async with shown(simulation.view(), size=(78, 45)) as (app, _):
        record = simulation.history.latest
        numbers = simulation.history.percentiles()
        assert record is not None
        assert numbers is not None
        text = "\n".join(panel(app, "step"))
        assert f"step {record.index:,}" in text
        assert f"{simulation.history.tokens_per_s():,.0f} tok/s" in text
        assert f"p50 {milliseconds(numbers.p50)}  p95 {milliseconds(numbers.p95)}" in text
        assert f"p99 {milliseconds(numbers.p99)} ms" in text
        shares = simulation.history.time_shares()
        assert shares is not None
        assert shares.device is not None
        for name in ("schedule", "launch", "device", "read"):
            assert f"{name} {milliseconds(getattr(shares, name))}" in text


async def test_launch_is_called_compute_where_no_device_is_timed() -> None:
    async with shown(on_cpu().view()) as (app, _):
        text = "\n".join(panel(app, "step"))
        assert "compute " in text
        assert "launch" not in text
        assert "device" not in text


async def test_the_ratio_appears_when_both_modes_were_measured() -> None:
    simulation = on_gpu(300)
    async with shown(simulation.view()) as (app, pilot):
        assert "as fast as eager" not in panel(app, "step")[0]
        simulation.mode = "eager"
        simulation.run(400)
        record = simulation.history.latest
        assert record is not None
        while (ratio := simulation.history.ratio(decode_rows(record))) is None:
            record = simulation.run(1)[0]
        await show(app, pilot, simulation.view())
        title = panel(app, "step")[0]
        assert f"{ratio.speedup:.1f}× as fast as eager at batch {ratio.batch}" in title


async def test_a_ratio_of_another_batch_size_than_the_steps_says_so() -> None:
    simulation = Simulation(chats=0)
    simulation.submit(0, 20, 60)
    simulation.run(20)
    simulation.mode = "eager"
    simulation.run(20)
    one = simulation.history.ratio(1)
    assert one is not None
    simulation.submit(1, 20, 60)
    simulation.run(3)
    async with shown(simulation.view(), size=(70, 45)) as (app, pilot):
        said = f"batch 1, not 2: graph {one.speedup:.1f}× as fast as eager"
        assert said in panel(app, "step")[0]
        step = app.query_one(StepPanel)
        step.focus()
        await pilot.press("comma")
        await pilot.pause()
        assert said in panel(app, "step")[0]
        step.cursor = 10  # a step of one row: now it is the ratio of that step
        step.redraw()
        assert f"graph {one.speedup:.1f}× as fast as eager at batch 1" in panel(app, "step")[0]


@pytest.mark.parametrize("size", [(60, 45), (80, 60), (44, 20)])
async def test_a_mixed_step_behind_a_graph_says_that_its_prefill_ran_eager(size: tuple[int, int]) -> None:
    simulation = Simulation(chats=0)
    simulation.submit(0, 20, 60)
    simulation.run(5)
    simulation.submit(1, 20, 60)
    simulation.run(1)
    record = simulation.history.latest
    assert record is not None
    assert (record.kind, record.graph_size) == ("mixed", 1)
    async with shown(simulation.view(), size=size) as (app, pilot):
        assert "→ graph 1 + eager prefill 28 t" in panel(app, "batch")[1]
        app.inspector.enlarge("step")
        await pilot.pause()
        assert size[0] < 60 or "mixed graph 1 + eager prefill" in "\n".join(panel(app, "step"))
        await pilot.press("comma")
        assert f"step {record.index} mixed graph 1 + eager prefill" in "\n".join(panel(app, "step"))


@pytest.mark.parametrize("size", [(56, 45), (60, 26)])
async def test_every_mark_of_the_chart_is_in_its_legend(size: tuple[int, int]) -> None:
    simulation = on_gpu(60)
    simulation.mode = "eager"
    simulation.run(40)
    latest = simulation.history.latest
    assert latest is not None
    simulation.history.append(
        msgspec.structs.replace(latest, index=latest.index + 1, ms=StepTimes(900.0, 0.1, 899.0, None, 0.1))
    )
    async with shown(simulation.view(), size=size) as (app, _):
        text = panel(app, "step")
        legend = next(line for line in text if " graph  " in line and " eager" in line)
        chart = "".join(line for line in text if "┤" in line or "│" in line[:7])
        assert "█ graph" in legend
        assert "░▒▓ eager" in legend
        assert ("▲ off scale" in legend) == ("▲" in chart)
    assert size[1] < 45 or "▲" in chart


async def test_without_a_spike_above_the_axis_the_legend_does_not_speak_of_one() -> None:
    async with shown(on_gpu(3).view(), size=(60, 45)) as (app, _):
        text = "\n".join(panel(app, "step"))
        assert "▲" not in text


async def test_the_batch_panel_says_how_many_eager_reasons_it_has_no_room_for() -> None:
    simulation = on_gpu(50)
    record = simulation.history.latest
    assert record is not None
    for reason in ("batch 40 is larger than the largest graph, 32", "eager mode was chosen"):
        eager = msgspec.structs.replace(record, mode="eager", graph_size=None, reason=reason)
        simulation.history.append(eager)
    async with shown(simulation.view(), size=(60, 45)) as (app, pilot):
        lines = panel(app, "batch")
        assert "eager: eager mode was chosen" in lines[-1]
        assert "Batch ─ 2 more eager reasons: z" in lines[0]
        app.inspector.focus_panel("batch")
        await pilot.press("z")
        await pilot.pause()
        text = panel(app, "batch")
        assert "more eager reason" not in text[0]
        for reason in simulation.history.eager_reasons:
            assert reason in "\n".join(text)
    simulation = on_gpu(50)
    async with shown(simulation.view(), size=(60, 45)) as (app, _):
        assert len(simulation.history.eager_reasons) == 1
        assert "more eager reason" not in panel(app, "batch")[0]


async def test_the_kv_title_counts_what_the_engine_counts_at_every_step() -> None:
    simulation = on_gpu(50, num_blocks=200)
    async with shown(simulation.view()) as (app, pilot):
        for _ in range(25):
            (record,) = simulation.run(1)
            await show(app, pilot, simulation.view())
            used, cached, free = record.blocks.used, record.blocks.cached, record.blocks.free
            assert f"{used:,} used  {cached:,} cached  {free:,} free" in panel(app, "kv")[0]


async def test_the_block_table_shows_every_entry_and_the_fill_of_the_last() -> None:
    simulation = Simulation(chats=0, num_blocks=60)
    request = simulation.submit(1, 30, 50)
    for _ in range(6):
        simulation.step()
    async with shown(simulation.view(focused=1)) as (app, _):
        title, *lines = panel(app, "table")
        entries = " ".join(lines).split()
        expected = [f"{index}→{block}" for index, block in enumerate(request.block_table)]
        fill = request.num_computed % 16
        assert entries[: len(expected) + 1] == [*expected, f"({fill}/16)"]
        assert "B" in title
        assert f"{len(expected)} blocks · {request.num_computed} tokens" in title


async def test_a_table_too_long_for_its_panel_keeps_its_start_and_its_growing_end() -> None:
    simulation = Simulation(chats=2, num_blocks=900, follow_up=1.0)
    simulation.run(1200)
    request = simulation.newest_request(1)
    while len(simulation.mirror.table(request or 0)) < 60:
        simulation.run(10)
        request = simulation.newest_request(1)
    table = simulation.mirror.table(request or 0)
    async with shown(simulation.view(), size=(60, 24)) as (app, _):
        text = " ".join(panel(app, "table")[1:])
        assert text.startswith(f"{table[0][0]}") or text.startswith("0–")
        assert f"→{table[-1][1]}" in text or f"–{table[-1][1]}" in text


async def test_the_table_of_a_chat_that_sent_nothing_says_so_in_as_many_rows_as_it_takes() -> None:
    view = replace(on_cpu().view(), focused_request=None)
    async with shown(view, size=(57, 45)) as (app, _):
        text = " ".join(" ".join(panel(app, "table")[1:]).split())
        assert "holds no block: nothing was sent since the engine started" in text


async def test_the_table_of_a_chat_at_rest_says_that_it_holds_none_and_lists_what_is_cached() -> None:
    simulation = Simulation(chats=0, num_blocks=60)
    request = simulation.submit(1, 60, 4)
    while not request.finished:
        blocks = list(request.block_table) or []
        simulation.step()
    async with shown(simulation.view(focused=1), size=(70, 45)) as (app, _):
        kept = simulation.mirror.cached_of(simulation.view(focused=1).focused_request or 0)
        assert 1 < len(kept) <= len(blocks)
        text = " ".join(" ".join(panel(app, "table")[1:]).split())
        assert f"holds no block now; {len(kept)} of its blocks are cached: {kept[0]}" in text
        assert str(kept[-1]) in text


async def test_shared_prefix_blocks_are_named_with_whom_they_are_shared() -> None:
    simulation = Simulation(chats=0, prefix=64)
    first = simulation.submit(0, 5, 100)
    for _ in range(4):
        simulation.step()
    simulation.submit(1, 5, 100)
    for _ in range(3):
        simulation.step()
    assert not first.finished
    async with shown(simulation.view(focused=1), size=(70, 45)) as (app, _):
        text = " ".join(panel(app, "table"))
        assert "4 blocks from the prefix cache · 4 shared with A" in text


# --- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(60, 45), (78, 21)])
async def test_before_the_engine_is_ready_no_number_pretends_to_be_data(size: tuple[int, int]) -> None:
    async with shown(loading_view(), size=size) as (app, _):
        text = "\n".join(app.lines())
        assert "waiting for the engine" in text
        assert not any(character.isdigit() for character in text)


async def test_a_ready_engine_without_a_step_says_so() -> None:
    async with shown(Simulation().view()) as (app, _):
        assert "0 active  idle" in panel(app, "batch")[1]
        assert panel(app, "step")[1] == "no step yet"
        assert "0 used  0 cached  1,024 free" in panel(app, "kv")[0]


async def test_when_all_have_finished_the_batch_is_idle_at_once() -> None:
    simulation = Simulation(chats=0)
    request = simulation.submit(0, 20, 3)
    while not request.finished:
        simulation.step()
    async with shown(simulation.view(focused=0)) as (app, _):
        assert "0 active  idle" in panel(app, "batch")[1]
        assert "tok/s" not in "\n".join(panel(app, "step"))


async def test_a_pause_after_the_last_answer_says_that_nothing_runs_or_who_waits() -> None:
    simulation = Simulation(chats=0)
    request = simulation.submit(0, 20, 3)
    simulation.step()
    async with shown(simulation.view(paused=True), size=(80, 45)) as (app, pilot):
        assert panel(app, "batch")[1].startswith("1 active")
        assert "0 waiting" in panel(app, "batch")[1]
        while not request.finished:
            simulation.step()
        await show(app, pilot, simulation.view(paused=True))
        assert panel(app, "batch")[1].startswith("last step: 1 active → graph 1")
        assert panel(app, "batch")[1].endswith("nothing runs now")
        await show(app, pilot, replace(simulation.view(paused=True), queued=2))
        assert panel(app, "batch")[1].endswith("2 waiting")


async def test_prompts_sent_in_a_pause_before_the_first_step_are_seen_to_wait() -> None:
    async with shown(replace(Simulation().view(paused=True), queued=1)) as (app, _):
        assert "0 active  1 waiting" in panel(app, "batch")[1]


async def test_a_long_prefill_is_not_taken_for_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector_module, "QUIET_AFTER_S", 0.0)
    simulation = Simulation(chats=0)
    simulation.submit(0, 1500, 3)
    simulation.step()
    async with shown(simulation.view(focused=0)) as (app, _):
        assert panel(app, "batch")[1].startswith("1 active → prefill 512 tokens")


async def test_a_dead_engine_and_a_paused_one_are_named() -> None:
    simulation = on_gpu()
    async with shown(simulation.view(dead=True)) as (app, pilot):
        assert "stopped" in panel(app, "batch")[0]
        assert "the engine stopped" in panel(app, "batch")[1]
        await show(app, pilot, simulation.view(paused=True))
        assert "paused" in panel(app, "batch")[0]
        record = simulation.history.latest
        assert record is not None
        assert panel(app, "batch")[1].startswith(f"{record.active} active")


async def test_while_paused_a_column_of_the_chart_is_one_step() -> None:
    simulation = on_gpu(2000)
    async with shown(simulation.view(paused=True), size=(100, 45)) as (app, _):
        assert "1 column = 1 step" in "\n".join(panel(app, "step"))


async def test_what_glows_fades_by_itself_when_no_step_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(inspector_module, "monotonic", lambda: clock[0])
    monkeypatch.setattr(inspector_module, "QUIET_AFTER_S", 0.1)
    simulation = on_gpu()
    simulation.run(16)
    async with shown(simulation.view()) as (app, _):
        kv = app.query_one("#kv", Panel)
        bright = [str(strip) for strip in kv._strips]
        clock[0] = 0.2
        await wait_until(lambda: [str(strip) for strip in kv._strips] != bright, what="the glow to fade")


# --- GPU -------------------------------------------------------------------------------------------


async def test_on_a_cpu_the_gpu_panel_is_one_line_that_says_where_steps_run() -> None:
    async with shown(on_cpu().view()) as (app, _):
        lines = panel(app, "gpu")
        assert lines[1] == "CPU: every step runs on AMD EPYC 9B14, 2 threads"
        assert lines[2] == "memory weights 3.0 GiB  KV 44 MiB"


async def test_a_gpu_without_numbers_gives_its_reason_in_one_line() -> None:
    reason = "NVML library not found: no NVIDIA driver"
    view = replace(on_gpu().view(), gpu=GpuReading(reason=reason))
    async with shown(view) as (app, _):
        lines = panel(app, "gpu")
        assert lines[1] == reason
        assert lines[2] == "memory weights 3.0 GiB  KV 121 GiB  graphs 210 MiB"


async def test_gpu_numbers_have_their_units() -> None:
    async with shown(on_gpu().view()) as (app, _):
        text = "\n".join(panel(app, "gpu"))
        for part in (
            "63 %",
            "126.3 of 140.4 GiB",
            "412 of 700 W",
            "54 °C",
            "1,980 of 1,980 MHz",
            "memory clock 3,201 MHz",
            "weights 3.0 GiB  KV 121 GiB  graphs 210 MiB",
            "NVIDIA H200",
        ):
            assert part in text


async def test_beside_the_chats_at_160_columns_each_number_of_the_card_has_its_past() -> None:
    async with shown(on_gpu().view(), size=(57, 44)) as (app, _):
        lines = panel(app, "gpu")[1:-1]
        past = [line.split()[-1] for line in lines]
        assert [line.split()[0] for line in lines] == ["busy", "memory", "weights", "power", "SM", "temp"]
        for number in (0, 1, 3, 4, 5):
            assert len(past[number]) >= 7
            assert set(past[number]) <= set("▁▂▃▄▅▆▇"), "a full column would merge with the row above"
        assert past[0] == "▁▂▃▄▄▅▄▄▄▅▄▄"[-len(past[0]) :]


async def test_the_narrow_panel_has_every_number_in_one_row() -> None:
    async with shown(on_gpu().view(), size=(80, 21)) as (app, _):
        text = "63 % busy · 126.3/140.4 GiB · 412/700 W · 54 °C · SM 1,980 · mem 3,201 MHz"
        assert panel(app, "gpu")[1] == text


@pytest.mark.parametrize("name", ["utilisation", "power", "temperature", "sm_clock", "memory_clock"])
@pytest.mark.parametrize("size", [(57, 44), (160, 48), (60, 24), (38, 30)])
async def test_any_number_may_be_missing(name: str, size: tuple[int, int]) -> None:
    view = on_gpu().view()
    gpu = replace(view.gpu, **{name: None}, missing={name: "not supported here"})  # type: ignore[arg-type]
    async with shown(replace(view, gpu=gpu), size=size) as (app, _):
        lines = panel(app, "gpu")
        text = "\n".join(lines)
        if len(lines) == 8:  # the panel in full
            assert "n/a not supported here" in text
        elif name != "memory_clock":  # the last in order, which a narrow panel leaves out
            assert "n/a" in text
            assert "412" in text or name == "power"


# --- graphs: memory, capture, failures, mode -------------------------------------------------------


def captured(view: InspectorView, **changes: object) -> InspectorView:
    assert view.status is not None
    return replace(view, status=msgspec.structs.replace(view.status, **changes))


async def test_capture_time_and_memory_stand_beside_the_sizes() -> None:
    view = captured(on_gpu().view(), graph_capture_s=1.24)
    for size in ((57, 44), (160, 48)):
        async with shown(view, size=size) as (app, _):
            lines = panel(app, "batch")
            assert lines[3].startswith("graphs")
            assert lines[3].endswith("captured in 1.2 s")
            assert lines[4].endswith("210 MiB")


async def test_sizes_without_a_graph_are_named_with_their_reason() -> None:
    failures = (
        PassedOver("batch 32", "graph 32 could not be captured: out of memory."),
        PassedOver("batch 16", "graph 16 could not be captured: out of memory."),
        PassedOver("batch 8", "[/red] a bad kernel"),
    )
    async with shown(captured(on_gpu().view(), graph_failures=failures), size=(90, 48)) as (app, _):
        text = "\n".join(panel(app, "batch"))
        assert "failed batch 32, batch 16: out of memory; batch 8: [/red] a bad kernel" in text
        assert "active " in text


@pytest.mark.parametrize("size", [(57, 44), (80, 21), (60, 24), (160, 48)])
async def test_the_reason_of_an_eager_step_is_in_view_at_any_size(size: tuple[int, int]) -> None:
    simulation = on_gpu(50)
    simulation.mode = "eager"
    decoding(simulation)
    async with shown(simulation.view(), size=size) as (app, _):
        text = "\n".join(panel(app, "batch"))
        assert "→ eager" in text
        assert "eager mode was chosen" in text


async def test_a_step_larger_than_the_largest_graph_says_so_where_there_is_one_row_for_it() -> None:
    simulation = on_gpu(50)
    record = simulation.history.latest
    assert record is not None
    reason = "batch 40 is larger than the largest graph, 32"
    simulation.history.append(msgspec.structs.replace(record, mode="eager", graph_size=None, reason=reason))
    async with shown(simulation.view(), size=(80, 21)) as (app, _):
        assert f"→ eager: {reason}" in panel(app, "batch")[1]
    async with shown(simulation.view(), size=(60, 45)) as (app, _):
        assert f"eager: {reason}" in "\n".join(panel(app, "batch"))


async def test_the_rows_of_the_batch_panel_stay_when_a_prefill_comes_between() -> None:
    simulation = on_gpu(50)
    record = simulation.history.latest
    assert record is not None
    for height in (45, 30, 24, 21):
        async with shown(simulation.view(), size=(60, height)) as (app, pilot):
            before = [line.split()[0] for line in panel(app, "batch")[3:] if line.split()]
            simulation.history.append(
                msgspec.structs.replace(
                    record, kind="prefill", mode="eager", graph_size=None, reason="prefill"
                )
            )
            await show(app, pilot, simulation.view())
            after = [line.split()[0] for line in panel(app, "batch")[3:] if line.split()]
            assert [name.rstrip(":") for name in after] == [name.rstrip(":") for name in before]
            simulation.history.append(record)


@pytest.mark.parametrize("size", [(60, 45), (60, 24)])
async def test_a_missing_field_is_na_and_the_others_stay(size: tuple[int, int]) -> None:
    view = on_gpu().view()
    gpu = replace(view.gpu, memory_used=None, memory_total=None, missing={"memory": "not supported here"})
    async with shown(replace(view, gpu=gpu), size=size) as (app, _):
        text = "\n".join(panel(app, "gpu"))
        assert "n/a" in text
        assert "412" in text
        assert "63 %" in text


# --- fit -------------------------------------------------------------------------------------------

SIZES = [
    (60, 45),
    (78, 21),
    (80, 24),
    (60, 30),
    (40, 16),
    (30, 12),
    (24, 9),
    (160, 48),
    (118, 20),
    (12, 5),
    (200, 70),
]


@cache
def scene_view(scene: str) -> InspectorView:
    views = {
        "gpu": lambda: on_gpu(400).view(),
        "cpu": lambda: on_cpu(60).view(),
        "loading": loading_view,
        "ready": lambda: Simulation().view(),
        "dead": lambda: on_gpu(60).view(dead=True),
        "big": lambda: on_gpu(400, num_blocks=100_000, chats=30).view(),
    }
    return views[scene]()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scene", ["gpu", "cpu", "loading", "ready", "dead", "big"])
async def test_frames_are_whole_and_nothing_overflows(size: tuple[int, int], scene: str) -> None:
    width, height = size
    async with shown(scene_view(scene), size=size) as (app, _):
        lines = app.lines()
        panels = [item for item in app.inspector.query(Panel) if item.size.height]
        covered = sum(item.region.area for item in panels)
        assert covered == width * height
        for item in panels:
            region = item.region
            for y in range(region.y, region.bottom):
                line = lines[y][region.x : region.right]
                assert len(line) == region.width
                assert line[0] in "╭├│╰", line
                assert line[-1] in "╮┤│╯", line
            assert len({strip.cell_length for strip in item._strips}) == 1
            text = item._strips[0].text
            assert text.startswith("╭" if item.opens else "├")


@pytest.mark.parametrize("size", [(57, 44), (160, 48), (80, 21)])
async def test_panels_get_their_rows_anew_when_the_engine_and_the_card_have_spoken(
    size: tuple[int, int],
) -> None:
    view = scene_view("gpu")
    unread = replace(view, gpu=GpuReading())
    async with shown(view, size=size) as (app, _):
        wanted = [item.region for item in app.query(Panel)]
    async with shown(loading_view(), size=size) as (app, pilot):
        await show(app, pilot, unread)
        await show(app, pilot, view)
        assert [item.region for item in app.query(Panel)] == wanted


async def test_panels_follow_a_resize() -> None:
    simulation = on_gpu()
    async with shown(simulation.view()) as (app, pilot):
        await pilot.resize_terminal(90, 20)
        await pilot.pause()
        await pilot.pause()
        assert all(len(line) == 90 for line in app.lines())
        assert panel(app, "batch")[1].startswith(f"{simulation.history[-1].active} active")
        panels = [item for item in app.inspector.query(Panel) if item.size.height]
        assert all(item._strips and item._strips[0].cell_length == 90 for item in panels)


# --- drawing ---------------------------------------------------------------------------------------


async def test_the_same_view_refreshes_nothing_and_a_new_step_only_what_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = on_gpu(900)
    async with shown(simulation.view(), size=(60, 45)) as (app, pilot):
        lines: list[int] = []
        refresh = Panel.refresh

        def counting(self: Panel, *regions: object, **options: bool) -> object:
            lines.append(len(regions) if regions else self.size.height)
            return refresh(self, *regions, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Panel, "refresh", counting)
        app.inspector.show(simulation.view())
        assert sum(lines) == 0
        decoding(simulation)
        app.inspector.show(simulation.view())
        assert 0 < sum(lines) < 40
        await pilot.pause()


async def test_a_change_of_theme_draws_everything_in_its_colours() -> None:
    simulation = on_gpu()
    async with shown(simulation.view()) as (app, pilot):
        before = {
            segment.style.bgcolor.name for strip in app.query_one("#kv", Panel)._strips for segment in strip
        }  # type: ignore[union-attr]
        assert "#13151a" in before
        app.theme = "light"
        await pilot.pause()
        after = {
            segment.style.bgcolor.name for strip in app.query_one("#kv", Panel)._strips for segment in strip
        }  # type: ignore[union-attr]
        assert "#f8f7f4" in after
        assert not before & after


async def test_a_hidden_inspector_draws_again_when_it_is_shown() -> None:
    simulation = on_gpu()
    async with shown(simulation.view()) as (app, pilot):
        app.inspector.display = False
        await pilot.pause()
        record = decoding(simulation).history.latest
        assert record is not None
        app.inspector.show(simulation.view())
        app.inspector.display = True
        await pilot.pause()
        await pilot.pause()
        assert f"step {record.index:,}" in "\n".join(panel(app, "step"))


async def test_markup_in_names_is_shown_as_it_is() -> None:
    view = on_gpu().view()
    gpu = replace(view.gpu, name="[/red] [link=x] GPU")
    async with shown(replace(view, gpu=gpu), size=(100, 45)) as (app, _):
        assert "[/red] [link=x] GPU" in "\n".join(panel(app, "gpu"))


async def test_counts_of_an_engine_that_restarts_start_over() -> None:
    simulation = on_gpu()
    async with shown(simulation.view()) as (app, pilot):
        fresh = Simulation()
        await show(app, pilot, fresh.view())
        assert fresh.mirror.counts() == BlockCounts(0, 0, 1024)
        assert "0 used  0 cached  1,024 free" in panel(app, "kv")[0]
        assert "A" not in "".join(panel(app, "kv")[2:8])
