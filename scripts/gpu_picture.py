"""The picture of the app on a card: the real app, the real engine process, four chats in one graph.

    python scripts/gpu_picture.py [--model NAME] [--out FOLDER] [--eager-steps N]

Four chats rehearse: they stream in graph mode, in eager mode and in graph mode again, switched with F2, until
both modes were measured at batch 4 and the card was read at work. Then four fresh ones start, and ``gpu.svg``
and ``gpu-inspector.svg`` are taken while all of them stream through the graph of size 4, and ``gpu-ab.svg``
with the A/B card over them. One line of facts about the picture is printed, and the card's text. Exit code 0:
the pictures show all that they are for; 1: one does not, and what is missing is said; 2: the engine did not
start (no CUDA device), or runs without graphs.
"""

import argparse
import asyncio
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from pictures import write
from textual.pilot import Pilot

from engine.client import Client, EngineClient
from engine.config import DEFAULT_MODEL, EngineConfig
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.history import decode_rows
from tui_infer.widgets.chat.prompt import Prompt

SIZE = (160, 48)
CHATS = 4
READY_S, SCENE_S, PICTURE_S = 420.0, 180.0, 30.0
GRAPH_STEPS = 40  # before the switch and again after it, at the least
RECENT = 4096  # steps that are looked at to count those since a moment; polled often enough for a fast card
READINGS = 2  # of the card at work, after the switch back
TOKENS = 160  # of each fresh answer when the picture is taken, at the least: enough to fill a pane
GIB = 1024**3

PROMPTS = [
    "Write a long story about a lighthouse keeper and her daughter. Use many paragraphs.",
    "Write a detailed guide to growing vegetables, month by month, from January to December.",
    "Explain how a computer works, part by part, in a long text with headings.",
    "Write a Python program that plays tic-tac-toe, and explain every function of it.",
]


class NoGraphs(Exception):
    """There is nothing to take a picture of; the text says why."""


async def take(client: Client, out: Path, *, eager_steps: int, tokens: int = TOKENS) -> str:
    """Run the app through the scene, write the pictures, and return the line of facts.

    Raises:
        NoGraphs: the engine did not start, or runs without graphs.
        TimeoutError: a part of the scene did not come; the text says which.
    """
    settings = Settings(temperature=0.7, max_tokens=8000, inspector="side", layout="4")
    app = TuiInferApp(client, theme="dark", settings=settings)
    try:
        async with app.run_test(size=SIZE) as pilot:
            await ready(app)
            await start_chats(app, pilot)
            await switch_and_back(app, pilot, eager_steps)
            await card_was_read(app)
            for session in list(app.state.sessions):
                app.main.forget(session)
                app.state.close_session(session)
            await start_chats(app, pilot)
            await wait(lambda: fewest_tokens(app) >= tokens, SCENE_S, "the answers")
            await expose(app, pilot, out / "gpu.svg")
            line = facts(app)
            await pilot.press("f6")  # the inspector on the whole screen
            await expose(app, pilot, out / "gpu-inspector.svg")
            card = await compare(app, pilot, out / "gpu-ab.svg")
            return f"{line}\n{card}"
    finally:
        await client.close()


# --- the scene -------------------------------------------------------------------------------------


async def ready(app: TuiInferApp) -> None:
    state = app.state
    await wait(lambda: state.phase != "loading", READY_S, "the engine")
    if state.failure is not None:
        raise NoGraphs(f"{state.failure.message} {state.failure.hint}".strip())
    if state.mode != "graph":
        raise NoGraphs(f"steps run eager: {state.mode_reason}")


async def start_chats(app: TuiInferApp, pilot: Pilot[int]) -> None:
    """Four chats that go on to their limit of tokens: one that ends would leave the graph of size 4.

    They are asked while the engine is paused, and so start together: at a card's speed the first answer would
    else be thousands of tokens long before the last prompt is typed.
    """
    await pilot.press("f3")
    await wait(lambda: app.state.paused, SCENE_S, "the pause")
    app.state.params = msgspec.structs.replace(app.state.params, ignore_eos=True)
    app.state.current.params = app.state.params
    for number, prompt in enumerate(PROMPTS[:CHATS]):
        if number:
            await pilot.press("ctrl+n")
        await wait(lambda: prompt_of(app) is not None, SCENE_S, "a prompt")
        prompt_of(app).insert(prompt)  # type: ignore[union-attr]
        await pilot.press("enter")
    app.action_toggle_pause()  # a press would wait for the app to be idle, and that it will not be for long
    await wait(lambda: streaming(app) == CHATS, SCENE_S, f"{CHATS} streaming chats")


def prompt_of(app: TuiInferApp) -> Prompt | None:
    """The prompt of the focused chat, once it has the focus."""
    for pane in app.main.visible_panes:
        if pane.prompt.has_focus and pane.session is app.state.current:
            return pane.prompt
    return None


