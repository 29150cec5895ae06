"""Styled text as lines of terminal cells: measuring, cutting and wrapping."""

import re
from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.style import Style

from tui_infer.sanitize import TAB_WIDTH

Span = tuple[str, Style]
Line = list[Span]

_WORDS = re.compile(r"\n| +|[^ \n]+")
_JOINERS = frozenset("\u200d\ufe0f\ufe0e")


def width_of(line: Iterable[Span]) -> int:
    """Cells that the spans take."""
    return sum(cell_len(text) for text, _ in line)


def graphemes(text: str) -> Iterator[str]:
    """Pieces that must not be cut: a character with what combines with it (marks, joiners, selectors)."""
    start = 0
    for index in range(1, len(text)):
        character = text[index]
        joined = character in _JOINERS or text[index - 1] == "\u200d" or cell_len(character) == 0
        if not joined:
            yield text[start:index]
            start = index
    if text:
        yield text[start:]


def expand_tabs(text: str) -> str:
    """Tabs as spaces up to the next stop, counted in cells."""
    if "\t" not in text:
        return text
    out, column = "", 0
    for part in re.split(r"(\t|\n)", text):
        if part == "\t":
            part = " " * (TAB_WIDTH - column % TAB_WIDTH)
        out += part
        column = 0 if part == "\n" else column + cell_len(part)
    return out


def cut(line: Line, width: int, first: int | None = None) -> list[Line]:
    """The spans cut hard every ``width`` cells, nothing lost; wide characters are never halved.

    ``first`` is the room of the first line, where that differs.
    """
    lines: list[Line] = []
    current: Line = []
    room = width if first is None else first
    for text, style in line:
        if (cells := cell_len(text)) <= room:
            current.append((text, style))
            room -= cells
            continue
        piece = ""
        for grapheme in graphemes(text):
            cells = cell_len(grapheme)
            if cells > room and (piece or current or room < width):
                if piece:
                    current.append((piece, style))
                lines.append(current)
                current, piece, room = [], "", width
            piece += grapheme
            room -= cells
        if piece:
            current.append((piece, style))
    lines.append(current)
    return lines


def cut_at_spaces(line: Line, width: int) -> list[Line]:
    """The same, but behind a space where there is one in the second half of a row; it stays at its end."""
    if width_of(line) <= width:
        return [line]
    parts: list[Line] = [[]]
    breaks = _breaks("".join(text for text, _ in line), width)
    place, end = 0, next(breaks, None)
    for text, style in line:
        while end is not None and place + len(text) > end:
            if end > place:
                parts[-1].append((text[: end - place], style))
            text, place = text[end - place :], end
            parts.append([])
            end = next(breaks, None)
        parts[-1].append((text, style))
        place += len(text)
    return parts


def _breaks(text: str, width: int) -> Iterator[int]:
    """Where rows of a line end, in characters."""
    start = place = used = 0
    space = space_used = 0  # behind the last space of the row
    for grapheme in graphemes(text):
        cells = cell_len(grapheme)
        if used + cells > width and place > start:
            if 2 * space_used < width or not text[start:space].strip():
                space, space_used = place, used
            yield space
            start, used, space_used = space, used - space_used, 0
        used += cells
        place += len(grapheme)
        if grapheme == " ":
            space, space_used = place, used


def wrap(spans: Iterable[Span], width: int) -> list[Line]:
    """Lines of at most ``width`` cells, broken at spaces, between wide characters, and at line feeds.

    A word that is longer than a line is cut. Spaces at a break are dropped, others are kept.
    """
    width = max(1, width)
    wrapper = _Wrapper(width)
    for text, style in spans:
        for piece in _WORDS.findall(expand_tabs(text)):
            if piece == "\n":
                wrapper.newline()
            elif piece[0] == " ":
                wrapper.space(piece, style)
            elif len(piece) == cell_len(piece):
                wrapper.word(piece, style, breakable=False)
            else:
                for grapheme in graphemes(piece):
                    wrapper.word(grapheme, style, breakable=cell_len(grapheme) > 1)
    return wrapper.finish()


class _Wrapper:
    """Greedy filling. A word may come in several pieces, where its style changes within."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines: list[Line] = []
        self.line: Line = []
        self.used = 0
        self.blank: Line = []
        self.blank_width = 0
        self.pending: Line = []
        self.pending_width = 0

    def word(self, piece: str, style: Style, *, breakable: bool) -> None:
        if breakable:
            self._place()
        self.pending.append((piece, style))
        self.pending_width += cell_len(piece)
        if breakable:
            self._place()

    def space(self, piece: str, style: Style) -> None:
        self._place()
        self.blank.append((piece, style))
        self.blank_width += len(piece)

    def newline(self) -> None:
        self._place()
        self._break()

    def finish(self) -> list[Line]:
        self._place()
        if self.line or not self.lines:
            self._break()
        return [_merge(line) for line in self.lines]

    def _place(self) -> None:
        """Put the word that was collected on this line, or on the next where it does not fit."""
        if not self.pending:
            return
        if self.used and self.used + self.blank_width + self.pending_width > self.width:
            self._break()
        if self.blank_width + self.used < self.width:
            self.line += self.blank
            self.used += self.blank_width
        self.blank, self.blank_width = [], 0
        if self.used + self.pending_width <= self.width:
            self.line += self.pending
            self.used += self.pending_width
        else:
            first, *rest = cut(self.pending, self.width, self.width - self.used)
            self.line += first
            for line in rest:
                self.lines.append(self.line)
                self.line = line
            self.used = width_of(self.line)
        self.pending, self.pending_width = [], 0

    def _break(self) -> None:
        self.lines.append(self.line)
        self.line, self.used = [], 0
        self.blank, self.blank_width = [], 0


def _merge(line: Line) -> Line:
    """Neighbours of one style as one span."""
    merged: Line = []
    for text, style in line:
        if merged and merged[-1][1] is style:
            merged[-1] = (merged[-1][0] + text, style)
        else:
            merged.append((text, style))
    return merged
