"""The compare view: the same prompt in several columns while they answer, and which of them to keep."""

import asyncio
from collections.abc import Iterable
from time import monotonic

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding
from textual.timer import Timer

from tui_infer.compare import Comparison, Job
from tui_infer.keys import COMPARE_KEYS
from tui_infer.sanitize import one_line
from tui_infer.screens.dialog import LeftOnce
from tui_infer.state import AppState
from tui_infer.themes import code_style
from tui_infer.widgets.bar import Part, PartsBar, fit
from tui_infer.widgets.chat.compare_view import CompareView
from tui_infer.widgets.chat.palette import Palette, palette_of
from tui_infer.widgets.key_bar import bound_keys

DRAW_S = 0.12  # between two looks at texts that stream
COMPARE_S = 0.35  # between two comparisons of them, or
REST = 3  # times as long as the last one took
SOON_S = 0.001  # a timer cannot wait for no time

# While they answer Esc and the key that keeps them differ, then they do the same.
ANSWERING = (("compare-stop",), "stop all", "stop")
KEEP = (("compare-keep",), "back, they go on", "back")
OVER = (("compare-keep", "compare-stop"), "back, keep all as chats", "back")

# (ids of keys, what they do, the same on a narrow screen), the most important first
FIRST = [
    (("compare-previous", "compare-next"), "column", "column"),
    (("compare-take",), "take it, close the others", "take it"),
]
LAST = [
    (("compare-difference",), "next difference", "difference"),
    (("compare-new",), "new", "new"),
    (("compare-marks",), "marks", "marks"),
    (("compare-copy",), "copy", "copy"),
]
WIDE = 100


class PromptBar(PartsBar):
    """The prompt that all columns answer."""

    DEFAULT_CSS = "PromptBar { background: $panel; }"

    def __init__(self, prompt: str, origin: str) -> None:
        super().__init__()
        self._prompt = one_line(prompt, 600)
        self._title = f" compare, on from chat {origin} " if origin else " compare "

    def parts(self, width: int) -> list[Part]:
        title = Part(self._title, self.ink("primary", bold=True))
        return [title, Part(fit(self._prompt, width - len(title.text) - 1), self.ink("foreground", 0.85))]


class CompareKeys(PartsBar):
    """What the keys do here."""

    DEFAULT_CSS = "CompareKeys { background: $footer-background; }"
    answering = False

    def parts(self, width: int) -> list[Part]:
        key_style, text_style = self.ink("footer-key-foreground", bold=True), self.ink("foreground", 0.7)
        parts: list[Part] = []
        used = 0
        bound = bound_keys(self.screen)
        hints = [*FIRST, *([ANSWERING, KEEP] if self.answering else [OVER]), *LAST]
        for ids, wide, narrow in hints:
            key = " ".join(bound[id][0] for id in ids if id in bound)
            label = wide if width >= WIDE else narrow
            cells = cell_len(key) + cell_len(label) + 3
            if used + cells > width:
                break
            parts += [Part(f" {key}", key_style), Part(f" {label} ", text_style)]
            used += cells
        return parts


