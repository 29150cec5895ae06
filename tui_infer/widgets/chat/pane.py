"""One pane: a chat's transcript, its prompt, and a frame that says which chat it is and how it goes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Self

from rich.text import Span, Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.css.types import EdgeType
from textual.geometry import Region
from textual.message import Message

from tui_infer.assistance import NO_ASSISTANCE, Assistance
from tui_infer.meter import Level, Meter
from tui_infer.session import SessionState, Turn
from tui_infer.widgets.bar import fit
from tui_infer.widgets.chat.assist import Assist
from tui_infer.widgets.chat.choices import Choices
from tui_infer.widgets.chat.document import ChatDocument
from tui_infer.widgets.chat.edit_mark import EditMark
from tui_infer.widgets.chat.hovered import Hovered
from tui_infer.widgets.chat.marks import MARKS
from tui_infer.widgets.chat.messages import Messages
from tui_infer.widgets.chat.palette import Palette
from tui_infer.widgets.chat.prompt import Prompt
from tui_infer.widgets.chat.queue_lines import QueueLines
from tui_infer.widgets.direct import Direct

FRAME_PERIOD_S = 0.25
TO_ALL = "⇉ "
HERE = "▶ "  # the pane that has the keys, where the frames of all are alike


class Pane(Direct, Vertical):
    """Shows the chat it is bound to; the border is in the chat's colour while it has the focus."""

    DEFAULT_CSS = """
    Pane {
        border: round $border-blurred;
        border-title-align: left;
        border-subtitle-align: right;
        background: $background;
    }
    """

    class Chosen(Message):
        """The user clicked into this pane."""

        def __init__(self, session: str) -> None:
            super().__init__()
            self.session = session

    def __init__(self, prompts: list[str], send: Callable[["Pane", str], bool]) -> None:
        super().__init__()
        self.transcript = Messages()
        self.edit_mark = EditMark()
        self.queue_lines = QueueLines()
        self.choices = Choices()
        self.prompt = Prompt(prompts, lambda text: send(self, text))
        self.prompt.drafted = self._drafted
        self.prompt.assist = Assist(self.prompt, self.choices, lambda: self.assistance.world)
        self.session: SessionState | None = None
        self._color = ""

    def compose(self) -> ComposeResult:
        yield self.transcript
        yield self.queue_lines
        yield self.edit_mark
        yield self.choices
        yield self.prompt

    def bind(
        self,
        session: SessionState,
        document: ChatDocument,
        palette: Palette,
        color: str,
        turns: list[Turn] | None = None,
    ) -> None:
        """Show a chat, with ``turns`` as it stood once; nothing happens where it is shown already."""
        self.session = session
        self._color = color
        self.prompt.bind(session)
        self.queue_lines.bind(session)
        self.edit_mark.bind(session)
        self.transcript.bind(session, document, palette, color, turns)
        self.update_frame(focused=self.has_class("-current"))

    def update_frame(self, *, focused: bool, soon: bool = False) -> None:
        """Title, numbers and border, from the state. With ``soon``, at most four times a second: numbers
        that change faster cannot be read.
        """
        session = self.session
        if session is None or (soon and monotonic() - self._framed_s < FRAME_PERIOD_S):
            return
        self._framed_s = monotonic()
        self.set_class(focused, "-current")
        bright = focused or self.receives
        edge = self._color if bright else self.app.theme_variables.get("border-blurred", "#444444")
        self._set_edge("double" if self.receives else "round", edge)
        text = self.app.theme_variables.get("foreground", "#cccccc")
        title = _title(
            session,
            self._color,
            f"bold {text}" if focused else text,
            max(4, self.size.width - 14),
            self.marks,
        )
        if self.receives:
            title = Text.assemble((f"{HERE if focused else ''}{TO_ALL}", f"bold {self._color}"), title)
        if title != self._shown_title:
            self._shown_title = title
            with self._drawing_row(0):
                self.border_title = title
        held = self.engine_stopped and session.status == "queued"
        doing = self.then or ("sent after a restart" if held else _doing(session))
        context = self.assistance.meter(session) if not self.then else Meter(())
        room = self.size.width - 4 - len(doing) - (3 if doing else 0)
        said = context.within(room)
        numbers = Text(doing, style=f"bold {self._color}" if session.busy else text)
        numbers.append(" · " if doing and said else "", style=text)
        numbers.append(said, style=self._urgency(context.level, text))
        look = (numbers.plain, str(numbers.style), tuple(numbers.spans))  # another theme has other colours
        if look != self._shown_numbers:
            self._shown_numbers = look
            with self._drawing_row(self.outer_size.height - 1):
                self.border_subtitle = numbers

    def _set_edge(self, kind: EdgeType, color: str) -> None:
        if (kind, color) != self._shown_edge:
            self._shown_edge = (kind, color)
            self.styles.border = (kind, color)
            self.prompt.styles.border_left = ("outer", color)

    @contextmanager
    def _drawing_row(self, y: int) -> Iterator[None]:
        """A label of the border draws its own row again; by itself it would have the whole pane drawn."""
        self._row = y
        try:
            yield
        finally:
            self._row = None

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        if self._row is not None and not regions:
            regions = (Region(-1, self._row - 1, self.outer_size.width, 1),)  # counted from inside the border
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def _urgency(self, level: Level, plain: str) -> str:
        return plain if level == "plain" else f"bold {self.app.theme_variables.get(level, plain)}"

    def _drafted(self) -> None:
        if self.session is not None:
            self.assistance.drafted(self.session)

    assistance: Assistance = NO_ASSISTANCE  # what completes a prompt and measures it
    marks: tuple[str, ...] = ()  # parameters that are not the usual ones
    engine_stopped = False
    receives = False  # what is typed in any of the shown prompts goes here too
    then = ""  # what is said of the past that is shown
    _framed_s = 0.0
    _row: int | None = None
    _shown_edge: tuple[str, str] = ("", "")
    _shown_title: Text | None = None
    _shown_numbers: tuple[str, str, tuple[Span, ...]] = ("", "", ())

    def on_resize(self) -> None:
        self.update_frame(focused=self.has_class("-current"))

    def on_enter(self, event: events.Enter) -> None:
        if self.session is not None:
            self.post_message(Hovered(self.session.id))

    def on_leave(self, event: events.Leave) -> None:
        self.post_message(Hovered(""))

    def on_click(self, event: events.Click) -> None:
        if self.session is not None:
            self.post_message(self.Chosen(self.session.id))

    def on_choices_clicked(self, event: Choices.Clicked) -> None:
        event.stop()
        if self.prompt.assist is not None:
            self.prompt.assist.click(event.index)

    def on_prompt_scroll(self, event: Prompt.Scroll) -> None:
        event.stop()
        match event.where:
            case "page_up":
                self.transcript.page(-1)
            case "page_down":
                self.transcript.page(1)
            case "up":
                self.transcript.scroll_by(-1)
            case "down":
                self.transcript.scroll_by(1)
            case "start":
                self.transcript.to_start()
            case "end":
                self.transcript.to_end()


def _title(session: SessionState, color: str, style: str, room: int, marks: tuple[str, ...] = ()) -> Text:
    mark, _ = MARKS[session.status]
    title = Text(no_wrap=True, end="")
    title.append(f"{mark} {session.letter} ", style=f"bold {color}")
    unusual = fit(f" ⚙ {' · '.join(marks)}", room // 2) if marks else ""
    title.append(fit(session.title, room - len(unusual)), style=style)
    title.append(unusual, style=color)
    return title


def _doing(session: SessionState) -> str:
    """What an answer does now, or that there will be none."""
    if session.read_only:
        return "read only"
    if session.status == "queued":
        return "waiting"
    if session.status == "prefill":
        return "reading the prompt"
    if session.status == "streaming":
        rate = session.live_tokens_per_s
        return "– tok/s" if rate is None else f"{rate:.1f} tok/s"
    return ""
