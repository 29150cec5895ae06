"""Partial redraws that cost what they show: only changed spans, and of each only what is on top there.

Textual's compositor renders every widget that touches the box around all changes, containers beneath them
included, and cuts each line at the edges of all widgets. With several panes that stream beside the inspector
that is most of what the app computes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from textual._compositor import Compositor, CompositorUpdate
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

MOST_SPANS = 8192  # remembered

Span = tuple[int, int, int]  # row, columns from, to


class Place(NamedTuple):
    """A widget on the screen: what is seen of it, and where its own top left corner lies."""

    widget: Widget
    seen: Region
    left: int
    top: int


Piece = tuple[Place, int, int, int]  # row, columns from, to


class PlacedUpdate(CompositorUpdate):
    """Strips and where they go: (column, row, cells). None lies over another."""

    def __init__(self, strips: Sequence[tuple[int, int, Strip]]) -> None:
        self.strips = strips

    def render_segments(self, console: Console) -> str:
        return "".join([f"\x1b[{y + 1};{x + 1}H{strip.render(console)}" for x, y, strip in self.strips])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for x, y, strip in self.strips:
            yield Segment(f"\x1b[{y + 1};{x + 1}H", None, [])
            yield from strip


class Painter(Compositor):
    """A compositor with a short way for partial updates; the rest is Textual's."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: dict[Span, list[Piece]] = {}
        self._pieces_of: object = None

    def render_partial_update(self) -> PlacedUpdate | None:  # type: ignore[override]
        """What changed since the last update, or None where nothing did."""
        screen = self.size.region
        dirty = [region.intersection(screen) for region in self._dirty_regions]
        self._dirty_regions.clear()
        spans = self._regions_to_spans([region for region in dirty if region])
        pieces = [piece for span in spans for piece in self._on_top(span)]
        return PlacedUpdate(list(_rendered(pieces))) if pieces else None

    def _on_top(self, span: Span) -> list[Piece]:
        """Which widgets are seen in a span; remembered until the layout changes."""
        layers = self.layers_visible
        if layers is not self._pieces_of or len(self._pieces) > MOST_SPANS:
            self._pieces, self._pieces_of = {}, layers
        pieces = self._pieces.get(span)
        if pieces is None:
            pieces = self._pieces[span] = list(_uncovered(layers[span[0]], span))
        return pieces


def _uncovered(layer: Iterable[tuple[Widget, Region, Region]], span: Span) -> Iterator[Piece]:
    """A span cut into what its topmost widgets cover; the widgets come from the front to the back."""
    y, *whole = span
    left = [(whole[0], whole[1])]
    for widget, seen, region in layer:
        still: list[tuple[int, int]] = []
        for start, end in left:
            first, last = max(start, seen.x), min(end, seen.right)
            if first >= last:
                still.append((start, end))
                continue
            yield Place(widget, seen, region.x, region.y), y, first, last
            still += [part for part in ((start, first), (last, end)) if part[0] < part[1]]
        left = still
        if not left:
            return


def _rendered(pieces: Iterable[Piece]) -> Iterator[tuple[int, int, Strip]]:
    """The cells of all pieces. A widget renders rows that follow each other in one go."""
    by_place: dict[Place, list[tuple[int, int, int]]] = {}
    for place, y, first, last in pieces:
        by_place.setdefault(place, []).append((y, first, last))
    for place, spans in by_place.items():
        seen = place.seen
        strips = _rows(place, sorted({y for y, _, _ in spans}))
        for y, first, last in spans:
            strip = strips[y]
            if first > seen.x or last < seen.right:
                strip = strip.crop(first - seen.x, last - seen.x)
            yield first, y, strip


def _rows(place: Place, rows: list[int]) -> dict[int, Strip]:
    """What is seen of these rows of the screen; ``rows`` go upwards."""
    widget, seen, left, top = place
    strips: dict[int, Strip] = {}
    start = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or rows[index] != rows[index - 1] + 1:
            crop = Region(seen.x - left, rows[start] - top, seen.width, index - start)
            strips.update(zip(rows[start:index], widget.render_lines(crop)))
            start = index
    return strips
