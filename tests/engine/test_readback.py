"""What goes to the card and comes back without anybody waiting, with events that tell when they were used."""

import pytest
import torch

from engine.readback import FIRST_ROOM, Readback
from engine.staging import Staging


class Told:
    """An event of which it is told when it was recorded and waited for."""

    log: list[tuple[str, int]] = []

    def __init__(self, enable_timing: bool = False) -> None:
        self.number = len({number for _, number in Told.log if number >= 0})
        Told.log.append(("made", self.number))

    def record(self) -> None:
        Told.log.append(("record", self.number))

    def synchronize(self) -> None:
        Told.log.append(("wait", self.number))

    def elapsed_time(self, end: "Told") -> float:
        return float(end.number - self.number)


@pytest.fixture(autouse=True)
def events(monkeypatch):
    """Events and pinned memory on a machine that has neither."""
    Told.log = []
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch.cuda, "Event", Told)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory, **more: empty(*size, **more))
    monkeypatch.setattr(torch, "empty_like", lambda like, pin_memory: empty_like(like))


class Card(torch.Tensor):
    """A tensor on the CPU that says that it is on a card."""

    is_cuda = True


def staging():
    columns, tables = torch.arange(6).view(2, 3), torch.arange(12).view(3, 4)
    device = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(3, 4, dtype=torch.int64)
    made = Staging(columns, tables, device[0].as_subclass(Card), device[1].as_subclass(Card))
    Told.log.clear()
    return made, columns, tables, device


def test_what_is_sent_arrives():
    made, columns, tables, device = staging()
    made.send_tables(1, 3)
    made.send_columns()
    assert torch.equal(device[0], columns)
    assert device[1].tolist() == [[0] * 4, *tables[1:].tolist()]
    columns += 10
    made.send_column(1)
    assert device[0].tolist() == [[0, 1, 2], [13, 14, 15]]


def test_fills_take_the_two_sides_by_turns_and_wait_for_none_but_their_own():
    made, _, _, _ = staging()
    for _ in range(4):
        made.send_tables(0, 1)
        made.send_columns()
    assert Told.log == [
        ("wait", 0), ("record", 0), ("wait", 1), ("record", 1),
        ("wait", 0), ("record", 0), ("wait", 1), ("record", 1),
    ]  # fmt: skip


def test_a_fill_leaves_the_side_alone_that_the_one_before_may_still_be_read_from():
    made, columns, _, _ = staging()
    sides = list(made._sides)
    made.send_columns()
    kept = sides[0].columns.clone()
    columns += 100
    made.send_columns()
    assert torch.equal(sides[0].columns, kept)
    assert torch.equal(sides[1].columns, columns)


def test_two_steps_under_way_have_memory_and_events_of_their_own():
    readback = Readback(torch.device("cuda"))
    Told.log.clear()
    first, tokens = readback.begin(), torch.tensor([5, 6, 7])
    first.end([tokens[:2], tokens[2:]])
    second = readback.begin()
    tokens += 10  # the next step draws into the same place
    second.end([tokens[:1]])
    assert [what for what, _ in Told.log] == ["record"] * 4, "nobody waited"
    assert first.read() == ([[5, 6], [7]], 1.0)
    assert second.read() == ([[15]], 1.0)
    assert Told.log[4:] == [("wait", 1), ("wait", 3)]
    assert readback.begin() is first


def test_a_step_with_more_tokens_than_ever_gets_them_all():
    readback = Readback(torch.device("cuda"))
    many = torch.arange(3 * FIRST_ROOM)
    for _ in range(2):
        slot = readback.begin()
        slot.end([many])
        assert slot.read()[0] == [many.tolist()]
    slot = readback.begin()
    slot.end([])
    assert slot.read()[0] == []


def test_without_a_card_tokens_are_kept_as_they_were():
    readback, tokens = Readback(torch.device("cpu")), torch.tensor([5, 6])
    slot = readback.begin()
    slot.end([tokens])
    tokens += 1
    assert slot.read() == ([[5, 6]], None)
