"""Taking things away: step records as CSV or JSON, the screen as SVG. Chats are in ``chat_files``."""

import csv
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import EngineError
from engine.paths import kind_of
from engine.records import StepRecord
from tui_infer.history import step_batch

if TYPE_CHECKING:
    from textual.app import App

COLUMNS = {
    "step": "number of the step, from 1",
    "t": "Unix time of its start, seconds",
    "kind": "prefill, decode or mixed",
    "mode": "graph or eager: how its decode batch ran",
    "reason": "why it ran eager; empty for a graph",
    "graph_size": "padded batch size of the replayed graph; empty for eager",
    "active": "requests in the step",
    "decode_rows": "requests that decoded",
    "prefill_rows": "requests whose prompt was computed",
    "waiting": "requests in the queue",
    "prefill_tokens": "prompt tokens computed",
    "cached_tokens": "prompt tokens that prefix hits made it unnecessary to compute",
    "decode_tokens": "tokens decoded",
    "total_ms": "the step, milliseconds",
    "schedule_ms": "host: planning",
    "launch_ms": "host: issuing work; on a CPU the computation itself",
    "device_ms": "device, by CUDA events; empty on a CPU",
    "read_ms": "host: waiting for the sampled tokens, and their text",
    "blocks_used": "KV blocks with a reference, after the step",
    "blocks_cached": "KV blocks without one that are still known",
    "blocks_free": "KV blocks that are neither",
    "allocated": "blocks taken from the free ones in the step",
    "shared": "references to blocks that were there already",
    "copied": "blocks copied because somebody else holds them too",
    "published": "blocks that entered the prefix index",
    "released": "references dropped",
    "evicted": "cached blocks given up",
    "preempted": "ids of requests that gave their blocks up, with blanks between them",
    "finished": "ids of requests that ended, with blanks between them",
}
_CHANGES = {
    "allocated": "allocate",
    "shared": "share",
    "copied": "copy",
    "published": "publish",
    "released": "release",
    "evicted": "evict",
}


class ExportError(EngineError):
    """A file cannot be written."""

    title = "not exported"


def step_row(record: StepRecord) -> dict[str, Any]:
    """The flat values of a step, by ``COLUMNS``."""
    decode_rows, prefill_rows = step_batch(record)
    ms, blocks = record.ms, record.blocks
    kinds = [change.kind for change in record.block_changes]
    return {
        "step": record.index,
        "t": record.t,
        "kind": record.kind,
        "mode": record.mode,
        "reason": record.reason,
        "graph_size": record.graph_size,
        "active": record.active,
        "decode_rows": decode_rows,
        "prefill_rows": prefill_rows,
        "waiting": record.waiting,
        "prefill_tokens": record.prefill_tokens,
        "cached_tokens": record.cached_tokens,
        "decode_tokens": record.decode_tokens,
        "total_ms": ms.total,
        "schedule_ms": ms.schedule,
        "launch_ms": ms.launch,
        "device_ms": ms.device,
        "read_ms": ms.read,
        "blocks_used": blocks.used,
        "blocks_cached": blocks.cached,
        "blocks_free": blocks.free,
        **{name: kinds.count(kind) for name, kind in _CHANGES.items()},  # type: ignore[arg-type]
        "preempted": " ".join(map(str, record.preempted)),
        "finished": " ".join(map(str, record.finished)),
    }


def steps_as_csv(records: Iterable[StepRecord]) -> str:
    """One line a step under a line of column names; None is an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(step_row, records))
    return out.getvalue()


def steps_as_json(records: Iterable[StepRecord]) -> str:
    """``{"columns": {name: meaning}, "steps": [...]}``; each step also has its rows and block changes."""
    steps = [
        step_row(record)
        | {
            "rows": [msgspec.structs.asdict(row) for row in record.rows],
            "block_changes": [msgspec.structs.asdict(change) for change in record.block_changes],
        }
        for record in records
    ]
    return json.dumps({"columns": COLUMNS, "steps": steps}, ensure_ascii=False) + "\n"


def write_steps(records: Iterable[StepRecord], path: Path) -> int:
    """Write the steps in the form that the name asks for (``.csv``, ``.json``); returns how many.

    Raises:
        ExportError: another ending, or the file cannot be written.
    """
    forms = {".csv": steps_as_csv, ".json": steps_as_json}
    form = forms.get(path.suffix.lower())
    if form is None:
        raise ExportError(f"{path.name!r} ends in neither .csv nor .json, so its form is unknown.")
    steps = list(records)
    write_text(path, form(steps))
    return len(steps)


def write_screenshot(app: "App[Any]", path: Path) -> None:
    """Write what the terminal shows as SVG.

    Raises:
        ExportError: another ending, or the file cannot be written.
    """
    if path.suffix.lower() != ".svg":
        raise ExportError(f"{path.name!r} does not end in .svg, which is what screenshots are.")
    write_text(path, app.export_screenshot())


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet; nothing of it stays where that fails.

    Raises:
        ExportError: there is such a file, or it cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8", errors="replace", newline="\n") as file:
            try:
                file.write(text)
                file.flush()
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise ExportError(f"{path} is there already.", "Give another name, or move that file away.") from None
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def write_text(path: Path, text: str) -> None:
    """Write a file, replacing one that is there.

    Raises:
        ExportError: naming the reason.
    """
    if os.path.exists(path) and kind_of(path) == "":  # a pipe would wait for its reader
        raise ExportError(f"{path} is no ordinary file.", "Give another name.")
    try:
        path.write_text(text, "utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError | ValueError) -> ExportError:
    why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return ExportError(f"{path} cannot be written: {why}.")
