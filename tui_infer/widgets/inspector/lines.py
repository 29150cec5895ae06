"""Lines of styled parts: measuring, fitting and spreading them over a width."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from tui_infer.widgets.direct import LineStrip

Part = tuple[str, Style]
Line = list[Part]

EIGHTHS_UP = " ▁▂▃▄▅▆▇█"


def width_of(line: Iterable[Part]) -> int:
    """Cells that the parts take."""
    total = 0
    for text, _ in line:
        # Nearly all text is ASCII, where asking for its length is enough.
        total += len(text) if text.isascii() else cell_len(text)
    return total


def fit(line: Iterable[Part], width: int) -> Line:
    """The line cut to ``width`` cells, ending in ``…`` where something is lost."""
    kept: Line = []
    left = width
    for text, style in line:
        length = cell_len(text)
        if not text:
            continue
        if length <= left:
            kept.append((text, style))
            left -= length
            continue
        if left > 0:
            kept.append((set_cell_size(text, left - 1) + "…", style))
        elif kept:
            last, last_style = kept[-1]
            kept[-1] = (set_cell_size(last, cell_len(last) - 1) + "…", last_style)
        break
    return kept


def spread(left: Sequence[Part], right: Sequence[Part], width: int, fill: Style) -> Line:
    """Left and right aligned parts on one line; the right ones go where both do not fit."""
    room = width - width_of(left) - width_of(right)
    if not right or room < 1:
        return fit(left, width)
    return [*left, (" " * room, fill), *right]


def joined(groups: Iterable[Sequence[Part]], gap: Part, width: int) -> Line:
    """As many groups as fit whole, in order of importance, with a gap between them."""
    line: Line = []
    used = 0
    for group in groups:
        need = width_of(group) + (cell_len(gap[0]) if line else 0)
        if not group or used + need > width:
            continue
        if line:
            line.append(gap)
        line.extend(group)
        used += need
    return line


def to_strip(line: Iterable[Part], width: int) -> Strip:
    """A strip of a line that is ``width`` cells long; saying so spares measuring it again."""
    return LineStrip([Segment(text, style) for text, style in line if text], width)


def wrap_words(text: str, width: int, lines: int) -> list[str]:
    """Text broken at spaces into at most ``lines`` lines; what is cut ends in ``…``."""
    if width < 1 or lines < 1:
        return []
    rows: list[str] = [""]
    words = text.split()
    for word in words:
        candidate = f"{rows[-1]} {word}".strip()
        if cell_len(candidate) <= width or not rows[-1]:
            rows[-1] = candidate
        elif len(rows) < lines:
            rows.append(word)
        else:
            rows[-1] = f"{rows[-1]} {word}"
            break
    return [row if cell_len(row) <= width else set_cell_size(row, width - 1) + "…" for row in rows]


def gauge(share: float, width: int, full: Style, empty: Style) -> Line:
    """A horizontal bar; ``share`` from 0 to 1, anything above 0 leaves a mark."""
    cells = round(max(0.0, min(1.0, share)) * width)
    if share > 0:
        cells = max(cells, 1)
    return [("━" * cells, full), ("━" * (width - cells), empty)]


def stacked(shares: Sequence[tuple[float, Style]], width: int, empty: Style) -> Line:
    """Bars side by side that together fill ``sum(shares)`` of the width; every part above 0 stays visible."""
    cells: list[int] = []
    total = min(1.0, sum(share for share, _ in shares))
    budget = round(total * width)
    for share, _ in shares:
        cells.append(max(1, round(share * width)) if share > 0 else 0)
    while sum(cells) > budget and max(cells, default=0) > 1:
        cells[cells.index(max(cells))] -= 1
    while 0 < sum(cells) < budget:
        cells[cells.index(max(cells))] += 1
    line: Line = [("━" * count, style) for count, (_, style) in zip(cells, shares) if count]
    return [*line, ("━" * max(0, width - sum(cells)), empty)]


def sparkline(values: Sequence[float], top: float) -> str:
    """One character a value, in eighths of ``top``; a value above zero always leaves a mark."""
    marks = []
    for value in values:
        level = round(8 * value / top) if top > 0 else 0
        marks.append(EIGHTHS_UP[max(1 if value > 0 else 0, min(8, level))])
    return "".join(marks)


def milliseconds(ms: float) -> str:
    """Three digits that matter: ``1.31``, ``23.4``, ``345``, ``1,234``."""
    if ms < 9.995:
        return f"{ms:.2f}"
    if ms < 99.95:
        return f"{ms:.1f}"
    return f"{ms:,.0f}"


def rate(value: float) -> str:
    """Tokens a second: ``7.4``, ``74``, ``7,431``."""
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def byte_size(number: float) -> str:
    """A size in binary units: ``512 B``, ``41 MiB``, ``1.2 GiB``, ``122 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1023.5:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB" if number < 99.95 else f"{number:,.0f} GiB"
