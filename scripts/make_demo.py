"""Make the demo recording: up to 16 chats on one engine, graph and eager, with too few blocks for them.

    python scripts/make_demo.py --model NAME [--out tui_infer/_demo/h200.tirec] [--steps 1000]

The real app without a terminal, recording, on the real engine in its own process. Chats share a system
prompt, so that their prefixes are found in the cache; the pool is small, so that cached blocks are evicted
and chats preempted; twice the mode is switched and switched back. At a few steps the engine is stopped and
the panels are written as text to ``FILE.dump.txt``: a replay has to show the same. A table says what
is in the file. Exit code 0: all of it is there and the file is small enough; 1: what is missing is said; 2:
the engine did not start.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.client import Client, EngineClient
from engine.commands import Pause, RunUntil
from engine.config import DEFAULT_MODEL, EngineConfig
from engine.errors import EngineError
from engine.records import StepRecord, Steps
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.recording.dump import DUMP_SIZE, Dump, dump_panels, dumps_as_text
from tui_infer.recording.format import Heard
from tui_infer.recording.reader import Recording, read_recording
from tui_infer.recording.writer import RecordingWriter

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 500_000
READY_S, STEP_S = 600.0, 300.0

SYSTEM = (
    "You are a patient teacher of computer science. You explain one idea at a time, in plain words, with a "
    "small example for each. You name the trade-offs honestly, say what people usually get wrong, and end "
    "with one question that the reader can try to answer. You write long answers, use lists only where "
    "order matters, and never repeat what you said before. If a question is vague, say how you understood "
    "it and go on. Numbers have units, code has comments, and every claim that can be measured comes with a "
    "way to measure it. Assume that your reader can program, but has never looked inside of an operating "
    "system, a compiler or a GPU."
)
PROMPTS = (
    "What is a page table?",
    "Why do GPUs like large batches?",
    "Explain a write-ahead log.",
    "What does a branch predictor do?",
    "How does a hash map grow?",
    "What is tail latency?",
    "Explain copy on write.",
    "What is a CUDA graph?",
    "Why is memory bandwidth the limit of decoding?",
    "How does garbage collection find garbage?",
    "What is false sharing?",
    "Explain the attention mechanism.",
    "What does a scheduler decide?",
    "Why are floating point sums not associative?",
    "What is a bloom filter?",
    "How do two clocks agree?",
)
FOLLOW_UP = "Give one more example."


@dataclass(frozen=True)
class Scene:
    """What happens, as shares of ``steps``: chats that come, follow-up questions, switches, dumps."""

    steps: int = 1000
    max_tokens: int = 400
    system: str = SYSTEM
    chats: tuple[tuple[float, int], ...] = ((0.0, 1), (0.05, 1), (0.1, 2), (0.16, 4))
    fills: tuple[float, ...] = (0.26,)  # as many answers at once as there are prompts
    follow_ups: tuple[float, ...] = (0.55, 0.65, 0.75, 0.85)
    switches: tuple[float, ...] = (0.13, 0.2, 0.56, 0.64)
    dumps: tuple[float, ...] = (0.08, 0.17, 0.3, 0.6, 0.95)

    def plan(self) -> list[tuple[int, str, int]]:
        """(step, what, how many), in order."""
        plan = [(share, "chat", count) for share, count in self.chats]
        plan += [(share, "fill", len(PROMPTS)) for share in self.fills]
        plan += [(share, "follow", 2) for share in self.follow_ups]
        plan += [(share, "switch", 1) for share in self.switches]
        plan += [(share, "dump", 1) for share in self.dumps]
        return sorted((round(share * self.steps), what, count) for share, what, count in plan)


@dataclass
class Made:
    """What a run gave."""

    recording: Recording
    dumps: list[Dump] = field(default_factory=list)


class NoDemo(Exception):
    """The engine did not start, or got stuck; the text says why."""


async def make(client: Client, out: Path, scene: Scene) -> Made:
    """Run the scene and write the recording.

    Raises:
        NoDemo: the engine did not start, or stopped.
    """
    settings = Settings(
        temperature=0.7, max_tokens=scene.max_tokens, inspector="full", layout="4", system=scene.system
    )
    app = TuiInferApp(client, theme="dark", settings=settings, record=RecordingWriter(out))
    dumps: list[Dump] = []
    try:
        async with app.run_test(size=DUMP_SIZE):
            await wait(lambda: app.state.phase != "loading", READY_S, "the engine")
            if app.state.failure is not None:
                raise NoDemo(f"{app.state.failure.message} {app.state.failure.hint}".strip())
            app.state.send(Pause(True))
            await wait(lambda: app.state.paused, STEP_S, "the pause")
            for step, what, count in scene.plan():
                await run_to(app, step)
                if what == "dump":
                    dumps.append(await dump(app))
                else:
                    act(app, what, count)
            await run_to(app, scene.steps)
            app.action_cancel_all()
            app.state.send(Pause(False))
            await wait(lambda: not app.state.paused and not app.state.mirror.counts().used, STEP_S, "the end")
            await asyncio.sleep(0.3)
    finally:
        app.recordings.finish()
        await client.close()
    made = Made(read_recording(out), dumps)
    dump_file(out).write_text(dumps_as_text(dumps), "utf-8")
    return made


async def run_to(app: TuiInferApp, step: int) -> None:
    """Let the engine run until right behind a step; it stops earlier where all chats were answered."""
    state = app.state
    if step <= (state.history.latest.index if state.history.latest else 0) or not state.active:
        return
    state.send(RunUntil("step", step=step))
    await wait(lambda: not state.paused or newest(app) >= step, STEP_S, "the engine to go on")
    await wait(lambda: state.paused or state.failure is not None, STEP_S, f"step {step}")
    if state.failure is not None:
        raise NoDemo(state.failure.message)


def newest(app: TuiInferApp) -> int:
    latest = app.state.history.latest
    return latest.index if latest is not None else 0


def act(app: TuiInferApp, what: str, count: int) -> None:
    """Open chats, ask more in those that were answered, or switch graph and eager."""
    state = app.state
    if what == "switch":
        state.toggle_mode()
        return
    for _ in range(count - state.active if what == "fill" else count):
        number = sum(bool(session.turns) for session in state.sessions.values())
        if what != "follow" and number < len(PROMPTS):
            if number:
                state.new_session()
            state.submit(state.focused, PROMPTS[number])
            continue
        idle = [session for session in state.sessions.values() if session.turns and not session.busy]
        if idle:
            state.submit(idle[0].id, FOLLOW_UP)
    app.main.fit_panes()


async def dump(app: TuiInferApp) -> Dump:
    """The panels, at a moment in which nothing was recorded meanwhile."""
    writer = app.recordings.writer
    assert writer is not None
    await asyncio.sleep(0.2)
    while True:
        entries, now = writer.entries, writer.now
        text = await dump_panels(app)
        if writer.entries == entries:
            return Dump(newest(app), now, text)


async def wait(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise NoDemo(f"waited {timeout_s:.0f} s for {what}")
        await asyncio.sleep(0.005)


def dump_file(out: Path) -> Path:
    return out.with_suffix(".dump.txt")


# --- what is in it -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """What the table says."""

    steps: int
    seconds: float
    size: int
    most_active: int
    modes: Counter[str]
    graph_sizes: Counter[int]
    eager_reasons: Counter[str]
    preemptions: int
    evictions: int
    shared: int
    cached_tokens: int

    def missing(self, *, graphs: bool) -> list[str]:
        """What a demo should show and this one does not."""
        wanted = {
            "16 chats at once": self.most_active >= 16,
            "preemptions": self.preemptions > 0,
            "evictions": self.evictions > 0,
            "prefix hits": self.cached_tokens > 0,
            "eager steps": self.modes["eager"] > 0,
            "graph steps": self.modes["graph"] > 0 or not graphs,
            f"a file below {MOST_BYTES:,} bytes": self.size <= MOST_BYTES,
        }
        return [what for what, there in wanted.items() if not there]

    def table(self) -> str:
        rows = {
            "steps": f"{self.steps:,} in {self.seconds:.1f} s",
            "file": f"{self.size:,} bytes",
            "most active": f"{self.most_active}",
            "modes": listed(self.modes),
            "graph sizes": listed(self.graph_sizes) or "none",
            "eager because": listed(self.eager_reasons) or "never",
            "preemptions": f"{self.preemptions}",
            "evictions": f"{self.evictions}",
            "shared blocks": f"{self.shared}",
            "cached tokens": f"{self.cached_tokens:,}",
        }
        return "\n".join(f"{name:<14} {value}" for name, value in rows.items())


def facts_of(recording: Recording) -> Facts:
    """Counted from the file itself."""
    records: list[StepRecord] = []
    for entry in recording.entries:
        if isinstance(entry, Heard) and isinstance(entry.event, Steps):
            records += entry.event.records
    changes = Counter(change.kind for record in records for change in record.block_changes)
    return Facts(
        steps=len(records),
        seconds=recording.duration,
        size=recording.path.stat().st_size,
        most_active=max((record.active for record in records), default=0),
        modes=Counter(record.mode for record in records),
        graph_sizes=Counter(record.graph_size for record in records if record.graph_size is not None),
        eager_reasons=Counter(record.reason for record in records if record.reason),
        preemptions=sum(len(record.preempted) for record in records),
        evictions=changes["evict"],
        shared=changes["share"],
        cached_tokens=sum(record.cached_tokens for record in records),
    )


def listed(counts: Counter) -> str:  # type: ignore[type-arg]
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--out", type=Path, default=ROOT / "tui_infer" / "_demo" / "h200.tirec")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--blocks", type=int, default=141, help="KV blocks, the null block included")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=Scene.max_tokens)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.unlink(missing_ok=True)
    config = EngineConfig(
        model=options.model,
        device=options.device,
        num_blocks=options.blocks,
        block_size=options.block_size,
        max_batch=16,
        prefill_chunk=256,
    )
    scene = Scene(steps=options.steps, max_tokens=options.max_tokens)
    try:
        made = asyncio.run(make(EngineClient(config), options.out, scene))
    except (NoDemo, EngineError) as error:
        print(f"no demo: {error}", file=sys.stderr)
        return 2
    facts = facts_of(made.recording)
    print(facts.table())
    print(f"dumps at steps {', '.join(str(dump.step) for dump in made.dumps)}: {dump_file(options.out)}")
    missing = facts.missing(graphs=made.recording.has_graphs)
    for what in missing:
        print(f"missing: {what}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
