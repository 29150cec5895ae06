"""``bench throughput``: many requests of mixed lengths, arriving as people send them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.bench.load import Arrival, LoadPlan
from engine.bench.measure import median, percentile, rounded
from engine.bench.session import Need, OnProgress, Session, over_models, random_prompt
from engine.config import EngineConfig
from engine.records import Progress, StepRecord
from engine.request import Request, SamplingParams

Row = dict[str, Any]

PROGRESS_S = 0.25  # writing to a terminal after each step would be part of what is measured


def bench_throughput(configs: Sequence[EngineConfig], plan: LoadPlan, progress: OnProgress) -> dict[str, Any]:
    """One row an engine.

    * ``seconds``: from the start to the last token; ``requests_per_s`` over that;
    * ``tokens_per_s``: prompt and output tokens; ``output_tokens_per_s``: the latter only;
    * ``ttft_ms_*``: from the arrival, waiting included, to the first token; ``itl_ms_*``: between tokens of
      an answer, over all answers, None where no answer has two;
    * ``mean_batch``: rows a decode step; ``graph_share``: of the decode steps, those that replayed a graph;
    * ``preemptions``: times that a request gave its blocks up.

    Tokens and prompts are random and greedy, so nothing ends before its length and no prefix is shared.

    Returns:
        ``rows`` and ``engines``.
    """
    rows = min(plan.requests, max(config.max_batch for config in configs))
    need = Need(rows, 2 * (plan.prompt_mean + plan.output_mean))
    return over_models(list(configs), need, progress, lambda session: _measure(session, plan, progress))


def _measure(session: Session, plan: LoadPlan, progress: OnProgress) -> dict[str, list[Row]]:
    status = session.engine.status()
    _warm_up(session)
    capacity = min(status.max_model_len, (status.num_blocks - 1) * status.block_size)
    arrivals = plan.draw(capacity)
    prompts = [
        random_prompt(index, arrival.prompt_tokens, status.vocab_size)
        for index, arrival in enumerate(arrivals, plan.seed * 1_000_003)
    ]
    run = _Run(session, arrivals, prompts)
    run.drive(progress)
    return {"rows": [run.row(plan)]}


def _warm_up(session: Session) -> None:
    """A prompt and a few tokens that are not counted."""
    vocab = session.engine.status().vocab_size
    prompt = random_prompt(-1, min(64, session.engine.status().max_model_len - 8), vocab)
    session.engine.submit(prompt, SamplingParams(temperature=0, ignore_eos=True, max_tokens=8))
    while session.engine.has_work:
        session.step()
    session.clear()


@dataclass(slots=True)
class _Sent:
    """A request with its due time and the time of its last token, both on the performance counter."""

    request: Request
    due_s: float
    seen: int = 0
    last_s: float = 0.0


@dataclass(slots=True)
class _Run:
    session: Session
    arrivals: list[Arrival]
    prompts: list[list[int]]
    sent: dict[int, _Sent] = field(default_factory=dict)
    ttft_ms: list[float] = field(default_factory=list)
    itl_ms: list[float] = field(default_factory=list)
    decode_steps: int = 0
    decode_tokens: int = 0
    graph_steps: int = 0
    preemptions: int = 0
    seconds: float = 0.0

    def drive(self, progress: OnProgress) -> None:
        """Send what is due, step, and sleep only while there is nothing to do."""
        engine = self.session.engine
        began = time.perf_counter()
        following, shown_s = 0, -PROGRESS_S
        while following < len(self.arrivals) or engine.has_work:
            now = time.perf_counter() - began
            while following < len(self.arrivals) and self.arrivals[following].at_s <= now:
                self._send(following, began)
                following += 1
            if not engine.has_work:
                time.sleep(max(0.0, self.arrivals[following].at_s - now))
                continue
            self._count(self.session.step())
            if now - shown_s >= PROGRESS_S:
                shown_s = now
                done = len(self.ttft_ms) / len(self.arrivals)
                progress(Progress("throughput", f"{self.session.shape}, {len(self.arrivals)} requests", done))
        self.seconds = time.perf_counter() - began
        engine.check()

    def _send(self, index: int, began: float) -> None:
        arrival = self.arrivals[index]
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=arrival.output_tokens)
        request = self.session.engine.submit(self.prompts[index], params)
        self.sent[request.id] = _Sent(request, began + arrival.at_s)

    def _count(self, record: StepRecord) -> None:
        now = time.perf_counter()
        for row in record.rows:
            sent = self.sent[row.request]
            if len(sent.request.output_ids) > sent.seen:
                if sent.seen:
                    self.itl_ms.append((now - sent.last_s) * 1e3)
                else:
                    self.ttft_ms.append((now - sent.due_s) * 1e3)
                sent.seen, sent.last_s = len(sent.request.output_ids), now
        if record.decode_tokens:
            self.decode_steps += 1
            self.decode_tokens += record.decode_tokens
            self.graph_steps += record.mode == "graph"
        self.preemptions += len(record.preempted)

    def row(self, plan: LoadPlan) -> Row:
        """The figures of the whole run."""
        prompt = sum(arrival.prompt_tokens for arrival in self.arrivals)
        output = sum(len(sent.request.output_ids) for sent in self.sent.values())
        return {
            **self.session.identity(),
            "mode": self.session.engine.mode,
            "requests": len(self.arrivals),
            "rate": plan.rate,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "seconds": rounded(self.seconds),
            "requests_per_s": rounded(len(self.arrivals) / self.seconds),
            "tokens_per_s": rounded((prompt + output) / self.seconds),
            "output_tokens_per_s": rounded(output / self.seconds),
            "ttft_ms_p50": rounded(median(self.ttft_ms)),
            "ttft_ms_p99": rounded(percentile(self.ttft_ms, 0.99)),
            "itl_ms_p50": rounded(median(self.itl_ms)) if self.itl_ms else None,
            "itl_ms_p99": rounded(percentile(self.itl_ms, 0.99)) if self.itl_ms else None,
            "mean_batch": rounded(self.decode_tokens / self.decode_steps) if self.decode_steps else None,
            "graph_share": rounded(self.graph_steps / self.decode_steps) if self.decode_steps else None,
            "preemptions": self.preemptions,
        }
