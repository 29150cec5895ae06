"""Cells of the block map: one block each, or 2, 3, 4, 6, 8, … neighbours where blocks outnumber cells."""

from collections import Counter
from collections.abc import Iterable
from itertools import compress

from rich.style import Style

from tui_infer.mirror import NOBODY, BlockMirror, BlockState
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.ink import FILL_LEVELS
from tui_infer.widgets.inspector.view import SessionTag
from tui_infer.widgets.inspector.window import MapWindow, fit_cells, fitting_scale

__all__ = ["Cell", "CellGrid", "fit_cells", "fitting_scale"]

Cell = tuple[str, Style]
UNNAMED = "?"
LEVELS = "▁▃▅▇"  # how full the last block of a chat is, beside its letter
COUNTS = "²³⁴⁵⁶⁷⁸⁹"  # by how many a block is held, beside the letter
_MAX_CHANGED = 4_096
_USED, _CACHED, _NULL = int(BlockState.USED), int(BlockState.CACHED), int(BlockState.NULL)
# Translation tables: 1 for blocks in the state, else 0. Slices are counted in C, not block by block.
_IS_USED = bytes(state == _USED for state in range(256))
_IS_CACHED = bytes(state == _CACHED for state in range(256))


class CellGrid:
    """Keeps the drawn cells and redoes only those whose blocks changed, glow, or stopped glowing.

    ``dirty`` are the rows of the window in which cells were redone since ``take_dirty``.
    """

    def __init__(self) -> None:
        self.scale = 1
        self.cells: list[Cell] = []
        self._mirror: BlockMirror | None = None
        self._window: MapWindow | None = None
        self._version = -1
        self._key: tuple[object, ...] = ()
        self._glowing: dict[int, int] = {}  # cells that glow, and how much
        self._unnamed: set[int] = set()  # cells whose owner has no name yet
        self._dirty: set[int] = set()
        self._leaving: frozenset[int] = frozenset()

    @property
    def hidden(self) -> int:
        """Blocks beyond the last cell."""
        blocks = self._mirror.num_blocks if self._mirror else 0
        first = self._window.first if self._window else 0
        return max(0, blocks - (first + len(self.cells)) * self.scale)

    def take_dirty(self) -> set[int]:
        dirty, self._dirty = self._dirty, set()
        return dirty

    def update(self, frame: Frame, rows: int, width: int) -> None:
        """The whole pool in an area of ``rows`` times ``width`` cells, at the scale at which it fits.

        The picture zooms out only when it must, and never jumps back while the pool lives. Where the cells do
        not cover the pool, what lies beyond was never used, and the last row is left free to say so.
        """
        mirror, before = frame.view.mirror, self._window
        same = mirror is self._mirror and before is not None and before.columns == width
        scale, count = fit_cells(mirror, rows, width, self.scale if same else 1)
        shown = -(-count // max(1, width))
        self.show(frame, MapWindow(scale, max(1, width), shown, 0, shown, mirror.num_blocks))

    def show(self, frame: Frame, window: MapWindow) -> None:
        """Bring the cells of this window up to date."""
        view, mirror = frame.view, frame.view.mirror
        fresh = mirror is not self._mirror or window != self._window or mirror.version < self._version
        focus = view.focused.session if view.focused else None
        latest = view.history.latest
        self._leaving = frozenset(latest.finished) if latest is not None else frozenset()
        leaving = any(mirror.num_held(request) for request in self._leaving)
        key = (frame.ink, focus, view.focused_request, frame.highlight, leaving and self._leaving)
        changed = None if fresh or key != self._key else mirror.changed_since(self._version)
        self._mirror, self._window, self._key, self._version = mirror, window, key, mirror.version
        self.scale = window.scale
        if changed is None or len(changed) > _MAX_CHANGED:
            self._glowing.clear()
            self._unnamed.clear()
            self.cells = [("", frame.ink.free)] * window.count
            self._redo(frame, range(window.first, window.first + window.count))
        else:
            numbers = {block // self.scale for block in changed} | self._unnamed
            self._redo(frame, numbers | self._fading(frame))

    def _fading(self, frame: Frame) -> set[int]:
        """Cells that glow less than when they were drawn."""
        mirror, scale = self._mirror, self.scale
        assert mirror is not None
        since, fading, steps = frame.glow_since, frame.fade_since, mirror.change_step
        faded = set()
        for number, glow in self._glowing.items():
            newest = steps[number] if scale == 1 else max(steps[number * scale : (number + 1) * scale])
            if glow != (0 if newest < fading else 1 if newest < since else 2):
                faded.add(number)
        return faded

    def _redo(self, frame: Frame, numbers: Iterable[int]) -> None:
        mirror, window, scale = self._mirror, self._window, self.scale
        assert mirror is not None
        assert window is not None
        make = self._one if scale == 1 else self._many
        since, fading = frame.glow_since, frame.fade_since
        first, count, columns, steps = window.first, len(self.cells), window.columns, mirror.change_step
        for number in numbers:
            place = number - first
            if not 0 <= place < count:
                continue
            start = number * scale
            newest = steps[start] if scale == 1 else max(steps[start : start + scale])
            glow = 0 if newest < fading else 1 if newest < since else 2
            cell = make(frame, start, glow)
            if cell != self.cells[place]:
                self.cells[place] = cell
                self._dirty.add(place // columns)
            if glow:
                self._glowing[number] = glow
            else:
                self._glowing.pop(number, None)
            if cell[0] == UNNAMED:
                self._unnamed.add(number)
            else:
                self._unnamed.discard(number)

    def _one(self, frame: Frame, block: int, glow: int) -> Cell:
        mirror, ink = frame.view.mirror, frame.ink
        state = mirror.states[block]
        wide = self._window is not None and self._window.wide
        if state == _USED:
            holders = mirror.references(block)
            tag = _preferred(frame, holders)
            level = min(-(-mirror.fill(block) * FILL_LEVELS // mirror.block_size), FILL_LEVELS)
            if self._leaving and self._leaving.issuperset(holders):
                return _used(frame, tag, level, len(holders) > 1, glow, "×" if wide else "", leaving=True)
            beside = ""
            if wide and len(holders) > 1:
                beside = COUNTS[min(len(holders) - 2, len(COUNTS) - 1)]
            elif wide and level < FILL_LEVELS:
                beside = LEVELS[max(0, level - 1)]
            return _used(frame, tag, level, len(holders) > 1, glow, beside)
        if state == _CACHED:
            return _cached(frame, mirror.owner[block], FILL_LEVELS, glow)
        if state == _NULL:
            return "∅", ink.null
        return "·", ink.freed if glow else ink.free

    def _many(self, frame: Frame, start: int, glow: int) -> Cell:
        mirror, ink = frame.view.mirror, frame.ink
        states = mirror.states[start : start + self.scale]
        used = states.count(_USED)
        if used:
            tag = frame.tag(_most_frequent(mirror.owner[start : start + self.scale], states, _IS_USED))
            return _used(frame, tag, max(1, round(FILL_LEVELS * used / len(states))), False, glow)
        cached = states.count(_CACHED)
        if cached:
            owner = _most_frequent(mirror.owner[start : start + self.scale], states, _IS_CACHED)
            return _cached(frame, owner, max(1, round(FILL_LEVELS * cached / len(states))), glow)
        return "·", ink.freed if glow else ink.free


def _most_frequent(owners: Iterable[int], states: bytearray, wanted: bytes) -> int:
    """The owner of most blocks in a wanted state; there is at least one."""
    counts = Counter(compress(owners, states.translate(wanted)))
    return max(counts, key=counts.__getitem__)


def _preferred(frame: Frame, holders: Iterable[int]) -> SessionTag | None:
    """Of a shared block the tag of the chat that is pointed at, or of the focused one, else the oldest's."""
    focused, highlight = frame.view.focused_request, frame.highlight
    first: SessionTag | None = None
    found: SessionTag | None = None
    for position, request in enumerate(holders):
        tag = frame.tag(request)
        if highlight and tag is not None and tag.session == highlight:
            return tag
        if request == focused:
            found = tag
        if position == 0:
            first = tag
    return found or first


def _emphasis(frame: Frame, tag: SessionTag) -> int:
    """-1 fades, 0 is as usual, 1 the focused chat, 2 the one that is pointed at."""
    if frame.highlight:
        return 2 if tag.session == frame.highlight else -1
    return int(frame.view.focused is not None and tag.session == frame.view.focused.session)


def _used(
    frame: Frame, tag: SessionTag | None, level: int, shared: bool, glow: int, beside: str = "",
    leaving: bool = False,
) -> Cell:  # fmt: skip
    if tag is None:
        return UNNAMED, frame.ink.text
    emphasis = _emphasis(frame, tag)
    style = frame.ink.tile(tag.color, level, shared=shared, glow=glow, focused=emphasis, leaving=leaving)
    return tag.letter[-1] + beside, style


def _cached(frame: Frame, owner: int, level: int, glow: int) -> Cell:
    tag = frame.tag(owner) if owner != NOBODY else None
    if tag is None:
        return "▫", frame.ink.cached
    emphasis = _emphasis(frame, tag) if frame.highlight else 0
    return tag.letter[-1].lower(), frame.ink.cached_tile(tag.color, level, glow=glow, focused=emphasis)
