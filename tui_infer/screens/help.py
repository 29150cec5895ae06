"""The help screen: all keys and what the marks mean."""

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tui_infer.keys import KEYS, PALETTE, PROMPT_KEYS, QUIT
from tui_infer.widgets.chat.marks import MARKS
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
        variables = self.app.theme_variables
        key_style = f"bold {variables['footer-key-foreground']}"
        heading = f"bold {variables['secondary']}"
        left = Text()
        now = bound_keys(self.app.screen_stack[0])
        for group in ("Chats", "Engine", "View", "App"):
            rows = [
                (now[key.id][0] if key.id in now else short_key(key.keys.split(",")[0]), key.label)
                for key in [*KEYS, PALETTE, QUIT]
                if key.group == group
            ]
            _section(left, group, rows, heading, key_style)
        right = Text()
        _section(right, "Prompt", PROMPT_KEYS, heading, key_style)
        marks = [(mark, MARK_WORDS[name]) for name, (mark, _) in MARKS.items()]
        _section(right, "Marks", [*marks, ("*", "something new to read")], heading, key_style)
        self.query_one("#left", Static).update(left)
        self.query_one("#right", Static).update(right)

    def action_close(self) -> None:
        self.dismiss(None)


def _section(text: Text, title: str, rows: list[tuple[str, str]], heading: str, key_style: str) -> None:
    if text:
        text.append("\n")
    text.append(f"{title}\n", style=heading)
    for key, label in rows:
        text.append(f"  {key:<12}", style=key_style)
        text.append(f" {label}\n")
