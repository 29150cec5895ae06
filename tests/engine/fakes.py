"""FakeEngine: a scripted engine with the surface of engine.core.Engine; no model, no torch.

It keeps a real ledger of blocks, so that what panels show of it adds up. Its behaviour comes from
the model name, which also crosses to a worker process: ``fake?step_s=0.02&load_s=5`` (see ``Script``).
The prompt may hold one of: ``!error`` (the request fails at its third token), ``!device`` (the device
fails), ``!bug`` (a step raises), ``!die`` (the process is killed in a step), ``!hang`` (a step of a minute).
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from engine.block_detail import check_block
from engine.commands import Message
from engine.config import EngineConfig
from engine.errors import DeviceError, ModelError, RequestError
from engine.records import (
    BlockChange,
    BlockCounts,
    BlockDetail,
    BlockOwner,
    BlockSnapshot,
    EngineStatus,
    PassedOver,
    Progress,
    StepMode,
    StepRecord,
    StepRow,
    StepTimes,
)
from engine.request import Completion, FinishReason, Request, SamplingParams, completion_of

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@dataclass(frozen=True)
class Script:
    """What the fake does: seconds for loading and for a step, how loading ends, the size of its pool."""

    step_s: float = 0.0
    load_s: float = 0.0
    load: str = "ok"  # ok, error, bug, die
    block_size: int = 16
    num_blocks: int = 1025
    max_model_len: int = 8192
    graphs: bool = False

    @classmethod
    def of(cls, model: str) -> "Script":
        values = dict(parse_qsl(model.partition("?")[2]))
        kinds = {name: type(default) for name, default in vars(cls()).items()}
        read = {
            name: kinds[name](int(text) if kinds[name] is bool else text) for name, text in values.items()
        }
        return cls(**read)  # type: ignore[arg-type]


@dataclass
class Ledger:
    """Who holds which block; block 0 is the null block. Nothing is cached."""

    num_blocks: int
    free: list[int] = field(default_factory=list)
    changes: list[BlockChange] = field(default_factory=list)
    last_used: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = list(range(self.num_blocks - 1, 0, -1))

    def allocate(self, request: Request) -> None:
        block = self.free.pop()
        self.changes.append(BlockChange("allocate", block, request.id, len(request.block_table)))
        request.block_table.append(block)

    def release(self, request: Request) -> None:
        for index, block in reversed(list(enumerate(request.block_table))):
            self.changes.append(BlockChange("release", block, request.id, index))
            self.free.append(block)
        request.block_table.clear()

    def counts(self) -> BlockCounts:
        return BlockCounts(used=self.num_blocks - 1 - len(self.free), cached=0, free=len(self.free))

    def drain(self, step: int) -> tuple[BlockChange, ...]:
        changes, self.changes = tuple(self.changes), []
        self.last_used.update((change.block, step) for change in changes)
        return changes


class FakeEngine:
    """Answers every prompt with counted words, one token a step and request.

    Args:
        config: ``config.model`` may carry a ``Script``.
        progress: told of loading in ten parts.
        answer: makes the tokens of an answer from the prompt's text; by default words for ever.
    """

    def __init__(
        self,
        config: EngineConfig,
        progress: Callable[[Progress], None] = lambda _: None,
        *,
        answer: Callable[[str], Iterable[str]] | None = None,
    ) -> None:
        self.config = config
        self.script = Script.of(config.model)
        self.mode: StepMode = "graph" if self.script.graphs and config.mode != "eager" else "eager"
        self.closed = False
        self._answer = answer or _counting
        self._live: list[Request] = []
        self._waiting: list[Request] = []
        self._tokens: dict[int, Iterable[str]] = {}
        self._prompts: dict[int, str] = {}
        self._finished: list[int] = []
        self._next_id = 1
        self._index = 0
        self._ledger = Ledger(config.num_blocks or self.script.num_blocks)
        for part in range(10):
            progress(Progress(stage="loading", detail="fake weights", fraction=part / 10))
            time.sleep(self.script.load_s / 10)
        if self.script.load == "error":
            raise ModelError("The fake model was told not to load.", "Take another one.")
        if self.script.load == "bug":
            raise RuntimeError("a bug in loading")
        if self.script.load == "die":
            print("fake: cannot go on", file=sys.stderr, flush=True)
            os._exit(7)
        progress(Progress(stage="loading", detail="fake weights", fraction=1.0))

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._waiting)

    def submit(
        self,
        prompt: object,
        params: SamplingParams = SamplingParams(),  # noqa: B008
        session: str | None = None,
        priority: int = 0,
        history: list[int] | None = None,
        answered: int = 0,
    ) -> Request:
        text = _text_of(prompt)
        prompt_ids = list(history or []) + (
            list(prompt)
            if isinstance(prompt, list) and all(isinstance(p, int) for p in prompt)
            else list(text.encode())
        )
        if not prompt_ids:
            raise RequestError("The prompt is empty.", "Type something.")
        if len(prompt_ids) >= self.script.max_model_len:
            raise RequestError(
                f"The prompt has {len(prompt_ids)} tokens; the limit is {self.script.max_model_len}."
            )
        request = Request(self._next_id, prompt_ids, params, session, priority, arrival_s=time.perf_counter())
        self._next_id += 1
        self._prompts[request.id] = text
        self._tokens[request.id] = iter(self._answer(text))
        self._waiting.append(request)
        return request

    def land(self) -> StepRecord | None:
        return None

    def step(self, ahead: bool = False) -> StepRecord | None:
        if not self.has_work:
            return None
        began, t = time.perf_counter(), time.time()
        room = self.config.max_batch - len(self._live)
        admitted, self._waiting = self._waiting[:room], self._waiting[room:]
        decoding = list(self._live)
        self._live += admitted
        if self.script.step_s:
            time.sleep(self.script.step_s)
        rows = []
        for request in list(self._live):
            rows.append(self._advance(request, prefill=request in admitted))
        self._index += 1
        total = (time.perf_counter() - began) * 1000
        graph = len(decoding) if self.mode == "graph" and decoding else None
        finished, self._finished = tuple(self._finished), []
        return StepRecord(
            index=self._index,
            t=t,
            kind="decode" if not admitted else "mixed" if decoding else "prefill",
            mode="graph" if graph else "eager",
            reason="" if graph else "prefill" if not decoding else self.mode_reason,
            graph_size=1 << (graph - 1).bit_length() if graph else None,
            active=len(rows),
            waiting=len(self._waiting),
            prefill_tokens=sum(len(request.prompt_ids) for request in admitted),
            cached_tokens=0,
            decode_tokens=len(decoding),
            ms=StepTimes(total, total * 0.02, total * 0.9, None, total * 0.08),
            blocks=self._ledger.counts(),
            rows=tuple(rows),
            block_changes=self._ledger.drain(self._index),
            finished=finished,
        )

    @property
    def mode_reason(self) -> str:
        return "" if self.mode == "graph" else "no CUDA device" if not self.script.graphs else "mode is eager"

    def cancel(self, request_id: int) -> Request | None:
        for request in self._live + self._waiting:
            if request.id == request_id:
                self._finish(request, FinishReason.CANCELLED)
                return request
        return None

    def set_mode(self, mode: StepMode) -> str:
        self.mode = mode if self.script.graphs else "eager"
        return "" if self.mode == mode else "no CUDA device"

    def check(self) -> None:
        held = [block for request in self._live for block in request.block_table]
        assert len(held) == len(set(held))
        assert not set(held) & set(self._ledger.free)
        assert len(held) + len(self._ledger.free) == self._ledger.num_blocks - 1

    def block_snapshot(self) -> BlockSnapshot:
        owners = [
            BlockOwner(block, request.id, index)
            for request in self._live
            for index, block in enumerate(request.block_table)
        ]
        return BlockSnapshot(step=self._index, owners=owners, published=[])

    def inspect(self, block: int) -> BlockDetail:
        """What its holder computed into it; nothing is published, so other blocks hold nothing."""
        check_block(block, self._ledger.num_blocks)
        used = self._ledger.last_used.get(block, 0)
        for request in self._live:
            if block in request.block_table:
                size = self.script.block_size
                start = request.block_table.index(block) * size
                held = slice(start, min(start + size, request.num_computed))
                pieces = self.pieces(request.prompt_ids) + _answer_pieces(request)
                return BlockDetail(block, self._index, 1, "", used, request.token_ids()[held], pieces[held])
        return BlockDetail(block, self._index, 0, "", used)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Prompts are bytes: those that are no character show as U+FFFD."""
        return [bytes([token % 256]).decode("utf-8", "replace") for token in token_ids]

    def status(self) -> EngineStatus:
        return EngineStatus(
            model=self.config.model,
            model_name="Fake-1B",
            model_path="",
            architecture="FakeForCausalLM",
            model_impl="transformers",
            device="cpu",
            device_name="scripted",
            device_uuid=None,
            dtype="float32",
            attention="sdpa",
            attention_reason="the CPU has no other",
            attention_passed_over=(
                PassedOver("flash", "no CUDA device"),
                PassedOver("triton", "no CUDA device"),
            ),
            mode=self.mode,
            mode_reason=self.mode_reason,
            graph_sizes=(1, 2, 4, 8, 16, 32) if self.script.graphs else (),
            block_size=self.script.block_size,
            num_blocks=self._ledger.num_blocks,
            block_bytes=1 << 16,
            weight_bytes=1 << 28,
            kv_bytes=self._ledger.num_blocks << 16,
            graph_bytes=0,
            max_batch=self.config.max_batch,
            max_model_len=self.script.max_model_len,
            prefill_chunk=self.config.prefill_chunk,
            prefix_cache=False,
            vocab_size=256,
            threads=1,
            torch="none",
            transformers="none",
            pid=os.getpid(),
            load_s=self.script.load_s,
        )

    def generate(
        self,
        prompts: Iterable[object],
        params: SamplingParams = SamplingParams(),  # noqa: B008
    ) -> Iterable[Completion]:
        requests = [self.submit(prompt, params) for prompt in prompts]
        while self.has_work:
            self.step()
        return [completion_of(request) for request in requests]

    def close(self) -> None:
        self.closed = True

    def _advance(self, request: Request, *, prefill: bool) -> StepRow:
        tokens = len(request.prompt_ids) if prefill else 1
        request.num_computed += tokens
        while len(request.block_table) * self.script.block_size < request.num_computed:
            self._ledger.allocate(request)
        row = StepRow(request.id, request.num_computed, tokens, prefill)
        self._misbehave(request)
        token = next(self._tokens[request.id], None)  # type: ignore[call-overload]
        now = time.perf_counter()
        if token is None:
            self._finish(request, FinishReason.STOP)
        elif not request.finished:
            request.add_token(len(request.output_ids) % 256)
            request.add_text(token)
            request.first_token_s = request.first_token_s or now
            request.last_token_s = now
            if len(request.output_ids) >= request.params.max_tokens:
                self._finish(request, FinishReason.LENGTH)
        return row

    def _misbehave(self, request: Request) -> None:
        prompt = self._prompts[request.id]
        if len(request.output_ids) < 2:
            return
        if "!error" in prompt:
            request.error = "the sampler failed"
            self._finish(request, FinishReason.ERROR)
        if "!device" in prompt:
            raise DeviceError("The fake device fell over.", "Restart the engine.")
        if "!bug" in prompt:
            raise RuntimeError("a bug in a step")
        if "!hang" in prompt:
            time.sleep(60)
        if "!die" in prompt:
            print("fake: struck by lightning", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.finish_reason = reason
        self._ledger.release(request)
        self._finished.append(request.id)
        for queue in (self._live, self._waiting):
            if request in queue:
                queue.remove(request)


def _counting(_: str) -> Iterable[str]:
    number = 0
    while True:
        yield f"{WORDS[number % len(WORDS)]} "
        number += 1


def _answer_pieces(request: Request) -> list[str]:
    return [request.text[start:end] for start, end in zip([0, *request.text_ends], request.text_ends)]


def _text_of(prompt: object) -> str:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        return "\n".join(part.content for part in prompt if isinstance(part, Message))
    return ""
