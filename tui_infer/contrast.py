"""How far two colours are apart: WCAG contrast of luminance; lightness, colourfulness and hue of OKLab."""

import math
from functools import lru_cache

from textual.color import Color

TEXT, GRAPHICS = 4.5, 3.0  # WCAG 2.2, 1.4.3 and 1.4.11: least contrast of text, and of what is a mark


def luminance(color: Color) -> float:
    """Relative luminance of WCAG 2, from 0 to 1."""
    red, green, blue = map(_linear, color.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@lru_cache(maxsize=4096)
def contrast(first: Color, second: Color) -> float:
    """WCAG 2 contrast ratio, from 1 to 21."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@lru_cache(maxsize=4096)
def readable(color: Color, ground: Color, least: float = TEXT) -> Color:
    """The colour, or where it has too little contrast the nearest mix with black or white that has enough."""
    if contrast(color, ground) >= least:
        return color
    ends = [Color(255, 255, 255), Color(0, 0, 0)]
    end = max(ends, key=lambda end: contrast(end, ground))
    for percent in range(4, 100, 4):
        mixed = color.blend(end, percent / 100, alpha=1.0)
        if contrast(mixed, ground) >= least:
            return mixed
    return end


@lru_cache(maxsize=4096)
def lch(color: Color) -> tuple[float, float, float]:
    """Lightness (0 to 1), chroma and hue (degrees) in OKLab (Björn Ottosson, 2020)."""
    red, green, blue = map(_linear, color.normalized)
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    medium = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    lightness = 0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short
    a = 1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short
    b = 0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short
    return lightness, math.hypot(a, b), math.degrees(math.atan2(b, a)) % 360


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
