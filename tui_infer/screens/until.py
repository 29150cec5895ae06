"""The dialog of "run until": a condition, and for which chat."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from engine.commands import RunUntil
from tui_infer.run_until import CONDITIONS
from tui_infer.screens.dialog import Dialog

ANY = "any chat"


class Until(Dialog[RunUntil | None]):
    """Enter or a number runs until a condition; ``c`` asks it of the focused chat; Esc changes nothing."""

    CSS_PATH = "until.tcss"
    BINDINGS = [
        Binding("escape,f10", "cancel", "cancel", show=False),
        Binding("c", "toggle_chat", "which chat", show=False),
        *[Binding(f"{n}", f"pick({n - 1})", f"condition {n}", show=False) for n in range(1, 9)],
    ]

    def __init__(self, letter: str, session: str, newest_step: int) -> None:
        super().__init__()
        self._letter = letter
        self._session = session
        self._newest_step = newest_step
        self._alone = False

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static("Run until…", id="title", markup=False)
            yield OptionList(id="conditions", markup=False)
            yield Input(f"{self._newest_step + 100}", id="step", type="integer", max_length=12)
            yield Static("", id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one("#step", Input).display = False
        self.query_one(Input).cursor_blink = False
        self._write(0)
        self.query_one(OptionList).focus()

    def _write(self, chosen: int) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        for number, condition in enumerate(CONDITIONS, 1):
            whose = ""
            if condition.of_chat:
                whose = f"chat {self._letter} only" if self._alone else ANY
            options.add_option(Option(Content(f"{number}  {condition.words:<28}{whose:>13}")))
        options.highlighted = chosen
        other = ANY if self._alone else f"chat {self._letter} only"
        keys = f"Enter or 1…{len(CONDITIONS)} runs · c {other} · Esc back"
        self.query_one("#keys", Static).update(Content(keys))

    def action_toggle_chat(self) -> None:
        self._alone = not self._alone
        self._write(self.query_one(OptionList).highlighted or 0)

    def action_pick(self, index: int) -> None:
        self._choose(index)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._choose(event.option_index)

    def _choose(self, index: int) -> None:
        condition = CONDITIONS[index]
        if condition.kind == "step":
            step = self.query_one("#step", Input)
            step.display = True
            self.query_one(OptionList).highlighted = index
            self.query_one("#keys", Static).update(Content("number of the step · Enter runs · Esc back"))
            step.focus()
            return
        session = self._session if self._alone and condition.of_chat else ""
        self.dismiss(RunUntil(condition.kind, session=session))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.isdigit():
            self.dismiss(RunUntil("step", step=int(event.value)))

    def action_cancel(self) -> None:
        self.dismiss(None)
