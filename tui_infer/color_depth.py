"""Fewer colours on the way out: sixteen, as the terminal has them, or none.

Widgets draw as ever. Each style is then taken to what the terminal's own palette has, so that nothing depends
on what that palette is: the ground becomes the terminal's ground, text its text, greys are dimmed, and what
stands on a colour is reversed. With no colours, a colour that is a ground is reversed too.
"""

from functools import lru_cache
from typing import Literal

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from tui_infer.contrast import contrast, lch

Depth = Literal["full", "16", "none"]

# What the sixteen colours stand for while widgets mix them; the terminal shows its own.
ANSI = {
    "ansi_black": "#000000", "ansi_red": "#c23a3a", "ansi_green": "#3aa03a", "ansi_yellow": "#b09a20",
    "ansi_blue": "#4a6fe0", "ansi_magenta": "#b04ac0", "ansi_cyan": "#2aa0b0", "ansi_white": "#c0c0c0",
    "ansi_bright_black": "#808080", "ansi_bright_red": "#ff6b6b", "ansi_bright_green": "#66e066",
    "ansi_bright_yellow": "#ffe066", "ansi_bright_blue": "#7fa8ff", "ansi_bright_magenta": "#f08cff",
    "ansi_bright_cyan": "#66e8f5", "ansi_bright_white": "#ffffff",
}  # fmt: skip
_NUMBERS = {Color.parse(value).rgb: number for number, value in enumerate(ANSI.values())}
_HUES = {
    number: lch(Color.parse(value))[2]
    for number, value in enumerate(ANSI.values())
    if number % 8 not in (0, 7)  # these have none
}

GREY = 0.04  # chroma below which a colour is a grey
PLAIN = 6.0  # contrast from which a grey is text, not dimmed
LIT, LIT_GREY = 2.2, 3.0  # contrast with the ground from which a ground of its own is seen
BRIGHT = 0.72  # lightness of the brighter six
_DEFAULT = RichColor.default()


class FewerColors(LineFilter):
    """Takes the styles of a theme to sixteen colours or none."""

    def __init__(self, depth: Depth, background: str) -> None:
        super().__init__()
        self._colors = depth == "16"
        self._ground = Color.parse(background)
        self._reduced = lru_cache(maxsize=8192)(self._reduce)

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        reduced = self._reduced
        return [
            Segment(text, None if style is None else reduced(style), control)
            for text, style, control in segments
        ]

    def _reduce(self, style: Style) -> Style:
        ink, ground = _color(style.color), _color(style.bgcolor)
        if style.reverse:
            ink, ground = ground or self._ground, ink
        if ground is not None and self._is_lit(ground):
            return style + Style(color=self._ansi(ground), bgcolor=_DEFAULT, reverse=True, dim=False)
        dim = bool(style.dim) or (ink is not None and _is_grey(ink) and contrast(ink, self._ground) < PLAIN)
        color = _DEFAULT if ink is None else self._ansi(ink)
        return style + Style(color=color, bgcolor=_DEFAULT, reverse=False, dim=dim)

    def _is_lit(self, ground: Color) -> bool:
        """Whether a ground is meant to be seen, and not only a little above the screen's."""
        return contrast(ground, self._ground) >= (LIT_GREY if _is_grey(ground) else LIT)

    def _ansi(self, color: Color) -> RichColor:
        if not self._colors or _is_grey(color):
            return _DEFAULT
        number = _NUMBERS.get(color.rgb)
        return RichColor.from_ansi(_nearest(color) if number is None else number)


def _color(color: RichColor | None) -> Color | None:
    return None if color is None or color.is_default else Color.from_rich_color(color)


def _is_grey(color: Color) -> bool:
    return lch(color)[1] < GREY


def _nearest(color: Color) -> int:
    """The colour of the nearest hue, of the darker six or of the brighter."""
    lightness, _, hue = lch(color)
    bright = lightness >= BRIGHT
    same = {number: value for number, value in _HUES.items() if (number > 7) == bright}
    return min(same, key=lambda number: abs((hue - same[number] + 180) % 360 - 180))
