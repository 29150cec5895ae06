"""The event log: what it tells of a run, and that it is the same however it was followed."""

from collections import Counter

import msgspec

from engine.records import StepRecord
from tests.app.scripted import ON_A_CARD, engine_status
from tests.app.simulation import Simulation
from tui_infer.event_log import Entry, EventLog
from tui_infer.history import StepHistory


def log_of(records: list[StepRecord], block_size: int = 16, capacity: int = 20_000) -> EventLog:
    log = EventLog(capacity)
    log.block_size = block_size
    for record in records:
        log.take(record)
    return log


def entries(log: EventLog, at: int | None = None) -> list[Entry]:
    return list(log.forward(0, log.end(at), lambda entry: True))


def run(steps: int = 900, **options: int) -> tuple[Simulation, list[StepRecord]]:
    simulation = Simulation(**options)  # type: ignore[arg-type]
    return simulation, simulation.run(steps)


def test_blocks_of_each_kind_are_those_of_the_records() -> None:
    _, records = run(1200, num_blocks=120, chats=8)
    log = log_of(records)
    told: Counter[str] = Counter()
    for entry in entries(log):
        told[entry.kind] += len(entry.blocks)
    changes = Counter(change.kind for record in records for change in record.block_changes)
    assert told["allocated"] == changes["allocate"] + changes["copy"]
    assert told["released"] == changes["release"]
    assert told["evicted"] == changes["evict"] > 0
    assert told["hit"] == changes["share"] > 0
    preempted = [request for record in records for request in record.preempted]
    assert [entry.request for entry in entries(log) if entry.kind == "preempted"] == preempted
    assert preempted


def test_a_prefix_hit_tells_its_tokens_and_whom_the_blocks_are_shared_with() -> None:
    simulation = Simulation(chats=2, prefix=64)
    simulation.submit(0, 20, 40)
    records = [simulation.step() for _ in range(3)]
    simulation.submit(1, 20, 40)
    records += [simulation.step() for _ in range(3)]
    log = log_of([record for record in records if record is not None])
    hit = next(entry for entry in entries(log) if entry.kind == "hit")
    shared = next(entry for entry in entries(log) if entry.kind == "shared")
    assert (hit.request, hit.tokens, len(hit.blocks)) == (2, 64, 4)
    assert (shared.request, shared.other, shared.blocks) == (2, 1, hit.blocks)


def test_each_request_is_admitted_once_and_ends_once() -> None:
    _, records = run(num_blocks=160, chats=6)
    log = log_of(records)
    admitted = [entry.request for entry in entries(log) if entry.kind == "admitted"]
    ended = [entry.request for entry in entries(log) if entry.kind == "finished"]
    assert len(admitted) == len(set(admitted))
    assert len(ended) == len(set(ended))
    assert set(ended) == {request for record in records for request in record.finished}


def test_a_switch_of_the_mode_and_a_new_size_are_told_once_each() -> None:
    simulation = Simulation(chats=3)
    simulation.run(200)
    simulation.mode = "eager"
    simulation.run(50)
    simulation.mode = "graph"
    simulation.run(50)
    log = log_of(list(simulation.history))
    assert [entry.text for entry in entries(log) if entry.kind == "mode"] == ["eager", "graph"]
    sizes: list[str] = []
    last: tuple[str, int | None] = ("", None)
    for record in simulation.history:
        if any(not row.prefill for row in record.rows):
            if record.mode == "graph" and (record.mode, record.graph_size) != last:
                sizes.append(str(record.graph_size))
            last = (record.mode, record.graph_size)
    assert [entry.text for entry in entries(log) if entry.kind == "graph"] == sizes


def test_a_fall_back_to_eager_gives_the_engines_reason() -> None:
    simulation = Simulation(chats=1)
    simulation.run(60)
    record = next(record for record in reversed(list(simulation.history)) if record.kind == "decode")
    reason = "batch of 40 is larger than the largest graph, 32"
    later = msgspec.structs.replace(
        record, index=simulation.index + 1, mode="eager", graph_size=None, reason=reason
    )
    log = log_of([*simulation.history, later])
    last = entries(log)[-1]
    assert (last.kind, last.text, last.step) == (
        ("eager", reason, later.index) if not later.finished else (last.kind, last.text, last.step)
    )
    assert any(entry.kind == "eager" and entry.text == reason for entry in entries(log))


def test_the_past_holds_exactly_what_was_told_up_to_its_step() -> None:
    _, records = run(600)
    log = log_of(records)
    for step in (1, 77, 300, 599):
        assert entries(log, step) == entries(log_of([r for r in records if r.index <= step]))


def test_following_a_history_bit_by_bit_is_the_same_as_reading_it_at_once() -> None:
    simulation, records = run(400)
    bits, history = EventLog(), StepHistory()
    bits.block_size = simulation.pool.block_size
    for start in range(0, len(records), 7):
        history.extend(records[start : start + 7])
        bits.follow(history)
    assert entries(bits) == entries(log_of(records))


def test_a_cleared_history_starts_the_log_anew() -> None:
    _, records = run(200)
    history, log = StepHistory(), EventLog()
    history.extend(records)
    log.follow(history)
    history.clear()
    history.extend(records[:20])
    log.follow(history)
    assert entries(log) == entries(log_of(records[:20], block_size=0))


def test_the_log_is_bounded_and_numbers_go_on() -> None:
    _, records = run(900)
    whole, short = log_of(records), log_of(records, capacity=100)
    assert 100 <= len(short) <= 112 < len(whole)
    assert entries(short) == entries(whole)[-len(short) :]
    assert short.lost == len(whole) - len(short)
    assert short.place_of(entries(short)[0].number) == 0


def test_reasons_reach_an_ending_before_and_after_its_step_was_told() -> None:
    simulation = Simulation(chats=3)
    records = simulation.run(700)
    first, *_, last = (request for record in records for request in record.finished)
    log = EventLog()
    log.ended(first, "length")
    for record in records:
        log.take(record)
    log.ended(last, "cancelled")
    endings = {entry.request: (entry.kind, entry.text) for entry in entries(log) if entry.text}
    assert endings[first] == ("finished", "length")
    assert endings[last] == ("cancelled", "cancelled")


def test_a_cancel_that_no_step_follows_is_told_when_the_engine_settles() -> None:
    simulation = Simulation(chats=1)
    request = simulation.submit(0, 20, 200)
    record = simulation.step()
    assert record is not None
    log = log_of([record])
    log.ended(request.id, "cancelled")
    log.settled(record.index, 5.0)
    last = entries(log)[-1]
    assert (last.kind, last.request, last.step) == ("cancelled", request.id, record.index)


def test_captured_graphs_and_failed_ones_come_first() -> None:
    log = EventLog()
    log.ready(engine_status(**{**ON_A_CARD, "graph_capture_s": 1.25}))
    assert entries(log)[0].text == "1 2 4 8 16 32 in 1.2 s"
    assert log.end(0) == 1
