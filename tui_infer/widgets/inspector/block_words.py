"""What is known of one block, in words: for the line under the map and for the card."""

from tui_infer.mirror import BlockMirror, BlockState
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line, counted


def owner_line(frame: Frame, request: int, index: int | None) -> Line:
    """``A[2]``: the chat's letter and the logical index; the request's number where the chat is unknown."""
    ink, tag = frame.ink, frame.tag(request)
    name = (tag.letter, ink.letter(tag.color)) if tag else (f"request {request} ", ink.text)
    return [name, (f"[{index}]", ink.text)] if index is not None else [name]


def state_words(mirror: BlockMirror, block: int) -> str:
    """``free``, ``cached``, ``null`` or ``used``."""
    return BlockState(mirror.states[block]).name.lower()


def block_line(frame: Frame, block: int) -> Line:
    """One line on a block: number, state, owners with their logical index, fill."""
    ink, mirror = frame.ink, frame.view.mirror
    state = mirror.state(block)
    line: Line = [("block ", ink.dim), (f"{block:,}", ink.strong), (" ", ink.dim)]
    if state == BlockState.USED:
        owners = mirror.references(block)
        for number, (request, index) in enumerate(list(owners.items())[:6]):
            line += [("+" if number else "", ink.faint), *owner_line(frame, request, index)]
        if len(owners) > 6:
            line.append((f"+{len(owners) - 6}", ink.text))
        fill = mirror.fill(block)
        full = "full" if fill == mirror.block_size else f"{fill}/{mirror.block_size}"
        line.append((f" · {full}", ink.text))
        if len(owners) > 1:
            line.append((f" · shared by {len(owners)}", ink.text))
    elif state == BlockState.CACHED:
        owner = mirror.last_owner(block)
        line.append(("cached", ink.cached))
        if owner is not None:
            line += [(", last of ", ink.dim), *owner_line(frame, owner, None)]
    elif state == BlockState.NULL:
        line.append(("null: padded rows write here", ink.dim))
    else:
        never = mirror.last_change_step(block) < 0
        line.append(("free, never used" if never else "free", ink.dim))
    return line


def range_line(frame: Frame, block: int, count: int) -> Line:
    """One line on a cell of the density map."""
    ink, mirror = frame.ink, frame.view.mirror
    last = min(block + count, mirror.num_blocks) - 1
    states = mirror.states[block : last + 1]
    used, cached = states.count(BlockState.USED), states.count(BlockState.CACHED)
    return [
        ("blocks ", ink.dim),
        (f"{block:,}–{last:,}", ink.strong),
        (f" · {used:,} used", ink.text),
        (f" · {cached:,} cached", ink.cached),
        (f" · {counted(len(states), 'block')}", ink.dim),
    ]
