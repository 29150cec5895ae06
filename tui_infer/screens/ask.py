"""Small questions over the main screen."""

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, Static

from tui_infer.screens.dialog import Dialog


class Ask(Dialog[bool]):
    """Yes or no; Enter on the marked button, y, n, or Esc for no."""

    CSS_PATH = "ask.tcss"
    BINDINGS = [
        Binding("y", "answer(True)", "yes", show=False),
        Binding("n,escape", "answer(False)", "no", show=False),
        Binding("left,right,tab", "app.focus_next", "other button", show=False),
    ]

    def __init__(self, question: str, yes: str, no: str) -> None:
        super().__init__()
        self._no = no
        self._question = question
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(self._question, markup=False)
            with Horizontal(id="buttons"):
                yield Button(f"{self._yes} (y)", id="yes")
                yield Button(f"{self._no} (n)", id="no")

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, sure: bool) -> None:
        self.dismiss(sure)


class Rename(Dialog[str | None]):
    """A new title; empty goes back to the automatic one, Esc changes nothing."""

    CSS_PATH = "ask.tcss"
    BINDINGS = [Binding("escape", "cancel", "cancel", show=False)]

    def __init__(self, title: str, placeholder: str) -> None:
        super().__init__()
        self._title = title
        self._placeholder = placeholder

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static("Title of this chat (empty: automatic)", markup=False)
            yield Input(self._title, placeholder=self._placeholder, max_length=200)

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        self.dismiss(None)

    def on_click(self, event: events.Click) -> None:
        if event.widget is self:
            self.dismiss(None)


class AskPath(Rename):
    """The name of a file; Esc changes nothing."""

    def __init__(self, question: str, placeholder: str) -> None:
        super().__init__("", placeholder)
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(self._question, markup=False)
            yield Input(placeholder=self._placeholder)
