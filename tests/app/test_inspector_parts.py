"""The inspector's parts without an app: lines, rows of panels, chart columns, cells of the block map."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style

from engine.records import BlockChange, BlockSnapshot
from tests.app.simulation import Simulation
from tests.app.test_history import make
from tests.app.test_mirror import step
from tui_infer.history import StepHistory
from tui_infer.mirror import BlockMirror, BlockState
from tui_infer.themes import load_themes
from tui_infer.widgets.inspector.batch import short_count, wasted_rows
from tui_infer.widgets.inspector.cells import CellGrid, fitting_scale
from tui_infer.widgets.inspector.chart import (
    chart_notes,
    decode_chart,
    flat_chart,
    nice_ceiling,
    prefill_lane,
    scale_of,
)
from tui_infer.widgets.inspector.frame import NO_GLOW, Frame, activity_of
from tui_infer.widgets.inspector.ink import FILL_LEVELS, Ink
from tui_infer.widgets.inspector.lines import (
    byte_size,
    counted,
    fit,
    gauge,
    milliseconds,
    rate,
    sparkline,
    spread,
    stacked,
    width_of,
    wrap_words,
)
from tui_infer.widgets.inspector.plan import FRAME_ROWS, plan_rows
from tui_infer.widgets.inspector.series import StepSeries
from tui_infer.widgets.inspector.table import Run, elided, flow, merged_runs
from tui_infer.widgets.inspector.view import SessionTag

PLAIN = Style()
INK = Ink(next(theme for theme in load_themes()[0] if theme.name == "dark"))
EVERY = ("batch", "step", "kv", "table", "gpu")


def text_of(line: list[tuple[str, Style]]) -> str:
    return "".join(text for text, _ in line)


# --- lines -----------------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), max_size=12)


@given(st.lists(words, max_size=5), st.integers(0, 30))
def test_a_fitted_line_is_never_wider_than_asked(texts: list[str], width: int) -> None:
    line = fit([(text, PLAIN) for text in texts], width)
    assert width_of(line) <= width
    whole = "".join(texts)
    if cell_len(whole) <= width:
        assert text_of(line) == whole


@given(words, words, st.integers(1, 40))
def test_a_spread_line_fills_the_width_or_gives_up_its_right_end(left: str, right: str, width: int) -> None:
    line = spread([(left, PLAIN)], [(right, PLAIN)] if right else [], width, PLAIN)
    assert width_of(line) <= width
    if right and cell_len(left) + cell_len(right) < width:
        assert width_of(line) == width
        assert text_of(line).endswith(right)


@given(st.floats(-1, 2), st.integers(1, 60))
def test_a_gauge_has_its_width_and_shows_anything_above_nothing(share: float, width: int) -> None:
    line = gauge(share, width, PLAIN, PLAIN)
    assert width_of(line) == width
    assert bool(line[0][0]) == (share > 0)


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=4), st.integers(8, 60))
def test_stacked_bars_have_their_width_and_lose_no_part(shares: list[float], width: int) -> None:
    styles = [Style(color=f"color({number + 1})") for number in range(len(shares))]
    total = max(1.0, sum(shares))
    shares = [share / total for share in shares]
    line = stacked(list(zip(shares, styles)), width, PLAIN)
    assert width_of(line) == width
    shown = {style for text, style in line if text}
    assert all((style in shown) == (share > 0) for share, style in zip(shares, styles))


def test_a_sparkline_marks_every_value_above_zero() -> None:
    assert sparkline([0, 0.001, 4, 8], 8) == " ▁▄█"
    assert sparkline([0, 0], 0) == "  "


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00"),
        (1.314, "1.31"),
        (9.99, "9.99"),
        (9.996, "10.0"),
        (23.44, "23.4"),
        (345.2, "345"),
        (1234.4, "1,234"),
    ],
)
def test_milliseconds_show_three_digits_that_matter(value: float, text: str) -> None:
    assert milliseconds(value) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (900, "900 B"),
        (41 << 20, "41 MiB"),
        (1023 << 20, "1023 MiB"),
        (1 << 30, "1.0 GiB"),
        (round(18.24 * 2**30), "18.2 GiB"),
        (143_771 << 20, "140 GiB"),
        (5 << 40, "5,120 GiB"),
    ],
)
def test_sizes_have_three_digits_that_matter(number: int, text: str) -> None:
    assert byte_size(number) == text


def test_numbers_are_written_with_their_nouns() -> None:
    assert (counted(1, "block"), counted(2, "block"), counted(12_345, "token")) == (
        "1 block",
        "2 blocks",
        "12,345 tokens",
    )
    assert (rate(7.44), rate(74.4), rate(7431.2)) == ("7.4", "74", "7,431")
    assert [short_count(n) for n in (0, 999, 1234, 35_400, 1_234_567)] == ["0", "999", "1.2k", "35k", "1.2M"]


def test_a_reason_wraps_at_words_and_says_where_it_is_cut() -> None:
    assert wrap_words("no CUDA graphs on cpu", 13, 2) == ["no CUDA", "graphs on cpu"]
    assert wrap_words("one two three four", 9, 2) == ["one two", "three fo…"]
    assert wrap_words("one two", 20, 1) == ["one two"]
    assert wrap_words("unbreakable", 5, 1) == ["unbr…"]


# --- rows of the panels ----------------------------------------------------------------------------


@given(st.integers(0, 120), st.integers(1, 4), st.integers(4, 6), st.integers(4, 60))
def test_panels_take_all_rows_and_never_more(rows: int, gpu: int, batch: int, kv: int) -> None:
    most = {"gpu": gpu, "batch": batch, "kv": kv}
    given_rows = plan_rows(EVERY, rows, most, greedy=("kv", "step"))
    total = sum(given_rows.values()) + FRAME_ROWS * (len(given_rows) + 1)
    assert total == rows if given_rows else rows < 3
    assert all(count >= 1 for count in given_rows.values())
    if rows >= 14:
        assert set(given_rows) == set(EVERY)


def test_the_batch_is_the_last_panel_to_go() -> None:
    assert list(plan_rows(EVERY, 9, {})) == ["batch", "step"]
    assert list(plan_rows(EVERY, 5, {})) == ["batch"]


# --- chart -----------------------------------------------------------------------------------------


def filled(records: list, columns: int, *, single: bool = False) -> StepSeries:
    history = StepHistory()
    history.extend(records)
    series = StepSeries()
    series.update(history, columns, single=single)
    return series


def test_no_spike_is_lost_when_steps_outnumber_columns() -> None:
    records = [make(index, ms=90.0 if index == 1500 else 2.0, t=index / 500) for index in range(2000)]
    series = filled(records, 50)
    assert series.steps_per_column > 1
    assert max(column.slowest_ms for column in series.last(50)) == 90.0
    chart = decode_chart(series.last(50), 55, 5, INK)
    assert "▲" in text_of(chart[0])


def test_one_spike_does_not_flatten_the_other_steps() -> None:
    series = filled([make(index, ms=500.0 if index == 30 else 2.0) for index in range(40)], 40, single=True)
    assert scale_of(series.last(40)) < 10


def test_graph_and_eager_have_different_marks_and_prefill_its_own_lane() -> None:
    records = [make(index, ms=3.0) for index in range(5)]
    records += [make(index, ms=3.0, graph=1) for index in range(5, 10)]
    records += [make(10, ms=40.0, kind="prefill", prefill=100)]
    series = filled(records, 20, single=True)
    columns = series.last(20)
    bottom = text_of(decode_chart(columns, 25, 3, INK)[-1])[-11:]
    assert len(set(bottom[:5])) == 1
    assert len(set(bottom[5:10])) == 1
    assert bottom[0] != bottom[5]
    assert bottom[10] == " "
    lane = text_of(prefill_lane(columns, 25, INK))
    assert lane.endswith("          █")


def test_in_one_row_eager_steps_are_hatched_too_and_the_legend_names_what_is_there() -> None:
    records = [make(index, ms=3.0, graph=1) for index in range(4)]
    columns = filled([*records, *(make(index, ms=3.0) for index in range(4, 8))], 20, single=True).last(20)
    marks = text_of(flat_chart(columns, INK))
    assert len(marks) == 8
    assert set(marks[:4]).isdisjoint("░▒▓")
    assert set(marks[4:]) <= set("░▒▓")
    legend = [text_of(group) for group in chart_notes(columns, 1, INK, flat=True)]
    assert legend[:2] == ["█ graph", "░▒▓ eager"]
    assert not any("▲" in group or "│" in group for group in legend)


def test_columns_grown_step_by_step_equal_columns_made_at_once() -> None:
    simulation = Simulation(chats=3)
    simulation.run(1200)
    history, series = StepHistory(), StepSeries()
    for record in simulation.history:
        history.append(record)
        if record.index % 7 == 0:
            series.update(history, 40, single=False)
    series.update(history, 40, single=False)
    fresh = StepSeries()
    fresh.steps_per_column = series.steps_per_column
    fresh.update(history, 40, single=False)
    common = min(len(series.last(40)), len(fresh.last(40))) - 1
    assert common > 10
    assert series.last(common) == fresh.last(common)


def test_columns_stay_aligned_to_steps_so_that_the_chart_scrolls() -> None:
    series = filled([make(index, ms=1.0) for index in range(1000)], 50)
    size = series.steps_per_column
    assert [column.number for column in series.last(5)] == list(range(999 // size - 4, 999 // size + 1))


@given(st.floats(1e-3, 1e6))
def test_the_axis_ends_at_a_round_number_above_the_data(value: float) -> None:
    top = nice_ceiling(value)
    assert value * 0.999 <= top <= value * 2.1


def test_wasted_rows_are_the_padding_of_the_replayed_graph() -> None:
    assert wasted_rows(make(1, graph=8, rows=5)) == 3
    assert wasted_rows(make(1, rows=5)) == 0


# --- block map -------------------------------------------------------------------------------------


def frame_of(simulation: Simulation, *, glow: int = NO_GLOW, focused: int | None = 1) -> Frame:
    return Frame(simulation.view(focused=focused), INK, StepSeries(), "live", glow)


def expected_mark(simulation: Simulation, block: int) -> str:
    mirror = simulation.mirror
    state = mirror.state(block)
    if state == BlockState.NULL:
        return "∅"
    if state == BlockState.FREE:
        return "·"
    focused = simulation.newest_request(1)
    holders = list(mirror.references(block)) or [mirror.last_owner(block)]
    owner = focused if focused in holders else holders[0]
    letter = simulation.tags[owner].letter  # type: ignore[index]
    return letter if state == BlockState.USED else letter.lower()


@pytest.mark.parametrize("seed", range(3))
def test_each_cell_shows_the_owner_of_its_block_at_every_step(seed: int) -> None:
    simulation = Simulation(num_blocks=300, chats=4, seed=seed)
    grid = CellGrid()
    for _ in range(250):
        simulation.run(random.Random(seed).randint(1, 3))
        latest = simulation.history.latest
        assert latest is not None
        grid.update(frame_of(simulation, glow=latest.index), 10, 30)
        assert grid.scale == 1
        assert [mark for mark, _ in grid.cells] == [expected_mark(simulation, b) for b in range(300)]


def test_cells_updated_bit_by_bit_equal_cells_made_at_once() -> None:
    simulation = Simulation(num_blocks=2000, chats=6)
    grid = CellGrid()
    for _ in range(120):
        simulation.run(5)
        latest = simulation.history.latest
        assert latest is not None
        frame = frame_of(simulation, glow=latest.index - 3)
        grid.update(frame, 8, 40)
        fresh = CellGrid()
        fresh.scale = grid.scale
        fresh.update(frame, 8, 40)
        if fresh.scale == grid.scale:
            assert fresh.cells == grid.cells


def test_a_step_redraws_the_cells_that_it_changed_not_the_whole_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(num_blocks=100_000, chats=8)
    simulation.run(600)
    grid = CellGrid()
    grid.update(frame_of(simulation), 10, 56)
    made: list[int] = []
    many = CellGrid._many
    monkeypatch.setattr(CellGrid, "_many", lambda self, *args: made.append(1) or many(self, *args))
    monkeypatch.setattr(CellGrid, "_one", lambda self, *args: made.append(1) or ("A", PLAIN))
    record = simulation.run(1)[0]
    while record.kind != "decode" or record.finished:
        grid.update(frame_of(simulation), 10, 56)
        made.clear()
        record = simulation.run(1)[0]
    grid.update(frame_of(simulation), 10, 56)
    assert 0 < len(made) <= 8


def test_every_block_of_a_large_pool_is_in_a_cell_or_was_never_used() -> None:
    simulation = Simulation(num_blocks=100_000, chats=12)
    simulation.run(800)
    grid = CellGrid()
    grid.update(frame_of(simulation), 10, 56)
    first_hidden = len(grid.cells) * grid.scale
    assert grid.hidden == 100_000 - first_hidden > 0
    assert not any(simulation.mirror.states[first_hidden:])
    assert len(grid.cells) <= 9 * 56


def test_cells_never_zoom_back_in_while_the_pool_lives() -> None:
    mirror = BlockMirror(5000, 16)
    simulation = Simulation(num_blocks=5000)
    simulation.mirror = mirror
    grid = CellGrid()
    scales = []
    for index in range(60):
        mirror.apply(step(index, *(BlockChange("allocate", index * 80 + n, index, n) for n in range(1, 80))))
        grid.update(frame_of(simulation, focused=None), 10, 40)
        scales.append(grid.scale)
    mirror.restore(BlockSnapshot(step=99, owners=[], published=[]))
    grid.update(frame_of(simulation, focused=None), 10, 40)
    scales.append(grid.scale)
    assert scales == sorted(scales)
    assert scales[0] == 1 < scales[-1]


@given(st.integers(1, 300_000), st.integers(1, 5000))
def test_the_scale_is_as_small_as_it_can_be(blocks: int, cells: int) -> None:
    scale = fitting_scale(blocks, cells)
    assert scale * cells >= blocks
    assert scale == 1 or scale * cells < 2 * (blocks + cells)


def test_shared_partly_filled_and_fresh_blocks_look_different() -> None:
    mirror = BlockMirror(8, 16)
    simulation = Simulation(num_blocks=8)
    simulation.mirror = mirror
    for request in (1, 2):
        simulation.tags[request] = SessionTag("AB"[request - 1], request - 1, "", f"s{request}")
    mirror.apply(
        step(
            1,
            BlockChange("allocate", 1, 1, 0),
            BlockChange("allocate", 2, 1, 1),
            BlockChange("share", 1, 2, 0),
        )
    )
    mirror._contexts[1] = 18
    styles = {}
    for name, glow in (("calm", NO_GLOW), ("glow", 1)):
        grid = CellGrid()
        grid.update(frame_of(simulation, glow=glow, focused=None), 4, 10)
        styles[name] = [style for _, style in grid.cells[:3]]
        assert "".join(mark for mark, _ in grid.cells) == "∅AA·····"
    assert styles["calm"][1].underline
    assert not styles["calm"][2].underline
    assert styles["calm"][1].bgcolor != styles["calm"][2].bgcolor != styles["glow"][2].bgcolor
    assert styles["calm"][1] == INK.tile(0, FILL_LEVELS, shared=True, glow=False, focused=False)
    assert styles["calm"][2] == INK.tile(0, 1, shared=False, glow=False, focused=False)


def test_an_owner_whose_name_comes_later_is_shown_then() -> None:
    mirror = BlockMirror(4, 16)
    simulation = Simulation(num_blocks=4)
    simulation.mirror = mirror
    mirror.apply(step(1, BlockChange("allocate", 1, 77, 0)))
    grid = CellGrid()
    grid.update(frame_of(simulation, focused=None), 4, 10)
    assert grid.cells[1][0] == "?"
    simulation.tags[77] = SessionTag("Z", 3, "", "s")
    grid.update(frame_of(simulation, focused=None), 4, 10)
    assert grid.cells[1][0] == "Z"


# --- block table -----------------------------------------------------------------------------------


def test_neighbouring_blocks_become_one_run_and_sharing_parts_them() -> None:
    runs = [
        Run(0, 0, 5, True),
        Run(1, 1, 6, True),
        Run(2, 2, 7, False),
        Run(3, 3, 9, False),
        Run(4, 4, 10, False),
    ]
    assert [run.text for run in merged_runs(runs)] == ["0–1→5–6", "2→7", "3–4→9–10"]


def test_entries_flow_over_lines_and_are_never_broken() -> None:
    entries = [[(f"{index}→{index + 10}", PLAIN)] for index in range(9)]
    lines = flow(entries, 20, 3, "  ")
    assert lines is not None
    assert [text_of(line) for line in lines] == ["0→10  1→11  2→12", "3→13  4→14  5→15", "6→16  7→17  8→18"]
    assert flow(entries, 20, 2, "  ") is None


def test_what_is_left_out_of_a_long_table_is_counted_and_its_last_entry_stays() -> None:
    entries = [[(f"{index}→{index * 3}", PLAIN)] for index in range(40)]
    lines = elided(entries, 30, 2, "  ", frame_of(Simulation(num_blocks=8), focused=None))
    text = "  ".join(text_of(line) for line in lines)
    assert len(lines) == 2
    assert all(width_of(line) <= 30 for line in lines)
    assert text.startswith("0→0  1→3")
    assert text.endswith("39→117")
    shown = text.count("→")
    assert f"… {40 - shown} more …" in text


def test_an_answer_that_was_cancelled_leaves_the_engine_idle_at_once():
    simulation = Simulation()
    request = simulation.submit(1, 40, 400)
    simulation.run(5)
    assert activity_of(simulation.view()) == "live"
    simulation.scheduler.cancel(request.id)
    view = simulation.view()
    view.mirror.restore(simulation.scheduler.snapshot(view.history.latest.index))
    assert activity_of(view) == "idle"
