"""``tui-infer serve``: the app in a browser. Imports neither Textual nor a web server before it must."""

import asyncio
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from engine.config import EngineConfig
from engine.errors import EngineError
from tui_infer.options import engine_config, engine_options, text_of

PORT = 8000
EXIT_S = 3.0
SHARED = "All tabs of this server share one engine; each has chats of its own, which go when it is closed."
KEYS = "The browser keeps keys such as Ctrl+N, Ctrl+T and Ctrl+W for itself; Ctrl+P has all commands."


class ServeError(EngineError):
    """The app cannot be served."""

    title = "not served"


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, help="0 takes any that is free.", show_default=True
)
@click.option("--theme", metavar="NAME", help="Theme of the app.")
@engine_options
@click.pass_obj
def serve(group: dict[str, Any], port: int, theme: str | None, **values: Any) -> int:
    """Show the app in a browser, on this machine only.

    Prints the address to open. All tabs share one engine; each has chats of its own. Ctrl-C ends it. The
    browser keeps keys such as Ctrl+N, Ctrl+T and Ctrl+W for itself; the palette, Ctrl+P, has all commands.
    """
    from tui_infer.config_sources import load_config

    config = engine_config(load_config().engine, group, values)
    theme = group.get("theme") if theme is None else theme
    if group.get("record") is not None:
        raise click.UsageError("--record is for the app in a terminal, not for serve.")
    if importlib.util.find_spec("textual_serve") is None:
        raise ServeError("This needs the package textual-serve.", "Run: pip install 'tui-infer[serve]'")
    return asyncio.run(_serve(config, port, None if theme is None else text_of(theme)))


async def _serve(config: EngineConfig, port: int, theme: str | None) -> int:
    from engine.client import EngineClient
    from tui_infer.logs import new_log

    client = EngineClient(config, log_path=new_log("engine"))
    client.launch()  # before our own imports: the engine imports torch meanwhile
    folder = Path(tempfile.mkdtemp(prefix="tui-infer-"))  # for its owner only
    try:
        from tui_infer.web.broker import Broker
        from tui_infer.web.server import TabServer

        broker = Broker(client, folder / "engine")
        server = TabServer(tab_command(broker.path, config, theme))
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        try:
            await broker.start()
            try:
                await server.listen(port)
            except OSError as error:
                raise ServeError(
                    f"Port {port} cannot be used: {os.strerror(error.errno or 0)}.", "Give another --port."
                ) from None
            print(f"tui-infer is at {server.address}\n{SHARED} Ctrl-C ends it.", flush=True)
            await ended.wait()
        finally:
            await broker.close()  # first: an app that loses its engine ends
            await server.close()
    finally:
        client.kill()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def tab_command(path: Path, config: EngineConfig, theme: str | None) -> list[str]:
    """How the app of a tab is started."""
    command = [sys.executable, "-m", "tui_infer", "serve-tab", str(path)]
    command += ["--config", msgspec.json.encode(config).decode()]
    return [*command, "--theme", theme] if theme is not None else command


@click.command("serve-tab", hidden=True)
@click.argument("path", type=Path)
@click.option("--config", required=True)
@click.option("--theme")
def serve_tab(path: Path, config: str, theme: str | None) -> int:
    """The app of one tab; ``serve`` starts it."""
    from tui_infer.logs import log_to, new_log
    from tui_infer.terminal import end_within, run_app
    from tui_infer.web.attached import AttachedClient

    if "TEXTUAL_DRIVER" not in os.environ:
        raise click.UsageError("This is for tui-infer serve to call.")
    client = AttachedClient(path, msgspec.json.decode(config, type=EngineConfig))
    log_path = new_log("tab")
    log_to(log_path)
    client.launch()
    try:
        from tui_infer.app import TuiInferApp

        app = TuiInferApp(client, theme=theme)
        app.state.notice("In a browser", f"{SHARED} {KEYS}")
        client.on_gone = lambda: app.exit(0)
        code = run_app(app, log_path)
    finally:
        client.kill()
    end_within(EXIT_S, code)
    return code
