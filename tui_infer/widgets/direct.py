"""Widgets that draw whole lines themselves, without Textual's work on each of them.

Textual looks up borders, padding, outline, hatch, tint and opacity anew for every line that it renders, and
a widget that wants to be drawn again tells its screen by two messages, each a turn of the event loop. Of a
widget that streams at every frame this is more than what it shows.
"""

from collections.abc import Iterable
from typing import Any, Self

from rich.segment import Segment
from textual.cache import FIFOCache
from textual.filter import ANSIToTruecolor
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from tui_infer.widgets.painter import Painter

_CACHES = {
    "_divide_cache": 4, "_crop_cache": 16, "_style_cache": 16, "_filter_cache": 4, "_line_length_cache": 4,
    "_crop_extend_cache": 4, "_offsets_cache": 4,
}  # fmt: skip


class LineStrip(Strip):
    """A strip that makes its caches when they are used: a streaming line lives for a frame or two."""

    __slots__ = ()

    def __init__(self, segments: Iterable[Segment], cell_length: int | None = None) -> None:
        self._segments = list(segments)
        self._cell_length = cell_length
        self._render_cache = None
        self._link_ids = None
        self._cell_count = None

    def __getattr__(self, name: str) -> Any:
        """Asked only for what is not there yet."""
        if name not in _CACHES:
            raise AttributeError(name)
        cache: FIFOCache[Any, Any] = FIFOCache(_CACHES[name])
        setattr(self, name, cache)
        return cache


class ImmediateScreen(Screen[None], inherit_bindings=False):
    """Draws direct widgets at the end of the frame that changed them, and only what changed."""

    _in_frame = False

    def __init__(self) -> None:
        super().__init__()
        self._compositor = Painter()

    def mark(self, widget: Widget) -> None:
        """A widget has lines to be drawn again."""
        if widget in self._compositor:
            self._dirty_widgets.add(widget)
            if not self._in_frame:
                self.check_idle()

    def begin_frame(self) -> None:
        """What is marked from here on is drawn together."""
        self._in_frame = True

    def end_frame(self) -> None:
        """Draw what was marked, now; where a layout has to come before, with that."""
        self._in_frame = False
        if not self._dirty_widgets:
            return
        waits = self._layout_required or self._scroll_required or self._repaint_required
        if waits or self.app._batch_count or not self.is_current:
            self.check_idle()
            return
        self._compositor.update_widgets(self._dirty_widgets)
        self._compositor_refresh()


class Direct(Widget):
    """A widget that marks its changed lines at the screen itself."""

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        if layout or recompose or not repaint or not self._is_mounted or not self.is_attached:
            return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        screen = self.screen
        if not isinstance(screen, ImmediateScreen):
            return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        self._set_dirty(*regions)
        self._rich_style_cache.clear()
        if self.display:
            screen.mark(self)
        return self


class DirectLines(Direct):
    """A widget whose ``render_line`` is all that is seen of it: lines of its own width, in true colours, and
    styles that ask for no more than colours.
    """

    def render_lines(self, crop: Region) -> list[Strip]:
        return self.finish(map(self.render_line, crop.line_range), crop)

    def finish(self, lines: Iterable[Strip], crop: Region) -> list[Strip]:
        """Lines as the compositor takes them."""
        width = self.size.width
        filters = [other for other in self.get_line_filters() if not isinstance(other, ANSIToTruecolor)]
        strips: list[Strip] = []
        for strip in lines:
            if strip.cell_length != width:  # drawn for another size; the next frame puts it right
                strip = strip.adjust_cell_length(width, self.rich_style)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, self.background_colors[1])
            strips.append(strip if crop.width == width else strip.crop(crop.x, crop.right))
        return strips
