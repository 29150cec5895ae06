"""Block table of the focused chat: which physical block holds each run of its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.message import Message

from tui_infer.mirror import BlockMirror
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.ink import Ink
from tui_infer.widgets.inspector.lines import Line, counted, width_of, wrap_words
from tui_infer.widgets.inspector.panel import Panel

_UNDERLINE = Style(underline=True)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where an entry stands: its line, and its cells from ``x`` to before ``end``."""

    line: int
    x: int
    end: int


@dataclass(frozen=True, slots=True)
class Run:
    """Logical blocks ``first`` to ``last`` in physical blocks that follow each other from ``block`` on."""

    first: int
    last: int
    block: int
    shared: bool

    @property
    def text(self) -> str:
        if self.first == self.last:
            return f"{self.first}→{self.block}"
        return f"{self.first}–{self.last}→{self.physical}"

    @property
    def physical(self) -> str:
        return (
            str(self.block)
            if self.first == self.last
            else f"{self.block}–{self.block + self.last - self.first}"
        )


class TablePanel(Panel):
    """What fits, its start and its growing end; with the focus, or once it was scrolled, every entry."""

    NAME = "Table"
    HINTS: ClassVar[tuple[tuple[str, str], ...]] = (("←↑↓→", "choose"), ("Enter", "open"), ("g", "its text"))

    class Chosen(Message):
        """An entry was chosen: the map is to go to its block, and with ``open`` to open it."""

        def __init__(self, block: int, open: bool = False) -> None:
            super().__init__()
            self.block = block
            self.open = open

    class ChatWanted(Message):
        """The text of this block is to be shown in its chat."""

        def __init__(self, block: int) -> None:
            super().__init__()
            self.block = block

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._request: int | None = None
        self._index: int | None = None  # the chosen logical block
        self._top: int | None = None  # first line that is shown; None where the table was not scrolled
        self._kept: tuple[int, list[int]] = (-1, [])  # a request, and its cached blocks as they were found
        self._runs: list[Run] = []  # of the entries on the screen, with their places in ``_spots``
        self._spots: list[Spot] = []
        self._lines = 0

    def caption(self, frame: Frame, width: int) -> Line:
        tag = frame.view.focused
        return [(tag.letter, frame.ink.letter(tag.color))] if tag else []

    def headline(self, frame: Frame, width: int) -> Line:
        ink, mirror, request = frame.ink, frame.view.mirror, frame.view.focused_request
        if request is None or not mirror.num_held(request):
            return []
        held = counted(mirror.num_held(request), "block")
        tokens = counted(mirror.context(request), "token")
        return [(held, ink.text), (f" · {tokens}", ink.dim)]

    def body(self, frame: Frame, width: int, height: int) -> list[Line]:
        view, ink = frame.view, frame.ink
        if view.status is None:
            return [[(frame.waiting_text, ink.dim)]]
        if view.focused is None:
            return [[("no chat is focused", ink.dim)]]
        request, mirror = view.focused_request, view.mirror
        if request is None:
            words = "holds no block: nothing was sent since the engine started"
            return [[(row, ink.dim)] for row in wrap_words(words, width, height)]
        table = mirror.table(request)
        if not table:
            return self._cached(frame, request, width, height)
        if request != self._request:
            self._request, self._index, self._top = request, None, None
        shared_note = self._shared_note(frame, request, table)
        singles = [_run_of_one(mirror, request, index, block) for index, block in table]
        if self.has_focus or self._top is not None:
            return self._browsed(frame, request, singles, width, height)
        for runs in (singles, merged_runs(singles)):
            entries = self._entries(frame, request, runs)
            self._runs, self._spots = list(runs), []
            lines = flow(entries, width, height, "  ", self._spots)
            if lines is not None:
                break
        else:
            self._spots = []
            lines = elided(entries, width, height, "  ", frame, self._spots)
            self._runs = [*self._runs[: len(self._spots) - 2], self._runs[-1], self._runs[-1]]
        if shared_note and len(lines) < height:
            lines.append(shared_note)
        return lines

    def _cached(self, frame: Frame, request: int, width: int, height: int) -> list[Line]:
        """What is left of a chat that does not run: its blocks in the cache, until others take them."""
        ink, mirror = frame.ink, frame.view.mirror
        before = self._kept[1] if self._kept[0] == request else []
        blocks = mirror.cached_of(request, before)
        self._kept, self._runs, self._spots = (request, blocks), [], []
        if not blocks:
            return [[("holds no block now", ink.dim)]]
        count = len(blocks)
        words = f"holds no block now; {count:,} of its blocks {'is' if count == 1 else 'are'} cached:"
        runs = merged_runs([Run(number, number, block, False) for number, block in enumerate(blocks)])
        names = [run.physical for run in runs]
        entries: list[Line] = [[(word, ink.dim)] for word in words.split()]
        entries += [[(f"{name},", ink.text)] for name in names[:-1]] + [[(names[-1], ink.text)]]
        return flow(entries, width, height, " ") or elided(entries, width, height, " ", frame)

    def _browsed(self, frame: Frame, request: int, runs: list[Run], width: int, height: int) -> list[Line]:
        """Every entry on as many lines as it takes; ``height`` of them are shown, with a position mark."""
        ink = frame.ink
        chosen = min(self._index, len(runs) - 1) if self._index is not None else None
        entries = self._entries(frame, request, runs)
        if chosen is not None:
            text = "".join(part for part, _ in entries[chosen])
            entries[chosen] = [(text, ink.cursor if self.has_focus else ink.marked)]
        spots: list[Spot] = []
        lines = flow(entries, width - 2, 1 << 30, "  ", spots) or []
        self._lines = len(lines)
        last_top = max(0, len(lines) - height)
        top = min(self._top or 0, last_top)
        if chosen is not None and self.has_focus:
            top = max(min(top, spots[chosen].line), spots[chosen].line - height + 1)
        self._top = top if last_top else None
        self._runs, self._spots = runs, [Spot(spot.line - top, spot.x, spot.end) for spot in spots]
        shown = lines[top : top + height]
        if not last_top:
            return shown
        length = max(1, height * height // len(lines))
        first = round((height - length) * top / last_top)
        return [
            self._with_mark(ink, line, width, first <= row < first + length) for row, line in enumerate(shown)
        ]

    def _with_mark(self, ink: Ink, line: Line, width: int, thumb: bool) -> Line:
        """The line with its part of the position mark at the right end."""
        mark = ("▐", ink.dim) if thumb else ("▕", ink.rule)
        return [*line, (" " * (width - width_of(line) - 1), ink.base), mark]

    # --- keys and mouse ------------------------------------------------------------------------

    def choose(self, index: int) -> None:
        """Choose the logical block ``index``; the map follows."""
        if not self._runs:
            return
        self._index = max(0, min(index, self._runs[-1].last))
        self.redraw()
        block = self._block()
        if block is not None:
            self.post_message(self.Chosen(block))

    def _block(self) -> int | None:
        """The physical block of the chosen entry."""
        if self._index is None:
            return None
        run = next((run for run in self._runs if run.first <= self._index <= run.last), None)
        return run.block + self._index - run.first if run is not None else None

    def on_focus(self) -> None:
        self.redraw()
        if self._index is None and self._runs:
            self._index = self._runs[-1].last
            self.redraw()

    def on_blur(self) -> None:
        self._top = None
        self.redraw()

    def on_key(self, event: events.Key) -> None:
        if self._index is None or not self._runs:
            return
        keys = {"left": -1, "right": 1, "home": -1 << 30, "end": 1 << 30}
        lines = {"up": -1, "down": 1, "pageup": -8, "pagedown": 8}
        block = self._block()
        if event.key in keys:
            self.choose(self._index + keys[event.key])
        elif event.key in lines:
            self.choose(self._on_line(lines[event.key]))
        elif event.key in ("enter", "space") and block is not None:
            self.post_message(self.Chosen(block, open=True))
        elif event.key == "g" and block is not None:
            self.post_message(self.ChatWanted(block))
        else:
            return
        event.stop()
        event.prevent_default()

    def _on_line(self, step: int) -> int:
        """The entry ``step`` lines away, above or below the chosen one."""
        here = min(self._index or 0, len(self._spots) - 1)
        spot = self._spots[here]
        line = max(self._spots[0].line, min(spot.line + step, self._spots[-1].line))
        near = [number for number, other in enumerate(self._spots) if other.line == line]
        return min(near, key=lambda number: abs(self._spots[number].x - spot.x)) if near else here

    def scroll_rows(self, rows: int) -> None:
        """Move the view; an entry chosen by the keys comes back with the next key."""
        self._top = max(0, (self._top or 0) + rows)
        if self.has_focus and self._index is not None and self._spots:
            self._index = self._on_line(rows)
        self.redraw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_rows(-1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_rows(1)

    def on_leave(self, event: events.Leave) -> None:
        if self._top is not None and not self.has_focus:
            self._top = None
            self.redraw()

    def on_click(self, event: events.Click) -> None:
        x, y = event.x - 2, event.y - 1
        for run, spot in zip(self._runs, self._spots):
            if spot.line == y and spot.x <= x < spot.end:
                event.stop()
                self._index = run.first
                self.focus(scroll_visible=False)
                self.redraw()
                self.post_message(self.Chosen(run.block, open=event.chain > 1))
                return

    def _entries(self, frame: Frame, request: int, runs: Sequence[Run]) -> list[Line]:
        ink, view = frame.ink, frame.view
        assert view.focused is not None
        plain = ink.text
        own = ink.letter(view.focused.color)
        size = view.mirror.block_size
        entries: list[Line] = []
        for run in runs:
            logical, arrow, physical = run.text.partition("→")
            style = own + _UNDERLINE if run.shared else own
            entries.append([(logical, ink.dim), (arrow, ink.faint), (physical, style)])
        tail = view.mirror.context(request) - runs[-1].last * size
        if 0 < tail < size:
            entries[-1] = [*entries[-1], (f" ({tail}/{size})", plain)]
        return entries

    def _shared_note(self, frame: Frame, request: int, table: Sequence[tuple[int, int]]) -> Line:
        """Who else holds these blocks, and how many came from the prefix cache."""
        ink, mirror = frame.ink, frame.view.mirror
        others: dict[int, None] = {}
        shared = hits = 0
        for index, block in table:
            holders = mirror.references(block)
            if len(holders) > 1:
                shared += 1
                others |= dict.fromkeys(other for other in holders if other != request)
            hits += mirror.came_from_cache(request, index)
        line: Line = []
        if hits:
            line += [(counted(hits, "block"), ink.text), (" from the prefix cache", ink.dim)]
        if shared:
            line += [(" · " if line else "", ink.faint), (f"{shared:,}", ink.text + _UNDERLINE)]
            line.append((" shared with", ink.dim))
            for other in list(others)[:6]:
                tag = frame.tag(other)
                line += [(" ", ink.dim), (tag.letter, ink.letter(tag.color)) if tag else ("?", ink.dim)]
            if len(others) > 6:
                line.append((" …", ink.dim))
        return line


def _run_of_one(mirror: BlockMirror, request: int, index: int, block: int) -> Run:
    return Run(index, index, block, len(mirror.references(block)) > 1)


def merged_runs(runs: Sequence[Run]) -> list[Run]:
    """Neighbours whose physical blocks follow each other, as one; sharing must be the same."""
    merged: list[Run] = []
    for run in runs:
        before = merged[-1] if merged else None
        if (
            before is not None
            and run.first == before.last + 1
            and run.block == before.block + run.first - before.first
            and run.shared == before.shared
        ):
            merged[-1] = Run(before.first, run.last, before.block, run.shared)
        else:
            merged.append(run)
    return merged


def flow(
    entries: Sequence[Line], width: int, height: int, gap: str, spots: list[Spot] | None = None
) -> list[Line] | None:
    """Entries in reading order, never broken; None when they take more than ``height`` lines.

    Their places are added to ``spots``.
    """
    lines: list[Line] = [[]]
    used = 0
    for entry in entries:
        need = width_of(entry)
        if lines[-1] and used + len(gap) + need > width:
            if len(lines) == height:
                return None
            lines.append([])
            used = 0
        if lines[-1]:
            lines[-1].append((gap, entry[0][1]))
            used += len(gap)
        lines[-1].extend(entry)
        if spots is not None:
            spots.append(Spot(len(lines) - 1, used, used + need))
        used += need
    return lines


def elided(
    entries: Sequence[Line],
    width: int,
    height: int,
    gap: str,
    frame: Frame,
    spots: list[Spot] | None = None,
) -> list[Line]:
    """The first entries and the last one, which grows, with a note of how many are left out. ``spots`` get
    the places of them all, the note's before the last.
    """
    ink = frame.ink
    low, high = 0, len(entries) - 1
    best: list[Line] = [entries[-1]]
    while low <= high:
        head = (low + high) // 2
        note: Line = [(f"… {len(entries) - head - 1:,} more …", ink.faint)]
        found: list[Spot] = []
        lines = flow([*entries[:head], note, entries[-1]], width, height, gap, found)
        if lines is None:
            high = head - 1
            continue
        best, low = lines, head + 1
        if spots is not None:
            spots[:] = found
    return best
