"""The help screen: first the keys of where the focus is, then all else; typing looks for words."""

from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from tui_infer.help_topics import PANELS, PAST, PROMPT, Section, arranged, matching, sections
from tui_infer.keymap import KeyNames
from tui_infer.screens.dialog import Dialog
from tui_infer.slash import COMMANDS
from tui_infer.widgets.chat.marks import MARKS
from tui_infer.widgets.chat.prompt import Prompt
from tui_infer.widgets.inspector.ab import AbPanel
from tui_infer.widgets.inspector.events import EventsPanel
from tui_infer.widgets.inspector.kvmap import KVPanel
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.step import StepPanel
from tui_infer.widgets.inspector.table import TablePanel
from tui_infer.widgets.inspector.timeline import TimelineStrip

TWO_COLUMNS = 100
MARK_WORDS = {
    "idle": "idle",
    "queued": "waiting for the engine",
    "prefill": "reading the prompt",
    "streaming": "answering",
    "cancelled": "stopped",
    "error": "failed",
}
OTHER_MARKS = (
    ("*", "something new to read"),
    ("⇉", "gets what you send, as all shown chats do"),
    ("▶", "has the keys, where all get what you send"),
    ("⚙", "parameters that are not the usual ones"),
    ("✎", "an earlier prompt is edited"),
    ("↳", "a branch of the chat of that title"),
    ("▫", "in the list of chats: archived"),
    ("⧉", "in the list of chats: open in another tui-infer"),
)
MOST_WORDS = 40  # characters that are looked for


def all_sections(names: KeyNames) -> list[Section]:
    """All that the help knows, with the keys as they are bound."""
    panels = [
        Section(
            f"Panel {panel.NAME}", tuple((names.fill(key), label) for key, label in panel.HINTS if key != "x")
        )
        for panel in (StepPanel, KVPanel, TablePanel, EventsPanel, AbPanel)
    ]
    commands = [(f"/{name}", command.description) for name, command in COMMANDS.items()]
    marks = [(mark, MARK_WORDS[name]) for name, (mark, _) in MARKS.items()]
    return sections(names, panels, commands, [*marks, *OTHER_MARKS])


def titles_here(screen: Screen) -> list[str]:
    """The sections on what has the focus. A widget or screen may name its own as ``HELP``."""
    focused = screen.focused
    for node in [] if focused is None else focused.ancestors_with_self:
        if isinstance(node, Panel):
            return [f"Panel {node.NAME}", PANELS]
        if isinstance(node, TimelineStrip):
            return [PAST]
        if isinstance(node, Prompt):
            return [PROMPT]
        if title := getattr(node, "HELP", ""):
            return [str(title)]
    return [str(title)] if (title := getattr(screen, "HELP", "")) else [PROMPT]


class HelpScreen(Dialog[None]):
    """The sections ``first`` come first, on where the focus was if ``here``; ``words`` are looked for."""

    CSS_PATH = "help.tcss"
    BINDINGS = [
        Binding("escape", "leave", "back", show=False),
        Binding("enter", "close", "close", show=False),
        Binding("f1", "close", "close", show=False, id="help"),
        Binding("up", "rows(-1)", "up", show=False),
        Binding("down", "rows(1)", "down", show=False),
        Binding("pageup", "pages(-1)", "page up", show=False),
        Binding("pagedown", "pages(1)", "page down", show=False),
        Binding("home", "edge(False)", "top", show=False),
        Binding("end", "edge(True)", "end", show=False),
    ]

    def __init__(self, names: KeyNames, first: list[str], words: str = "", *, here: bool = True) -> None:
        super().__init__()
        self._here = first if here else []
        self._words = words
        self._sections = arranged(all_sections(names), first)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"), Horizontal(id="columns"):
            yield Static(id="left")
            yield Static(id="right")

    def on_mount(self) -> None:
        box = self.query_one("#help")
        box.border_title = Text("Help")
        self._write()
        box.focus()

    def on_resize(self) -> None:
        self._write()

    def on_key(self, event: events.Key) -> None:
        """What is typed is looked for."""
        if event.key == "backspace":
            self._look_for(self._words[:-1])
        elif event.key == "ctrl+u":
            self._look_for("")
        elif event.is_printable and event.character and len(self._words) < MOST_WORDS:
            self._look_for((self._words + event.character).lstrip())
        else:
            return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        words = "".join(character for character in event.text if character.isprintable())
        self._look_for((self._words + words)[:MOST_WORDS].lstrip())

    def _look_for(self, words: str) -> None:
        self._words = words
        self._write()
        self.query_one("#help").scroll_home(animate=False)

    def _write(self) -> None:
        wide = self.size.width >= TWO_COLUMNS
        self.set_class(wide, "-wide")
        found = matching(self._sections, self._words) if self._words else self._sections
        left, right = _columns(found) if wide else (found, [])
        self.query_one("#left", Static).update(self._table(left) if found else Text("Nothing is like this."))
        self.query_one("#right", Static).update(self._table(right))
        box = self.query_one("#help")
        ways = f"{self._words}▏ · Esc shows all" if self._words else "type to search · ↑ ↓ scroll · Esc back"
        box.border_subtitle = Text(ways)

    def _table(self, shown: list[Section]) -> Table:
        variables = self.app.theme_variables
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style=f"bold {variables['footer-key-foreground']}")
        table.add_column()
        for section in shown:
            if table.row_count:
                table.add_row()
            here = section.title in self._here and not self._words
            title = f"{section.title} (here)" if here else section.title
            table.add_row(Text(title, style=f"bold {variables['accent' if here else 'secondary']}"))
            for key, label in section.rows:
                table.add_row(Text(f"  {key}"), Text(label))
        return table

    # --- keys --------------------------------------------------------------------------------------

    def action_leave(self) -> None:
        """Show all again; from there, close."""
        if self._words:
            self._look_for("")
        else:
            self.dismiss(None)

    def action_close(self) -> None:
        self.dismiss(None)

    def action_rows(self, by: int) -> None:
        self.query_one("#help").scroll_relative(y=by, animate=False)

    def action_pages(self, by: int) -> None:
        box = self.query_one("#help")
        box.scroll_relative(y=by * max(1, box.size.height - 1), animate=False)

    def action_edge(self, end: bool) -> None:
        box = self.query_one("#help")
        box.scroll_end(animate=False) if end else box.scroll_home(animate=False)


def _columns(found: list[Section]) -> tuple[list[Section], list[Section]]:
    """The sections in two columns of about the same height."""
    heights = [len(section.rows) + 2 for section in found]
    used, half = 0, sum(heights) / 2
    for place, height in enumerate(heights):
        if used + height / 2 > half:
            return found[:place], found[place:]
        used += height
    return found, []
