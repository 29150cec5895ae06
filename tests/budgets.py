"""Budgets of computing time that hold on slow and busy machines too."""

import json
import time

REFERENCE_S = 0.010  # what the work below takes on the machine that the budgets were set on, alone


def slowness() -> float:
    """How many times slower this process computes now than where the budgets were set; at least 1.

    Computing time grows where a neighbour shares the core's units or caches, so that it is asked close to
    what is measured.
    """
    return max(1.0, min(_work() for _ in range(3)) / REFERENCE_S)


def _work() -> float:
    """Seconds of computing for a fixed piece of work of the kind that the app does."""
    started = time.process_time()
    kept: dict[str, list[int]] = {}
    for number in range(8_000):
        kept.setdefault(f"key {number % 997}", []).append(number)
    for _ in range(6):
        kept = json.loads(json.dumps(kept))
    assert sum(len(numbers) for numbers in kept.values()) == 8_000
    return time.process_time() - started


def most(seconds: float) -> float:
    """A budget in seconds of computing, in this machine's own time."""
    return seconds * slowness()
