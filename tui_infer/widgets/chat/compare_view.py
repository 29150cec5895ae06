"""The columns of a comparison, drawn line by line: heads, answers as plain text, and where they differ."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tui_infer.compare import Comparison
from tui_infer.compare_words import difference_words, numbers_of
from tui_infer.session import SessionState
from tui_infer.themes import session_color
from tui_infer.widgets.bar import fit
from tui_infer.widgets.chat.marks import MARKS
from tui_infer.widgets.chat.palette import Palette
from tui_infer.widgets.chat.wrap import Line, wrap
from tui_infer.word_diff import Difference, Span
from tui_infer.workspace import Workspace

WIDE = 100  # cells from which more than one column is shown
LEAST_WIDTH = 38
HEAD_ROWS = 5  # title, numbers, ending, difference, rule
NOTHING = Difference((), (), 0, True)


@dataclass(slots=True)
class _Body:
    """The rows of one answer; ``lines`` keeps those of the text's lines that did not change."""

    key: tuple[object, ...] = ()
    strips: list[Strip] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)  # rows with a difference
    lines: dict[tuple[str, tuple[Span, ...]], list[Strip]] = field(default_factory=dict)


class CompareView(Widget, can_focus=True):
    """As many columns as fit, beside each other; on a narrow screen one, and a row that names all.

    Holds no truth but which column is chosen and how far all of them are scrolled.
    """

    DEFAULT_CSS = """
    CompareView { height: 1fr; width: 1fr; background: $background; }
    """

    class Chosen(Message):
        """Another column was chosen."""

    def __init__(self, space: Workspace, comparison: Comparison, palette: Callable[[], Palette]) -> None:
        super().__init__()
        self._space = space
        self._comparison = comparison
        self._palette = palette
        self._bodies: dict[str, _Body] = {}
        self.chosen = 0
        self.first = 0  # of the columns that are shown
        self.top = 0  # row at which all answers are shown
        self.follow = True
        self.marks = True

    # --- columns -----------------------------------------------------------------------------------

    @property
    def columns(self) -> list[SessionState]:
        return self._comparison.columns(self._space)

    @property
    def current(self) -> SessionState | None:
        columns = self.columns
        return columns[min(self.chosen, len(columns) - 1)] if columns else None

    @property
    def shown(self) -> list[SessionState]:
        """The columns that fit, the chosen one among them."""
        columns = self.columns
        count = self._count(len(columns))
        self.chosen = max(0, min(self.chosen, len(columns) - 1))
        self.first = max(self.chosen - count + 1, min(self.first, self.chosen, len(columns) - count))
        return columns[self.first : self.first + count]

    def _count(self, columns: int) -> int:
        if self.size.width < WIDE:
            return min(1, columns)
        return max(1, min(columns, self.size.width // LEAST_WIDTH))

    def choose(self, index: int) -> None:
        columns = self.columns
        if columns:
            self.chosen = index % len(columns)
        self.refresh()
        self.post_message(self.Chosen())

    # --- rows --------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Rows for the answers."""
        return max(1, self.size.height - HEAD_ROWS - 1)

    def update(self) -> None:
        """Draw what is new; at the end the view stays at the end."""
        end = self._end()
        self.top = end if self.follow else min(self.top, end)
        self.refresh()

    def _end(self) -> int:
        width = self._width()
        longest = max((len(self._body(session, width).strips) for session in self.shown), default=0)
        return max(0, longest - self.room)

    def _width(self) -> int:
        """Cells of a column without the line at its right."""
        count = max(1, len(self.shown))
        return max(8, (self.size.width - (count - 1)) // count)

    def scroll_rows(self, rows: int) -> None:
        """Move all columns; at their end the view follows again."""
        end = self._end()
        self.top = max(0, min(self.top + rows, end))
        self.follow = self.top >= end
        self.refresh()

    def to_edge(self, *, end: bool) -> None:
        self.follow = end
        self.top = self._end() if end else 0
        self.refresh()

    def next_difference(self, step: int) -> bool:
        """Bring the next difference of the chosen column into view; False where there is none that way."""
        session = self.current
        if session is None:
            return False
        marked = self._body(session, self._width()).marked
        wanted = [row for row in marked if (row > self.top if step > 0 else row < self.top)]
        if not wanted:
            return False
        self.top = min(wanted[0] if step > 0 else wanted[-1], self._end())
        self.follow = False
        self.refresh()
        return True

    def leave_reference(self) -> bool:
        """From the first column, to which the others are compared, to the next one's first difference; False
        where another column is chosen, or there are no others.
        """
        columns = self.columns
        if len(columns) < 2 or self.current is not columns[0]:
            return False
        self.choose(1)
        marked = self._body(columns[1], self._width()).marked
        if marked:
            self.top = min(marked[0], self._end())
            self.follow = False
        return True

    def _body(self, session: SessionState, width: int) -> _Body:
        answer = self._comparison.answer_of(session)
        body = self._bodies.setdefault(session.id, _Body())
        palette, spans = self._palette(), self._spans(session)
        text = answer.text if answer is not None else ""
        key = (width, palette, answer.version if answer is not None else -1, spans)
        if key == body.key:
            return body
        if key[:2] != body.key[:2]:
            body.lines = {}
        body.key = key
        style, mark = palette.base, self._mark_style(palette)
        kept: dict[tuple[str, tuple[Span, ...]], list[Strip]] = {}
        body.strips, body.marked = [], []
        starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        for start, line in zip(starts, text.split("\n")):
            own = _within(spans, start, start + len(line))
            strips = body.lines.get((line, own)) or kept.get((line, own))
            if strips is None:
                lines = wrap(_pieces(line, own, style, mark), width - 2)
                strips = [_strip([(" ", style), *row], width, style) for row in lines]
            kept[line, own] = strips
            marked = [any(part.style == mark for part in strip) for strip in strips] if own else []
            body.marked += [len(body.strips) + row for row, is_marked in enumerate(marked) if is_marked]
            body.strips += strips
        body.lines = kept
        return body

    def _spans(self, session: SessionState) -> tuple[Span, ...]:
        """What is marked: what the first column has not, and in the first what the chosen one has not."""
        if not self.marks:
            return ()
        columns = self.columns
        if columns and session is columns[0]:
            current = self.current
            other = current if current is not session else None
            return self._comparison.found.get(other.id, NOTHING).left if other is not None else ()
        return self._comparison.found.get(session.id, NOTHING).right

    def _mark_style(self, palette: Palette) -> Style:
        """Seen without colours too."""
        ground = Color.from_rich_color(palette.base.bgcolor)
        ink = Color.from_rich_color(palette.warning.color)
        return palette.base + Style(bgcolor=ground.blend(ink, 0.25, alpha=1.0).rich_color, underline=True)

    # --- drawing -----------------------------------------------------------------------------------

    def on_resize(self) -> None:
        self.update()

    def render_line(self, y: int) -> Strip:
        palette, width = self._palette(), self.size.width
        columns = self.shown
        if not columns:
            return Strip.blank(width, palette.base)
        if y == 0:
            return self._names(palette, width)
        own = self._width()
        rule = Segment("│", palette.rule)
        parts: list[Segment] = []
        for number, session in enumerate(columns):
            last = number == len(columns) - 1
            cells = width - (len(columns) - 1) - own * (len(columns) - 1) if last else own
            strip = self._cell(session, y - 1, cells, own, palette)
            parts += [*strip.crop_extend(0, cells, palette.base), *([] if last else [rule])]
        return Strip(parts, width)

    def _cell(self, session: SessionState, row: int, cells: int, width: int, palette: Palette) -> Strip:
        if row >= HEAD_ROWS:
            strips = self._body(session, width).strips
            index = self.top + row - HEAD_ROWS
            return strips[index] if index < len(strips) else Strip.blank(cells, palette.base)
        if row == HEAD_ROWS - 1:
            return Strip([Segment("─" * cells, self._edge(session, palette))], cells)
        return _strip(
            [(" ", palette.base), *self._head(session, row, cells - 2, palette)], cells, palette.base
        )

    def _head(self, session: SessionState, row: int, width: int, palette: Palette) -> Line:
        chosen = session is self.current
        if row == 0:
            color = Style(color=session_color(self.app.current_theme, session.color), bold=True)
            label = self._comparison.labels[session.id]
            name = f"{'▶ ' if chosen else ''}{MARKS[session.status][0]} {session.letter} "
            text = palette.base + Style(bold=chosen)
            return [(name, palette.base + color), (fit(label, width - cell_len(name)), text)]
        if row == 3:
            words = difference_words(self._comparison, self._space, session)
            differs = "then…" in words or words.startswith("differs")
            return [(fit(words, width), palette.warning if differs else palette.muted)]
        lines = numbers_of(self._comparison, session)
        failed = row == 2 and lines[1].startswith("error")
        return [(fit(lines[row - 1], width), palette.error if failed else palette.muted)]

    def _edge(self, session: SessionState, palette: Palette) -> Style:
        if session is not self.current:
            return palette.rule
        return palette.base + Style(color=session_color(self.app.current_theme, session.color), bold=True)

    def _names(self, palette: Palette, width: int) -> Strip:
        """All columns by letter, so that those which are not shown are known."""
        columns, shown = self.columns, self.shown
        line: Line = [(" ", palette.base)]
        for session in columns:
            color = palette.base + Style(color=session_color(self.app.current_theme, session.color))
            name = f"{MARKS[session.status][0]} {session.letter}"
            if session is self.current:
                line.append((f"‹{name}›", color + Style(bold=True)))
            else:
                line.append((f" {name} ", color if session in shown else palette.muted))
        if len(shown) < len(columns):
            line.append((f"  ← → {len(columns)} columns", palette.muted))
        return _strip(line, width, palette.base)

    # --- the mouse ---------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            places = [*accumulate([1, *(5 for _ in self.columns)])]
            index = bisect_right(places, event.x) - 1
        else:
            index = self.first + event.x // (self._width() + 1)
        if 0 <= index < len(self.columns):
            self.choose(index)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_rows(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_rows(3)


def _within(spans: Sequence[Span], low: int, high: int) -> tuple[Span, ...]:
    """The parts of the spans in ``[low, high)``, counted from ``low``."""
    first = max(0, bisect_right(spans, (low, low)) - 1)
    found: list[Span] = []
    for start, end in spans[first:]:
        if start >= high:
            break
        if end > low:
            found.append((max(start, low) - low, min(end, high) - low))
    return tuple(found)


def _pieces(text: str, spans: Sequence[Span], style: Style, mark: Style) -> Line:
    line: Line = []
    place = 0
    for low, high in spans:
        line += [(text[place:low], style), (text[low:high], mark)]
        place = high
    return [piece for piece in [*line, (text[place:], style)] if piece[0]]


def _strip(line: Line, width: int, ground: Style) -> Strip:
    return Strip([Segment(text, style) for text, style in line]).crop_extend(0, width, ground)
