"""Steps worth going to: those that decoded eagerly, and those at which graph or mode changed. Plain data."""

from collections.abc import Iterable, Iterator
from typing import Literal, get_args

from engine.records import StepRecord

Landmark = Literal["eager", "change"]
LANDMARKS: tuple[Landmark, ...] = get_args(Landmark)

# what each is called, and why there may be none
WORDS: dict[Landmark, str] = {"eager": "step that decoded eagerly", "change": "change of graph or mode"}
_NONE: dict[Landmark, str] = {
    "eager": "every one that decodes replays a graph",
    "change": "all that decode run the same way",
}


def landmarks(records: Iterable[StepRecord], what: Landmark, first: int = 0) -> Iterator[int]:
    """Positions from ``first`` on, in order. Steps that only prefill are none: they always run eager."""
    before: tuple[object, ...] | None = None
    for position, record in enumerate(records):
        if position < first or record.kind == "prefill":
            continue
        runs = (record.mode, record.graph_size, record.reason)
        if record.mode == "eager" if what == "eager" else before not in (None, runs):
            yield position
        before = runs


def next_landmark(
    records: Iterable[StepRecord], what: Landmark, by: int, start: int, first: int = 0
) -> int | None:
    """The nearest position after ``start``, or with a negative ``by`` before it; None where there is none."""
    marks = landmarks(records, what, first)
    if by > 0:
        return next((position for position in marks if position > start), None)
    found = None
    for position in marks:
        if position >= start:
            break
        found = position
    return found


def none_left(what: Landmark, by: int, step: int, end: int) -> str:
    """Why a jump from ``step`` goes nowhere; ``end`` is the outermost kept step in that direction."""
    side = "Before" if by < 0 else "After"
    if step == end:
        return f"{side} step {step:,} there is none: it is the {'oldest kept' if by < 0 else 'newest'}."
    low, high = (end, step - 1) if by < 0 else (step + 1, end)
    steps = f"step {low:,}" if low == high else f"steps {low:,} to {high:,}"
    return f"No {'earlier' if by < 0 else 'later'} {WORDS[what]}: of {steps}, {_NONE[what]}."
