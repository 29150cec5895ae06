"""Step history: a bounded ring, and aggregates that equal what one would compute from scratch."""

import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.records import BlockCounts, StepRecord, StepRow, StepTimes
from tests.app.simulation import Simulation
from tui_infer.history import WINDOW_STEPS, SortedWindow, StepHistory, decode_rows


def make(
    index: int,
    *,
    t: float = 0.0,
    ms: float = 1.0,
    kind: str = "decode",
    graph: int | None = None,
    rows: int = 1,
    prefill: int = 0,
    reason: str = "",
    times: StepTimes | None = None,
) -> StepRecord:
    decode = 0 if kind == "prefill" else rows
    return StepRecord(
        index=index,
        t=t,
        kind=kind,  # type: ignore[arg-type]
        mode="graph" if graph else "eager",
        reason=reason,
        graph_size=graph,
        active=rows + (kind == "mixed"),
        waiting=0,
        prefill_tokens=prefill,
        cached_tokens=0,
        decode_tokens=decode,
        ms=times or StepTimes(ms, 0.1, ms - 0.2, None, 0.1),
        blocks=BlockCounts(0, 0, 1),
        rows=tuple(StepRow(number, 5, 1, False) for number in range(decode))
        + tuple(StepRow(100 + number, 5, prefill, True) for number in range(kind != "decode")),
    )


def test_the_ring_keeps_the_newest_records_and_forgets_the_oldest() -> None:
    history = StepHistory(capacity=5)
    for index in range(12):
        history.append(make(index))
    assert [record.index for record in history] == [7, 8, 9, 10, 11]
    assert [record.index for record in history.last(3)] == [9, 10, 11]
    assert history[0].index == 7
    assert history[-1] is history.latest
    assert (len(history), history.appended) == (5, 12)
    with pytest.raises(IndexError):
        history[5]


def test_an_empty_history_says_nothing_rather_than_zero() -> None:
    history = StepHistory()
    assert history.latest is None
    assert history.percentiles() is None
    assert history.tokens_per_s() is None
    assert history.prefill_tokens_per_s() is None
    assert history.time_shares() is None
    assert history.ratio(1) is None
    assert history.last(3) == []


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(1, 20))
def test_percentiles_of_a_window_equal_numpy(values: list[float], size: int) -> None:
    window = SortedWindow(size)
    for value in values:
        window.add(value)
    for percent in (0, 50, 95, 99, 100):
        assert window.percentile(percent) == pytest.approx(np.percentile(values[-size:], percent))


def test_percentiles_look_at_the_last_steps_that_decoded() -> None:
    history = StepHistory()
    random.seed(1)
    decoded = []
    for index in range(WINDOW_STEPS * 2):
        kind = random.choice(["decode", "decode", "prefill", "mixed"])
        ms = random.uniform(1, 50)
        history.append(make(index, ms=ms, kind=kind, prefill=0 if kind == "decode" else 8))
        if kind != "prefill":
            decoded.append(ms)
    numbers = history.percentiles()
    assert numbers is not None
    expected = np.percentile(decoded[-WINDOW_STEPS:], [50, 95, 99])
    assert (numbers.p50, numbers.p95, numbers.p99) == pytest.approx(tuple(expected))
    assert numbers.steps == WINDOW_STEPS


def test_tokens_per_second_are_tokens_over_the_time_of_the_window() -> None:
    history = StepHistory()
    for index in range(10):
        history.append(make(index, t=100 + index * 0.05, ms=50.0, rows=4))
    assert history.tokens_per_s() == pytest.approx(40 / 0.5)


def test_tokens_per_second_forget_what_is_older_than_the_window() -> None:
    history = StepHistory()
    history.append(make(0, t=0.0, rows=32))
    for index in range(1, 11):
        history.append(make(index, t=10 + index * 0.1, ms=100.0, rows=1))
    assert history.tokens_per_s() == pytest.approx(10.0)


def test_prefill_tokens_have_a_rate_of_their_own() -> None:
    history = StepHistory()
    history.append(make(0, t=0.0, ms=100.0, kind="prefill", prefill=50))
    assert history.tokens_per_s() is None
    assert history.prefill_tokens_per_s() == pytest.approx(500.0)


def test_graph_hits_and_eager_reasons_are_counted() -> None:
    history = StepHistory(capacity=2)
    for index in range(6):
        history.append(make(index, graph=4, rows=3))
    history.append(make(6, graph=8, rows=5))
    history.append(make(7, reason="batch 40 is larger than the largest graph, 32", rows=40))
    assert history.graph_hits == {4: 6, 8: 1}
    assert history.eager_reasons == {"batch 40 is larger than the largest graph, 32": 1}


def test_the_ratio_compares_medians_at_the_same_batch_size() -> None:
    history = StepHistory()
    for index in range(9):
        history.append(make(index, ms=3.0 + (index == 4) * 90, rows=2))
    assert history.ratio(2) is None
    for index in range(9, 18):
        history.append(make(index, ms=1.5, graph=2, rows=2))
    ratio = history.ratio(2)
    assert ratio is not None
    assert (ratio.eager_ms, ratio.graph_ms, ratio.speedup) == (3.0, 1.5, 2.0)
    assert history.ratio(3) is None


