"""A client with the engine's interface that streams given text at a given rate. For tests only."""

import asyncio
import itertools
import time
from collections.abc import Sequence

from engine.client import Client
from engine.commands import AnyCommand, Cancel, Pause, SetMode, StepOnce, Submit
from engine.config import EngineConfig
from engine.records import (
    BlockChange,
    BlockCounts,
    Delta,
    EngineStatus,
    Failed,
    Finished,
    ModeChanged,
    Paused,
    Progress,
    Ready,
    Started,
    StepRecord,
    Steps,
    StepTimes,
)
from engine.records import StepRow as Row

BLOCK_SIZE = 16
NUM_BLOCKS = 400
PROMPT_TOKENS = 12
NO_CUDA = "no CUDA device: steps run eager"
CHOSEN = "eager mode was chosen"
GRAPH_SIZES = (1, 2, 4, 8, 16, 32)
ON_A_CARD: dict[str, object] = {
    "device": "cuda:0",
    "device_name": "NVIDIA H200",
    "dtype": "bfloat16",
    "attention": "flash",
    "mode": "graph",
    "mode_reason": "",
    "graph_sizes": GRAPH_SIZES,
    "graph_bytes": 210 << 20,
    "weight_bytes": 257 << 20,
    "kv_bytes": 121 << 30,
}


def engine_status(**changes: object) -> EngineStatus:
    """A status as the engine gives it on a CPU."""
    values: dict[str, object] = {}
    values.update(
        model="smollm2", model_name="SmolLM2-135M", model_path="/models/smollm2",
        architecture="LlamaForCausalLM", model_impl="transformers", device="cpu", device_name="CPU",
        device_uuid=None, dtype="float32", attention="sdpa", attention_reason="no GPU",
        attention_passed_over=(), mode="eager", mode_reason=NO_CUDA, graph_sizes=(), block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS, block_bytes=1, weight_bytes=1, kv_bytes=1, graph_bytes=0, max_batch=32,
        max_model_len=2048, prefill_chunk=512, prefix_cache=True, vocab_size=49152, threads=2, torch="2",
        transformers="5", pid=1, load_s=1.0,
    )  # fmt: skip
    return EngineStatus(**{**values, **changes})  # type: ignore[arg-type]


def step(
    index: int, rows: Sequence[Row], changes: Sequence[BlockChange] = (), used: int = 0, card: str = ""
) -> StepRecord:
    """A decode step of four milliseconds on a CPU; on a card, with ``card`` the mode, eager takes as long and
    a graph one.
    """
    prefill = sum(row.tokens for row in rows if row.prefill)
    graph = card == "graph" and not prefill
    ms = StepTimes(total=4.0, schedule=0.1, launch=3.7, device=0.9 if card else None, read=0.2)
    if graph:
        ms = StepTimes(total=1.0, schedule=0.02, launch=0.05, device=0.9, read=0.93)
    return StepRecord(
        index=index,
        t=time.time(),
        kind="prefill" if prefill else "decode",
        mode="graph" if graph else "eager",
        reason="" if graph else CHOSEN if card else NO_CUDA,
        graph_size=next(size for size in GRAPH_SIZES if size >= len(rows)) if graph else None,
        active=len(rows),
        waiting=0,
        prefill_tokens=prefill,
        cached_tokens=0,
        decode_tokens=sum(not row.prefill for row in rows),
        ms=ms,
        blocks=BlockCounts(used=used, cached=0, free=NUM_BLOCKS - 1 - used),
        rows=tuple(rows),
        block_changes=tuple(changes),
    )


