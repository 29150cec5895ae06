"""``bench prefill``: how fast prompts are computed, and what a cached prefix saves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.bench.measure import median, rounded
from engine.bench.session import Need, OnProgress, Session, over_models, random_prompt
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError
from engine.records import Progress, StepRecord
from engine.request import SamplingParams

FIRST_ROW = 1_000_000  # prompts of other runs have smaller numbers

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """Compute one prompt of each length alone, ``repeats`` times; None takes lengths that suit the device."""

    lengths: tuple[int, ...] | None = None
    repeats: int = 3

    def __post_init__(self) -> None:
        for name, values in (("lengths", self.lengths or (1,)), ("repeats", (self.repeats,))):
            if min(values) < 1:
                raise ConfigError(f"--{name} must be at least 1; it is {', '.join(map(str, values))}.")

    def lengths_on(self, device: str) -> tuple[int, ...]:
        """What was asked for, or powers of two from 128 to 8192, to 1024 without a GPU."""
        return self.lengths or tuple(2**power for power in range(7, 14 if device.startswith("cuda") else 11))


def bench_prefill(configs: Sequence[EngineConfig], plan: PrefillPlan, progress: OnProgress) -> dict[str, Any]:
    """Two rows a length: a prompt that is all new, and at once the same prompt again.

    The second finds its full blocks in the prefix cache, all but the last token at most: it shows what
    a chat's next turn costs. Medians over ``repeats`` prompts, after one that is not counted:

    * ``cached_tokens``, ``computed_tokens``: of the prompt, and ``steps`` that it took;
    * ``ms_p50``: wall time of those steps; ``device_ms_p50``: the device's own, None on a CPU;
    * ``ttft_ms_p50``: from the prompt's arrival to its first token;
    * ``tokens_per_s``: prompt tokens over ``ms_p50``, cached ones included.

    Returns:
        ``rows``, ``skipped`` (lengths that the engine does not take, prefixes that it does not cache)
        and ``engines``.
    """
    need = Need(1, max(plan.lengths or (1,)) + 1)
    return over_models(list(configs), need, progress, lambda session: _measure(session, plan, progress))


def _measure(session: Session, plan: PrefillPlan, progress: OnProgress) -> dict[str, list[Row]]:
    status = session.engine.status()
    rows: list[Row] = []
    skipped: list[Row] = []
    lengths = plan.lengths_on(status.device)
    for number, length in enumerate(lengths):
        progress(Progress("prefill", f"{session.shape}, {length} tokens", number / len(lengths)))
        if length + 1 > status.max_model_len:
            reason = f"{length} tokens and an answer are more than the {status.max_model_len} that fit"
            skipped.append({"shape": session.shape, "prompt_tokens": length, "reason": reason})
            continue
        fresh, again = [], []
        for repeat in range(plan.repeats + 1):
            prompt = random_prompt(FIRST_ROW + 100 * length + repeat, length, status.vocab_size)
            fresh.append(_one(session, prompt))
            if status.prefix_cache:
                again.append(_one(session, prompt))
        rows.append(_row(session, length, fresh[1:]))
        if again:
            rows.append(_row(session, length, again[1:]))
    if not status.prefix_cache:
        skipped.append({"shape": session.shape, "reason": "cached prefixes: the prefix cache is off"})
    return {"rows": rows, "skipped": skipped}


@dataclass(frozen=True, slots=True)
class _Run:
    """One prompt's steps, the tokens found in the cache, and its time to the first token in ms."""

    records: list[StepRecord]
    cached: int
    ttft_ms: float


def _one(session: Session, prompt: list[int]) -> _Run:
    request = session.engine.submit(prompt, SamplingParams(temperature=0, ignore_eos=True, max_tokens=1))
    records = []
    while not request.finished:
        records.append(session.step())
    if request.first_token_s is None:
        raise EngineError(f"A prompt of {len(prompt)} tokens gave no token: {request.error}")
    ttft_ms = (request.first_token_s - request.arrival_s) * 1e3
    session.clear()
    return _Run(records, request.cached_tokens, ttft_ms)


def _row(session: Session, length: int, runs: list[_Run]) -> Row:
    ms = median([sum(record.ms.total for record in run.records) for run in runs])
    device = [[record.ms.device for record in run.records] for run in runs]
    known = [sum(times) for times in device if None not in times]  # type: ignore[arg-type]
    return {
        **session.identity(),
        "prompt_tokens": length,
        "cached_tokens": runs[-1].cached,
        "computed_tokens": length - runs[-1].cached,
        "steps": len(runs[-1].records),
        "ms_p50": rounded(ms),
        "device_ms_p50": rounded(median(known)) if known else None,
        "ttft_ms_p50": rounded(median([run.ttft_ms for run in runs])),
        "tokens_per_s": rounded(length / ms * 1e3),
    }
