"""The command line. Imports neither torch nor textual until a command needs them."""

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from engine.config import EngineConfig
from engine.errors import ConfigError, DeviceError, EngineError
from engine.threads import limit_spinning
from engine.version import __version__
from tui_infer.bench_cli import bench
from tui_infer.chat_cli import chat
from tui_infer.config_cli import config
from tui_infer.options import engine_config, engine_options, sampling_options, sampling_params, text_of
from tui_infer.recording.cli import recording_options, recording_writer, replay
from tui_infer.web.cli import serve, serve_tab

if TYPE_CHECKING:
    from tui_infer.state import AppState

EXIT_CRASH, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 1, 2, 130, 141
EXIT_S = 3.0  # for threads and locks that would keep a finished app from ending

COMPLETION = "_TUI_INFER_COMPLETE"  # click's name for it
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a disk, for output or a file
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(invoke_without_command=True, context_settings=CONTEXT)
@engine_options
@click.option("--theme", metavar="NAME", help="Theme of the app.")
@click.option("--no-history", is_flag=True, help="Read and write no chats: nothing of this run is kept.")
@recording_options
@click.version_option(__version__, prog_name="tui-infer", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, theme: str | None, no_history: bool, **engine: Any) -> int | None:
    """Several chats streaming at once from one batching engine, with the engine's insides in view.

    Without a command the app starts. Every option can also stand in a file or in the environment, see
    'tui-infer config --help'.
    """
    ctx.obj = {**engine, "theme": theme, "no_history": no_history}
    if ctx.invoked_subcommand is not None:
        return None
    return run_the_app(engine, None if theme is None else text_of(theme), history=not no_history)


def run_the_app(
    engine: dict[str, Any],
    theme: str | None,
    prepare: "Callable[[AppState], None] | None" = None,
    *,
    history: bool = True,
) -> int:
    """Start the engine process, then the app around it; returns the exit code. ``prepare`` sets up the state
    before anything is shown, with a new chat in front; without ``history`` chats are neither read nor kept.

    Raises:
        RecordingError: the file to record to cannot be made.
    """
    from engine.client import EngineClient
    from tui_infer.logs import log_to, new_log
    from tui_infer.splash import Splash
    from tui_infer.terminal import end_within, has_terminal, require_terminal, run_app

    client = EngineClient(EngineConfig(), log_path=new_log("engine"))
    try:
        if has_terminal():
            client.prepare()  # before pydantic and Textual are imported: the engine imports torch meanwhile
        from tui_infer.config_sources import load_config

        said = load_config()
        client.config = wanted = engine_config(said.engine, engine)
        require_terminal()
        record = recording_writer(engine) or recording_writer(said.recording)
        log_path = new_log("app")
        log_to(log_path)
        client.launch()
        splash = Splash(wanted.model)
        with splash:
            import textual.app  # noqa: F401 - half of what the app imports

            splash.show(client.poll())
            from tui_infer.app import TuiInferApp
            from tui_infer.locations import data_dir
            from tui_infer.store.store import open_store

            splash.show(client.poll())
            store, notes = open_store(data_dir()) if history and said.settings.history else (None, [])
            app = TuiInferApp(client, theme=theme, settings=said.settings, record=record, store=store)
            app.screen_entered = True
            for title, text in notes:
                app.state.notice(title, text, "warning")
            if prepare is not None:
                if store is not None and store.claimed.chats:
                    app.state.new_session()
                prepare(app.state)
        try:
            code = run_app(app, log_path)
        finally:
            if app.screen_entered:  # it fell before it drew
                splash.leave()
            broken = " ".join(filter(None, (app.recordings.finish(), app.archive.finish())))
        if broken:
            code = _complain(broken, code or EXIT_CRASH)
    finally:
        client.kill()
    end_within(EXIT_S, code)
    return code


