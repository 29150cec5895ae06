"""The timeline: where in the past the view stands, with marks for what happened; a click goes there."""

from typing import NamedTuple

from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tui_infer.history import decode_rows
from tui_infer.keymap import KeyNames
from tui_infer.past import Moment, Past
from tui_infer.widgets.inspector.ink import Ink
from tui_infer.widgets.inspector.lines import Line, byte_size, counted, joined, spread, to_strip, width_of
from tui_infer.widgets.inspector.panel import Panel

ROWS = 3
GRAPH, EAGER, PREFILL, EVICTED, PREEMPTED = "━", "╌", "▪", "▾", "×"
HERE, NEWER = "┃", "▸"
LEGENDS = (
    ((EVICTED, "evicted"), (PREEMPTED, "preempted")),
    ((GRAPH, "graph"), (EAGER, "eager"), (PREFILL, "prefill")),
)
LEGEND_WIDTH = 27
WIDE = 100  # columns from which the keys are told in more words
LEGEND_FROM = 70  # columns from which the legend stands beside the marks


class Marks(NamedTuple):
    """One character a cell in each: what happened (a space where nothing did), and how most steps ran."""

    happened: str
    ran: str


def marks_of(past: Past, cells: int) -> Marks:
    """The kept steps in so many cells, or in fewer where there are not as many steps."""
    steps = len(past) - past.oldest
    cells = min(cells, steps)
    if cells < 1:
        return Marks("", "")
    graph, eager = [0] * cells, [0] * cells
    happened = [" "] * cells
    for number in range(steps):
        record = past.records[past.oldest + number]
        cell = number * cells // steps
        if decode_rows(record):
            graph[cell] += record.mode == "graph"
            eager[cell] += record.mode != "graph"
        if record.preempted:
            happened[cell] = PREEMPTED
        elif happened[cell] == " " and any(change.kind == "evict" for change in record.block_changes):
            happened[cell] = EVICTED
    ran = [
        GRAPH if fast and fast >= slow else EAGER if slow else PREFILL
        for fast, slow in zip(graph, eager, strict=True)
    ]
    return Marks("".join(happened), "".join(ran))


def words_of(moment: Moment, newest: int) -> str:
    """``step 412 · 38 steps back``."""
    back = newest - moment.step
    return (
        f"step {moment.step:,} · {counted(back, 'step')} back"
        if back > 0
        else f"step {moment.step:,} · the newest"
    )


