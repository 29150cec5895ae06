"""A framed panel that draws whole lines and refreshes only those that changed."""

from typing import ClassVar

from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from tui_infer.landmarks import Landmark
from tui_infer.widgets.direct import DirectLines
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line, fit, to_strip, width_of


class Panel(DirectLines):
    """Base of the panels. Neighbours share their border: each draws the rule above itself.

    ``opens`` and ``closes`` say whether the panel is the first or the last of its column, and so which
    corners it draws. A panel holds no truth: ``draw`` makes every line again from a frame. With the focus
    its frame is lit and its keys, ``HINTS``, stand in the key bar.
    """

    class StepChosen(Message):
        """The user wants to see this step."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    class JumpWanted(Message):
        """The user wants to see a landmark later than the past step that is shown."""

        def __init__(self, what: Landmark, by: int) -> None:
            super().__init__()
            self.what = what
            self.by = by

    class HintsChanged(Message):
        """The panel's keys mean something else now."""

    can_focus = True
    HINTS: ClassVar[tuple[tuple[str, str], ...]] = ()

    DEFAULT_CSS = """
    Panel { background: $background; }
    """
    NAME = ""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.opens = False
        self.closes = False
        self._strips: list[Strip] = []
        self._made: dict[int, tuple[Line, object, Strip]] = {}  # body lines of before with their strips
        self._frame: Frame | None = None

    @property
    def hints(self) -> tuple[tuple[str, str], ...]:
        """Keys and what they do now; where one can be bound, its id."""
        return self.HINTS

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
        self._frame = frame
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

    def redraw(self) -> None:
        """Draw the last frame again: the cursor moved, or the focus came or went."""
        if self._frame is not None:
            self.draw(self._frame)

    def _compose_strips(self, frame: Frame, width: int, height: int) -> list[Strip]:
        ink = frame.ink
        inner = width - 4
        rows = height - 1 - self.closes
        lines = self.body(frame, inner, rows)[:rows] if rows > 0 else []
        strips = [to_strip(self._rule(frame, width), width)]  # after the body: it may name what found no room
        if rows > 0:
            edge = ink.title if self.has_focus else ink.rule
            left, right = ("│ ", edge), (" │", edge)
            frame_of = (width, edge)
            made: dict[int, tuple[Line, object, Strip]] = {}
            for line in lines + [[] for _ in range(rows - len(lines))]:
                # A panel that hands out the very line of before spares measuring and comparing it.
                before = self._made.get(id(line))
                if before is not None and before[0] is line and before[1] == frame_of and line:
                    made[id(line)] = before
                    strips.append(before[2])
                    continue
                room = inner - width_of(line)
                whole, room = (line, room) if room >= 0 else (fit(line, inner), 0)
                strips.append(to_strip([left, *whole, (" " * room, ink.base), right], width))
                made[id(line)] = (line, frame_of, strips[-1])
            self._made = made
        if self.closes and height > 1:
            last = ink.title if self.has_focus else ink.rule
            strips.append(to_strip([("╰" + "─" * (width - 2) + "╯", last)], width))
        return strips

    def _rule(self, frame: Frame, width: int) -> Line:
        ink = frame.ink
        rule = ink.title if self.has_focus else ink.rule
        first, last = ("╭", "╮") if self.opens else ("├", "┤")
        room = width - 4
        name: Line = [(f" {self.NAME} ", ink.lit(ink.title) if self.has_focus else ink.title)]
        caption = self.caption(frame, room - width_of(name))
        if caption:
            name = [*name, ("─ ", rule), *caption, (" ", rule)]
        name = fit(name, room)
        headline = self.headline(frame, room)
        if headline:
            headline = [(" ", rule), *headline, (" ", rule)]
        gap = room - width_of(name) - width_of(headline)
        if gap < 1:
            headline, gap = [], room - width_of(name)
        return [(f"{first}─", rule), *name, ("─" * gap, rule), *headline, (f"─{last}", rule)]

    def render_line(self, y: int) -> Strip:
        strips = self._strips
        return strips[y] if y < len(strips) else Strip.blank(self.size.width, self.rich_style)
