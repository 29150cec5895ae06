"""Steady decode as a caller of the engine sees it: the time from one step's tokens to the next one's."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine.bench.decode import figures, require_full
from engine.bench.measure import median, percentile, rounded
from engine.bench.session import Need, Session, fill_steps
from engine.errors import EngineError
from engine.records import StepRecord
from engine.runner import Flight, StepOutput

SETTLE = 8  # steps after filling that are not counted

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Steady:
    """Decode ``steps`` steps of ``batch`` rows whose contexts are ``context`` tokens in the middle of them.

    Attributes:
        ahead: launch each step before the tokens of the one before are read, where the engine can.
        advance: rows move on by themselves on the device; otherwise the host sends all of them each step.
        temperature: of all rows; 0 takes the most likely token.
        top_p: of all rows.
    """

    batch: int
    context: int
    steps: int
    ahead: bool = True
    advance: bool = True
    temperature: float = 0.0
    top_p: float = 1.0

    def room(self, prefill_chunk: int) -> int:
        """Tokens that a row may decode beyond its prompt."""
        return self.steps + SETTLE + fill_steps(self.batch, self.context, prefill_chunk)

    def need(self, prefill_chunk: int) -> Need:
        return Need(self.batch, self.prompt_tokens + self.room(prefill_chunk))

    @property
    def prompt_tokens(self) -> int:
        """Where no limit of the model is near."""
        return max(1, self.context - self.steps // 2 - SETTLE)

    def fitted(self, session: Session) -> int:
        """Prompt tokens such that the last step stays inside the model's longest sequence."""
        status = session.engine.status()
        return max(1, min(self.prompt_tokens, status.max_model_len - self.room(status.prefill_chunk)))


def stepper(session: Session, ahead: bool = True, advance: bool = True) -> Callable[[], StepRecord | None]:
    """What makes one step, as ``Steady`` describes it."""
    engine = session.engine
    static = engine.runner.static
    if advance or static is None:
        return lambda: engine.step(ahead=ahead)

    def filled() -> StepRecord | None:
        static.buffers.break_off()
        return engine.step(ahead=ahead)

    return filled


def measure(session: Session, plan: Steady) -> Row:
    """One row of figures; the engine is left empty.

    * ``context_mean``: of the counted steps and all rows, in tokens;
    * ``ms_p50``, ``ms_p99``: wall time from one step's return to the next one's, so that everything the
      caller waits for is in it; ``device_ms_*``: the same steps by CUDA events; ``host_ms_p50``: the one less
      the other; ``work_ms_p50``: all of the host's time but the wait for a step's tokens;
    * ``tokens_per_s``, ``gb_per_s``, ``share_of_copy``: as in ``bench decode``, at the median wall time.

    Raises:
        EngineError: not every step decoded all rows, or they changed between graph and eager.
    """
    records, wall_ms, read_ms = run(session, plan)
    contexts = [row.context for record in records for row in record.rows]
    device = [record.ms.device for record in records if record.ms.device is not None]
    return {
        **session.identity(),
        "mode": records[-1].mode,
        "ahead": plan.ahead,
        "temperature": plan.temperature,
        "top_p": plan.top_p,
        "batch": plan.batch,
        "context": plan.context,
        "context_mean": round(sum(contexts) / len(contexts)),
        "steps": len(records),
        **figures(session, records, wall_ms),
        "device_ms_p99": rounded(percentile(device, 0.99)) if device else None,
        "work_ms_p50": rounded(median([wall - read for wall, read in zip(wall_ms, read_ms)])),
    }


def run(session: Session, plan: Steady) -> tuple[list[StepRecord], list[float], list[float]]:
    """Of each counted step its record, its wall time, and how long its tokens were waited for, in ms."""
    session.fill(
        plan.batch, plan.fitted(session), plan.steps + SETTLE, temperature=plan.temperature, top_p=plan.top_p
    )
    step = stepper(session, plan.ahead, plan.advance)
    records: list[StepRecord | None] = []
    with _reads(session) as read_ms:
        for _ in range(SETTLE):
            step()
        read_ms.clear()
        ends = [time.perf_counter()]
        for _ in range(plan.steps):  # nothing in here but what every caller has to do
            records.append(step())
            ends.append(time.perf_counter())
        read_ms = read_ms[: plan.steps]
    session.clear()
    counted = [record for record in records if record is not None]
    for record in counted:
        require_full(record, plan.batch)
    if len(counted) < plan.steps or len({record.mode for record in counted}) > 1:
        modes = ", ".join(sorted({record.mode for record in counted}))
        raise EngineError(f"{len(counted)} of {plan.steps} steps were made, in {modes or 'no'} mode.")
    return counted, [(end - begin) * 1e3 for begin, end in itertools.pairwise(ends)], read_ms


@contextmanager
def _reads(session: Session) -> Iterator[list[float]]:
    """How long each step's tokens were waited for, in ms, as the steps are made."""
    runner, read_ms = session.engine.runner, list[float]()
    read = runner.read

    def noted(flight: Flight) -> StepOutput:
        output = read(flight)
        read_ms.append(output.read_ms)
        return output

    runner.read = noted  # type: ignore[method-assign]
    try:
        yield read_ms
    finally:
        del runner.read  # what the class has shows again


def line(row: Row) -> str:
    """A row for people who watch."""
    device = "" if row["device_ms_p50"] is None else f", device {row['device_ms_p50']:.3f}"
    rate = (
        ""
        if row["gb_per_s"] is None
        else f", {row['gb_per_s']:,.0f} GB/s, {row['share_of_copy']:.1%} of copies"
    )
    drawn = f" at temperature {row['temperature']}, top-p {row['top_p']}" if row["temperature"] else ""
    return (
        f"{row['shape']} batch {row['batch']} context {row['context_mean']}{drawn} {row['mode']}: "
        f"{row['ms_p50']:.3f} ms, p99 {row['ms_p99']:.3f}{device}, work {row['work_ms_p50']:.3f}{rate}"
    )
