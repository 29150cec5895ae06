"""``bench ab``: the same rows decode eager and by graphs in turn; what a graph saves, and where."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.bench.decode import SETTLE, DecodePlan, Row, take_turns
from engine.bench.measure import median, rounded
from engine.bench.session import Need, OnProgress, Session, fill_steps, over_models
from engine.config import EngineConfig
from engine.device import find_device
from engine.errors import ConfigError
from engine.records import Progress, StepMode, StepRecord

MODES: tuple[StepMode, ...] = ("eager", "graph")


@dataclass(frozen=True, slots=True)
class AbPlan:
    """What to compare.

    Attributes:
        batches: rows that decode together.
        context: tokens of each prompt.
        steps: counted steps of each mode and batch.
        block: steps of a mode before the other has its turn.
    """

    batches: tuple[int, ...] = (1, 2, 4, 8)
    context: int = 512
    steps: int = 100
    block: int = 20

    def __post_init__(self) -> None:
        DecodePlan(self.batches, self.context, self.steps)  # which says what is wrong with these
        if self.block < 1:
            raise ConfigError(f"--block must be at least 1; it is {self.block}.")

    @property
    def rounds(self) -> int:
        """Turns that each mode has."""
        return -(-self.steps // self.block)

    @property
    def decode_tokens(self) -> int:
        """Tokens that each row decodes in all turns."""
        return len(MODES) * (self.steps + self.rounds * SETTLE)

    def need(self, prefill_chunk: int) -> Need:
        """Room for the largest batch."""
        rows = max(self.batches)
        return Need(rows, self.context + self.decode_tokens + fill_steps(rows, self.context, prefill_chunk))


def bench_ab(configs: Sequence[EngineConfig], plan: AbPlan, progress: OnProgress) -> dict[str, Any]:
    """One row an engine and batch, with both modes side by side.

    ``eager_ms`` and ``graph_ms`` are medians of a step's wall time, ``ratio`` is the one over the other;
    ``*_device_ms`` from the step's first kernel to its last, ``*_host_ms`` the rest of the wall time, step by
    step; ``graph_size`` the rows of the replayed graph. All times are those of the engine's ``StepRecord``s.

    Returns:
        ``rows``, ``skipped`` (shape, mode, batch, reason) and ``engines``.

    Raises:
        ConfigError: this engine has no graphs, or its settings exclude a batch or a context.
    """
    need = plan.need(min(config.prefill_chunk for config in configs))
    return over_models(list(configs), need, progress, lambda session: _measure(session, plan, progress))


def check_device(config: EngineConfig) -> None:
    """See, before anything is loaded, that there can be two modes to compare.

    Raises:
        ConfigError: one mode was asked for, or this device has one only.
    """
    if config.mode != "auto":
        raise ConfigError(f"--mode {config.mode}: this compares both modes.", "Leave --mode out.")
    device = find_device(config.device).device.type
    if device != "cuda":
        raise _nothing_to_compare(f"no CUDA graphs on {device}")


def _nothing_to_compare(reason: str) -> ConfigError:
    return ConfigError(f"There is nothing to compare: {reason}.", "bench decode measures eager steps.")


def _measure(session: Session, plan: AbPlan, progress: OnProgress) -> dict[str, list[Row]]:
    chunk = session.engine.status().prefill_chunk
    session.check_length(plan.need(chunk).tokens, f"--context {plan.context} with --steps {plan.steps}")
    if reason := session.engine.set_mode("graph"):
        raise _nothing_to_compare(reason)
    rows: list[Row] = []
    skipped: list[Row] = []
    for number, batch in enumerate(plan.batches):
        progress(Progress("eager and graph", f"{session.shape}, batch {batch}", number / len(plan.batches)))
        reason = session.lacks_room(Need(batch, plan.need(chunk).tokens))
        records: dict[StepMode, list[StepRecord]] = {}
        if not reason:
            session.fill(batch, plan.context, plan.decode_tokens)
            records, reasons = take_turns(session, MODES, plan.steps, plan.rounds)
            reason = next(filter(None, reasons.values()), "")
            session.clear()
        if reason:
            skipped.append({"shape": session.shape, "mode": "graph", "batch": batch, "reason": reason})
        else:
            rows.append(_row(session, batch, plan.context, records))
    return {"rows": rows, "skipped": skipped}


def _row(session: Session, batch: int, context: int, records: dict[StepMode, list[StepRecord]]) -> Row:
    eager, graph = (_figures(mode, records[mode]) for mode in MODES)
    return {
        **session.identity(),
        "batch": batch,
        "context": context,
        "steps": len(records["graph"]),
        "graph_size": records["graph"][-1].graph_size,
        **eager,
        **graph,
        "ratio": rounded(eager["eager_ms"] / graph["graph_ms"], 4),
    }


def _figures(mode: StepMode, records: Sequence[StepRecord]) -> Row:
    known = [(record.ms.total, record.ms.device) for record in records]
    device = [ms for _, ms in known if ms is not None]
    host = [whole - ms for whole, ms in known if ms is not None]
    return {
        f"{mode}_ms": rounded(median([whole for whole, _ in known])),
        f"{mode}_host_ms": rounded(median(host)) if host else None,
        f"{mode}_device_ms": rounded(median(device)) if device else None,
    }