async def switch_and_back(app: TuiInferApp, pilot: Pilot[int], eager_steps: int) -> None:
    for mode, count in (("graph", GRAPH_STEPS), ("eager", eager_steps), ("graph", GRAPH_STEPS)):
        if app.state.mode != mode:
            await pilot.press("f2")
        latest = app.state.history.latest
        since = latest.index if latest else 0
        await wait(lambda: steps(app, mode, since) >= count, SCENE_S, f"{count} {mode} steps")  # noqa: B023


async def card_was_read(app: TuiInferApp) -> None:
    """Wait for new readings, if the card can be read at all."""
    for _ in range(READINGS):
        before = app.gpu.reading
        if not before.available:
            return
        await wait(lambda: app.gpu.reading is not before, SCENE_S, "a reading of the card")  # noqa: B023


async def compare(app: TuiInferApp, pilot: Pilot[int], path: Path) -> str:
    """The A/B card over the chats that stream; its text."""
    if problem := app.tools.compare():
        raise NoGraphs(problem)
    await wait(lambda: app.state.ab is not None and not app.state.ab.running, SCENE_S, "the comparison")
    await pilot.pause(0.5)
    write(app.export_screenshot(title="tui-infer"), path)
    assert app.state.ab is not None
    return app.state.ab.text()


async def expose(app: TuiInferApp, pilot: Pilot[int], path: Path) -> None:
    """Take the picture in a moment in which all that it is for can be seen."""
    deadline = time.monotonic() + PICTURE_S
    missing = ["a frame"]
    while missing:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} would not show {', '.join(missing)}")
        await pilot.pause(0.12)  # the inspector is drawn ten times a second
        svg = app.export_screenshot(title="tui-infer")
        missing = not_shown(svg)
        if app.gpu.reading.utilisation == 0:  # read during the pause before
            missing.append("the card at work")
    write(svg, path)


def not_shown(svg: str) -> list[str]:
    """What the picture is for and does not show."""
    text = " ".join(re.sub(r"<[^>]*>", " ", svg).replace("&#160;", " ").split())
    wanted = {
        f"{CHATS} active → graph {CHATS}": "the replayed graph",
        f"as fast as eager at batch {CHATS}": "the ratio",
        f"● {CHATS} active": "the streaming chats",
    }
    return [what for words, what in wanted.items() if words not in text]


# --- what it shows ---------------------------------------------------------------------------------


def streaming(app: TuiInferApp) -> int:
    return sum(session.status == "streaming" for session in app.state.sessions.values())


def steps(app: TuiInferApp, mode: str, since: int) -> int:
    """Pure decode steps of all four chats in this mode after step ``since``."""
    return sum(
        record.index > since
        and record.kind == "decode"
        and record.mode == mode
        and decode_rows(record) == CHATS
        for record in app.state.history.last(RECENT)
    )


def facts(app: TuiInferApp) -> str:
    """Mode, lit size, ratio, times and the card's numbers, in one line."""
    history, gpu = app.state.history, app.gpu.reading
    latest, ratio, shares = history.latest, history.ratio(CHATS), history.time_shares()
    parts = [f"mode {app.state.mode}", f"graph {latest.graph_size if latest else None}"]
    if ratio is not None:
        parts.append(
            f"ratio {ratio.speedup:.2f}x at batch {ratio.batch} "
            f"(graph {ratio.graph_ms:.2f} ms, eager {ratio.eager_ms:.2f} ms)"
        )
    device = shares.device if shares else None
    parts.append("device n/a" if device is None else f"device {device:.2f} ms")
    parts.append(f"{streaming(app)} streaming, {fewest_tokens(app)} tokens each at the least")
    if not gpu.available:
        return " · ".join([*parts, f"NVML: {gpu.reason}"])
    used = "n/a" if gpu.memory_used is None else f"{gpu.memory_used / GIB:.1f}"
    total = "n/a" if gpu.memory_total is None else f"{gpu.memory_total / GIB:.1f}"
    parts.append(
        f"NVML {gpu.name}: {gpu.utilisation} % busy, {used}/{total} GiB, {gpu.power}/{gpu.power_limit} W, "
        f"{gpu.temperature} °C, SM {gpu.sm_clock} MHz, memory {gpu.memory_clock} MHz"
    )
    return " · ".join([*parts, *(f"{name} n/a: {reason}" for name, reason in gpu.missing.items())])


def fewest_tokens(app: TuiInferApp) -> int:
    turns = [session.last_answer for session in app.state.sessions.values()]
    return min(len(turn.token_ids) if turn else 0 for turn in turns)


async def wait(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        await asyncio.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--out", type=Path, default=Path.cwd())
    parser.add_argument("--eager-steps", type=int, default=48)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / "gpu-engine.log"
    config = EngineConfig(model=arguments.model, device="cuda", mode="graph")
    client = EngineClient(config, log_path=log)
    try:
        print(asyncio.run(take(client, arguments.out, eager_steps=arguments.eager_steps)))
    except NoGraphs as reason:
        print(f"no picture: {reason}", file=sys.stderr)
        return 2
    except TimeoutError as reason:
        print(f"no good picture: {reason} (the engine's log: {log})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
