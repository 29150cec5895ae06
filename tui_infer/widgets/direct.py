"""Widgets that draw whole lines themselves, without Textual's work on each of them.

Textual looks up borders, padding, outline, hatch, tint and opacity anew for every line that it renders. A
widget that has none of these, and whose lines are as wide as it is, may hand out its lines as they are.
"""

from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class DirectLines(Widget):
    """A widget whose ``line`` is all that is seen; its styles must ask for no more than colours."""

    def render_lines(self, crop: Region) -> list[Strip]:
        width = self.size.width
        filters = self.get_line_filters()
        background = self.background_colors[1] if filters else None
        strips: list[Strip] = []
        for y in crop.line_range:
            strip = self.render_line(y)
            if strip.cell_length != width:  # drawn for another size; the next frame puts it right
                strip = strip.adjust_cell_length(width, self.rich_style)
            for line_filter in filters:
                assert background is not None
                strip = strip.apply_filter(line_filter, background)
            strips.append(strip if crop.width == width else strip.crop(crop.x, crop.right))
        return strips
