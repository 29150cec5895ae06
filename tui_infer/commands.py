"""The command palette: everything that a key does, and what needs a choice."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from tui_infer.keys import KEYS, QUIT
from tui_infer.widgets.key_bar import short_key

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp


class Command(NamedTuple):
    """An entry of the palette; ``action`` is run by the app."""

    title: str
    help: str
    action: str


_TITLES = {
    "new": "New chat",
    "next": "Next chat",
    "previous": "Previous chat",
    "rename": "Rename chat",
    "close": "Close chat",
    "cancel": "Stop the answer",
    "mode": "Switch graph / eager",
    "pause": "Pause or resume the engine",
    "step": "Run one engine step",
    "past": "Look back in time, or return to now",
    "restart": "Restart the engine",
    "layout": "Next layout",
    "zoom": "Zoom the pane",
    "inspector": "Inspector: side, full, hidden",
    "panel": "Inspector: next panel",
    "theme": "Next theme",
    "help": "Help",
}


def _recording_commands(app: "TuiInferApp") -> Iterator[Command]:
    """To record, or to play what was recorded, and to take things away."""
    if app.replay is None:
        title = "Stop recording" if app.recordings.on else "Record to a file"
        yield Command(title, "/record FILE names the file", "app.toggle_recording")
    else:
        yield Command("Play faster", "+ in an empty prompt", "app.playback_speed(1)")
        yield Command("Play slower", "- in an empty prompt", "app.playback_speed(-1)")
        yield Command("Play from the start", "/seek goes anywhere", "app.restart_engine")
    yield Command(
        "Export the steps as CSV", "/export steps FILE names the file", "app.export('steps', '.csv')"
    )
    yield Command("Export the steps as JSON", "with rows and block changes", "app.export('steps', '.json')")
    yield Command("Export a screenshot as SVG", "/export screenshot FILE", "app.export('screenshot', '.svg')")


class TuiCommands(Provider):
    """Actions of the app, chats by title, and themes by name."""

    def _commands(self) -> Iterator[Command]:
        app = cast("TuiInferApp", self.app)
        keys = {key.id: key for key in KEYS}
        for name, title in _TITLES.items():
            key = keys[name]
            yield Command(title, f"{short_key(key.keys)} · {key.label}", key.action)
        yield from _recording_commands(app)
        yield Command("Stop all answers", "every chat that streams or waits", "app.cancel_all")
        for number, session in enumerate(app.state.sessions.values(), 1):
            yield Command(
                f"Chat {number}: {session.title}", "go to this chat", f"app.focus_chat({session.id!r})"
            )
        for theme in app.theme_names:
            yield Command(f"Theme: {theme}", "look of the whole app", f"app.use_theme({theme!r})")
        yield Command("Quit", f"{short_key(QUIT.keys)} twice", "app.quit")

    async def discover(self) -> Hits:
        for command in self._commands():
            yield DiscoveryHit(
                Content(command.title), partial(self._run, command.action), command.title, command.help
            )

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in self._commands():
            score = matcher.match(command.title)
            if score > 0:
                # built here, not by matcher.highlight, which would read a title as markup
                display = Content(command.title)
                run = partial(self._run, command.action)
                yield Hit(score, display, run, command.title, command.help)

    async def _run(self, action: str) -> None:
        await self.app.run_action(action)
