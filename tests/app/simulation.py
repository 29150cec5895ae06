"""An engine without a model: the real scheduler and block pool, with times drawn from a seeded generator."""

import random

from engine.blocks import BlockPool
from engine.records import EngineStatus, StepMode, StepRecord, StepRow, StepTimes
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import Scheduler
from tui_infer.history import StepHistory
from tui_infer.mirror import BlockMirror
from tui_infer.nvml import GpuReading
from tui_infer.widgets.inspector.view import InspectorView, SessionTag

GRAPH_SIZES = (1, 2, 4, 8, 16, 32)
BUSY = (2.0, 8, 31, 45, 60, 64, 71, 58, 61, 63, 66, 59, 63)


class Simulation:
    """Chats that come, answer and go; every record is what the engine would send for this schedule."""

    def __init__(
        self,
        *,
        cuda: bool = True,
        num_blocks: int = 1025,
        block_size: int = 16,
        chats: int = 5,
        max_batch: int = 32,
        seed: int = 7,
        prefix: int = 40,
        follow_up: float = 0.6,
    ) -> None:
        self.random = random.Random(seed)
        self.cuda = cuda
        self.mode: StepMode = "graph" if cuda else "eager"
        self.pool = BlockPool(num_blocks, block_size)
        self.scheduler = Scheduler(self.pool, max_batch=max_batch, prefill_chunk=512, max_model_len=4096)
        self.chats = chats
        self.follow_up = follow_up
        self.t = 1_700_000_000.0
        self.index = 0
        self.next_id = 1
        self.prefix = [self.random.randrange(1000) for _ in range(prefix)]
        self.tags: dict[int, SessionTag] = {}
        self.chat_of: dict[int, int] = {}
        self.past: dict[int, list[int]] = {}
        self.history = StepHistory()
        self.mirror = BlockMirror(num_blocks, block_size)

    def submit(self, chat: int, tokens: int, answer: int) -> Request:
        """A turn of one chat: what it said before, then ``tokens`` new ones."""
        before = self.past.get(chat, self.prefix)
        prompt = before + [self.random.randrange(1000) for _ in range(tokens)]
        request = Request(self.next_id, prompt, SamplingParams(max_tokens=answer))
        self.next_id += 1
        letter = chr(ord("A") + chat % 26)
        self.tags[request.id] = SessionTag(letter, chat % 12, f"chat {letter}", f"s{chat}")
        self.chat_of[request.id] = chat
        self.scheduler.add(request)
        return request

    def newest_request(self, chat: int) -> int | None:
        ids = [request for request, owner in self.chat_of.items() if owner == chat]
        return max(ids) if ids else None

    def run(self, steps: int) -> list[StepRecord]:
        """Make steps; chats that are silent may speak again."""
        records: list[StepRecord] = []
        while len(records) < steps:
            busy = {self.chat_of[request] for request in self.scheduler.requests}
            for chat in range(self.chats):
                if chat not in busy and (not busy or self.random.random() < 0.02):
                    long = len(self.past.get(chat, ())) > 1500
                    if long or self.random.random() > self.follow_up:
                        self.past.pop(chat, None)
                    self.submit(chat, self.random.randint(4, 400), self.random.randint(20, 300))
                    busy.add(chat)
            record = self.step()
            if record is not None:
                records.append(record)
        return records

    def step(self) -> StepRecord | None:
        """One step, also entered into history and mirror."""
        plan = self.scheduler.schedule()
        if plan is None:
            return None
        self.scheduler.computed(plan)
        finished: list[int] = []
        for request in [c.request for c in plan.prefill if c.completes] + list(plan.decode):
            request.output_ids.append(self.random.randrange(1000))
            if len(request.output_ids) >= request.params.max_tokens or request.num_tokens > 1800:
                self.past[self.chat_of[request.id]] = request.token_ids()
                self.scheduler.finish(request, FinishReason.LENGTH)
                finished.append(request.id)
        size = next((s for s in GRAPH_SIZES if s >= len(plan.decode)), None) if plan.decode else None
        graph = self.mode == "graph" and size is not None
        reason = "" if graph else self.mode_reason
        times = self._times(len(plan.decode), plan.prefill_tokens, graph)
        self.index += 1
        record = StepRecord(
            index=self.index,
            t=self.t,
            kind="mixed" if plan.decode and plan.prefill else "decode" if plan.decode else "prefill",
            mode="graph" if graph else "eager",
            reason=reason if plan.decode else "prefill is always eager",
            graph_size=size if graph else None,
            active=len(plan.decode) + len(plan.prefill),
            waiting=self.scheduler.num_waiting,
            prefill_tokens=plan.prefill_tokens,
            cached_tokens=plan.cached_tokens,
            decode_tokens=len(plan.decode),
            ms=times,
            blocks=self.pool.counts(),
            rows=tuple(StepRow(r.id, r.num_computed, 1, False) for r in plan.decode)
            + tuple(StepRow(c.request.id, c.end, c.end - c.start, True) for c in plan.prefill),
            block_changes=self.pool.drain_changes(),
            preempted=plan.preempted,
            finished=tuple(finished),
        )
        self.t += times.total / 1000
        self.history.append(record)
        self.mirror.apply(record)
        return record

    def _times(self, decode: int, prefill: int, graph: bool) -> StepTimes:
        noise = self.random.lognormvariate(0, 0.05) * (6 if self.random.random() < 0.004 else 1)
        if not self.cuda:
            compute = (9 + 2.2 * decode + 0.35 * prefill) * noise
            return StepTimes(compute + 0.5, 0.08, compute, None, 0.42)
        device = (1.05 if decode else 0.0) + 0.03 * decode + 0.021 * prefill
        launch = 0.06 if graph and not prefill else 2.6 if decode else 0.8
        launch, device = launch * noise, device * self.random.lognormvariate(0, 0.01)
        wait = max(0.0, device - launch * 0.9) + 0.03
        return StepTimes(0.02 + launch + wait + 0.01, 0.02, launch, device, wait)

    @property
    def mode_reason(self) -> str:
        if not self.cuda:
            return "no CUDA graphs on cpu"
        return "eager mode was chosen" if self.mode == "eager" else ""

    def status(self) -> EngineStatus:
        return EngineStatus(
            model="smollm2",
            model_name="SmolLM2-135M-Instruct" if not self.cuda else "Qwen2.5-1.5B-Instruct",
            model_path="/models/m",
            architecture="LlamaForCausalLM",
            model_impl="decoder",
            device="cuda:0" if self.cuda else "cpu",
            device_name="NVIDIA H200" if self.cuda else "AMD EPYC 9B14",
            device_uuid="GPU-1" if self.cuda else None,
            dtype="bfloat16",
            attention="triton" if self.cuda else "sdpa",
            attention_reason="",
            attention_passed_over=(),
            mode=self.mode,
            mode_reason=self.mode_reason,
            graph_sizes=GRAPH_SIZES if self.cuda else (),
            block_size=self.pool.block_size,
            num_blocks=self.pool.num_blocks,
            block_bytes=1 << 19,
            weight_bytes=3 << 30,
            kv_bytes=121 << 30 if self.cuda else self.pool.num_blocks << 16,
            graph_bytes=210 << 20 if self.cuda else 0,
            max_batch=self.scheduler.max_batch,
            max_model_len=4096,
            prefill_chunk=512,
            prefix_cache=True,
            vocab_size=1000,
            threads=2,
            torch="2.13",
            transformers="5.24",
            pid=1,
            load_s=1.0,
        )

    def gpu(self) -> GpuReading:
        if not self.cuda:
            return GpuReading(reason="no NVIDIA GPU in use")
        return GpuReading(
            reason="",
            name="NVIDIA H200",
            utilisation=63.0,
            memory_used=int(126.3 * 1024**3),
            memory_total=143_771 << 20,
            power=412.3,
            power_limit=700.0,
            temperature=54,
            temperature_limit=87,
            sm_clock=1980,
            sm_clock_max=1980,
            memory_clock=3201,
            memory_clock_max=3201,
            past={
                "utilisation": BUSY,
                "memory_used": (126.3 * 1024**3,) * len(BUSY),
                "power": tuple(120 + 4.65 * share for share in BUSY),
                "temperature": tuple(36.0 + number for number in range(len(BUSY))),
                "sm_clock": (345.0, 345.0, *[1980.0] * (len(BUSY) - 2)),
                "memory_clock": (3201.0,) * len(BUSY),
            },
        )

    def view(self, *, focused: int | None = 1, paused: bool = False, dead: bool = False) -> InspectorView:
        request = self.newest_request(focused) if focused is not None else None
        return InspectorView(
            status=self.status(),
            history=self.history,
            mirror=self.mirror,
            tags=self.tags,
            focused=self.tags.get(request) if request is not None else None,
            focused_request=request,
            gpu=self.gpu(),
            mode=self.mode,
            mode_reason=self.mode_reason,
            paused=paused,
            dead=dead,
        )


def loading_view() -> InspectorView:
    """Before the engine is ready."""
    return InspectorView(
        None,
        StepHistory(),
        BlockMirror(),
        {},
        None,
        None,
        GpuReading(),
        "eager",
        "",
        paused=False,
        dead=False,
    )
