"""Make the pictures in ``docs/``: the real app, the real engine, the default model, several chats at once.

    python scripts/pictures.py [--model NAME] [--out docs] [--only NAME]

Needs ``rsvg-convert`` (librsvg) for the PNG files; without it only the SVG files are written.
"""

import argparse
import asyncio
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from textual.pilot import Pilot

from engine.client import EngineClient
from engine.config import DEFAULT_MODEL, EngineConfig
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.locations import demo_recording
from tui_infer.recording.client import ReplayClient
from tui_infer.recording.reader import read_recording

ROOT = Path(__file__).resolve().parent.parent
READY_S = 300.0
CELL = 12.2  # width of a cell in Textual's SVG

PROMPTS = [
    "Write a Python function that checks whether a number is prime.",
    "List five facts about the Moon.",
    "Write a short poem about the sea.",
    "Explain what a cache is, with an example.",
]


SYSTEM = (
    "You are a patient teacher. Answer in plain words, in short sentences, and give one example for every "
    "idea. Never use a word that a child of ten would not know. If a question is not clear, say what you "
    "take it to mean."
)
KV = ("3",)  # the third panel, from whichever has the focus
OPEN_BLOCK = ("3", "enter", "enter")  # the cursor to block 3, and its card


class Picture(NamedTuple):
    """One picture: terminal size, theme, chats, and the text of generated tokens when it is taken; then keys
    are pressed. Chats with a ``system`` prompt share its KV blocks; ``blocks`` is the size of the pool.
    """

    name: str
    size: tuple[int, int]
    theme: str
    chats: int
    tokens: int
    keys: tuple[str, ...] = ()
    system: str = ""
    blocks: int | None = None


PICTURES = [
    Picture("chats-160x48-dark", (160, 48), "dark", 4, 64),
    Picture("chats-160x48-light", (160, 48), "light", 4, 64),
    Picture("chats-100x30-dark", (100, 30), "dark", 2, 64),
    Picture("chats-80x24-dark", (80, 24), "dark", 2, 60),
    Picture("chats-80x24-light", (80, 24), "light", 2, 60),
    Picture("inspector-100x30-dark", (100, 30), "dark", 3, 60, ("f6",)),
    Picture("map-160x48-dark", (160, 48), "dark", 3, 40, ("ctrl+o", *KV, *OPEN_BLOCK), SYSTEM, 400),
    Picture("map-80x24-dark", (80, 24), "dark", 2, 60, ("f6", "f6", *KV, *OPEN_BLOCK), SYSTEM, 400),
    Picture("help-100x30-dark", (100, 30), "dark", 1, 20, ("f1",)),
]


EVICTION, EVICTION_STEP = "eviction-160x48-dark", 326  # a chat gives its blocks up, three cached ones go


async def take(picture: Picture, model: str, out: Path) -> None:
    """Run the app until the chats have streamed far enough, and write what the terminal shows."""
    settings = Settings(temperature=0.0, max_tokens=400, system=picture.system)
    config = EngineConfig(model=model, num_blocks=picture.blocks)
    app = TuiInferApp(EngineClient(config), theme=picture.theme, settings=settings)
    async with app.run_test(size=picture.size) as pilot:
        await wait(lambda: app.state.phase == "ready", READY_S)
        await start_chats(app, pilot, picture.chats)
        await wait(lambda: fewest_tokens(app) >= picture.tokens or not app.state.active, READY_S)
        for key in picture.keys:
            await pilot.press(key)
        await pilot.pause(0.5)
        svg = app.export_screenshot(title="tui-infer")
    await app.client.close()
    write(svg, out / f"{picture.name}.svg")
    print(f"{picture.name}: {picture.size[0]}x{picture.size[1]}, {fewest_tokens(app)} tokens a chat")


async def start_chats(app: TuiInferApp, pilot: Pilot[int], count: int) -> None:
    """Type all prompts, then send one behind the other: no answer ends before the last one begins."""
    for number in range(count):
        if number:
            await pilot.press("ctrl+n")
            await pilot.pause()
        for character in PROMPTS[number]:
            await pilot.press("space" if character == " " else character)
    for number in range(1, count + 1):
        await pilot.press(f"alt+{number}", "enter")


def fewest_tokens(app: TuiInferApp) -> int:
    """Tokens of the shortest answer so far."""
    turns = [session.last_answer for session in app.state.sessions.values()]
    return min(len(turn.token_ids) if turn else 0 for turn in turns)


async def wait(condition, timeout_s: float) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up after {timeout_s:.0f} s")
        await asyncio.sleep(0.02)


def write(svg: str, path: Path) -> None:
    """The SVG, and a PNG beside it. Leading spaces become an offset, which some renderers would drop."""
    svg = re.sub(r'(<text [^>]*?x=")([0-9.]+)("[^>]*>)((?:&#160;)+)', _shift, svg)
    path.write_text(svg, "utf-8")
    if shutil.which("rsvg-convert"):
        png = path.with_suffix(".png")
        subprocess.run(["rsvg-convert", "-w", "1600", str(path), "-o", str(png)], check=True)


def _shift(match: re.Match[str]) -> str:
    spaces = match[4].count("&#160;")
    return f"{match[1]}{float(match[2]) + spaces * CELL:g}{match[3]}"


async def take_replay(name: str, step: int, out: Path) -> None:
    """The demo recording, standing still behind a step, with the inspector on the whole screen."""
    client = ReplayClient(read_recording(demo_recording()), playing=False, begin_at=step)
    app = TuiInferApp(client, theme="dark", settings=Settings(inspector="full"))
    async with app.run_test(size=(160, 48)) as pilot:
        await wait(lambda: client.step == step, READY_S)
        await pilot.pause(1.0)
        svg = app.export_screenshot(title="tui-infer")
    await client.close()
    write(svg, out / f"{name}.svg")
    print(f"{name}: step {client.step} of the demo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--only", help="name of one picture")
    arguments = parser.parse_args()
    arguments.out.mkdir(exist_ok=True)
    for picture in PICTURES:
        if arguments.only in (None, picture.name):
            asyncio.run(take(picture, arguments.model, arguments.out))
    if arguments.only in (None, EVICTION):
        asyncio.run(take_replay(EVICTION, EVICTION_STEP, arguments.out))


if __name__ == "__main__":
    main()
