"""Engine: takes requests, runs them step by step (``BatchLoop``), and tells what it is and knows."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from engine.batch_loop import BatchLoop
from engine.block_detail import block_detail
from engine.config import EngineConfig
from engine.errors import DeviceError, EngineError, RequestError
from engine.graphs import GraphPool
from engine.models.plain_tokenizer import PlainTokenizer
from engine.pieces import TokenPieces
from engine.prompts import Prompt, PromptReader, is_chat
from engine.records import BlockDetail, BlockSnapshot, EngineStatus, Progress, StepMode
from engine.request import Completion, Request, SamplingParams, completion_of
from engine.setup import build
from engine.text import Detokenizer


class Engine(BatchLoop):
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
        super().__init__(config, parts)
        self.graphs: GraphPool = parts.graphs
        self._tokenizer = parts.tokenizer
        self._prompts = PromptReader(parts.tokenizer, parts.status.vocab_size)
        self._pieces = TokenPieces(parts.tokenizer)
        self._status = parts.status
        self._stop = parts.stop
        self._next_id = 0

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
