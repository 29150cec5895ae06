"""``bench decode``: milliseconds a decode step by mode and batch, and how near it is to the memory speed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.bench.measure import median, percentile, rounded
from engine.bench.session import Need, OnProgress, Session, fill_steps, over_models
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError
from engine.records import Progress, StepMode, StepRecord

ROUNDS = 5  # modes take turns this often, so that a drift of the machine meets them alike
SETTLE = 3  # steps after a switch that are not counted

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What to measure.

    Attributes:
        context: tokens of each prompt; the steps that are counted begin there and go on behind it.
        steps: counted steps of each mode and batch.
    """

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    context: int = 512
    steps: int = 100
    modes: tuple[StepMode, ...] = ("eager", "graph")

    def __post_init__(self) -> None:
        for name, values in (("batch", self.batches), ("context", [self.context]), ("steps", [self.steps])):
            if not values or min(values) < 1:
                raise ConfigError(
                    f"--{name} must be at least 1; it is {', '.join(map(str, values)) or 'empty'}."
                )

    @property
    def decode_tokens(self) -> int:
        """Tokens that each row decodes while modes take turns."""
        return len(self.modes) * (self.steps + ROUNDS * SETTLE)

    def need(self, prefill_chunk: int) -> Need:
        """Room for the largest batch."""
        rows = max(self.batches)
        return Need(rows, self.context + self.decode_tokens + fill_steps(rows, self.context, prefill_chunk))


def bench_decode(configs: Sequence[EngineConfig], plan: DecodePlan, progress: OnProgress) -> dict[str, Any]:
    """Rows of every engine, mode and batch.

    The steps are those of the real engine with all rows decoding and nothing else to do; times are those
    of their ``StepRecord``s. A row has

    * ``ms_p50``, ``ms_p99``: wall time of a step, from its plan to its tokens in the requests' texts, or from
      the end of the step before where it was launched ahead;
    * ``device_ms_p50``: from the step's first kernel to its last on the device's clock, pauses included in
      which it waits for the host; ``host_ms_p50``: the rest of the wall time, step by step. Both are None
      on a CPU, where host and device are one;
    * ``tokens_per_s``: over all rows, at the median step;
    * ``gb_per_s``: useful bandwidth at the median step, the bytes it cannot avoid reading (see ``Traffic``)
      over its wall time, in 10^9 bytes;
    * ``share_of_copy``: that over the bandwidth which plain copies reached in the same run. 1 would be a step
      that does nothing but read at full speed; caches can bring small models on a CPU beyond it.

    Returns:
        ``rows``, ``skipped`` (shape, mode, batch, reason) and ``engines``.

    Raises:
        ConfigError: batches or contexts that the engine's settings exclude.
    """
    need = plan.need(min(config.prefill_chunk for config in configs))
    return over_models(list(configs), need, progress, lambda session: _measure(session, plan, progress))


def _measure(session: Session, plan: DecodePlan, progress: OnProgress) -> dict[str, list[Row]]:
    chunk = session.engine.status().prefill_chunk
    session.check_length(plan.need(chunk).tokens, f"--context {plan.context} with --steps {plan.steps}")
    rows: list[Row] = []
    skipped: list[Row] = []
    for number, batch in enumerate(plan.batches):
        progress(Progress("decode", f"{session.shape}, batch {batch}", number / len(plan.batches)))
        reasons = dict.fromkeys(plan.modes, session.lacks_room(Need(batch, plan.need(chunk).tokens)))
        records: dict[StepMode, list[StepRecord]] = {}
        if not all(reasons.values()):
            session.fill(batch, plan.context, plan.decode_tokens)
            records, reasons = take_turns(session, plan.modes, plan.steps)
            session.clear()
        for mode in plan.modes:
            if reasons[mode]:
                skipped.append(
                    {"shape": session.shape, "mode": mode, "batch": batch, "reason": reasons[mode]}
                )
            else:
                rows.append(_row(session, mode, batch, plan.context, records[mode]))
    return {"rows": rows, "skipped": skipped}


def take_turns(
    session: Session, modes: Sequence[StepMode], steps: int, rounds: int = ROUNDS
) -> tuple[dict[StepMode, list[StepRecord]], dict[StepMode, str]]:
    """Decode what runs in each of the modes by turns.

    Args:
        steps: counted steps of each mode, spread evenly over ``rounds`` turns.

    Returns:
        ``steps`` records a mode, and why a mode could not be had ('' where it could).

    Raises:
        EngineError: a step was no pure decode step of all rows.
    """
    records: dict[StepMode, list[StepRecord]] = {mode: [] for mode in modes}
    reasons: dict[StepMode, str] = dict.fromkeys(modes, "")
    batch = len(session.engine.scheduler.requests)
    for turn in range(rounds):
        until = steps * (turn + 1) // rounds
        for mode in modes:
            reasons[mode] = reasons[mode] or session.engine.set_mode(mode)
            if reasons[mode]:
                continue
            for _ in range(SETTLE):
                session.step()
            while len(records[mode]) < until and not reasons[mode]:
                record = session.step()
                require_full(record, batch)
                if record.mode == mode:
                    records[mode].append(record)
                else:  # this batch has no graph
                    reasons[mode] = record.reason or f"the step ran in {record.mode} mode"
    return records, reasons


def require_full(record: StepRecord, batch: int) -> None:
    """See that a step did nothing but decode all rows.

    Raises:
        EngineError: saying what it did.
    """
    if record.kind != "decode" or record.decode_tokens != batch:
        raise EngineError(
            f"Step {record.index} decoded {record.decode_tokens} of {batch} rows ({record.kind})."
        )


def _row(session: Session, mode: StepMode, batch: int, context: int, records: list[StepRecord]) -> Row:
    return {
        **session.identity(),
        "mode": mode,
        "batch": batch,
        "context": context,
        **figures(session, records, [record.ms.total for record in records]),
    }


def figures(session: Session, records: Sequence[StepRecord], wall_ms: Sequence[float]) -> Row:
    """Times and rates of decode steps over the same rows, as ``bench_decode`` explains them.

    Args:
        wall_ms: wall time of each step.
    """
    known = [(whole, record.ms.device) for whole, record in zip(wall_ms, records)]
    device = [ms for _, ms in known if ms is not None]
    host = [whole - ms for whole, ms in known if ms is not None]
    ms = median(wall_ms)
    read = [session.traffic.step_bytes(row.context for row in record.rows) for record in records]
    counted = [value for value in read if value is not None]
    rate = median(counted) / ms / 1e6 if counted else None
    return {
        "ms_p50": rounded(ms),
        "ms_p99": rounded(percentile(wall_ms, 0.99)),
        "device_ms_p50": rounded(median(device)) if device else None,
        "host_ms_p50": rounded(median(host)) if host else None,
        "tokens_per_s": rounded(records[0].decode_tokens / ms * 1e3),
        "gb_per_s": rounded(rate),
        "share_of_copy": None if rate is None else rounded(rate / session.copy_gb_per_s, 4),
    }
