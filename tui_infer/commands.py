"""The command palette: everything that a key does, and what needs a choice."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from tui_infer.event_log import KIND_WORDS, KINDS
from tui_infer.keys import KEYS
from tui_infer.run_until import CONDITIONS
from tui_infer.screens.dialog import LeftOnce

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp


class Command(NamedTuple):
    """An entry of the palette; ``action`` is run by the app."""

    title: str
    help: str
    action: str


PANEL_TITLES = {
    "batch": "Batch",
    "step": "Step",
    "kv": "KV",
    "table": "Table",
    "events": "Events",
    "gpu": "GPU",
}
_TITLES = {
    "new": "New chat",
    "next": "Next chat",
    "previous": "Previous chat",
    "rename": "Rename chat",
    "search": "Search earlier prompts",
    "parameters": "Parameters: temperature, top-p, seed, max tokens, stop, system prompt",
    "chats": "All chats, search",
    "close": "Close chat, archive it",
    "all": "Send to all shown chats: on or off",
    "compare": "Compare answers side by side",
    "messages": "Messages of the chat",
    "cancel": "Stop the answer",
    "mode": "Switch graph / eager",
    "pause": "Pause or resume the engine",
    "step": "Run one engine step",
    "until": "Run until…",
    "past": "Look back in time, or return to now",
    "model": "Choose another model…",
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


def _tool_commands(app: "TuiInferApp") -> Iterator[Command]:
    """Run until, graph against eager, synthetic load."""
    for condition in CONDITIONS[:-1]:
        yield Command(
            f"Run until {condition.words}",
            f"/until {condition.word}",
            f"app.tool('until', {condition.word!r})",
        )
    if app.state.ab is not None and app.state.ab.running:
        yield Command("A/B: stop", "the mode becomes what it was", "app.tool('ab')")
    else:
        yield Command("A/B: eager against graph", "/ab measures the chats that stream", "app.tool('ab')")
    for sessions in (1, 4, 8, 16):
        title = f"Synthetic load: {sessions} session{'s' if sessions > 1 else ''}"
        yield Command(title, f"/load {sessions} prompt=64 tokens=256", f"app.tool('load', '{sessions}')")
    if app.state.load.active:
        yield Command("Synthetic load: stop", "/load 0", "app.tool('load', '0')")


_JUMPS = [
    ("Look back: the eager step before", "jump-eager-back", "app.jump('eager', -1)"),
    ("Look back: the next eager step", "jump-eager-on", "app.jump('eager', 1)"),
    ("Look back: the change of graph or mode before", "jump-change-back", "app.jump('change', -1)"),
    ("Look back: the next change of graph or mode", "jump-change-on", "app.jump('change', 1)"),
]


def _panel_commands(app: "TuiInferApp") -> Iterator[Command]:
    """Panels by name, and filters of the event log."""
    arrangement = app.state.arrangement
    for name, title in PANEL_TITLES.items():
        hidden = name in arrangement.hidden
        yield Command(f"Panel {title}: {'show' if hidden else 'hide'}", "x", f"app.panel('toggle', {name!r})")
        yield Command(f"Panel {title}: enlarge or back", "z", f"app.panel('enlarge', {name!r})")
        yield Command(f"Panel {title}: move up", "shift+up", f"app.panel('up', {name!r})")
        yield Command(f"Panel {title}: move down", "shift+down", f"app.panel('down', {name!r})")
    yield Command("Panels: all, in their usual order", "u", "app.panel('reset', '')")
    yield Command("Events: all", "c", "app.only_events('', '')")
    for kind in KINDS:
        yield Command(f"Events: only {KIND_WORDS.get(kind, kind)}", "k", f"app.only_events({kind!r}, '')")
    for session in app.state.sessions.values():
        yield Command(f"Events: only chat {session.letter}", "f", f"app.only_events('', {session.id!r})")


class AllCommands(CommandPalette, LeftOnce[None]):
    """Textual's palette, which quick fingers leave only once."""


class TuiCommands(Provider):
    """Actions of the app, chats by title, and themes by name."""

    def _commands(self) -> Iterator[Command]:
        app = cast("TuiInferApp", self.app)
        keys = {key.id: key for key in KEYS}
        for name, title in _TITLES.items():
            key = keys[name]
            yield Command(title, f"{app.state.keys[name]} · {key.label}", key.action)
        yield from _recording_commands(app)
        yield Command("Stop all answers", "every chat that streams or waits", "app.cancel_all")
        for number, session in enumerate(app.state.sessions.values(), 1):
            yield Command(
                f"Chat {number}: {session.title}", "go to this chat", f"app.focus_chat({session.id!r})"
            )
        yield from app.chats.commands
        yield from app.archive.commands
        yield from app.transfer.commands
        yield from app.several.commands
        yield from app.turns.commands
        yield from _tool_commands(app)
        for title, id, action in _JUMPS:
            yield Command(title, f"{app.state.keys[id]} while you look back, and in the Step panel", action)
        yield from _panel_commands(app)
        for theme in app.looks.names:
            yield Command(f"Theme: {theme}", "look of the whole app", f"app.use_theme({theme!r})")
        yield Command("Quit", f"{app.state.keys['quit']} twice", "app.quit")

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
