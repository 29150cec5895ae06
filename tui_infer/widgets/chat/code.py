"""Code blocks: colours from pygments' tokens, through the theme's own palette."""

from functools import lru_cache
from typing import Any

from rich.style import Style
from textual.color import Color

from tui_infer.contrast import readable
from tui_infer.widgets.chat.palette import Palette
from tui_infer.widgets.chat.wrap import Line, expand_tabs

MAX_HIGHLIGHT = 60_000  # characters; a lexer may take seconds for more


def highlight(source: str, language: str, palette: Palette) -> list[Line]:
    """Lines of spans, one per line of ``source``; plain where the language is unknown or the text huge."""
    source = expand_tabs(source)
    lexer = _lexer(language.lower()) if len(source) <= MAX_HIGHLIGHT else None
    if lexer is None:
        return [[(line, palette.fence)] for line in source.split("\n")]
    lines: list[Line] = [[]]
    for _, kind, text in lexer.get_tokens_unprocessed(source):
        style = _style_of(kind, palette)
        first, *rest = text.split("\n")
        if first:
            lines[-1].append((first, style))
        for part in rest:
            lines.append([(part, style)] if part else [])
    if "\n".join("".join(text for text, _ in line) for line in lines) != source:
        return [[(line, palette.fence)] for line in source.split("\n")]  # a lexer that drops or adds text
    return lines


@lru_cache(maxsize=1024)
def _style_of(kind: Any, palette: Palette) -> Style:
    """The theme's Pygments style on the palette's own ground, with the contrast that reading takes."""
    from pygments.styles import get_style_by_name
    from pygments.util import ClassNotFound

    try:
        token = get_style_by_name(palette.syntax).style_for_token(kind)
    except ClassNotFound:
        return palette.fence
    color = None
    if token["color"] and palette.fence.bgcolor is not None:
        wanted = Color.parse(f"#{token['color']}")
        color = readable(wanted, Color.from_rich_color(palette.fence.bgcolor)).rich_color
    return palette.fence + Style(color=color, bold=token["bold"] or None, italic=token["italic"] or None)


@lru_cache(maxsize=32)
def _lexer(language: str) -> Any:
    if not language:
        return None
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
