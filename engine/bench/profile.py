"""``bench profile``: what torch's profiler says of decode steps, eager against graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from engine.bench.decode import ROUNDS, SETTLE, DecodePlan, take_turns
from engine.bench.measure import median, rounded
from engine.bench.session import Need, OnProgress, Session, fill_steps, over_models
from engine.config import EngineConfig
from engine.records import Progress, StepMode

Row = dict[str, Any]

COMPARED = (
    "cpu_self_total_ms",
    "cpu_ms_per_step",
    "cpu_busy_ms_per_step",
    "device_total_ms",
    "kernels_per_step",
    "launch_ms_p50",
    "ms_p50",
)


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """Profile ``steps`` decode steps of ``batch`` rows behind ``context`` tokens, in each mode."""

    batch: int = 1
    context: int = 512
    steps: int = 20
    modes: tuple[StepMode, ...] = ("eager", "graph")

    def __post_init__(self) -> None:
        DecodePlan((self.batch,), self.context, self.steps, self.modes)  # the same limits

    @property
    def decode_tokens(self) -> int:
        """Tokens that each row decodes: every mode once for its times and once under the profiler."""
        return len(self.modes) * (2 * self.steps + (ROUNDS + 1) * SETTLE)


def bench_profile(configs: Sequence[EngineConfig], plan: ProfilePlan, progress: OnProgress) -> dict[str, Any]:
    """Rows of every engine and mode.

    * ``cpu_self_total_ms``: sum of all operators' own CPU time over the steps, as the profiler's table gives
      it. It contains waiting for the device, and the profiler's own cost an operator.
    * ``cpu_ms_per_step``: that a step; ``cpu_busy_ms_per_step``: without the waiting.
    * ``device_total_ms``: sum of the kernels' and copies' times over the steps.
    * ``kernels_per_step``: kernels that the device ran, copies and fills aside.
    * ``launch_ms_p50``, ``ms_p50``: host time to issue a step, and its wall time, from the records of as
      many steps *without* the profiler, modes taking turns.

    Device figures are None without a GPU, or where its profiling interface is not to be had.

    Returns:
        ``rows``, ``ratios`` (eager over graph), ``skipped`` and ``engines``.
    """
    steps = fill_steps(plan.batch, plan.context, min(config.prefill_chunk for config in configs))
    need = Need(plan.batch, plan.context + plan.decode_tokens + steps)
    return over_models(list(configs), need, progress, lambda session: _measure(session, plan, need, progress))


def _measure(session: Session, plan: ProfilePlan, need: Need, progress: OnProgress) -> dict[str, list[Row]]:
    session.check_length(need.tokens, f"--context {plan.context} with --steps {plan.steps}")
    reason = session.lacks_room(need)
    skipped = [{"shape": session.shape, "mode": mode, "reason": reason} for mode in plan.modes if reason]
    if reason:
        return {"rows": [], "ratios": [], "skipped": skipped}
    progress(Progress("profile", f"{session.shape}, batch {plan.batch}"))
    session.fill(plan.batch, plan.context, plan.decode_tokens)
    records, reasons = take_turns(session, plan.modes, plan.steps)
    rows: list[Row] = []
    for mode in plan.modes:
        if reasons[mode]:
            skipped.append({"shape": session.shape, "mode": mode, "reason": reasons[mode]})
            continue
        progress(Progress("profile", f"{session.shape}, {mode}"))
        rows.append(
            {
                **session.identity(),
                "mode": mode,
                "batch": plan.batch,
                "context": plan.context,
                "steps": plan.steps,
                **profiled(session, mode, plan.steps),
                "launch_ms_p50": rounded(median([record.ms.launch for record in records[mode]])),
                "ms_p50": rounded(median([record.ms.total for record in records[mode]])),
            }
        )
    session.clear()
    return {"rows": rows, "ratios": _ratios(session.shape, rows), "skipped": skipped}


def profiled(session: Session, mode: StepMode, steps: int) -> Row:
    """The profiler's sums over ``steps`` decode steps of what runs, in ``mode``, which can be had."""
    session.engine.set_mode(mode)
    for _ in range(SETTLE):
        session.step()
    session.engine.land()  # a step that was launched before the profiler began would be half in its sums
    cuda = session.engine.status().device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        for left in reversed(range(steps)):
            session.engine.step(ahead=left > 0)  # as many launches as steps
        if cuda:
            torch.cuda.synchronize()
    cpu_us = wait_us = device_us = 0.0
    kernels = on_device = 0
    for event in profiler.key_averages():
        cpu_us += event.self_cpu_time_total
        if "Synchronize" in event.key:  # the host only waits, which the profiler counts as CPU time
            wait_us += event.self_cpu_time_total
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False):
            on_device += event.count
            device_us += event.self_device_time_total
            kernels += 0 if event.key.startswith(("Memcpy", "Memset")) else event.count
    return {
        "cpu_self_total_ms": rounded(cpu_us / 1e3),
        "cpu_ms_per_step": rounded(cpu_us / 1e3 / steps),
        "cpu_busy_ms_per_step": rounded((cpu_us - wait_us) / 1e3 / steps),
        "device_total_ms": rounded(device_us / 1e3) if on_device else None,
        "kernels_per_step": rounded(kernels / steps) if on_device else None,
    }


def _ratios(shape: str, rows: list[Row]) -> list[Row]:
    """Eager over graph, where both were measured; above 1 the graph needs less."""
    by_mode = {row["mode"]: row for row in rows}
    if len(by_mode) < 2:
        return []
    eager, graph = by_mode["eager"], by_mode["graph"]
    both = {name: (eager[name], graph[name]) for name in COMPARED}
    return [
        {"shape": shape}
        | {name: rounded(one / other, 4) if one and other else None for name, (one, other) in both.items()}
    ]
