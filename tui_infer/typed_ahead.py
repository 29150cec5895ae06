"""Keys that are typed faster than they are handled: each goes where it was meant."""

import asyncio
import contextlib
from typing import Any

from textual.app import App
from textual.screen import Screen

WAIT_S = 2.0  # for a prompt to take in what was typed before a key of the app


def has_priority(screen: Screen[Any], key: str) -> bool:
    """Whether a key is the app's or the screen's, whatever has the focus."""
    return any(
        binding.priority
        for _, bindings in screen._binding_chain
        for binding in bindings.key_to_bindings.get(key, ())
    )


async def taken_in(app: App[Any]) -> None:
    """Wait until the focused widget handled all that was typed or pasted so far: those keys lie in its
    queue, and the action to come may give the prompt to another chat.
    """
    done = asyncio.Event()
    if app.focused is not None and app.focused.call_later(done.set):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), WAIT_S)