class TimelineStrip(Widget, can_focus=True):
    """Three rows: what happened in the kept steps, from the oldest to the newest, how they ran, and what can
    be done. The steps are those of the moment at which the look back began; what came since is counted.

    It has the focus while the past is looked at; the keys are the app's ``TimeTravel``.
    """

    DEFAULT_CSS = """
    TimelineStrip { height: 3; width: 1fr; display: none; background: $background; }
    """

    class Key(Message):
        """A key was pressed here."""

        def __init__(self, key: str, character: str | None) -> None:
            super().__init__()
            self.key = key
            self.character = character

    class Wanted(Message):
        """The step at this position is to be shown."""

        def __init__(self, position: int) -> None:
            super().__init__()
            self.position = position

    def __init__(self, keys: KeyNames) -> None:
        super().__init__()
        self._keys = keys
        self._past: Past | None = None
        self._moment: Moment | None = None
        self._newest = 0
        self._typed = ""
        self._ink: Ink | None = None
        self._marks = Marks("", "")
        self._marks_of: tuple[Past | None, int] = (None, 0)

    def on_mount(self) -> None:
        self.watch(self.app, "theme", self._theme_changed, init=False)

    def _theme_changed(self) -> None:
        self._ink = None
        self.refresh()

    def show(self, past: Past, moment: Moment, newest: int, typed: str) -> None:
        """Draw this; ``newest`` is the engine's newest step, ``typed`` a step number being typed."""
        self._past, self._moment, self._newest, self._typed = past, moment, newest, typed
        self.refresh()

    # --- drawing -------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        past, moment, width = self._past, self._moment, self.size.width
        if past is None or moment is None or width < 4:
            return Strip.blank(width, self.rich_style)
        ink = self._ink = self._ink or Ink(self.app.current_theme)
        line = self._words(past, moment, width, ink) if y > 1 else self._track(past, moment, width, ink, y)
        return to_strip([*line, (" " * max(0, width - width_of(line)), ink.base)], width)

    def _track(self, past: Past, moment: Moment, width: int, ink: Ink, row: int) -> Line:
        legend = LEGEND_WIDTH if width >= LEGEND_FROM else 0
        cells = width - 2 - legend
        if self._marks_of != (past, cells):
            self._marks_of, self._marks = (past, cells), marks_of(past, cells)
        styles = {
            GRAPH: ink.graph,
            EAGER: ink.eager,
            PREFILL: ink.prefill,
            EVICTED: ink.warn,
            PREEMPTED: ink.error,
        }
        here = self._cell_of(past, moment.position)
        line: Line = [(" ", ink.base)]
        for cell, mark in enumerate(self._marks[row]):
            covered = row or mark == " "  # what happened there stays in sight
            line.append((HERE, ink.strong) if cell == here and covered else (mark, styles.get(mark, ink.dim)))
        line.append((NEWER if row and self._newer else " ", ink.warn))
        if legend:
            line.append((" " * (width - legend - width_of(line)), ink.base))
            for mark, word in LEGENDS[row]:
                line += [(f" {mark}", styles[mark]), (f" {word}", ink.dim)]
        return line

    @property
    def _newer(self) -> int:
        """Steps that came since the look back began."""
        return max(0, self._newest - self._past.records[-1].index) if self._past is not None else 0

    def _words(self, past: Past, moment: Moment, width: int, ink: Ink) -> Line:
        left: Line = [(" ◀ ", ink.warn)]
        if self._typed:
            left += [
                ("go to step ", ink.dim),
                (self._typed, ink.strong),
                ("▏", ink.warn),
                ("  Enter goes", ink.dim),
            ]
        else:
            left += [(words_of(moment, self._newest), ink.strong)]
        left += [(f"  {note}", ink.warn) for note in moment.notes]
        oldest, newest = past.records[past.oldest].index, max(self._newest, past.records[-1].index)
        keys: list[Line] = [
            [(self._pair("past-back", "past-on"), ink.title), (" 1", ink.dim)],
            [(self._pair("past-back-100", "past-on-100"), ink.title), (" 100", ink.dim)],
            [("number Enter", ink.title), (" go there" if width >= WIDE else "", ink.dim)],
            [
                (self._pair("jump-eager-back", "jump-eager-on"), ink.title),
                (" eager step" if width >= WIDE else " eager", ink.dim),
            ],
            [(self._pair("jump-change-back", "jump-change-on"), ink.title), (" change", ink.dim)],
        ]
        less: list[Line] = [
            [(self._pair("past-back-10", "past-on-10"), ink.title), (" 10", ink.dim)],
            [(self._pair("past-oldest", "past-newest"), ink.title)],
        ]
        if not self.has_focus:  # its keys are another's now
            moves = self._pair("past-back", "past-on")
            elsewhere: Line = [("Esc", ink.title), (f" back to {moves} and numbers", ink.dim)]
            if not isinstance(self.screen.focused, Panel):
                elsewhere = [("/past 400", ink.title), (" goes there, so does a click", ink.dim)]
            keys, less = [elsewhere], []
        kept: Line = [(f"{oldest:,}–{newest:,} kept, {byte_size(past.bytes_with(self._newer))}", ink.dim)]
        since: Line = [(NEWER, ink.warn), (f" {self._newer:,} came since", ink.dim)] if self._newer else []
        keys = [[(self._keys["past"], ink.title), (" now", ink.dim)], *keys, kept, since, *less]
        room = width - width_of(left) - 3
        return spread(left, [*joined(keys, ("  ", ink.dim), room), (" ", ink.dim)], width, ink.dim)

    def _pair(self, *ids: str) -> str:
        """Keys as they are bound, as ``← →``."""
        return " ".join(self._keys[id] for id in ids)

    # --- the mouse and keys ----------------------------------------------------------------------

    def _cell_of(self, past: Past, position: int) -> int:
        steps = len(past) - past.oldest
        return (position - past.oldest) * max(1, len(self._marks.ran)) // max(1, steps)

    def position_at(self, x: int) -> int | None:
        """The position that the cell at column ``x`` begins with."""
        past, cells = self._past, len(self._marks.ran)
        if past is None or not cells:
            return None
        cell = min(max(x - 1, 0), cells - 1)
        return past.oldest + -(-cell * (len(past) - past.oldest) // cells)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        event.stop()
        if event.y < 2:
            self.capture_mouse()
            self._go(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.app.mouse_captured is self:
            self._go(event.x)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self.app.mouse_captured is self:
            self.release_mouse()

    def _go(self, x: int) -> None:
        position = self.position_at(x)
        if position is not None:
            self.post_message(self.Wanted(position))

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.post_message(self.Key(event.key, event.character if event.is_printable else None))
