"""The form of the compare view: a prompt, and what is to differ."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Checkbox, Input, Static, TextArea

from engine.errors import EngineError
from tui_infer.compare import CHAT, MOST, Plan, Wishes, make_plan, systems_of
from tui_infer.mentions import mentions
from tui_infer.screens.dialog import Dialog
from tui_infer.session import SessionState

FIELDS = [
    ("temperatures", "Temperatures", "0, 0.7, 1.2"),
    ("seeds", "Seeds", "1, 2, 3"),
    ("systems", "System prompts", "You are a poet. | You are an engineer."),
    ("count", "Columns", f"2…{MOST}, where nothing else differs"),
]
# A prompt, and the tokens in front of it, as the prompt with its files; raises EngineError.
Whole = Callable[[str, int], Awaitable[str]]
KEYS = "Enter starts · ^j new line · Tab next field · Esc back"


class PromptText(TextArea):
    """Enter is the form's; ctrl+j breaks the line."""

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            return  # and on to the form's binding
        if event.key in ("ctrl+j", "shift+enter", "alt+enter"):
            event.stop()
            event.prevent_default()
            self._replace_via_keyboard("\n", *self.selection)
            return
        await super()._on_key(event)


class CompareForm(Dialog[Plan | None]):
    """Says at once how many columns it makes, or what is wrong; Esc changes nothing."""

    CSS_PATH = "compare_form.tcss"
    BINDINGS = [
        Binding("escape", "cancel", "cancel", show=False),
        Binding("enter", "start", "start", show=False, priority=True),
        Binding("down", "app.focus_next", "next field", show=False),
        Binding("up", "app.focus_previous", "field before", show=False),
    ]

    def __init__(self, prompt: str, session: SessionState, whole: Whole, *, go_on: bool) -> None:
        super().__init__()
        self._whole = whole
        self._prompt = prompt
        self._session = session
        self._go_on = go_on

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="box", can_focus=False):
            yield Static("Compare answers side by side", id="title", markup=False)
            yield Static("Prompt", markup=False)
            yield PromptText(self._prompt, id="prompt", soft_wrap=True, tab_behavior="focus")
            for name, label, example in FIELDS:
                yield Static(label, markup=False)
                yield Input(id=name, placeholder=example)
            if self._go_on:
                label = f"Go on with what was said in chat {self._session.letter}"
                yield Checkbox(label, id="with-chat", compact=True)
            yield Static("", id="says", markup=False)
            yield Static(Content(KEYS), id="keys")

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False
        prompt = self.query_one(PromptText)
        prompt.cursor_blink = False
        prompt.highlight_cursor_line = False
        prompt.move_cursor(prompt.document.end)
        prompt.focus()
        self._say()

    def _plan(self) -> Plan | str:
        values = {name: self.query_one(f"#{name}", Input).value for name, _, _ in FIELDS}
        wishes = Wishes(
            temperatures=values["temperatures"],
            seeds=values["seeds"],
            systems=tuple(systems_of(values["systems"])) if values["systems"].strip() else (),
            count=values["count"].strip(),
            origin=CHAT if any(box.value for box in self.query(Checkbox)) else "",
        )
        session = self._session
        return make_plan(self.query_one(PromptText).text, wishes, session.params, session.system)

    def _say(self) -> None:
        plan = self._plan()
        if isinstance(plan, str):
            empty = not self.query_one(PromptText).text.strip()
            words = "Type the prompt that all columns shall answer." if empty else plan
        else:
            names = ", ".join(variant.label for variant in plan.variants)
            words = f"{len(plan.variants)} columns: {names}"
            if plan.with_chat:
                words = f"{words}; each goes on with chat {self._session.letter}"
        says = self.query_one("#says", Static)
        says.set_class(isinstance(plan, str), "-problem")
        says.update(Content(words))

    def on_checkbox_changed(self) -> None:
        self._say()

    def on_input_changed(self) -> None:
        self._say()

    def on_text_area_changed(self) -> None:
        self._say()

    def action_start(self) -> None:
        plan = self._plan()
        if isinstance(plan, str):
            self._say()
            self.notify(plan, title="Not started", severity="warning", markup=False)
        elif mentions(plan.prompt):
            self.run_worker(self._start(plan), group="files", exclusive=True)
        else:
            self.dismiss(plan)

    async def _start(self, plan: Plan) -> None:
        """With the files that the prompt names; the form stays where one cannot be sent."""
        try:
            whole = await self._whole(plan.prompt, self._session.context_tokens if plan.with_chat else 0)
        except EngineError as error:
            self.notify(str(error), title="Not started", severity="warning", markup=False)
        else:
            self.dismiss(replace(plan, prompt=whole))

    def action_cancel(self) -> None:
        self.dismiss(None)
