"""The form of a chat's parameters: checked while they are typed, for this chat, all, or new ones."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import msgspec
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from engine.errors import RequestError
from tui_infer.config import Preset
from tui_infer.parameters import texts_of
from tui_infer.presets import Sampling, over
from tui_infer.sanitize import one_line
from tui_infer.screens.compare_form import PromptText
from tui_infer.screens.dialog import Dialog
from tui_infer.session import SessionState
from tui_infer.set_params import changed

Whose = Literal["this", "all", "new"]

# Name, label, and what is said of a value that is fine.
FIELDS = [
    ("temperature", "Temperature", "0 is greedy"),
    ("top_p", "Top-p", "1 is off"),
    ("top_k", "Top-k", "0 is off"),
    ("min_p", "Min-p", "0 is off"),
    ("repetition_penalty", "Repetition penalty", "1 is none"),
    ("presence_penalty", "Presence penalty", "0 is none"),
    ("frequency_penalty", "Frequency penalty", "0 is none"),
    ("seed", "Seed", "none: another one each time"),
    ("max_tokens", "Max tokens", "longest answer"),
]
STOP_HINT = "one text a line, \\n is a line end"
OWN = "as it is"
KEYS = "Enter applies · Tab ↑ ↓ next field · ← → choose · ^j new line · Esc back"


class Chosen(NamedTuple):
    """What the form was left with."""

    sampling: Sampling
    whose: Whose


class Cycle(Static, can_focus=True):
    """One of a few words; ← and → go round."""

    BINDINGS = [
        Binding("right,space", "turn(1)", "next", show=False),
        Binding("left", "turn(-1)", "before", show=False),
    ]

    class Turned(Message):
        """Another word is chosen."""

        def __init__(self, cycle: "Cycle") -> None:
            super().__init__()
            self.cycle = cycle

    def __init__(self, words: list[str], id: str) -> None:
        super().__init__("", id=id, markup=False)
        self._words = words
        self.index = 0

    def on_mount(self) -> None:
        self._write()

    def _write(self) -> None:
        self.update(Content(f"‹ {self._words[self.index]} ›"))

    def action_turn(self, step: int) -> None:
        self.index = (self.index + step) % len(self._words)
        self._write()
        self.post_message(self.Turned(self))

    def on_click(self, event: events.Click) -> None:
        self.action_turn(1)


class ParametersForm(Dialog[Chosen | None]):
    """Every field says beside it what is wrong with it, in the engine's words; Esc changes nothing."""

    CSS_PATH = "parameters.tcss"
    BINDINGS = [
        Binding("escape", "cancel", "cancel", show=False),
        Binding("enter", "apply", "apply", show=False, priority=True),
        Binding("down", "app.focus_next", "next field", show=False),
        Binding("up", "app.focus_previous", "field before", show=False),
    ]

    def __init__(self, session: SessionState, usual: Sampling, presets: Mapping[str, Preset]) -> None:
        super().__init__()
        self._before = Sampling(session.params, session.system)
        self._letter = session.letter
        self._title = session.title
        self._usual = texts_of(usual.params)
        self._presets = presets
        self._whose: tuple[Whose, ...] = get_args(Whose)

    def compose(self) -> ComposeResult:
        texts = texts_of(self._before.params)
        with VerticalScroll(id="box", can_focus=False):
            title = one_line(f"Parameters of chat {self._letter}, “{self._title}”", 60)
            yield Static(title, id="title", markup=False)
            if self._presets:
                with Horizontal():
                    yield Static("Preset", classes="label")
                    yield Cycle([OWN, *self._presets], id="preset")
            for name, label, _ in FIELDS:
                with Horizontal():
                    yield Static(label, classes="label", markup=False)
                    # with its value at once: one given later would take away that all of it is selected
                    yield Input(texts[name], id=name, max_length=40)
                    yield Static("", id=f"{name}-says", classes="says", markup=False)
            with Horizontal():
                yield Static("Stop at", classes="label")
                yield PromptText("", id="stop", soft_wrap=False, tab_behavior="focus")
                yield Static(
                    "one text a line, \\n is a line end", id="stop-says", classes="says", markup=False
                )
            with Horizontal():
                yield Static("System prompt", classes="label")
                yield PromptText("", id="system", soft_wrap=True, tab_behavior="focus")
            with Horizontal():
                yield Static("Apply to", classes="label")
                yield Cycle([f"chat {self._letter}", "all open chats", "new chats"], id="whose")
            yield Static(Content(KEYS), id="keys")

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False
        for area in self.query(PromptText):
            area.cursor_blink = False
            area.highlight_cursor_line = False
        self._fill(self._before)
        self.query_one("#temperature", Input).focus()

    def _fill(self, sampling: Sampling) -> None:
        texts = texts_of(sampling.params)
        for name, _, _ in FIELDS:
            self.query_one(f"#{name}", Input).value = texts[name]
        stops = [text.replace("\\", "\\\\").replace("\n", "\\n") for text in sampling.params.stop]
        self.query_one("#stop", PromptText).load_text("\n".join(stops))
        self.query_one("#system", PromptText).load_text(sampling.system)
        self._say()

    # --- what is typed -----------------------------------------------------------------------------

    def _read(self) -> tuple[Sampling, dict[str, str]]:
        """The parameters as far as they are right, and what is wrong with the others, by name."""
        params, wrong = self._before.params, {}
        for name, _, _ in FIELDS:
            text = self.query_one(f"#{name}", Input).value.strip()
            if not text and name != "seed":
                wrong[name] = "it needs a value"
                continue
            result = changed(params, [f"{name}={text or 'none'}"])
            if isinstance(result, str):
                wrong[name] = result
            else:
                params = result
        try:
            params = msgspec.structs.replace(params, stop=tuple(self._stops()))
        except RequestError as error:
            wrong["stop"] = str(error)
        return Sampling(params, self.query_one("#system", PromptText).text), wrong

    def _stops(self) -> list[str]:
        lines = self.query_one("#stop", PromptText).text.split("\n")
        return [_unescaped(line) for line in lines if line]

    def _say(self) -> None:
        _, wrong = self._read()
        for name, _, hint in FIELDS:
            says = self.query_one(f"#{name}-says", Static)
            text = wrong[name].rpartition("; ")[2].rstrip(".") if name in wrong else hint
            value = self.query_one(f"#{name}", Input).value.strip()
            if name not in wrong and value != self._usual[name]:
                text = f"{hint} · usually {self._usual[name]}"
            says.set_class(name in wrong, "-problem")
            says.update(Content(text))

    def on_input_changed(self) -> None:
        self._say()

    def on_cycle_turned(self, event: Cycle.Turned) -> None:
        if event.cycle.id == "preset":
            name = [OWN, *self._presets][event.cycle.index]
            self._fill(over(self._presets[name], self._before) if event.cycle.index else self._before)

    # --- leaving -----------------------------------------------------------------------------------

    def action_apply(self) -> None:
        sampling, wrong = self._read()
        if wrong:
            name, problem = next(iter(wrong.items()))
            self.notify(problem, title="Not applied", severity="warning", markup=False)
            self.query_one(f"#{name}").focus()
        else:
            self.dismiss(Chosen(sampling, self._whose[self.query_one("#whose", Cycle).index]))

    def action_cancel(self) -> None:
        self.dismiss(None)


def _unescaped(line: str) -> str:
    r"""``\n`` as a line end, ``\t`` as a tab, ``\\`` as a backslash; any other backslash is one."""
    parts = line.split("\\\\")
    return "\\".join(part.replace("\\n", "\n").replace("\\t", "\t") for part in parts)
