"""What ``/record``, ``/seek``, ``/speed`` and ``/export`` do; each returns why not, or an empty string."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.paths import user_path
from tui_infer.export import write_screenshot, write_steps

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

NO_REPLAY = "There is no recording open: tui-infer replay FILE opens one."
EXPORT_FORMS = "It takes: chat FILE.md or FILE.json, steps FILE.csv or FILE.json, or screenshot FILE.svg."


def record(app: "TuiInferApp", words: Sequence[str]) -> str:
    """Start to record, to a file of that name where one is given; a second time, stop."""
    if app.replay is not None:
        return "This is a recording already."
    if app.recordings.on:
        return app.recordings.stop() if not words else f"{app.recordings.path} is being recorded."
    return app.recordings.start(_path(words))


def seek(app: "TuiInferApp", words: Sequence[str]) -> str:
    """Go to a step or a time of the recording."""
    return app.replay.seek(list(words)) if app.replay is not None else NO_REPLAY


def speed(app: "TuiInferApp", words: Sequence[str]) -> str:
    """Play faster or slower."""
    return app.replay.speed(list(words)) if app.replay is not None else NO_REPLAY


def export(app: "TuiInferApp", words: Sequence[str]) -> str:
    """Write chats, steps or a screenshot to a file."""
    if words and words[0].lower() == "chat":
        return app.transfer.export(words[1:])
    path = _path(words[1:])
    if path is None or words[0].lower() not in ("steps", "screenshot"):
        return EXPORT_FORMS
    try:
        if words[0].lower() == "steps":
            what = f"{write_steps(app.state.history, path):,} steps"
        else:
            write_screenshot(app, path)
            what = "a screenshot"
    except EngineError as error:
        return str(error)
    app.state.notice("Exported", f"{what} to {path}")
    return ""


def _path(words: Sequence[str]) -> Path | None:
    """A name may hold blanks."""
    return user_path(" ".join(words)) if words else None