class CompareScreen(LeftOnce[str | None], inherit_bindings=False):
    """Dismissed with ``take ID``, ``keep ID`` or ``new``; all chats stay as they are until then."""

    CSS_PATH = "compare.tcss"
    HELP = "Comparing"
    BINDINGS = [
        *[Binding(key.keys, key.action, key.label, show=False, id=key.id) for key in COMPARE_KEYS],
        *[Binding(f"{n},alt+{n}", f"number({n})", f"column {n}", show=False) for n in range(1, 9)],
        Binding("up", "rows(-1)", "scroll up", show=False),
        Binding("down", "rows(1)", "scroll down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown,space", "page(1)", "page down", show=False),
        Binding("home", "edge(False)", "to the start", show=False),
        Binding("end", "edge(True)", "to the end", show=False),
    ]

    def __init__(self, state: AppState, comparison: Comparison) -> None:
        super().__init__()
        self._state = state
        self._comparison = comparison
        self._drawn_s = self._compared_s = 0.0
        self._timer: Timer | None = None
        self._compare_timer: Timer | None = None
        self._comparing = False
        self._rest_s = COMPARE_S
        self._theme: Palette | None = None
        self.view = CompareView(state, comparison, self._palette)
        self.keys = CompareKeys()

    def compose(self) -> ComposeResult:
        yield PromptBar(self._comparison.prompt, self._comparison.origin)
        yield self.view
        yield self.keys

    def on_mount(self) -> None:
        self.view.focus()
        self.app.theme_changed_signal.subscribe(self, lambda _: self._theme_changed())
        self._draw()

    def _palette(self) -> Palette:
        """Asked for with every row that is drawn."""
        if self._theme is None:
            theme = self.app.current_theme
            variables = tuple(sorted(self.app.theme_variables.items()))
            self._theme = palette_of(theme.name, variables, code_style(theme))
        return self._theme

    def _theme_changed(self) -> None:
        self._theme = None
        self.view.update()

    # --- from the state ----------------------------------------------------------------------------

    def refresh_state(self, changes: Iterable[tuple[str, str]]) -> None:
        """Draw what changed, soon: texts that stream are drawn a few times a second."""
        own = self._comparison.labels
        if not any(session in own or not session for _, session in changes) or not self.is_mounted:
            return
        if self._timer is None:
            delay = max(SOON_S, DRAW_S - (monotonic() - self._drawn_s))
            self._timer = self.set_timer(delay, self._draw, name="compare")

    def _draw(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = None
        self._drawn_s = monotonic()
        if not self.view.columns:
            self.dismiss(None)
            return
        self.view.update()
        answering = self._comparison.busy(self._state)
        if answering != self.keys.answering:
            self.keys.answering = answering
            self.keys.refresh()
        self._compare_soon()

    def _compare_soon(self) -> None:
        """Compare the texts on a thread: at once where nothing was compared lately, else in a moment."""
        if self._comparing or self._compare_timer is not None or not self._comparison.stale(self._state):
            return
        delay = max(SOON_S, self._rest_s - (monotonic() - self._compared_s))
        self._compare_timer = self.set_timer(delay, self._start_comparing, name="differences")

    def _start_comparing(self) -> None:
        """As a worker: the screen takes keys meanwhile."""
        self._compare_timer = None
        if jobs := self._comparison.stale(self._state):
            self._comparing = True
            self.run_worker(self._compare(jobs), group="differences")

    async def _compare(self, jobs: list[Job]) -> None:
        began = monotonic()
        try:
            found = await asyncio.to_thread(lambda: [job.run() for job in jobs])
        finally:
            self._comparing = False
        self._compared_s = monotonic()
        self._rest_s = max(COMPARE_S, REST * (self._compared_s - began))
        self._comparison.take_in(jobs, found)
        self.view.update()
        self._compare_soon()

    # --- keys --------------------------------------------------------------------------------------

    def action_column(self, step: int) -> None:
        self.view.choose(self.view.chosen + step)

    def action_number(self, number: int) -> None:
        if number <= len(self.view.columns):
            self.view.choose(number - 1)

    def action_rows(self, rows: int) -> None:
        self.view.scroll_rows(rows)

    def action_page(self, direction: int) -> None:
        self.view.scroll_rows(direction * max(1, self.view.room - 2))

    def action_edge(self, end: bool) -> None:
        self.view.to_edge(end=end)

    def action_difference(self, step: int) -> None:
        if step > 0 and self.view.leave_reference():
            return
        if not self.view.next_difference(step):
            self.notify(f"No difference {'below' if step > 0 else 'above'}", markup=False, timeout=2)

    def action_marks(self) -> None:
        self.view.marks = not self.view.marks
        self.view.update()

    def action_copy(self) -> None:
        session = self.view.current
        answer = self._comparison.answer_of(session) if session is not None else None
        if session is None or answer is None or not answer.text:
            self.notify("There is no text to copy yet", markup=False)
            return
        self.app.copy_to_clipboard(answer.text, f"answer of {session.letter}")  # type: ignore[call-arg]

    def action_take(self) -> None:
        session = self.view.current
        if session is not None:
            others = len(self.view.columns) - 1
            self.app.several.confirm_take(self, session, others)  # type: ignore[attr-defined]

    def action_keep(self) -> None:
        session = self.view.current
        self.dismiss(f"keep {session.id}" if session is not None else None)

    def action_new(self) -> None:
        self.dismiss("new")

    def action_stop(self) -> None:
        """Stop the answers that stream; when all are over, go back and keep all."""
        if self._comparison.busy(self._state):
            self._comparison.stop(self._state)
            self._draw()
        else:
            self.action_keep()
