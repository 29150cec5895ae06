"""Where a part of a turn's text is drawn, and how it is marked for a moment."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from tui_infer.block_jump import letters_of, nearest

Spans = dict[int, tuple[int, int]]  # row: cells from, to


def find_spans(strips: Sequence[Strip], text: str, start: int, end: int) -> Spans:
    """Cells, by number of strip, that show characters ``[start, end)`` of ``text``.

    Drawn text has no places of its own: letters and digits are looked for, near to where they must be.
    """
    wanted, _ = letters_of(text[start:end])
    expected = len(letters_of(text[:start])[0])
    drawn: list[str] = []
    cells: list[tuple[int, int, int]] = []
    for row, strip in enumerate(strips):
        x = 0
        for character in strip.text:
            width = cell_len(character)
            if character.isalnum():
                drawn.append(character)
                cells.append((row, x, x + width))
            x += width
    if not cells:
        return {}
    letters = "".join(drawn)
    for length in (len(wanted), 24, 12, 6):
        place = nearest(letters, wanted[:length], expected) if 0 < length <= len(wanted) else -1
        if place >= 0:
            return _spans(cells[place : place + min(length, len(wanted))])
    return _spans(cells[min(expected, len(cells) - 1) :][:1])


def _spans(cells: Sequence[tuple[int, int, int]]) -> Spans:
    spans: Spans = {}
    for row, x, end in cells:
        before = spans.get(row)
        spans[row] = (before[0], end) if before else (x, end)
    return spans


def marked(strip: Strip, span: tuple[int, int], style: Style) -> Strip:
    """The strip with the cells of ``span`` in another style."""
    parts = list(strip.divide([span[0], span[1], strip.cell_length]))
    segments: list[Segment] = []
    for number, part in enumerate(parts):
        for text, own, control in part:
            segments.append(Segment(text, (own or Style()) + style if number == 1 else own, control))
    return Strip(segments, strip.cell_length)
