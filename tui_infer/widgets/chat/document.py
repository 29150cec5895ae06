"""A chat as lines of cells, ready to be drawn: what has not changed is never rendered again."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from tui_infer.session import Turn, TurnStats
from tui_infer.widgets.chat.markdown import Block, MarkdownText
from tui_infer.widgets.chat.palette import Palette
from tui_infer.widgets.chat.wrap import Line, width_of, wrap
from tui_infer.widgets.direct import LineStrip

_USER_BAR = "▌ "
_INDENT = "  "
ENDED = "stop"  # the model, or a stop text, ended the answer


@dataclass(frozen=True)
class Look:
    """What the rendering of a line depends on: cells of width, the theme, and the chat's own colour."""

    width: int
    palette: Palette
    color: str


@dataclass(slots=True)
class _TurnView:
    """One turn's strips, and the lines that they were made of. For an answer, ``settled`` counts those of
    finished blocks.
    """

    of: object  # the turn, or the answer's way through the steps, of which there can be several parts
    markdown: MarkdownText = field(default_factory=MarkdownText)
    strips: list[Strip] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    version: int = -1
    settled: int = 0
    settled_blocks: int = 0


class ChatDocument:
    """The strips of all turns of one chat, for one look at a time, plus where the reader is in it.

    ``scroll_y`` is the top line, ``follow`` says that the view stays at the end, ``unseen`` that text
    came in below while it did not.
    """

    def __init__(self, place: tuple[int, float] | None = None) -> None:
        """``place`` is where the reader was before the lines were made, as ``anchor`` says it."""
        self._place = place
        self.scroll_y = 0
        self._held: tuple[int, float] | None = None  # where the reader went, whatever size came since
        self.follow = place is None
        self.unseen = False
        self.newest: tuple[int, int] | None = None  # turns and characters of the last one, as drawn last
        self._views: list[_TurnView] = []
        self._starts: list[int] = []
        self._look: Look | None = None
        self.height = 0

    def sync(self, turns: Sequence[Turn], look: Look) -> int | None:
        """Bring the strips up to date; the first line that changed, or None when none did."""
        if look != self._look:
            for view in self._views:
                view.version = -1
                view.settled = view.settled_blocks = 0
                view.strips, view.lines = [], []
            self._look = look
        del self._views[len(turns) :]
        changed: int | None = None
        height = 0
        self._starts = []
        for index, turn in enumerate(turns):
            of = turn.trace or turn
            if index == len(self._views):
                self._views.append(_TurnView(of))
            elif self._views[index].of is not of:  # another version of it
                self._views[index] = _TurnView(of)
            view = self._views[index]
            self._starts.append(height)
            if view.version != turn.version or not view.strips:
                kept = (
                    _render_user(view, turn, look)
                    if turn.role == "user"
                    else _render_answer(view, turn, look)
                )
                view.version = turn.version
                if changed is None:
                    changed = height + kept
            height += len(view.strips)
        if height < self.height and changed is None:
            changed = height
        self.height = height
        self.newest = (len(turns), len(turns[-1].text) if turns else 0)
        return changed

    def strip(self, y: int) -> Strip | None:
        """Line ``y``, or None below the end."""
        if not 0 <= y < self.height:
            return None
        index = bisect_right(self._starts, y) - 1
        return self._views[index].strips[y - self._starts[index]]

    def turn_strips(self, turn: int) -> tuple[int, Sequence[Strip]]:
        """First line and strips of a turn; none where it is not drawn yet."""
        if not 0 <= turn < len(self._starts):
            return 0, ()
        return self._starts[turn], self._views[turn].strips

    def anchor(self, y: int) -> tuple[int, float]:
        """Line ``y`` as (turn, share of that turn), which survives another width."""
        if not self._starts or self.height == 0:
            return self._place or (0, 0.0)
        index = max(0, bisect_right(self._starts, y) - 1)
        return index, (y - self._starts[index]) / max(1, len(self._views[index].strips))

    @property
    def place(self) -> tuple[int, float] | None:
        """Where the reader is, in any width; None at the end, which is followed."""
        return None if self.follow else self.reader

    @property
    def reader(self) -> tuple[int, float]:
        """Where the reader went, as ``anchor`` says it: no size that came since has moved it."""
        return self._held or self.anchor(self.scroll_y)

    def hold(self, line: int) -> None:
        """The reader went to this line, or lines came while they were there."""
        self._held = None if self.follow else self.anchor(line)

    def line_of(self, anchor: tuple[int, float]) -> int:
        """The line that ``anchor`` points at now."""
        index, share = anchor
        if index >= len(self._starts):
            return self.height
        rows = len(self._views[index].strips)
        return self._starts[index] + min(round(share * rows), max(0, rows - 1))  # exact where nothing changed


