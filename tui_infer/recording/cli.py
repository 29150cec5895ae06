"""Recordings on the command line: ``--record`` and ``replay``. Imports no Textual until it is needed."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine.paths import user_path
from tui_infer.sanitize import one_line

if TYPE_CHECKING:
    from tui_infer.recording.reader import Recording
    from tui_infer.recording.writer import RecordingWriter

F = TypeVar("F", bound=Callable[..., Any])

EXIT_S = 3.0
DEMO_SPEED = 0.25


def recording_options(function: F) -> F:
    """Adds ``--record FILE`` and ``--no-text``."""
    no_text = click.option("--no-text", is_flag=True, help="Record without the texts of prompts and answers.")
    record = click.option("--record", metavar="FILE", help="Record all that happens, for tui-infer replay.")
    return record(no_text(function))


def recording_writer(values: Mapping[str, Any]) -> "RecordingWriter | None":
    """The file that ``--record`` asks for, opened; None where it does not.

    Raises:
        RecordingError: it is there already, or cannot be made.
        UsageError: ``--no-text`` without ``--record``.
    """
    from tui_infer.recording.writer import RecordingWriter

    name = values.get("record")
    if name is None:
        if values.get("no_text"):
            raise click.UsageError("--no-text goes with --record FILE.")
        return None
    return RecordingWriter(user_path(name), texts=not values.get("no_text"))


@click.command()
@click.argument("file", required=False)
@click.option("--demo", is_flag=True, help="Play the recording that comes with tui-infer, made on an H200.")
@click.option("--steps", metavar="OUT", help="Write its steps to OUT (.csv or .json) instead of playing it.")
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Begin behind step N, and stand still.")
@click.option(
    "--speed",
    type=click.FloatRange(0.125, 64.0),
    metavar="X",
    help=f"1 is as it was.  [1; with --demo {DEMO_SPEED:g}: a card makes hundreds of steps a second]",
)
@click.option("--theme", metavar="NAME", help="Theme of the app.")
def replay(
    file: str | None, demo: bool, steps: str | None, step: int | None, speed: float | None, theme: str | None
) -> int:
    """Play a recording in the app, or write its steps to a file.

    No model is needed. F3 plays and stops, F4 goes one step, + and - change the speed, /seek goes anywhere.
    """
    if file is not None and demo:
        raise click.UsageError(f"Either --demo or {one_line(file, 200)}: one recording is played at a time.")
    if file is None and not demo:
        from tui_infer.recording.found import what_is_there

        raise click.UsageError(what_is_there())
    if speed is not None and speed != speed:
        raise click.UsageError("--speed nan is no speed.")
    from tui_infer.recording.reader import read_recording

    recording = read_recording(demo_path() if demo else user_path(str(file)))
    if steps is not None:
        return _write_steps(recording, user_path(steps))
    name = "--demo" if demo else shlex.quote(str(file))
    return _play(recording, name, step, speed or (DEMO_SPEED if demo else 1.0), theme)


def demo_path() -> Path:
    """The recording that comes with the app.

    Raises:
        RecordingError: this installation has none.
    """
    from tui_infer.locations import demo_recording
    from tui_infer.recording.format import RecordingError

    path = demo_recording()
    if not path.is_file():
        raise RecordingError("This installation has no demo recording.", "Make one with --record FILE.")
    return path


def _write_steps(recording: "Recording", out: Path) -> int:
    from engine.records import Steps
    from tui_infer.export import write_steps
    from tui_infer.recording.format import Heard

    records = (
        record
        for entry in recording.entries
        if isinstance(entry, Heard) and isinstance(entry.event, Steps)
        for record in entry.event.records
    )
    count = write_steps(records, out)
    if recording.note:
        click.echo(f"note: {recording.path}: {recording.note}.", err=True)
    click.echo(f"{count:,} steps to {out}")
    return 0


def _play(recording: "Recording", name: str, step: int | None, speed: float, theme: str | None) -> int:
    from tui_infer.logs import log_to, new_log
    from tui_infer.recording.client import ReplayClient
    from tui_infer.terminal import end_within, require_terminal, run_app

    require_terminal(f"'tui-infer replay {name} --steps OUT.csv' writes the steps to a file, without one.")
    log_path = new_log("app")
    log_to(log_path)
    client = ReplayClient(
        recording, playing=step is None, speed=speed, begin_at=step, begin_s=recording.ready_s
    )
    from tui_infer.app import TuiInferApp

    code = run_app(TuiInferApp(client, theme=theme), log_path)
    end_within(EXIT_S, code)
    return code
