"""The card of one block: whose it is, what is in it, and what happened to it."""

from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message

from engine.records import BlockDetail
from tui_infer.mirror import BlockState
from tui_infer.sanitize import sanitize
from tui_infer.widgets.inspector.block_past import BlockPast
from tui_infer.widgets.inspector.block_words import owner_line, state_words
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line, counted, fit, gauge, joined, spread, width_of
from tui_infer.widgets.inspector.panel import Panel

LEAST_ROWS = 9
WANTED_ROWS = 20
_WORDS = {
    "allocate": "allocated to",
    "share": "shared with",
    "copy": "copied for",
    "publish": "published by",
    "release": "released by",
    "evict": "evicted from the cache",
}


class BlockCard(Panel):
    """Follows the cursor of the map. What only the engine knows is asked for with ``Asked``, and never for a
    moment of the past.
    """

    NAME = "Block"
    HINTS: ClassVar[tuple[tuple[str, str], ...]] = (("↑↓", "scroll"), ("g", "its chat"), ("esc", "close"))

    class Asked(Message):
        """The engine is to say what it knows of this block."""

        def __init__(self, block: int) -> None:
            super().__init__()
            self.block = block

    class Closed(Message):
        """The card is to go."""

    class ChatWanted(Message):
        """The text of this block is to be shown in its chat."""

        def __init__(self, block: int) -> None:
            super().__init__()
            self.block = block

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.opens = self.closes = True
        self.block: int | None = None
        self.past = BlockPast()
        self._asked: tuple[int, int] | None = None
        self._top = 0
        self._last_top = 0

    def open(self, block: int) -> None:
        """Show this block."""
        if block != self.block:
            self.block, self._top, self._asked = block, 0, None

    def close(self) -> None:
        self.block = None

    # --- drawing -------------------------------------------------------------------------------

    def caption(self, frame: Frame, width: int) -> Line:
        return [(f"{self.block:,}", frame.ink.strong)] if self.block is not None else []

    def headline(self, frame: Frame, width: int) -> Line:
        at = frame.view.at
        moment: Line = [(f"at step {at:,} · ", frame.ink.warn)] if at is not None else []
        return [*moment, ("esc closes", frame.ink.faint)]

    def body(self, frame: Frame, width: int, height: int) -> list[Line]:
        mirror, block = frame.view.mirror, self.block
        if block is None or block >= mirror.num_blocks:
            return []
        self.past.update(frame.view.history, block)
        self._ask(frame, block)
        head = [self._state(frame, block, width), *self._owners(frame, block, width)]
        engine = self._engine(frame, block)
        if engine:
            head.append(engine)
        rest = [*self._text(frame, block, width), *self._history(frame)]
        room = max(1, height - len(head))
        self._last_top = max(0, len(rest) - room)
        self._top = min(self._top, self._last_top)
        shown = rest[self._top : self._top + room]
        left = len(rest) - self._top - len(shown)
        if left and shown:
            shown[-1] = spread(shown[-1], [(f"↓ {left + 1} more", frame.ink.faint)], width, frame.ink.base)
        return [*head, *shown]

    def _ask(self, frame: Frame, block: int) -> None:
        """Ask the engine once for each change of the block."""
        if frame.view.at is not None or block == 0:
            return
        key = (block, frame.view.mirror.last_change_step(block))
        if key != self._asked:
            self._asked = key
            self.call_later(self._send_question, block)

    def _send_question(self, block: int) -> None:
        """In the card's own turn: a message of somebody else's turn would not get beyond that one."""
        self.post_message(self.Asked(block))

    def _state(self, frame: Frame, block: int, width: int) -> Line:
        ink, mirror = frame.ink, frame.view.mirror
        state, size = mirror.state(block), mirror.block_size
        words = state_words(mirror, block)
        styles = {
            BlockState.USED: ink.strong,
            BlockState.CACHED: ink.cached,
            BlockState.NULL: ink.null,
            BlockState.FREE: ink.text,
        }
        line: Line = [(words, styles[state])]
        references = len(mirror.references(block))
        if state == BlockState.USED:
            line.append((f" · {counted(references, 'reference')}", ink.text))
            latest = frame.latest
            if latest is not None and set(mirror.references(block)) <= set(latest.finished):
                line.append((" · waits for its release", ink.warn))
        if state in (BlockState.USED, BlockState.CACHED):
            fill = mirror.fill(block)
            end = (" · published" if mirror.published(block) else " · private", ink.dim)
            held = f" · {fill}/{size}"
            line.append((held, ink.text))
            if width_of([*line, end]) + 7 <= width:
                line[-1] = (f"{held} tokens", ink.text)
            if width_of([*line, end]) + 9 <= width:
                line += [(" ", ink.dim), *gauge(fill / size, 8, ink.ok, ink.free)]
            line.append(end)
        elif state == BlockState.NULL:
            line.append((" · all zero; padded rows of a batch write here", ink.dim))
        elif mirror.last_change_step(block) < 0:
            line.append((" · never used", ink.dim))
        else:
            line.append((f" · since step {mirror.last_change_step(block):,}", ink.dim))
        return fit(line, width)

    def _owners(self, frame: Frame, block: int, width: int) -> list[Line]:
        """Each holder with its logical index and title; of a cached block who held it last."""
        ink, mirror = frame.ink, frame.view.mirror
        owners = list(mirror.references(block).items())
        label = "held by "
        if not owners and mirror.state(block) == BlockState.CACHED:
            last = self.past.last_holder()
            known = mirror.last_owner(block)
            owners = [last] if last is not None else [(known, -1)] if known is not None else []
            label = "last held by "
        if not owners:
            return []
        room = width - len(label)
        groups = [owner_line(frame, request, index if index >= 0 else None) for request, index in owners]
        titled = [
            [*group, (f" {tag.title}", ink.dim)] if tag is not None else group
            for group, tag in zip(groups, (frame.tag(request) for request, _ in owners))
        ]
        one_by_one = len(owners) == 1 or sum(width_of(group) + 2 for group in titled) <= room + 2
        shown = titled if one_by_one else groups
        return [[(label, ink.dim), *(joined(shown, ("  ", ink.dim), room) or fit(shown[0], room))]]

    def _engine(self, frame: Frame, block: int) -> Line:
        """Hash and last use, which only the engine knows; nothing while they are not here yet."""
        detail = self._detail(frame, block)
        if detail is None:
            return []
        ink = frame.ink
        line: Line = [("last used ", ink.dim), (f"step {detail.last_used:,}", ink.text)]
        if detail.hash:
            line += [(" · hash ", ink.dim), (sanitize(detail.hash), ink.text)]
        return line

    def _detail(self, frame: Frame, block: int) -> BlockDetail | None:
        """The engine's answer, where it is about this block and this moment."""
        detail = frame.view.detail
        return detail if detail is not None and detail.block == block and frame.view.at is None else None

    # --- text ----------------------------------------------------------------------------------

    def pieces(self, frame: Frame, block: int) -> list[str] | None:
        """Text of the block's tokens at this moment; None where nobody knows it."""
        mirror = frame.view.mirror
        owners = list(mirror.references(block).items())
        last = self.past.last_holder()
        if not owners and mirror.state(block) == BlockState.CACHED and last is not None:
            owners = [last]
        fill = mirror.fill(block)
        for request, index in owners:
            if frame.view.pieces is not None and fill:
                start = index * mirror.block_size
                found = frame.view.pieces(request, start, start + fill)
                if found is not None:
                    return found
        detail = self._detail(frame, block)
        if detail is not None and detail.pieces and fill:
            return detail.pieces[:fill]
        return None

    def _text(self, frame: Frame, block: int, width: int) -> list[Line]:
        ink, mirror = frame.ink, frame.view.mirror
        if mirror.state(block) not in (BlockState.USED, BlockState.CACHED):
            return []
        title: Line = [("Text", ink.title)]
        pieces = self.pieces(frame, block)
        if pieces is None:
            return [[*title, (" of its tokens is not known", ink.dim)]]
        return [title, *token_lines(pieces, width, (ink.token, ink.token_odd))]

    def _history(self, frame: Frame) -> list[Line]:
        ink, past = frame.ink, self.past.events
        oldest = frame.view.history[0].index if len(frame.view.history) else 0
        if not past:
            since = f" none since step {oldest:,}" if oldest else " no step changed it"
            return [[("History", ink.title), (since, ink.dim)]]
        digits = len(f"{past[-1].step:,}") + 1
        lines: list[Line] = [[("History", ink.title), (", newest first", ink.dim)]]
        for event in reversed(past):
            line: Line = [(f"{event.step:>{digits},}  ", ink.dim), (_WORDS[event.kind], ink.text)]
            if event.request >= 0:
                line += [(" ", ink.text), *owner_line(frame, event.request, event.index)]
                tag = frame.tag(event.request)
                if tag is not None:
                    line.append((f"  {tag.title}", ink.faint))
            lines.append(line)
        return lines

    # --- keys and mouse ------------------------------------------------------------------------

    def scroll_rows(self, rows: int) -> None:
        top = max(0, min(self._top + rows, self._last_top))
        if top != self._top:
            self._top = top
            self.redraw()

    def on_key(self, event: events.Key) -> None:
        steps = {"up": -1, "down": 1, "pageup": -6, "pagedown": 6, "home": -1 << 20, "end": 1 << 20}
        if event.key in steps:
            self.scroll_rows(steps[event.key])
        elif event.key == "g" and self.block is not None:
            self.post_message(self.ChatWanted(self.block))
        elif event.key in ("escape", "enter"):
            self.post_message(self.Closed())
        else:
            return
        event.stop()
        event.prevent_default()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if event.y == 0 and event.x >= self.size.width - 16:
            self.post_message(self.Closed())

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_rows(-2)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_rows(2)


