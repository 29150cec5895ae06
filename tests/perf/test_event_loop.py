"""What the app costs: a smooth event loop under four streams, and next to nothing while idle.

The process is a child, so that its CPU time is its own: it runs the app on Textual's headless driver with a
scripted engine, and prints what it measured.
"""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

TICK_S = 0.005
ROOT = Path(__file__).resolve().parents[2]

ANSWER = (
    "## Paragraph\n\nSome **bold** text with `code` and a [link](http://x.y), long enough to wrap.\n\n"
    "1. one\n2. two\n   - nested\n\n```python\ndef f(x):\n    return x + 1  # comment\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n> quote\n\n"
) * 12


async def measure(chats: int, rate: float, seconds: float) -> dict[str, float]:
    """What a 5 ms timer sees over ``seconds``.

    ``busy`` is the time in ms that the loop worked between two ticks, in CPU time of its thread, so that
    other processes on the machine do not count; ``late`` is wall time. ``cpu`` is cores of the process.
    """
    from tests.app.driving import ask, running
    from tests.app.scripted import ScriptedClient
    from tests.waiting import wait_until

    client = ScriptedClient(ANSWER * 4, rate=rate)
    async with running(client, size=(160, 48)) as (app, pilot):
        for number in range(chats):
            if number:
                await pilot.press("ctrl+n")
            await ask(app, pilot, f"question {number}")
        if chats:
            await wait_until(lambda: app.state.active == chats)
        else:
            await asyncio.sleep(1.0)  # for the mounting and its last frame
        late: list[float] = []
        busy: list[float] = []
        wait = TICK_S if chats else seconds  # an idle app is not woken by its own measuring
        started, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - started < seconds:
            before, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(wait)
            late.append((time.perf_counter() - before - wait) * 1000)
            busy.append((time.thread_time() - worked) * 1000)
        took = time.perf_counter() - started
        return {
            "busy_p50_ms": _percentile(busy, 0.5),
            "busy_p99_ms": _percentile(busy, 0.99),
            "late_p99_ms": _percentile(late, 0.99),
            "cpu": (time.process_time() - cpu) / took,
            "active": app.state.active,
        }


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def in_a_child(chats: int, rate: float, seconds: float) -> dict[str, float]:
    code = f"import asyncio; from tests.perf.test_event_loop import main; main({chats}, {rate}, {seconds})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(result)
    return result


def main(chats: int, rate: float, seconds: float) -> None:
    print(json.dumps(asyncio.run(measure(chats, rate, seconds))))


def test_four_panes_at_60_tokens_a_second_keep_the_loop_smooth_and_leave_two_thirds_of_a_core() -> None:
    result = in_a_child(chats=4, rate=60.0, seconds=8.0)
    assert result["active"] == 4, "the streams ended before the measurement did"
    assert result["busy_p99_ms"] < 80
    assert result["cpu"] < 0.33  # with the panels beside them; 0.11 as measured


def test_an_idle_app_costs_under_two_percent_of_a_core() -> None:
    result = in_a_child(chats=0, rate=60.0, seconds=5.0)
    assert result["cpu"] < 0.02