def test_the_ratio_stays_with_its_batch_size_when_a_chat_ends() -> None:
    history = StepHistory()
    assert history.nearest_ratio() is None
    for index in range(6):
        history.append(make(index, ms=6.0, rows=4))
        history.append(make(index, ms=2.0, graph=4, rows=4))
        history.append(make(index, ms=1.0, graph=1, rows=1))
    for rows in (4, 3, 1):
        history.append(make(20, ms=2.0, graph=4, rows=rows))
        ratio = history.nearest_ratio()
        assert ratio is not None
        assert (ratio.batch, ratio.speedup) == (4, 3.0)
    for index in range(6):
        history.append(make(30 + index, ms=5.0, rows=1))
    history.append(make(40, kind="prefill", prefill=64))  # nothing decoded: the batch size before counts
    ratio = history.nearest_ratio()
    assert ratio is not None
    assert (ratio.batch, ratio.speedup) == (1, 5.0)
    history.clear()
    assert history.nearest_ratio() is None


def test_steps_with_prefill_do_not_enter_the_ratio() -> None:
    history = StepHistory()
    for index in range(9):
        history.append(make(index, ms=3.0, rows=2))
        history.append(make(index, ms=1.0, graph=2, rows=2))
        history.append(make(index, ms=70.0, rows=2, kind="mixed", prefill=64))
        history.append(make(index, ms=50.0, graph=2, rows=2, kind="mixed", prefill=64))
    ratio = history.ratio(2)
    assert ratio is not None
    assert (ratio.eager_ms, ratio.graph_ms) == (3.0, 1.0)


def test_one_lucky_step_gives_no_ratio() -> None:
    history = StepHistory()
    history.append(make(0, ms=3.0, rows=2))
    history.append(make(1, ms=0.1, graph=2, rows=2))
    assert history.ratio(2) is None


def test_a_step_whose_rows_had_all_ended_is_no_batch_of_its_own() -> None:
    history = StepHistory()
    for index in range(9):
        for graph in (None, 2):
            history.append(make(index, ms=2.0 if graph else 3.0, graph=graph, rows=2))
            history.append(make(index, ms=9.0, graph=graph, rows=0))
    assert set(history.medians()) == {("eager", 2), ("graph", 2)}
    assert history.decode_batch == 2
    percentiles = history.percentiles()
    assert percentiles is not None
    assert percentiles.p99 == 3.0


def test_medians_are_of_pure_decode_steps() -> None:
    history = StepHistory()
    history.append(make(0, ms=2.0, rows=3))
    history.append(make(1, ms=80.0, rows=3, kind="mixed", prefill=64))
    assert history.medians() == {("eager", 3): 2.0}


def test_time_shares_average_decode_steps_and_keep_device_unknown_on_a_cpu() -> None:
    history = StepHistory()
    history.append(make(0, times=StepTimes(10.0, 1.0, 8.0, None, 1.0)))
    history.append(make(1, times=StepTimes(20.0, 3.0, 14.0, None, 3.0)))
    history.append(make(2, kind="prefill", prefill=4, times=StepTimes(500.0, 3.0, 490.0, None, 3.0)))
    shares = history.time_shares()
    assert shares is not None
    assert (shares.total, shares.schedule, shares.launch, shares.read) == (15.0, 2.0, 11.0, 2.0)
    assert shares.device is None


def test_the_first_step_since_a_time_is_found_in_a_full_ring() -> None:
    history = StepHistory(capacity=8)
    for index in range(20):
        history.append(make(index, t=float(index)))
    assert history.first_since(15.5) == 16
    assert history.first_since(0.0) == 12
    assert history.first_since(99.0) == 20


def test_aggregates_do_not_depend_on_the_capacity() -> None:
    small, large = StepHistory(capacity=3), StepHistory()
    simulation = Simulation(chats=3)
    for record in simulation.run(400):
        small.append(record)
        large.append(record)
    assert small.percentiles() == large.percentiles()
    assert small.medians() == large.medians()
    assert small.tokens_per_s() == large.tokens_per_s()
    assert small.graph_hits == large.graph_hits


def test_medians_equal_a_computation_from_scratch() -> None:
    simulation = Simulation(chats=2)
    records = simulation.run(300)
    by_key: dict[tuple[str, int], list[float]] = {}
    for record in records:
        if record.kind == "decode":
            by_key.setdefault((record.mode, decode_rows(record)), []).append(record.ms.total)
    expected = {key: statistics.median(values[-257:]) for key, values in by_key.items()}
    assert simulation.history.medians() == pytest.approx(expected)


def test_clear_forgets_everything_and_says_that_it_changed() -> None:
    history = StepHistory()
    history.append(make(0, graph=1))
    version = history.version
    history.extend([], dropped=4)
    history.clear()
    assert (len(history), history.dropped, history.graph_hits, history.latest) == (0, 0, {}, None)
    assert history.version > version