def holder_of(frame: Frame, block: int) -> tuple[int, int] | None:
    """``(request, logical index)`` of the chat that a block belongs to: the focused one where it holds it,
    else the first holder, else whoever held the cached block last.
    """
    mirror, history = frame.view.mirror, frame.view.history
    owners = mirror.references(block)
    focused = frame.view.focused_request
    if focused is not None and focused in owners:
        return focused, owners[focused]
    if owners:
        return next(iter(owners.items()))
    if mirror.state(block) != BlockState.CACHED:
        return None
    past = BlockPast()
    past.update(history, block)
    return past.last_holder()


def token_lines(pieces: list[str], width: int, styles: tuple[Style, Style]) -> list[Line]:
    """Tokens in turn on two grounds, so that their limits show; line ends are drawn as ``↵``."""
    lines: list[Line] = [[]]
    used = 0
    for number, piece in enumerate(pieces):
        text = sanitize(piece).replace("\n", "↵").replace("\t", "→") or "∅"
        while text:
            room = width - used
            head = text
            while cell_len(head) > room and head:
                head = head[:-1]
            if not head or (len(head) < len(text) and used and cell_len(text) <= width):
                if not used:
                    break  # a character wider than the card
                lines.append([])
                used = 0
                continue
            lines[-1].append((head, styles[number % 2]))
            used += cell_len(head)
            text = text[len(head) :]
    return [line for line in lines if line]


