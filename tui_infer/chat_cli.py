"""``tui-infer chat``: the app with sampling options, or the line mode. Imports no Textual before it must."""

from typing import TYPE_CHECKING, Any

import click

from tui_infer.options import app_sampling_options, engine_config, engine_options, sampling_params, text_of

if TYPE_CHECKING:
    from tui_infer.state import AppState


@click.command()
@click.option("--plain", is_flag=True, help="Lines of text without a screen, for screen readers and pipes.")
@click.option("--whole-lines", is_flag=True, help="With --plain: print answers by lines, not by pieces.")
@click.option("--system", metavar="TEXT", help="System message of every chat.")
@click.option("--theme", metavar="NAME", help="Theme of the app.")
@app_sampling_options
@engine_options
@click.pass_obj
def chat(
    group: dict[str, Any],
    plain: bool,
    whole_lines: bool,
    system: str | None,
    theme: str | None,
    **values: Any,
) -> int:
    """Chat in the app, or with --plain in lines of text.

    In the line mode each line of stdin is a prompt. A line that ends with \\ goes on in the next one; three
    quotation marks begin and end a text of several lines. /help lists the commands, Ctrl-C stops an answer.
    """
    values["stop"] = tuple(map(text_of, values["stop"]))
    engine = {**group, **{name: value for name, value in values.items() if value is not None}}
    sampling = {name: value for name, value in engine.items() if value != ()}

    def prepare(state: "AppState") -> None:
        session = state.current
        session.params = state.params = sampling_params(sampling, base=state.params)
        if system is not None:
            session.system = state.system = text_of(system)

    sampling_params(sampling)  # a value out of range is told before anything starts
    if not plain:
        if whole_lines:
            raise click.UsageError("--whole-lines goes with --plain.")
        from tui_infer.cli import run_the_app

        theme = group.get("theme") if theme is None else theme
        history = not group.get("no_history")
        return run_the_app(engine, None if theme is None else text_of(theme), prepare, history=history)
    for name, given in (("--record", group.get("record")), ("--theme", theme)):
        if given is not None:
            raise click.UsageError(f"{name} is for the app, not for --plain.")

    from engine.client import EngineClient
    from tui_infer.config_sources import load_config
    from tui_infer.logs import new_log

    said = load_config()
    client = EngineClient(engine_config(said.engine, engine), log_path=new_log("engine"))
    client.launch()  # before our own imports: the engine imports torch meanwhile
    try:
        from tui_infer.plain.chat import chat as run
        from tui_infer.state import AppState

        state = AppState(client.send, params=said.settings.params, system=said.settings.system)
        prepare(state)
        return run(client, state, whole_lines=whole_lines)
    finally:
        client.kill()
