"""The inspector's panels as text: the same state in the same size gives the same text, live or replayed."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tui_infer.widgets.inspector.panel import Panel

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

DUMP_SIZE = (160, 48)  # of the terminal in which dumps are made
HEAD = "=== step "
SETTLE_S = 0.05  # panels get their places a frame after the engine or the card said something new
SAME = 3  # dumps that have to agree
MOST_TRIES = 100


async def dump_panels(app: "TuiInferApp") -> str:
    """What every visible panel shows, one below the other, each under its name, once that settled.

    The app's state must stand still meanwhile.
    """
    texts: list[str] = []
    for _ in range(MOST_TRIES):
        texts.append(_dump(app))
        if len(texts) >= SAME and len(set(texts[-SAME:])) == 1:
            break
        drawn = asyncio.Event()
        app.main.inspector.call_after_refresh(drawn.set)
        await drawn.wait()
        await asyncio.sleep(SETTLE_S)
    return texts[-1]


def _dump(app: "TuiInferApp") -> str:
    app.main.show_inspector(app.gpu.reading)
    parts = []
    for panel in app.main.inspector.query(Panel):
        if panel.size.height and panel.display:
            rows = [strip.text.rstrip() for strip in panel._strips]
            parts.append("\n".join([f"[{panel.id}]", *rows]))
    return "\n".join(parts) + "\n"


class Dump(NamedTuple):
    """The panels at one moment: after step ``step``, ``t`` seconds into the recording."""

    step: int
    t: float
    text: str


def dumps_as_text(dumps: Iterable[Dump]) -> str:
    """Dumps as a file for people and for ``dumps_of``."""
    return "".join(f"{HEAD}{dump.step} t {dump.t!r}\n{dump.text}" for dump in dumps)


def dumps_of(text: str) -> list[Dump]:
    """The dumps in such a file."""
    dumps = []
    for part in text.split(HEAD)[1:]:
        first, _, rest = part.partition("\n")
        step, _, t = first.partition(" t ")
        dumps.append(Dump(int(step), float(t), rest))
    return dumps
