"""Soft wrapping that does not measure what plainly fits.

Textual measures every word of every line, 30 µs a line; a paste of 20 000 lines would freeze the app for a
second. A line of ASCII without tabs that is no longer than the width needs no measuring.
"""

from textual._wrap import compute_wrap_offsets
from textual.document._document import DocumentBase, Location
from textual.document._wrapped_document import WrappedDocument
from textual.expand_tabs import get_tab_widths

BULK_LINES = 500  # from here on, all lines are wrapped anew, which is quicker than moving offsets about


class QuickWrap(WrappedDocument):
    """A ``WrappedDocument`` with a short way for short lines."""

    def __init__(self, document: DocumentBase, width: int = 0, tab_width: int = 4) -> None:
        super().__init__(document, width, tab_width)

    @property
    def width(self) -> int:
        """The width that the lines are wrapped at."""
        return self._width

    def wrap(self, width: int, tab_width: int | None = None) -> None:
        self._width = width
        self._tab_width = tab_width or self._tab_width
        wrap_offsets: list[list[int]] = []
        tab_widths: list[list[int]] = []
        for line in self.document.lines:
            if line.isascii() and "\t" not in line and (len(line) <= width or not width):
                wrap_offsets.append([])
                tab_widths.append([0] if line else [])
                continue
            sections = get_tab_widths(line, self._tab_width)
            tab_widths.append([cells for _, cells in sections])
            wrap_offsets.append(
                compute_wrap_offsets(line, width, self._tab_width, precomputed_tab_sections=sections)
                if width
                else []
            )
        self._wrap_offsets = wrap_offsets
        self._tab_width_cache = tab_widths
        self._offset_to_line_info = [
            (line, section)
            for line, offsets in enumerate(wrap_offsets)
            for section in range(len(offsets) + 1)
        ]
        self._line_index_to_offsets = []
        top = 0
        for offsets in wrap_offsets:
            self._line_index_to_offsets.append(list(range(top, top + len(offsets) + 1)))
            top += len(offsets) + 1

    def wrap_range(self, start: Location, old_end: Location, new_end: Location) -> None:
        if abs(new_end[0] - start[0]) + abs(old_end[0] - start[0]) > BULK_LINES:
            self.wrap(self._width)
        else:
            super().wrap_range(start, old_end, new_end)
