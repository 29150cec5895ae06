"""Engine: the step loop over scheduler, runner, sampler and text."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import torch

from engine.block_detail import block_detail
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.errors import DeviceError, EngineError, RequestError
from engine.graphs import GraphPool
from engine.models.plain_tokenizer import PlainTokenizer
from engine.pieces import TokenPieces
from engine.plan import StepPlan, stop_reason
from engine.prompts import Prompt, PromptReader, is_chat
from engine.records import (
    BlockDetail,
    BlockSnapshot,
    EngineStatus,
    Progress,
    StepMode,
    StepRecord,
    StepRow,
    StepTimes,
)
from engine.request import Completion, FinishReason, Request, SamplingParams, completion_of
from engine.runner import Flight, StepOutput
from engine.sampler import NO_TOKEN
from engine.scheduler import Scheduler
from engine.setup import build
from engine.text import Detokenizer
from engine.threads import ThreadGovernor


@dataclass(slots=True)
class _Spent:
    """Host milliseconds of one call, and when it began on the performance counter and in Unix time."""

    began: float
    unix_time: float
    schedule: float = 0.0
    launch: float = 0.0


class Engine:
    """A batching inference engine; every call is made from one thread.

    Args:
        config: validated settings.
        progress: told about each stage while the model loads.

    Raises:
        ConfigError: a setting that this machine cannot honour.
        ModelError: the model cannot be found, read or run.
        OutOfMemory: weights or cache do not fit.
    """

    def __init__(self, config: EngineConfig, progress: Callable[[Progress], None] | None = None) -> None:
        parts = build(config, progress or (lambda event: None))
        self.config = config
        self._tokenizer = parts.tokenizer
        self.pool: BlockPool = parts.pool
        self.scheduler: Scheduler = parts.scheduler
        self.runner = parts.runner
        self.graphs: GraphPool = parts.graphs
        self._prompts = PromptReader(parts.tokenizer, parts.status.vocab_size)
        self._pieces = TokenPieces(parts.tokenizer)
        self._status = parts.status
        self._eos = parts.eos_token_ids
        self._stop = parts.stop
        self._texts: dict[int, Detokenizer] = {}
        # A number of threads that was asked for is kept.
        on_cpu = parts.status.device == "cpu" and config.threads is None
        self._threads = ThreadGovernor(torch.get_num_threads(), torch.set_num_threads) if on_cpu else None
        self._live: dict[int, Request] = {}
        self._chats: set[int] = set()
        self._next_id = 0
        self._steps = 0
        self._flight: Flight | None = None  # a step that was launched ahead
        self._landed: deque[StepRecord] = deque()  # records that a call of ``step`` has yet to return
        self._step_ended = 0.0
        self._failed = ""

    @property
    def tokenizer(self) -> Any:
        """The model's transformers tokenizer."""
        return self._tokenizer.whole if isinstance(self._tokenizer, PlainTokenizer) else self._tokenizer

    # --- requests ----------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        session: str | None = None,
        priority: int = 0,
        history: Sequence[int] | None = None,
        answered: int = 0,
    ) -> Request:
        """Queue a prompt.

        Args:
            prompt: plain text, token ids, or chat messages (dicts with role and content).
            params: sampling and stopping; the defaults where None.
            session: the chat it belongs to.
            priority: higher goes first and is preempted last.
            history: token ids of the conversation so far; the messages are appended to them as they
                are, so that the prefix cache is hit. Without messages the answer follows them as they are.
            answered: so many last tokens of the history are the beginning of the answer, which goes on as
                if it had never been cut; ``max_tokens`` counts what is new.

        Raises:
            RequestError: an empty prompt, unknown token ids, more tokens than can ever fit, or an answer
                that has a stop string in it already.
            DeviceError: the engine has failed and must be restarted.
        """
        if self._failed:
            raise DeviceError(self._failed, "Restart the engine.")
        params = params or SamplingParams()
        prompt_ids = self._prompts.token_ids(prompt, history)
        if not 0 <= answered < len(prompt_ids):
            raise RequestError(f"answered={answered} of {len(prompt_ids)} tokens leaves no prompt.")
        prompt_ids, begun = prompt_ids[: len(prompt_ids) - answered], prompt_ids[len(prompt_ids) - answered :]
        if answered:
            params = msgspec.structs.replace(params, max_tokens=params.max_tokens + answered)
        self._next_id += 1
        request = Request(
            id=self._next_id,
            prompt_ids=prompt_ids,
            params=params,
            session=session,
            priority=priority,
            arrival_s=time.perf_counter(),
            seed=params.seed
            if params.seed is not None
            else hash((self.config.seed, self._next_id)) & (2**63 - 1),
            begun=answered,
        )
        chat = is_chat(prompt)
        detokenizer = self._detokenizer(params, chat)
        if _replay(request, begun, detokenizer):
            raise RequestError(
                "The answer so far has a stop string in it, so it cannot go on.", "Take that string out."
            )
        self.scheduler.add(request)
        self._live[request.id] = request
        self._texts[request.id] = detokenizer
        if chat:
            self._chats.add(request.id)
        return request

    def fork(
        self, request_id: int, params: SamplingParams | None = None, session: str | None = None
    ) -> Request:
        """Let a copy of a running request go on by itself, over the same KV blocks.

        Args:
            request_id: a request that has not ended.
            params: sampling of the copy from here on; the parent's where None. ``max_tokens`` counts
                the tokens that it starts with.
            session: the chat the copy belongs to.

        A step under way is ended first; the next call of ``step`` returns its record.

        Raises:
            RequestError: the request is unknown or has ended.
            DeviceError: that step failed.
        """
        if (record := self.land()) is not None:
            self._landed.append(record)
        parent = self.scheduler.requests.get(request_id)
        if parent is None:
            raise RequestError(f"Request {request_id} is not running, so it cannot be forked.")
        params = params or parent.params
        self._next_id += 1
        child = Request(
            id=self._next_id,
            prompt_ids=list(parent.prompt_ids),
            params=params,
            session=session,
            priority=parent.priority,
            arrival_s=time.perf_counter(),
            seed=parent.seed if params.seed is None else params.seed,
            logprobs=list(parent.logprobs),
        )
        detokenizer = self._detokenizer(params, request_id in self._chats)
        _replay(child, parent.output_ids, detokenizer)  # its stop strings may be others, and so its text
        self.scheduler.fork(request_id, child)
        self._live[child.id] = child
        self._texts[child.id] = detokenizer
        if request_id in self._chats:
            self._chats.add(child.id)
        return child

    def _detokenizer(self, params: SamplingParams, chat: bool) -> Detokenizer:
        """A chat of a model without an end-of-turn token also ends where the next turn would begin."""
        stop = (*params.stop, *self._stop) if chat else params.stop
        return Detokenizer(self._tokenizer, stop, hidden=self._eos)

    def cancel(self, request_id: int) -> None:
        """End a request, keeping what it wrote; unknown and finished ids are ignored."""
        request = self.scheduler.cancel(request_id)
        if request is not None:
            self._flush_text(request)

    # --- stepping ----------------------------------------------------------------------------------

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

    # --- control and state -------------------------------------------------------------------------

    def set_mode(self, mode: StepMode) -> str:
        """Switch graph and eager from the next launch on; returns why graphs cannot be had, or ''."""
        self.graphs.mode = mode
        return self.graphs.unavailable if mode == "graph" else ""

    @property
    def mode(self) -> StepMode:
        """The mode in effect."""
        return self.graphs.effective_mode

    def status(self) -> EngineStatus:
        """What the engine is made of."""
        return self._status

    def check(self) -> None:
        """Conservation of blocks and the scheduler's invariants.

        Raises:
            EngineError: naming the broken invariant.
        """
        self.scheduler.check()

    def block_snapshot(self) -> BlockSnapshot:
        """The whole pool as it is now, for a reader that missed changes."""
        return self.scheduler.snapshot(self._steps)

    def inspect(self, block: int) -> BlockDetail:
        """What is known of one block after the last step; the null block has no references and no tokens.

        Raises:
            RequestError: there is no such block.
        """
        return block_detail(block, self._steps, self.scheduler, self.pieces)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token by itself, special tokens included; split characters are U+FFFD."""
        return self._pieces.of(token_ids)

    # --- headless ----------------------------------------------------------------------------------

    def generate(
        self, prompts: Iterable[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Iterator[Completion]:
        """Run prompts together and yield their completions in order.

        Args:
            prompts: each as for ``submit``.
            params: one for all, or one a prompt.
        """
        prompts = list(prompts)
        each = (
            [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        )
        if len(each) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts came with {len(each)} sampling parameters.")
        requests = [self.submit(prompt, chosen) for prompt, chosen in zip(prompts, each)]
        try:
            for request in requests:
                while not request.finished:
                    if self.step(ahead=True) is None and not request.finished:
                        raise EngineError(f"Request {request.id} waits, but no step can be made.")
                yield completion_of(request)
        finally:
            for request in requests:
                self.cancel(request.id)
            if not self._failed:
                self.land()

    def close(self) -> None:
        """End what runs and give the memory back; the engine takes no more requests."""
        for request in list(self._live.values()):
            self.cancel(request.id)
        if (flight := self._flight) is not None:
            self._flight = None
            with contextlib.suppress(Exception):  # a device that failed; nobody waits for these tokens
                self.runner.read(flight)
            self.scheduler.abandoned(flight.plan)
        self._landed.clear()
        self._drop_finished()
        self._failed = self._failed or "The engine is closed."
        self.runner.close()
        if self._threads is not None:
            self._threads.release()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _replay(request: Request, token_ids: Sequence[int], detokenizer: Detokenizer) -> bool:
    """Give a request output that was made before; whether a stop string was met in it."""
    stopped = False
    for token in token_ids:
        request.add_token(token)
        piece = detokenizer.push([token])
        request.add_text(piece.text)
        stopped = stopped or piece.stopped
    return stopped
