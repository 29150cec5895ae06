"""Block-level Markdown tokens as lines of spans."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.style import Style

from tui_infer.widgets.chat.code import highlight
from tui_infer.widgets.chat.inline import inline_spans
from tui_infer.widgets.chat.palette import Palette
from tui_infer.widgets.chat.table import Cell, render_table
from tui_infer.widgets.chat.wrap import Line, cut_at_spaces, width_of, wrap

_BULLETS = ("•", "◦", "▪")
_MIN_WIDTH = 8  # below this, nesting stops to indent


@lru_cache(maxsize=1)
def parser() -> MarkdownIt:
    """CommonMark with tables and strikethrough; HTML stays text.

    Reference definitions are off: one at the end of an answer would change finished blocks before it.
    """
    markdown = MarkdownIt("commonmark", {"html": False, "linkify": False, "typographer": False})
    return markdown.enable(["table", "strikethrough"]).disable("reference")


def render_blocks(tokens: Sequence[Token], width: int, palette: Palette, style: Style) -> list[Line]:
    """Lines of a run of blocks, one blank line between two."""
    lines: list[Line] = []
    for block in split(tokens):
        if lines:
            lines.append([])
        lines += _render_block(block, width, palette, style, depth=0)
    return lines


def split(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """The tokens of each block on the level of the first."""
    start = depth = 0
    for index, token in enumerate(tokens):
        depth += token.nesting
        if depth == 0:
            yield tokens[start : index + 1]
            start = index + 1


def _render_block(
    block: Sequence[Token], width: int, palette: Palette, style: Style, depth: int
) -> list[Line]:
    head = block[0]
    match head.type:
        case "paragraph_open":
            return _paragraph(block[1], width, palette, style)
        case "heading_open":
            level = min(int(head.tag[1:]), 3) - 1
            return wrap(inline_spans(block[1].children or (), palette.heading[level], palette), width)
        case "fence" | "code_block":
            return _fence(head, width, palette)
        case "bullet_list_open" | "ordered_list_open":
            return _list(block, width, palette, style, depth)
        case "blockquote_open":
            inner = _nested(block[1:-1], width - 2, palette, palette.quote, depth)
            return [[("▎ ", palette.bullet), *line] for line in inner]
        case "table_open":
            return _table(block, width, palette, style)
        case "hr":
            return [[("─" * width, palette.rule)]]
        case _:
            return wrap([(head.content, style)], width)


def _paragraph(inline: Token, width: int, palette: Palette, style: Style) -> list[Line]:
    """Remembered with the token: of a list that grows at its end, the other items stay as they are."""
    look = (width, palette, style)
    known = inline.meta.get("lines")
    if known is not None and known[0] == look:
        return list(known[1])
    lines = wrap(inline_spans(inline.children or (), style, palette), width)
    inline.meta["lines"] = (look, lines)
    return list(lines)


def _nested(
    tokens: Sequence[Token], width: int, palette: Palette, style: Style, depth: int, tight: bool = False
) -> list[Line]:
    lines: list[Line] = []
    for block in split(tokens):
        if lines and not tight:
            lines.append([])
        lines += _render_block(block, max(width, _MIN_WIDTH), palette, style, depth)
    return lines


def _list(block: Sequence[Token], width: int, palette: Palette, style: Style, depth: int) -> list[Line]:
    items = list(split(block[1:-1]))
    ordered = block[0].type == "ordered_list_open"
    first = int(block[0].attrs.get("start", 1)) if ordered else 0
    marker_width = len(str(first + len(items) - 1)) + 2 if ordered else 2
    tight = all(token.hidden for item in items for token in item[1:-1] if token.type == "paragraph_open")
    lines: list[Line] = []
    for index, item in enumerate(items):
        label = f"{first + index}." if ordered else _BULLETS[depth % len(_BULLETS)]
        marker = f"{label:>{marker_width - 1}} " if ordered else f"{label} "
        if lines and not tight:
            lines.append([])
        inner = _nested(item[1:-1], width - marker_width, palette, style, depth + 1, tight)
        for number, line in enumerate(inner or [[]]):
            lead = (marker, palette.bullet) if number == 0 else (" " * marker_width, style)
            lines.append([lead, *line])
    return lines


def _fence(token: Token, width: int, palette: Palette) -> list[Line]:
    """A tinted box; long lines are continued on the next row, nothing is cropped. What marks such a row is no
    character, which a copy of rows would have.
    """
    language = token.info.split()[0] if token.info.split() else ""
    source = token.content.removesuffix("\n")
    lines: list[Line] = []
    if language:
        label = f" {language} "
        lines.append([(" " * max(0, width - len(label)), palette.fence), (label, palette.fence_label)])
    for line in highlight(source, language, palette):
        for number, part in enumerate(cut_at_spaces(line, max(1, width - 2))):
            gap = max(0, width - 1 - width_of(part))
            margin = palette.fence_continued if number else palette.fence
            lines.append([(" ", margin), *part, (" " * gap, palette.fence)])
    return lines


def _table(block: Sequence[Token], width: int, palette: Palette, style: Style) -> list[Line]:
    rows: list[list[Cell]] = []
    aligns: list[str] = []
    for index, token in enumerate(block):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append(inline_spans(block[index + 1].children or (), style, palette))
            if token.type == "th_open":
                aligns.append(str(token.attrs.get("style", "")).removeprefix("text-align:"))
    return render_table(rows, aligns, width, palette)