def with_card(places: dict[str, Region], size: Size) -> dict[str, Region]:
    """The places of the panels with a card over some that are not the map; where there is no room but the
    map's own, it gives way.
    """
    if "kv" not in places:
        return {**places, "card": Region(0, 0, size.width, size.height)}
    kv = places["kv"]
    beside = Region(0 if kv.x else kv.right, 0, kv.x or size.width - kv.right, size.height)
    top = min(region.y for region in places.values())
    above = Region(kv.x, top, kv.width, kv.y - top)
    below = Region(kv.x, kv.bottom, kv.width, size.height - kv.bottom)
    best = max((below, above, beside), key=lambda area: min(area.height, WANTED_ROWS) * (area.width > 30))
    if best.width > 30 and best.height >= LEAST_ROWS:
        # What would be left of the panels under it is taken too where it is too little to read.
        height = WANTED_ROWS if best.height >= WANTED_ROWS + LEAST_ROWS else best.height
        y = best.bottom - height if best is above else best.y
        return {**places, "card": Region(best.x, y, best.width, height)}
    # No panel leaves enough room: the map above, the card below, and nothing else.
    rows = size.height - top
    height = max(LEAST_ROWS, rows * 55 // 100)
    if rows - height < 4:
        return {"card": Region(kv.x, top, kv.width, rows)}
    return {
        "kv": Region(kv.x, top, kv.width, rows - height),
        "card": Region(kv.x, top + rows - height, kv.width, height),
    }
