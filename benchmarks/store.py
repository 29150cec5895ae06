"""How long a start with many chats takes, and a search in them: one JSON object.

    python -m benchmarks.store --chats 200 --turns 10

The store is made in a temporary folder. Starting is opening the store, restoring what is open and drawing the
first screen at 160x48, after imports; searching is one query. Times are seconds of wall clock and of
computing, the median of ``--repeat`` runs.
"""

import argparse
import asyncio
import json
import platform
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

from engine.client import Client
from engine.commands import AnyCommand
from engine.config import EngineConfig
from engine.version import __version__
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.session import SessionState, Turn, TurnStats
from tui_infer.store.rows import Draft
from tui_infer.store.search import words_of
from tui_infer.store.snapshot import Saved, meta_of, take
from tui_infer.store.store import Store, open_store

TEXT = (
    "the engine computes a batch of tokens in one step and streams them to every chat that waits for it "
    "while blocks of keys and values stay in the cache until another prompt needs their place 東京 港区 世界"
)
QUERIES = ("engine", "cache until", "東京", "e", "chat 137", "nowhere")


class NoEngine(Client):
    """Takes commands and never answers: what is measured is the app's own start."""

    def __init__(self) -> None:
        super().__init__(EngineConfig())

    def launch(self) -> None:
        self.state = "loading"

    async def start(self) -> None:
        self.launch()

    def send(self, command: AnyCommand) -> None:
        pass

    async def restart(self, config: EngineConfig | None = None) -> None:
        pass

    async def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--turns", type=int, default=10, help="in each chat, prompts and answers together")
    parser.add_argument("--tokens", type=int, default=250, help="in each answer")
    parser.add_argument("--repeat", type=int, default=5)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, wanted.chats, wanted.turns, wanted.tokens)
        size = (folder / "chats.db").stat().st_size
        starts = [asyncio.run(start(folder)) for _ in range(wanted.repeat)]
        store = opened(folder)
        searches = {query: median(search(store, query, wanted.repeat)) for query in QUERIES}
        store.close()
    print(
        json.dumps(
            {
                "command": " ".join(["python -m benchmarks.store", *sys.argv[1:]]),
                "version": __version__,
                "python": platform.python_version(),
                "sqlite": sqlite3.sqlite_version,
                "machine": platform.platform(),
                "date": time.strftime("%Y-%m-%d"),
                "chats": wanted.chats,
                "turns": wanted.chats * wanted.turns,
                "bytes": size,
                "start": median(starts),
                "search": searches,
            },
            indent=2,
            ensure_ascii=False,
        )
    )


def opened(folder: Path) -> Store:
    store, notices = open_store(folder)
    if store is None:
        raise SystemExit(str(notices))
    return store


def fill(folder: Path, chats: int, turns: int, tokens: int) -> None:
    """Chats that were said nothing sensible in, all left open."""
    store, chance, words = opened(folder), random.Random(1), TEXT.split()
    for number in range(chats):
        session = SessionState(id="", letter="A", color=0, title=f"chat {number}")
        for at in range(turns):
            text = " ".join(chance.choices(words, k=tokens if at % 2 else 20))
            if at % 2 == 0:
                session.turns.append(Turn("user", f"chat {number}: {text}"))
                continue
            ids = [chance.randrange(49_152) for _ in range(tokens)]
            session.history_ids += ids
            session.turns.append(Turn("assistant", text, ids, TurnStats(20, tokens, 0, 0.1, 60.0)))
        write, _ = take(session, Saved(), meta_of(session, None, ""), Draft())
        if write is not None:
            store.write(write)
    store.settle().result()
    store.close(60)


async def start(folder: Path) -> tuple[float, float]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    app = TuiInferApp(NoEngine(), settings=Settings(), store=opened(folder))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        took = time.perf_counter() - wall_s, time.process_time() - cpu_s
    app.archive.finish()
    return took


def search(store: Store, query: str, repeat: int) -> list[tuple[float, float]]:
    times = []
    for _ in range(repeat):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        store.search(words_of(query))
        times.append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
    return times


def median(times: list[tuple[float, float]]) -> dict[str, float]:
    wall, cpu = zip(*times)
    return {"wall_s": round(statistics.median(wall), 4), "cpu_s": round(statistics.median(cpu), 4)}


if __name__ == "__main__":
    main()
