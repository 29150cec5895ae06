"""The styles of the chat side, made from the app's theme."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rich.style import Style
from textual.color import Color

from tui_infer.contrast import readable

TEXT_SHARE = 0.35  # of a colour from which it is for text, and not for rules


@dataclass(frozen=True)
class Palette:
    """Rich styles, all with foreground and background. One instance per theme: it is a cache key."""

    base: Style
    muted: Style
    faint: Style
    user: Style
    heading: tuple[Style, Style, Style]
    strong: Style
    code: Style
    link: Style
    quote: Style
    bullet: Style
    rule: Style
    fence: Style
    fence_label: Style
    fence_continued: Style
    error: Style
    warning: Style
    success: Style
    marker: Style
    thumb: Style
    syntax: str

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@lru_cache(maxsize=16)
def palette_of(theme: str, variables: tuple[tuple[str, str], ...], syntax: str) -> Palette:
    """The one palette of a theme, the same object each time; ``theme`` is there for the cache."""
    values = dict(variables)
    return make_palette(values, _color(values, "background", Color.parse("#121212")), syntax)


def make_palette(variables: Mapping[str, str], background: Color, syntax: str) -> Palette:
    """Styles from Textual's theme variables; missing or odd values fall back to the foreground.

    ``syntax`` names the Pygments style of code.
    """
    foreground = _color(variables, "foreground", background.get_contrast_text(1.0))

    def color(name: str, share: float = 1.0, over: Color | None = None) -> Color:
        value = _color(variables, name, foreground)
        return (over or background).blend(value, share * value.a, alpha=1.0)

    def style(name: str, share: float = 1.0, over: Color | None = None, **attributes: Any) -> Style:
        ground = over or background
        ink = color(name, share, over)
        if name != "scrollbar" and share >= TEXT_SHARE:
            ink = readable(ink, ground)
        return Style(color=ink.rich_color, bgcolor=ground.rich_color, **attributes)

    raised = background.blend(foreground, 0.06, alpha=1.0)
    inline = background.blend(foreground, 0.10, alpha=1.0)
    return Palette(
        base=style("foreground"),
        muted=style("foreground", 0.62),
        faint=style("foreground", 0.38),
        user=style("foreground", over=raised),
        heading=(
            style("primary", bold=True, underline=True),
            style("primary", bold=True),
            style("secondary", bold=True),
        ),
        strong=Style(bold=True),
        code=style("accent", over=inline),
        link=style("secondary", underline=True),
        quote=style("foreground", 0.75, italic=True),
        bullet=style("primary"),
        rule=style("foreground", 0.25),
        fence=style("foreground", over=raised),
        fence_label=style("foreground", 0.5, over=raised),
        # Of the cell before a row that goes on with the line above; reversed: it shows without colours too.
        fence_continued=style("foreground", 0.18, over=raised, reverse=True),
        error=style("error"),
        warning=style("warning"),
        success=style("success"),
        marker=Style(
            color=background.rich_color,
            bgcolor=_color(variables, "primary", foreground).rich_color,
            bold=True,
        ),
        thumb=style("scrollbar"),
        syntax=syntax,
    )


def _color(variables: Mapping[str, str], name: str, fallback: Color) -> Color:
    try:
        return Color.parse(variables[name])
    except Exception:  # "auto 87%" and the like are valid theme values without a colour of their own
        return fallback