def _render_user(view: _TurnView, turn: Turn, look: Look) -> int:
    """A prompt is shown as it was typed, on a raised ground with a bar in the chat's colour."""
    palette = look.palette
    bar = palette.user + Style(color=look.color)
    lines = wrap([(turn.text, palette.user)], look.width - len(_USER_BAR) - 1)
    view.strips = [_strip([(_USER_BAR, bar), *line], look, palette.user) for line in lines]
    if turn.others:
        view.strips.append(_strip([(_USER_BAR, bar), (_version(turn), palette.faint)], look, palette.user))
    view.strips.append(_strip([], look))
    return 0


def _version(turn: Turn) -> str:
    """Which of several versions it is."""
    return f"version {turn.place + 1} of {len(turn.others) + 1}"


def _render_answer(view: _TurnView, turn: Turn, look: Look) -> int:
    """Finished blocks keep their strips; the tail and the footer are made anew."""
    view.markdown.update(turn.text, final=turn.status != "open")
    finished, tail = view.markdown.finished, view.markdown.tail
    if len(finished) < view.settled_blocks:
        view.settled = view.settled_blocks = 0
    lines = view.lines[: view.settled]
    for block in finished[view.settled_blocks :]:
        lines += _block_lines(block, look, first=not lines)
    settled, view.settled_blocks = len(lines), len(finished)
    for block in tail:
        lines += _block_lines(block, look, first=not lines)
    for line in _footer(turn, look.palette, look.width - 3):
        lines += [[(_INDENT, look.palette.base), *part] for part in wrap(line, look.width - 3)]
    lines.append([])
    changed = _restrip(view, lines, look)
    view.settled = settled
    return changed


def _restrip(view: _TurnView, lines: list[Line], look: Look) -> int:
    """Make strips of the lines that are others than before, and keep the rest; the first that changed."""
    before, strips = view.lines, view.strips
    first: int | None = None
    for number in range(view.settled, len(lines)):
        if number < len(before) and before[number] == lines[number]:
            continue
        first = number if first is None else first
        strips[number : number + 1] = [_strip(lines[number], look)]
    del strips[len(lines) :]
    view.lines = lines
    return min(len(before), len(lines)) if first is None else first


def _block_lines(block: Block, look: Look, *, first: bool) -> list[Line]:
    inner = block.lines(look.width - len(_INDENT) - 1, look.palette)
    lines: list[Line] = [] if first else [[]]
    return lines + [[(_INDENT, look.palette.base), *line] for line in inner]


def _footer(turn: Turn, palette: Palette, width: int) -> list[Line]:
    """What became of the answer: numbers when it is done, the reason when it is not."""
    lines: list[Line] = []
    if turn.status == "open":
        if not turn.text:
            lines.append([("…", palette.muted)])
        return lines
    if turn.status == "error":
        lines.append([("✗ " + turn.note, palette.error)])
    elif turn.status == "cancelled":
        lines.append([("■ " + turn.note, palette.warning)])
    if turn.stats is not None and (turn.text or turn.stats.output_tokens):
        lines += [[(text, palette.faint)] for text in _numbers(turn, turn.stats, width)]
    elif turn.others:
        lines.append([(_version(turn), palette.faint)])
    return lines


def _numbers(turn: Turn, stats: TurnStats, width: int) -> list[str]:
    """The numbers of an answer, broken between two of them where a line is full."""
    rate = "–" if stats.decode_tokens_per_s is None else f"{stats.decode_tokens_per_s:.1f}"
    parts = [f"{stats.output_tokens} tok", f"{rate} tok/s"]
    if stats.ttft_s is not None:
        parts.append(f"first {_duration(stats.ttft_s)}")
    parts.append(f"{stats.cached_tokens}/{stats.prompt_tokens} cached")
    if turn.status == "done":
        parts.append(turn.note or ENDED)
    if turn.others:
        parts.append(_version(turn))
    lines = [parts[0]]
    for part in parts[1:]:
        joined = f"{lines[-1]} · {part}"
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return lines


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _strip(line: Line, look: Look, ground: Style | None = None) -> Strip:
    """A strip of the look's width; every segment has its background, so none is left open."""
    ground = ground or look.palette.base
    segments = [Segment(text, ground + style if style.bgcolor is None else style) for text, style in line]
    gap = look.width - width_of(line)
    if gap > 0:
        segments.append(Segment(" " * gap, ground))
    return LineStrip(segments, max(look.width, look.width - gap))