class ScriptedClient(Client):
    """Answers every prompt with ``answer``, ``chars`` characters a token, ``rate`` tokens a second.

    Deltas are coalesced as the engine does it, ``deltas_per_s`` of them; steps go out at 10 Hz. With
    ``hold`` it stays in loading until ``become_ready`` is called; with ``graphs`` it is on a card, and
    switches between graph and eager when it is told to.
    """

    def __init__(
        self,
        answer: str,
        *,
        rate: float = 60.0,
        chars: int = 4,
        deltas_per_s: float = 25.0,
        hold: bool = False,
        graphs: bool = False,
    ) -> None:
        super().__init__(EngineConfig())
        self.answer = answer
        self.rate = rate
        self.chars = chars
        self.delta_s = 1 / deltas_per_s
        self.hold = hold
        self.card = "graph" if graphs else ""
        self.sent: list[AnyCommand] = []
        self.restarts = 0
        self._requests = itertools.count(1)
        self._steps = itertools.count()
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._rows: dict[int, int] = {}
        self._blocks = itertools.count(1)
        self._changes: list[BlockChange] = []
        self._blocks_held: set[int] = set()  # blocks, which nobody gives back
        self._telemetry: asyncio.Task[None] | None = None

    def launch(self) -> None:
        self.state = "loading"

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.launch()
        self._emit(Progress("reading weights", "model.safetensors", 0.43))
        if not self.hold:
            self.become_ready()

    def become_ready(self, **changes: object) -> None:
        self.state = "ready"
        self._emit(Ready(engine_status(**{**(ON_A_CARD if self.card else {}), **changes})))

    async def restart(self, config: EngineConfig | None = None) -> None:
        self.restarts += 1
        self.config = config or self.config
        await self.start()

    async def close(self) -> None:
        for task in [*self._tasks.values(), *([self._telemetry] if self._telemetry else [])]:
            task.cancel()

    def fail(self) -> None:
        """The engine process dies."""
        self.state = "dead"
        for task in self._tasks.values():
            task.cancel()
        self._emit(
            Failed("engine stopped", "The process was killed by signal 9 [/red].", "Restart the engine.")
        )

    def _emit(self, event: object) -> None:
        assert self.on_event is not None
        self.on_event(event)  # type: ignore[arg-type]

    def send(self, command: AnyCommand) -> None:
        self.sent.append(command)
        match command:
            case Submit():
                task = asyncio.get_running_loop().create_task(self._stream(command))
                self._tasks[command.session, command.epoch] = task
                if self._telemetry is None:
                    self._telemetry = asyncio.get_running_loop().create_task(self._send_steps())
            case Cancel():
                if task := self._tasks.pop((command.session, command.epoch), None):  # type: ignore[assignment]
                    task.cancel()
            case SetMode() if self.card:
                self.card = command.mode
                self._emit(ModeChanged(command.mode))
            case SetMode():
                self._emit(ModeChanged("eager", NO_CUDA if command.mode == "graph" else ""))
            case Pause():
                self._emit(Paused(command.paused))
            case StepOnce():
                self._emit(Steps([step(next(self._steps), [])]))

    async def _stream(self, command: Submit) -> None:
        request = next(self._requests)
        prompt_ids = [*(command.history or []), *range(PROMPT_TOKENS)]
        started = time.monotonic()
        pieces = [f"t{token} " for token in prompt_ids]
        self._emit(Started(command.session, command.epoch, request, prompt_ids, pieces))
        try:
            tokens = sent = 0
            while sent < len(self.answer):
                await asyncio.sleep(self.delta_s)
                whole = -(-len(self.answer) // self.chars)  # tokens; no more of them however late it is
                due = min(whole, int((time.monotonic() - started) * self.rate))
                text = self.answer[sent : due * self.chars]
                if not text:
                    continue
                ids = list(range(tokens, due))
                self._rows[request] = len(prompt_ids) + due
                if due // BLOCK_SIZE != tokens // BLOCK_SIZE or not tokens:
                    block = next(self._blocks) % (NUM_BLOCKS - 1) + 1
                    self._changes.append(BlockChange("allocate", block, request, tokens // BLOCK_SIZE))
                ends = [min((token + 1) * self.chars, len(self.answer)) for token in ids]
                self._emit(Delta(command.session, command.epoch, text, ids, ends))
                tokens, sent = due, sent + len(text)
            seconds = time.monotonic() - started
            self._emit(
                Finished(
                    command.session, command.epoch, "stop", len(prompt_ids), tokens, 0, 0.05, tokens / seconds
                )
            )
        finally:
            self._rows.pop(request, None)

    async def _send_steps(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            if self._rows:
                rows = [Row(request, context, 1, False) for request, context in self._rows.items()]
                changes, self._changes = self._changes, []
                count = max(1, int(self.rate / 10)) - 1
                self._blocks_held.update(change.block for change in changes)
                used = len(self._blocks_held)
                first = step(next(self._steps), rows, changes, used=used, card=self.card)
                records = [step(next(self._steps), rows, used=used, card=self.card) for _ in range(count)]
                self._emit(Steps([first, *records]))
