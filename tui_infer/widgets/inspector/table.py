"""Block table of the focused chat: which physical block holds each run of its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style

from tui_infer.mirror import BlockMirror
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line, counted, width_of
from tui_infer.widgets.inspector.panel import Panel

_UNDERLINE = Style(underline=True)


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
        return f"{self.first}–{self.last}→{self.block}–{self.block + self.last - self.first}"


class TablePanel(Panel):
    NAME = "Table"

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
            return [[("no block yet: nothing was sent", ink.dim)]]
        table = mirror.table(request)
        if not table:
            kept = mirror.num_cached_of(request)
            note = f", {counted(kept, 'block')} still cached" if kept else ""
            return [[(f"holds no block{note}", ink.dim)]]
        shared_note = self._shared_note(frame, request, table)
        singles = [_run_of_one(mirror, request, index, block) for index, block in table]
        for runs in (singles, merged_runs(singles)):
            entries = self._entries(frame, request, runs)
            lines = flow(entries, width, height, "  ")
            if lines is not None:
                break
        else:
            lines = elided(entries, width, height, "  ", frame)
        if shared_note and len(lines) < height:
            lines.append(shared_note)
        return lines

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


def flow(entries: Sequence[Line], width: int, height: int, gap: str) -> list[Line] | None:
    """Entries in reading order, never broken; None when they take more than ``height`` lines."""
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
        used += need
    return lines


def elided(entries: Sequence[Line], width: int, height: int, gap: str, frame: Frame) -> list[Line]:
    """The first entries and the last one, which grows, with a note of how many are left out."""
    ink = frame.ink
    low, high = 0, len(entries) - 1
    best: list[Line] = [entries[-1]]
    while low <= high:
        head = (low + high) // 2
        note: Line = [(f"… {len(entries) - head - 1:,} more …", ink.faint)]
        lines = flow([*entries[:head], note, entries[-1]], width, height, gap)
        if lines is None:
            high = head - 1
        else:
            best, low = lines, head + 1
    return best
