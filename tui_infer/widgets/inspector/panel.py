"""A framed panel that draws whole lines and refreshes only those that changed."""

from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line, fit, to_strip, width_of


class Panel(Widget):
    """Base of the panels. Neighbours share their border: each draws the rule above itself.

    ``opens`` and ``closes`` say whether the panel is the first or the last of its column, and so which
    corners it draws. A panel holds no truth: ``draw`` makes every line again from a frame.
    """

    DEFAULT_CSS = """
    Panel { background: $background; }
    """
    NAME = ""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.opens = False
        self.closes = False
        self._strips: list[Strip] = []

    # --- for subclasses ------------------------------------------------------------------------

    def caption(self, frame: Frame, width: int) -> Line:
        """What stands after the name on the rule; empty for none."""
        return []

    def headline(self, frame: Frame, width: int) -> Line:
        """What stands at the right end of the rule; empty for none."""
        return []

    def body(self, frame: Frame, width: int, height: int) -> list[Line]:
        """At most ``height`` lines of at most ``width`` cells."""
        raise NotImplementedError

    # --- drawing -------------------------------------------------------------------------------

    def draw(self, frame: Frame) -> None:
        """Show this frame."""
        width, height = self.size
        if width < 8 or height < 1:
            return
        strips = self._compose_strips(frame, width, height)
        before = self._strips
        self._strips = strips
        if len(before) != len(strips):
            self.refresh()
            return
        changed = [Region(0, y, width, 1) for y, strip in enumerate(strips) if strip is not before[y]]
        changed = [region for region in changed if strips[region.y] != before[region.y]]
        if changed:
            self.refresh(*changed)

    def _compose_strips(self, frame: Frame, width: int, height: int) -> list[Strip]:
        ink = frame.ink
        inner = width - 4
        rows = height - 1 - self.closes
        strips = [to_strip(self._rule(frame, width), width)]
        if rows > 0:
            left, right = ("│ ", ink.rule), (" │", ink.rule)
            lines = self.body(frame, inner, rows)[:rows]
            for line in lines + [[] for _ in range(rows - len(lines))]:
                room = inner - width_of(line)
                if room < 0:
                    line, room = fit(line, inner), 0
                strips.append(to_strip([left, *line, (" " * room, ink.base), right], width))
        if self.closes and height > 1:
            strips.append(to_strip([("╰" + "─" * (width - 2) + "╯", ink.rule)], width))
        return strips

    def _rule(self, frame: Frame, width: int) -> Line:
        ink = frame.ink
        first, last = ("╭", "╮") if self.opens else ("├", "┤")
        room = width - 4
        name: Line = [(f" {self.NAME} ", ink.title)]
        caption = self.caption(frame, room - width_of(name))
        if caption:
            name = [*name, ("─ ", ink.rule), *caption, (" ", ink.rule)]
        name = fit(name, room)
        headline = self.headline(frame, room)
        if headline:
            headline = [(" ", ink.rule), *headline, (" ", ink.rule)]
        gap = room - width_of(name) - width_of(headline)
        if gap < 1:
            headline, gap = [], room - width_of(name)
        return [(f"{first}─", ink.rule), *name, ("─" * gap, ink.rule), *headline, (f"─{last}", ink.rule)]

    def render_line(self, y: int) -> Strip:
        strips = self._strips
        return strips[y] if y < len(strips) else Strip.blank(self.size.width, self.rich_style)