@cli.command()
@click.option("-p", "--prompt", "prompts", multiple=True, help="A prompt; may be repeated. - reads stdin.")
@click.option("--system", metavar="TEXT", help="System message of every chat.")
@click.option("--raw", is_flag=True, help="Complete the prompt as it is, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line and prompt.")
@recording_options
@sampling_options
@engine_options
@click.pass_obj
def run(
    group: dict[str, Any], prompts: Sequence[str], system: str | None, raw: bool, as_json: bool, **values: Any
) -> int:
    """Answer prompts without the app, all in one batch.

    Without --prompt the whole of stdin is one prompt.
    """
    from tui_infer.config_sources import load_config
    from tui_infer.headless import Job, run

    system = None if system is None else text_of(system)
    values["stop"] = tuple(map(text_of, values["stop"]))
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template, which --raw leaves out.")
    wanted, params = engine_config(load_config().engine, group, values), sampling_params(group, values)
    job = Job(tuple(_prompts(prompts, raw)), params, system, raw, as_json)
    return run(wanted, job, recording_writer(values) or recording_writer(group))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> int:
    """Say what this machine, this installation and this terminal can do."""
    from tui_infer.doctor import examine, report

    return report(examine(), as_json)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def paths(as_json: bool) -> int:
    """Print the files and folders in use."""
    import json

    from tui_infer.locations import all_folders

    folders = {name: str(path) for name, path in all_folders().items()}
    width = max(map(len, folders))
    lines = (f"{name:<{width}}  {path}" for name, path in folders.items())
    click.echo(json.dumps(folders, indent=2) if as_json else "\n".join(lines))
    return 0


cli.add_command(bench)
cli.add_command(chat)
cli.add_command(config)
cli.add_command(replay)
cli.add_command(serve)
cli.add_command(serve_tab)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point: exit 0 when done, 2 for what the user can put right, 1 for a crash, 130 for Ctrl-C."""
    limit_spinning(os.environ)  # what computes in this process loads torch later
    _open_missing_streams()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        code = EXIT_PIPE
        _forget_stdout()
    except OSError as error:  # of the last flush
        code = _complain(f"stdout cannot be written: {error.strerror}.", EXIT_CRASH)
        _forget_stdout()
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    if COMPLETION in os.environ:
        cli.main(prog_name="tui-infer")  # answers the shell's completion and exits
    try:
        # Not ``cli.main``, which has its own ideas of exit codes and of broken pipes.
        with cli.make_context("tui-infer", list(sys.argv[1:] if arguments is None else arguments)) as context:
            return cli.invoke(context) or 0
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        usage = getattr(error, "ctx", None)
        hint = f" Try '{usage.command_path} --help'." if usage is not None else ""
        return _complain(f"{error.format_message()}{hint}", EXIT_USAGE)
    except EngineError as error:
        return _complain(str(error), EXIT_CRASH if isinstance(error, DeviceError) else EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt):
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the shell's prompt does not continue the line of ^C
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            _forget_stdout()  # the rest of it would fail again at the end
            return _complain(f"The output cannot be written: {error.strerror}.", EXIT_CRASH)
        return _complain(f"{type(error).__name__}: {error}{_keep_traceback()}", EXIT_CRASH)


def _prompts(given: Sequence[str], raw: bool) -> list[str]:
    """The prompts of the command line, with stdin where it is asked for or where there is nothing else."""
    if not given and sys.stdin.isatty():
        raise click.UsageError("There is no prompt. Give one with --prompt, or pipe it in.")
    if given.count("-") > 1:
        raise click.UsageError("--prompt - is there twice, but stdin can be read only once.")
    return [_stdin(raw) if prompt == "-" else text_of(prompt) for prompt in given or ("-",)]


def _stdin(raw: bool) -> str:
    text = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    # The line end that echo and editors add is no part of a chat message; a raw prompt is kept exactly.
    text = text if raw else text.rstrip("\r\n")
    if not text.strip():
        raise click.UsageError("stdin is empty, so there is no prompt.")
    return text


def _complain(text: str, code: int) -> int:
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return code


def _keep_traceback() -> str:
    """Write the traceback being handled to a log; says where, or why there is none."""
    from tui_infer.logs import new_log

    text = traceback.format_exc()
    try:
        path = new_log("crash")
        path.write_text(text, "utf-8", errors="backslashreplace")
    except (OSError, ConfigError) as error:
        return f" The traceback is not kept: {error}"
    return f" The traceback is in {path}"


def _open_missing_streams() -> None:
    """Standard streams that the caller closed lead nowhere, instead of to whatever is opened next."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _forget_stdout() -> None:
    """Nobody reads stdout any more: keep the interpreter from complaining when it flushes at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
