"""tui-infer's engine process as the CPU benchmark drives it."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cpu_peers import RUN_S, START_S, Chat, Measured, Peer
from engine.client import EngineClient
from engine.commands import Message, Submit
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.process import WORKER
from engine.records import AnyEvent, Delta, Failed, Finished, Ready, Rejected, Started
from engine.request import SamplingParams


@dataclass
class _Answer:
    prompt: int = 0
    first_s: float | None = None
    first_tokens: int = 0
    tokens: int = 0
    text: str = ""


@dataclass
class _Heard:
    """The events of our engine process, timed as they arrive."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    answers: dict[str, _Answer] = field(default_factory=dict)
    open: int = 0
    end_s: float = 0.0
    failure: str = ""

    def __call__(self, event: AnyEvent) -> None:
        now = time.perf_counter()
        match event:
            case Ready():
                self.ready.set()
            case Started():
                self.answers[event.session].prompt = len(event.prompt_ids)
            case Delta():
                answer = self.answers[event.session]
                if answer.first_s is None:
                    answer.first_s, answer.first_tokens = now, len(event.token_ids)
                answer.tokens += len(event.token_ids)
                answer.text += event.text
            case Finished():
                self.failure = self.failure or event.error
                self.open, self.end_s = self.open - 1, now
            case Failed() | Rejected():
                self.failure = event.message
                self.ready.set()
        if self.failure or not self.open:
            self.done.set()

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        await asyncio.wait_for(event.wait(), timeout_s)
        if self.failure:
            raise EngineError(self.failure)


class Ours(Peer):
    """tui-infer's engine process, through the client that the app has."""

    def __init__(self, name: str, config: EngineConfig, log: Path, command: Sequence[str] = WORKER) -> None:
        super().__init__(name, f"--quant {config.quant}")
        self._config, self._log, self._command = config, log, command
        self._runner: asyncio.Runner | None = None
        self._client: EngineClient | None = None
        self._heard = _Heard()
        self._count = 0

    @property
    def pid(self) -> int:
        assert self._client is not None
        assert self._client.pid is not None
        return self._client.pid

    def start(self) -> float:
        self._runner = asyncio.Runner()
        return self._runner.run(self._start())

    async def _start(self) -> float:
        self._heard = _Heard()
        self._client = EngineClient(self._config, self._heard, log_path=self._log, command=self._command)
        begin = time.perf_counter()
        self._client.launch()
        await self._client.start()
        await self._heard.wait(self._heard.ready, START_S)
        seconds = time.perf_counter() - begin
        status = self._client.status
        assert status is not None
        self.versions = {"torch": status.torch, "transformers": status.transformers}
        made_of = (status.model_impl, status.dtype, f"attention {status.attention}", *status.notes)
        self.settings = "; ".join((f"--quant {self._config.quant}", *made_of))
        return seconds

    def run(self, chats: Sequence[Chat], new: int) -> Measured:
        assert self._runner is not None
        return self._runner.run(self._run(chats, new))

    async def _run(self, chats: Sequence[Chat], new: int) -> Measured:
        assert self._client is not None
        heard, params = self._heard, SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
        sessions = [f"{self._count + number}" for number in range(len(chats))]
        self._count += len(chats)
        heard.answers = {session: _Answer() for session in sessions}
        heard.open = len(chats)
        heard.done.clear()
        begin = time.perf_counter()
        for session, chat in zip(sessions, chats):
            prompt: list[int | Message] = [Message(said["role"], said["content"]) for said in chat]
            self._client.send(Submit(session, 1, prompt, params))
        await heard.wait(heard.done, RUN_S)
        answers = list(heard.answers.values())
        return Measured(
            first_s=tuple((answer.first_s or heard.end_s) - begin for answer in answers),
            first_tokens=sum(answer.first_tokens for answer in answers),
            end_s=heard.end_s - begin,
            tokens=sum(answer.tokens for answer in answers),
            prompt_tokens=max(answer.prompt for answer in answers),
            text=answers[0].text,
        )

    def stop(self) -> None:
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        try:
            if self._client is not None:
                runner.run(self._client.close())
        finally:
            if self._client is not None:
                self._client.kill()
            runner.close()
