"""The help screen: all keys and what the marks mean."""

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tui_infer.keys import COMPARE_KEYS, KEYS, PALETTE, PAST_KEYS, PROMPT_KEYS, QUIT
from tui_infer.slash import COMMANDS
from tui_infer.widgets.chat.marks import MARKS
from tui_infer.widgets.inspector.ab import AbPanel
from tui_infer.widgets.inspector.events import EventsPanel
from tui_infer.widgets.inspector.kvmap import KVPanel
from tui_infer.widgets.inspector.step import StepPanel
from tui_infer.widgets.key_bar import bound_keys, short_key

TWO_COLUMNS = 100
MARK_WORDS = {
    "idle": "idle",
    "queued": "waiting for the engine",
    "prefill": "reading the prompt",
    "streaming": "answering",
    "cancelled": "stopped",
    "error": "failed",
}


def _panel_rows() -> list[tuple[str, str]]:
    """Keys of the inspector's panels, while one has the focus."""
    rows = [
        ("Tab 1…9", "next panel, panel 1…9 (in KV digits are a block)"),
        ("z", "enlarge it, or back"),
        ("x u", "hide it, show all"),
        ("⇧↑ ⇧↓", "move it"),
    ]
    for panel in (StepPanel, EventsPanel, KVPanel, AbPanel):
        keys = ", ".join(f"{key} {label}" for key, label in panel.HINTS if key != "x")
        rows.append((panel.NAME, keys))
    return rows


class HelpScreen(ModalScreen[None]):
    """Keys as they are bound now, by group."""

    CSS_PATH = "help.tcss"
    BINDINGS = [Binding("escape,f1,enter,space", "close", "close", show=False)]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(id="left")
            yield Static(id="right")

    def on_mount(self) -> None:
        self._write()
        box = self.query_one("#help")
        box.border_title = Text("Help")
        box.border_subtitle = Text("Esc closes · ↑ ↓ scroll")
        box.focus()

    def on_resize(self) -> None:
        self._write()

    def _write(self) -> None:
        self.set_class(self.size.width >= TWO_COLUMNS, "-wide")
        now = bound_keys(self.app.screen_stack[0])
        left = self._table()
        for group in ("Chats", "Engine", "View", "App"):
            rows = [
                (now[key.id][0] if key.id in now else short_key(key.keys.split(",")[0]), key.label)
                for key in [*KEYS, PALETTE, QUIT]
                if key.group == group
            ]
            self._section(left, group, rows)
        self._section(left, "Panels", _panel_rows())
        right = self._table()
        self._section(right, "Prompt", PROMPT_KEYS)
        self._section(right, "Looking back", PAST_KEYS)
        comparing = [(short_key(key.keys.split(",")[0]), key.label) for key in COMPARE_KEYS]
        self._section(right, "Comparing", comparing)
        commands = [(f"/{name}", command.description) for name, command in COMMANDS.items()]
        self._section(right, "Commands", commands)
        marks = [(mark, MARK_WORDS[name]) for name, (mark, _) in MARKS.items()]
        self._section(right, "Marks", [*marks, ("*", "something new to read")])
        self.query_one("#left", Static).update(left)
        self.query_one("#right", Static).update(right)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style=f"bold {self.app.theme_variables['footer-key-foreground']}")
        table.add_column()
        return table

    def _section(self, table: Table, title: str, rows: list[tuple[str, str]]) -> None:
        if table.row_count:
            table.add_row()
        table.add_row(Text(title, style=f"bold {self.app.theme_variables['secondary']}"))
        for key, label in rows:
            table.add_row(Text(f"  {key}"), Text(label))

    def action_close(self) -> None:
        self.dismiss(None)
