"""Lines around the block map: how full the pool is, who holds how much, what the marks mean."""

from collections import Counter

from rich.style import Style

from tui_infer.widgets.inspector.block_words import block_line, range_line
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line, counted, joined, spread, stacked, width_of
from tui_infer.widgets.inspector.view import SessionTag
from tui_infer.widgets.inspector.window import MapWindow


def count_line(frame: Frame) -> Line:
    """Blocks that are used, cached and free, as numbers."""
    ink, counts = frame.ink, frame.view.mirror.counts()
    return [
        (f"{counts.used:,}", ink.strong),
        (" used  ", ink.dim),
        (f"{counts.cached:,}", ink.cached),
        (" cached  ", ink.dim),
        (f"{counts.free:,}", ink.text),
        (" free", ink.dim),
    ]


def capacity_line(frame: Frame, width: int) -> Line:
    """The same as a bar, and the share that is used."""
    ink, counts = frame.ink, frame.view.mirror.counts()
    every = max(1, counts.used + counts.cached + counts.free)
    percent = f"{100 * counts.used / every:3.0f} %"
    parts = [(counts.used / every, ink.load(counts.used / every)), (counts.cached / every, ink.cached)]
    bar = stacked(parts, width - len(percent) - 1, ink.free)
    return [*bar, (" ", ink.dim), (percent, ink.text)]


def typed_line(frame: Frame, typed: str, width: int) -> Line:
    """The number that is being typed, and the ways out; empty where none is."""
    ink, last = frame.ink, frame.view.mirror.num_blocks - 1
    if not typed:
        return []
    there = int(typed) <= last
    line: Line = [("go to block ", ink.text), (f"{typed}▏", ink.strong if there else ink.error)]
    if not there:
        line.append((f" is none: 0 to {last:,}", ink.error))
    keys: list[Line] = [[("Enter", ink.title), (" go", ink.dim)]] if there else []
    keys.append([("Esc", ink.title), (" or ", ink.dim), ("space", ink.title), (" clear", ink.dim)])
    return spread(line, joined(keys, ("  ", ink.dim), width - width_of(line) - 2), width, ink.dim)


def told_line(frame: Frame, window: MapWindow | None, block: int | None, width: int) -> Line:
    """The block, or the blocks of its cell, that is pointed at; empty where none is on the map."""
    if block is None or window is None or block >= window.num_blocks:
        return []
    if window.scale > 1:
        line = range_line(frame, block - block % window.scale, window.scale)
    else:
        line = block_line(frame, block)
    return spread(line, _scale_words(frame, window), width, frame.ink.dim)


def owners_line(frame: Frame, window: MapWindow | None, width: int) -> Line:
    """Blocks of each chat, the largest first, then what is shared and what a cell stands for."""
    ink, mirror = frame.ink, frame.view.mirror
    held: Counter[str] = Counter()
    tags: dict[str, SessionTag] = {}
    for request in mirror.requests:
        tag = frame.tag(request)
        if tag is not None:
            held[tag.session] += mirror.num_held(request)
            tags[tag.session] = tag
    right = _scale_words(frame, window) if window is not None else []
    groups: list[Line] = []
    if mirror.shared:
        groups.append([(f"{mirror.shared:,}", ink.text), (" shared", ink.dim)])
    for session, count in held.most_common(12):
        tag = tags[session]
        groups.append([(tag.letter, ink.letter(tag.color)), (f" {count:,}", ink.text)])
    groups = groups[1:] + groups[:1] if mirror.shared else groups
    room = width - sum(len(text) for text, _ in right) - 2
    left = joined(groups, ("  ", ink.dim), room) or [("no chat holds a block", ink.dim)]
    return spread(left, right, width, ink.dim)


def legend_line(frame: Frame, window: MapWindow | None, width: int) -> Line:
    """What the marks of the cells mean, in the colour of the focused chat."""
    ink = frame.ink
    color = frame.view.focused.color if frame.view.focused else 0
    wide = window is not None and window.wide
    dense = window is not None and window.scale > 1

    def tile(level: int, shared: bool = False, glow: int = 0) -> Style:
        return ink.tile(color, level, shared=shared, glow=glow, focused=0)

    few: Line = [("A▃" if wide else "A", tile(1)), (" few" if dense else " part", ink.dim)]
    shared: Line = [("A²" if wide else "A", tile(4, shared=True)), (" shared", ink.dim)]
    groups: list[Line] = [
        [("A", tile(4)), (" used", ink.dim)],
        few,
        *([] if dense else [shared]),
        [("A", tile(4, glow=2)), (" new", ink.dim)],
        [("a", ink.cached_tile(color, glow=0)), (" cached", ink.dim)],
        [("·", ink.free), (" free", ink.dim)],
        [("∅", ink.null), (" null", ink.dim)],
    ]
    return joined(groups, ("  " if width >= 60 else " ", ink.dim), width)


def _scale_words(frame: Frame, window: MapWindow) -> Line:
    """Which blocks are shown, or how many a cell stands for."""
    if window.scrolls:
        first, last = window.blocks
        return [(f"{first:,}–{last:,} of {window.num_blocks:,}", frame.ink.faint)]
    return [(f"1 cell = {counted(window.scale, 'block')}", frame.ink.faint)]
