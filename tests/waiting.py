"""Waiting for something to become true, instead of counted pauses."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 20.0


async def wait_until(predicate: Callable[[], Any], timeout_s: float = DEADLINE_S, what: str = "") -> Any:
    """Return the predicate's first true value; fails the test after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what or predicate}"
        await asyncio.sleep(0.005)
    return value


def wait_until_sync(predicate: Callable[[], Any], timeout_s: float = DEADLINE_S, what: str = "") -> Any:
    """The same without an event loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what or predicate}"
        time.sleep(0.005)
    return value
