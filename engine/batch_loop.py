"""The loop over a batch: plan a step, launch it, read its tokens, give each its text, end what ends."""

import time
from collections import deque
from dataclasses import dataclass
from typing import NoReturn

import torch

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.errors import DeviceError
from engine.plan import StepPlan, stop_reason
from engine.records import StepRecord, StepRow, StepTimes
from engine.request import FinishReason, Request
from engine.runner import Flight, StepOutput
from engine.sampler import NO_TOKEN
from engine.scheduler import Scheduler
from engine.setup import Parts
from engine.text import Detokenizer
from engine.threads import ThreadGovernor


@dataclass(slots=True)
class _Spent:
    """Host milliseconds of one call, and when it began on the performance counter and in Unix time."""

    began: float
    unix_time: float
    schedule: float = 0.0
    launch: float = 0.0


class BatchLoop:
    """Runs steps over the requests that are live; ``Engine`` brings them, and is what others use.

    Args:
        config: the engine's settings.
        parts: what they led to.
    """

    def __init__(self, config: EngineConfig, parts: Parts) -> None:
        self.config = config
        self.pool: BlockPool = parts.pool
        self.scheduler: Scheduler = parts.scheduler
        self.runner = parts.runner
        self._eos = parts.eos_token_ids
        # A number of threads that was asked for is kept.
        on_cpu = parts.status.device == "cpu" and config.threads is None
        self._threads = ThreadGovernor(torch.get_num_threads(), torch.set_num_threads) if on_cpu else None
        self._live: dict[int, Request] = {}
        self._texts: dict[int, Detokenizer] = {}
        self._chats: set[int] = set()  # live requests that answer in a chat
        self._steps = 0
        self._flight: Flight | None = None  # a step that was launched ahead
        self._landed: deque[StepRecord] = deque()  # records that a call of ``step`` has yet to return
        self._step_ended = 0.0
        self._failed = ""

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs, a step is under way, or its record was not returned."""
        return self.scheduler.has_work or self._flight is not None or bool(self._landed)

    def step(self, ahead: bool = False) -> StepRecord | None:
        """Run one step, or end the one that is under way; None when there is nothing to do.

        Args:
            ahead: launch the step behind it before its tokens are read, where nothing hangs on them. Then a
                step stays under way: ``land`` ends it, and so does the next call. Requests get the same
                tokens either way.

        Raises:
            DeviceError: the device failed; every request has ended with that reason.
        """
        if self._landed:
            return self._landed.popleft()
        spent = _Spent(time.perf_counter(), time.time())
        flight = self._flight
        if flight is None:
            plan = self.scheduler.schedule()
            if plan is None:
                self._drop_finished()
                self.check()
                return None
            spent.schedule = time.perf_counter() - spent.began
            flight = self._launch(spent, plan)
            self._step_ended = spent.began
        self._flight = None
        following = self._run_ahead(flight, spent) if ahead and self.config.ahead else None
        return self._end(flight, following, spent)

    def land(self) -> StepRecord | None:
        """End the step that is under way, launch none, and return its record; None where there is none.

        Raises:
            DeviceError: as ``step`` does.
        """
        flight, self._flight = self._flight, None
        if flight is None:
            return None
        return self._end(flight, None, _Spent(time.perf_counter(), time.time()))

    def check(self) -> None:
        """Conservation of blocks and the scheduler's invariants.

        Raises:
            EngineError: naming the broken invariant.
        """
        self.scheduler.check()

    def _run_ahead(self, flight: Flight, spent: _Spent) -> Flight | None:
        """Launch the step behind one that is out, where it needs none of its tokens."""
        if not self.runner.can_follow(flight):
            return None
        began = time.perf_counter()
        plan = self.scheduler.follow(flight.plan)
        spent.schedule += time.perf_counter() - began
        return None if plan is None else self._launch(spent, plan, flight)

    def _launch(self, spent: _Spent, plan: StepPlan, before: Flight | None = None) -> Flight:
        try:
            flight = self.runner.launch(plan, before)
        except Exception as error:  # whatever it was, the cache may be half written
            self._fail(error, plan if before is None else before.plan, None if before is None else plan)
        spent.launch += flight.launch_ms
        return flight

    def _end(self, flight: Flight, following: Flight | None, spent: _Spent) -> StepRecord:
        """Read a step's tokens and accept them; ``following`` is out meanwhile."""
        plan = flight.plan
        try:
            output = self.runner.read(flight)
        except Exception as error:
            self._fail(error, plan, None if following is None else following.plan)
        accepting = time.perf_counter()
        decoded = [request for request in plan.decode if request.finish_reason is None]
        self.scheduler.computed(plan)
        for request, token in output.tokens:
            if request.finish_reason is None:
                self._accept(request, token, output.logprobs, accepting)
        finished = self._drop_finished()
        self._flight = following
        done = time.perf_counter()
        times = StepTimes(
            total=(done - self._step_ended) * 1e3,
            schedule=spent.schedule * 1e3,
            launch=spent.launch,
            device=output.device_ms,
            read=output.read_ms + (done - accepting) * 1e3,
        )
        began = spent.unix_time - (spent.began - self._step_ended)
        self._step_ended = done
        if self._threads is not None and not plan.prefill:
            self._threads.observe(len(plan.decode), times.total)
        return self._record(plan, decoded, output, times, began, finished)

    def _accept(
        self, request: Request, token: int, logprobs: dict[int, dict[int, float]], now: float
    ) -> None:
        """Append a sampled token, its text, and end the request where it ends."""
        if token == NO_TOKEN:
            self._flush_text(request)
            message = "The model gave no usable number for its next token (NaN or all -inf logits)."
            self.scheduler.finish(request, FinishReason.ERROR, message)
            return
        request.add_token(token)
        request.first_token_s = request.first_token_s or now
        request.last_token_s = now
        if request.id in logprobs:
            request.logprobs.append(logprobs[request.id])
        try:
            reason = stop_reason(request, self._eos, self.scheduler.max_model_len)
            text, stopped = self._texts[request.id].push((token,))
            if text:
                request.add_text(text)
            if stopped:
                reason = FinishReason.STOP
            if reason is not None:
                self._flush_text(request)
                self.scheduler.finish(request, reason)
        except Exception as error:  # one chat's text must not end the others
            self.scheduler.finish(request, FinishReason.ERROR, f"Its text could not be decoded: {error}")

    def _flush_text(self, request: Request) -> None:
        detokenizer = self._texts.get(request.id)
        if detokenizer is not None:
            request.add_text(detokenizer.flush())

    def _drop_finished(self) -> tuple[int, ...]:
        if len(self._live) == self.scheduler.num_requests:
            return ()
        finished = tuple(id for id, request in self._live.items() if request.finished)
        for id in finished:
            del self._live[id]
            self._texts.pop(id, None)
            self._chats.discard(id)
        return finished

    def _record(
        self,
        plan: StepPlan,
        decoded: list[Request],
        output: StepOutput,
        times: StepTimes,
        unix_time: float,
        finished: tuple[int, ...],
    ) -> StepRecord:
        """``decoded`` are the decode rows that had not ended before the step did."""
        rows = [StepRow(request.id, request.num_computed, 1, False) for request in decoded]
        rows += [
            StepRow(chunk.request.id, chunk.end, chunk.end - chunk.start, True) for chunk in plan.prefill
        ]
        dispatch = output.dispatch
        self._steps += 1
        self.pool.step = self._steps + 1  # what changes from here on is told by the next record
        return StepRecord(
            index=self._steps,
            t=unix_time,
            kind="mixed" if plan.decode and plan.prefill else "decode" if plan.decode else "prefill",
            mode=dispatch.mode if dispatch else "eager",
            reason=dispatch.reason if dispatch else "prefill is always eager",
            graph_size=dispatch.size if dispatch else None,
            active=len(rows),
            waiting=self.scheduler.num_waiting,
            prefill_tokens=plan.prefill_tokens,
            cached_tokens=plan.cached_tokens,
            decode_tokens=len(decoded),
            ms=times,
            blocks=self.pool.counts(),
            rows=tuple(rows),
            block_changes=self.pool.drain_changes(),
            preempted=plan.preempted,
            finished=finished,
        )

    def _fail(self, error: Exception, *plans: StepPlan | None) -> NoReturn:
        """Nothing that the steps wrote is trusted: requests end and no cached block stays."""
        self._failed = f"The device failed: {error}"
        self._flight = None
        for plan in plans:
            if plan is not None:
                self.scheduler.abandoned(plan)
        for request in list(self._live.values()):
            self._flush_text(request)
            self.scheduler.finish(request, FinishReason.ERROR, self._failed)
        self.pool.clear_cache()
        self._drop_finished()
        raise DeviceError(
            f"The device failed in step {self._steps}: {error}", "Restart the engine."
        ) from error
