"""Cells of the block map: one block each, or 2, 3, 4, 6, 8, … neighbours where blocks outnumber cells."""

from collections import Counter
from collections.abc import Iterable
from itertools import compress

from rich.style import Style

from tui_infer.mirror import NOBODY, BlockMirror, BlockState
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.ink import FILL_LEVELS
from tui_infer.widgets.inspector.view import SessionTag

Cell = tuple[str, Style]
UNNAMED = "?"
_MAX_CHANGED = 4_096
_USED, _CACHED, _NULL = int(BlockState.USED), int(BlockState.CACHED), int(BlockState.NULL)
# Translation tables: 1 for blocks in the state, else 0. Slices are counted in C, not block by block.
_IS_USED = bytes(state == _USED for state in range(256))
_IS_CACHED = bytes(state == _CACHED for state in range(256))


class CellGrid:
    """Keeps the drawn cells and redoes only those whose blocks changed, glow, or stopped glowing.

    A cell stands for ``scale`` blocks. The scale is the smallest of 1, 2, 3, 4, 6, 8, 12, … at which every
    block that was ever used fits; what lies beyond is free and is said in words. So a fresh pool is shown
    block by block, and the picture zooms out only when it must: it never jumps back while the pool lives.
    """

    def __init__(self) -> None:
        self.scale = 1
        self.cells: list[Cell] = []
        self._mirror: BlockMirror | None = None
        self._version = -1
        self._key: tuple[object, ...] = ()
        self._area = (0, 0)
        self._again: set[int] = set()  # cells that glow, or whose owner has no name yet

    @property
    def hidden(self) -> int:
        """Blocks beyond the last cell, none of which was ever used."""
        blocks = self._mirror.num_blocks if self._mirror else 0
        return max(0, blocks - len(self.cells) * self.scale)

    def update(self, frame: Frame, rows: int, width: int) -> None:
        """Bring the cells up to date for an area of ``rows`` times ``width`` cells.

        Where the cells do not cover the pool they leave the last row free, for a word about the rest.
        """
        view, mirror = frame.view, frame.view.mirror
        fresh = mirror is not self._mirror or self._area != (rows, width)
        self.scale, count = fit_cells(mirror, rows, width, 1 if fresh else self.scale)
        focus = view.focused.session if view.focused else None
        key = (self.scale, count, frame.ink, focus, view.focused_request)
        changed = None if fresh or key != self._key else mirror.changed_since(self._version)
        self._mirror, self._area, self._key, self._version = mirror, (rows, width), key, mirror.version
        if changed is None or len(changed) > _MAX_CHANGED:
            self._again.clear()
            self.cells = [("·", frame.ink.free)] * count
            self._redo(frame, range(count))
        else:
            self._redo(frame, {block // self.scale for block in changed} | self._again)

    def _redo(self, frame: Frame, numbers: Iterable[int]) -> None:
        assert self._mirror is not None
        make = self._one if self.scale == 1 else self._many
        for number in numbers:
            if number >= len(self.cells):
                continue
            start = number * self.scale
            newest = max(self._mirror.change_step[start : start + self.scale])
            glow = newest >= frame.glow_since
            cell = self.cells[number] = make(frame, start, glow)
            if glow or cell[0] == UNNAMED:
                self._again.add(number)
            else:
                self._again.discard(number)

    def _one(self, frame: Frame, block: int, glow: bool) -> Cell:
        mirror, ink = frame.view.mirror, frame.ink
        state = mirror.states[block]
        if state == _USED:
            holders = mirror.references(block)
            tag = _preferred(frame, holders)
            level = -(-mirror.fill(block) * FILL_LEVELS // mirror.block_size)
            return _used(frame, tag, min(level, FILL_LEVELS), len(holders) > 1, glow)
        if state == _CACHED:
            return _cached(frame, mirror.owner[block], glow)
        if state == _NULL:
            return "∅", ink.null
        return "·", ink.freed if glow else ink.free

    def _many(self, frame: Frame, start: int, glow: bool) -> Cell:
        mirror, ink = frame.view.mirror, frame.ink
        states = mirror.states[start : start + self.scale]
        used = states.count(_USED)
        if used:
            tag = frame.tag(_most_frequent(mirror.owner[start : start + self.scale], states, _IS_USED))
            return _used(frame, tag, max(1, round(FILL_LEVELS * used / len(states))), False, glow)
        if _CACHED in states:
            owner = _most_frequent(mirror.owner[start : start + self.scale], states, _IS_CACHED)
            return _cached(frame, owner, glow)
        return "·", ink.freed if glow else ink.free


def _most_frequent(owners: Iterable[int], states: bytearray, wanted: bytes) -> int:
    """The owner of most blocks in a wanted state; there is at least one."""
    counts = Counter(compress(owners, states.translate(wanted)))
    return max(counts, key=counts.__getitem__)


def fit_cells(mirror: BlockMirror, rows: int, width: int, at_least: int) -> tuple[int, int]:
    """``(scale, cells)`` for this pool and area; see ``CellGrid``."""
    blocks, rows, width = mirror.num_blocks, max(1, rows), max(1, width)
    whole = fitting_scale(blocks, rows * width, at_least)
    touched = fitting_scale(mirror.high_water + 1, max(1, rows - 1) * width, at_least)
    if rows < 3 or whole < 2 * touched:
        return whole, -(-blocks // whole)
    return touched, (rows - 1) * width


def fitting_scale(blocks: int, cells: int, at_least: int = 1) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, … from ``at_least`` on at which ``blocks`` fit into ``cells``."""
    power = 1
    while True:
        for scale in (power, power * 3 // 2) if power > 1 else (1,):
            if scale >= at_least and blocks <= scale * max(1, cells):
                return scale
        power *= 2


def _preferred(frame: Frame, holders: Iterable[int]) -> SessionTag | None:
    """Of a shared block the focused chat's tag, else the oldest holder's."""
    focused = frame.view.focused_request
    first: int | None = None
    for request in holders:
        if request == focused:
            return frame.tag(request)
        if first is None:
            first = request
    return frame.tag(first) if first is not None else None


def _used(frame: Frame, tag: SessionTag | None, level: int, shared: bool, glow: bool) -> Cell:
    if tag is None:
        return UNNAMED, frame.ink.text
    focused = frame.view.focused is not None and tag.session == frame.view.focused.session
    return tag.letter[-1], frame.ink.tile(tag.color, level, shared=shared, glow=glow, focused=focused)


def _cached(frame: Frame, owner: int, glow: bool) -> Cell:
    tag = frame.tag(owner) if owner != NOBODY else None
    if tag is None:
        return "▫", frame.ink.cached
    return tag.letter[-1].lower(), frame.ink.cached_tile(tag.color, glow=glow)
