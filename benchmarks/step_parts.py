"""Where the time of decode steps goes: watched functions of the engine, and the phases of the C decoder."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from benchmarks.steady import SETTLE, Steady
from engine import runner
from engine.bench.decode import require_full
from engine.bench.session import Session
from engine.errors import EngineError
from engine.models import decoder
from engine.models.decoder import FusedDecoder
from engine.native.library import native
from engine.sampler import SamplingBatch

LINEARS, ATTENTION, NORMS, CACHE = "linears", "attention", "norms", "rotation and cache"
ACTIVATION, SAMPLING, THREADS = "activation", "sampling", "threads"
AROUND, ENGINE = "around the pass", "engine"
PARTS = (LINEARS, ATTENTION, NORMS, CACHE, ACTIVATION, SAMPLING, THREADS, AROUND, ENGINE)
IN_C = "in C"  # divided by phases afterwards
PHASE_PARTS = {
    "norms": NORMS,
    "projections": LINEARS,
    "cache": CACHE,
    "attention": ATTENTION,
    "output": LINEARS,
    "gated": LINEARS,
    "down": LINEARS,
    "head": LINEARS,
}

Seconds = dict[str, float]


class Stopwatch:
    """Adds up the seconds within functions, each without those of watched functions that it calls."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: Seconds = {}
        self._inner = [0.0]  # of the watched calls within each one that is open
        self._watched: list[tuple[Any, str, bool, Any]] = []

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Count calls of ``owner.name`` as ``part``."""
        called = getattr(owner, name)

        def timed(*args: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            began = self._clock()
            try:
                return called(*args, **named)
            finally:
                spent = self._clock() - began
                self._seconds[part] = self._seconds.get(part, 0.0) + spent - self._inner.pop()
                self._inner[-1] += spent

        own = vars(owner)
        self._watched.append((owner, name, name in own, own.get(name)))
        setattr(owner, name, timed)

    def take(self) -> Seconds:
        """Seconds by part since this was last asked."""
        taken, self._seconds = self._seconds, {}
        return taken

    def release(self) -> None:
        """All functions are what they were."""
        for owner, name, own, before in reversed(self._watched):
            setattr(owner, name, before) if own else delattr(owner, name)
        self._watched.clear()


@dataclass
class TickRate:
    """Clock ticks a second. Ticks are counted within calls that are timed from outside, so that no call has
    more of them than the rate: the most that any call had is the nearest to it.
    """

    per_s: float = 0.0

    def learn(self, ticks: int, seconds: float) -> None:
        if seconds > 0:
            self.per_s = max(self.per_s, ticks / seconds)

    def ms(self, ticks: float) -> float:
        return 1e3 * ticks / self.per_s


@dataclass
class Lap:
    """One step: seconds by part, and ticks by phase where C computes."""

    seconds: Seconds
    ticks: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


@contextmanager
def watching(session: Session) -> Iterator[Stopwatch]:
    """Everything that a decode step calls is watched.

    Raises:
        EngineError: the model does not run in the fused decoder.
    """
    engine = session.engine
    model, cache = engine.runner.model, engine.runner.cache
    if not isinstance(model, FusedDecoder):
        raise EngineError("Only the fused decoder's steps can be divided.")
    watch = Stopwatch()
    try:
        watch.watch(engine, "step", ENGINE)
        watch.watch(model, "forward", AROUND)
        watch.watch(runner, "sample", SAMPLING)
        watch.watch(SamplingBatch, "of", SAMPLING)
        watch.watch(model.ops, "rope", CACHE)
        if model.native is not None:
            watch.watch(native(), "forward", IN_C)
        else:
            watch.watch(decoder, "linear", LINEARS)
            watch.watch(model, "_logits", LINEARS)
            watch.watch(model.backend, "attend", ATTENTION)
            watch.watch(cache, "append", CACHE)
            watch.watch(model.ops, "rotate", CACHE)
            watch.watch(model.ops, "add_rms_norm", NORMS)
            watch.watch(model.ops, "silu_mul", ACTIVATION)
        yield watch
    finally:
        watch.release()


def laps(session: Session, plan: Steady, rate: TickRate) -> list[Lap]:
    """Decode ``plan.steps`` steps and divide each; the engine is left empty.

    Raises:
        EngineError: a step was no decode step of all rows; or see ``watching``.
    """
    found: list[Lap] = []
    with watching(session) as watch:
        model = session.engine.runner.model
        assert isinstance(model, FusedDecoder)
        path = model.native
        ticks: Callable[[], Mapping[str, int]] = dict if path is None else path.take_ticks

        def lap() -> Lap:
            made = Lap(watch.take(), ticks())
            rate.learn(sum(made.ticks.values()), made.seconds.get(IN_C, 0.0))
            return made

        ticks()
        session.fill(plan.batch, plan.fitted(session), plan.steps + SETTLE)
        lap()  # the whole prefill, whose calls are the longest
        for counted in range(-SETTLE, plan.steps):
            require_full(session.step(), plan.batch)
            made = lap()
            if counted >= 0:
                found.append(made)
    session.clear()
    return found


def usual(found: Sequence[Lap]) -> list[Lap]:
    """The middle half by time: what other programs did to the slow ones is no part of a step."""
    ordered = sorted(found, key=lambda lap: lap.total)
    aside = len(ordered) // 4
    return ordered[aside : len(ordered) - aside]


def phases_ms(found: Sequence[Lap], rate: TickRate) -> dict[str, float]:
    """Mean milliseconds of each phase of the C decoder."""
    return {
        phase: mean(rate.ms(lap.ticks[phase]) for lap in found) for phase in PHASE_PARTS if found[0].ticks
    }


def parts_ms(found: Sequence[Lap], rate: TickRate) -> dict[str, float]:
    """Mean milliseconds of each of ``PARTS``, which add up to the mean step.

    ``THREADS`` is what the call of the C decoder takes beside its phases: starting threads and ending.
    """
    ms = {part: 1e3 * mean(lap.seconds.get(part, 0.0) for lap in found) for part in (*PARTS, IN_C)}
    in_c = ms.pop(IN_C)
    for phase, spent in phases_ms(found, rate).items():
        ms[PHASE_PARTS[phase]] += spent
        in_c -= spent
    ms[THREADS] += in_c
    return ms
