"""Styles of the panels, resolved once a theme."""

from functools import cached_property

from rich.style import Style
from textual.color import Color
from textual.theme import Theme

from tui_infer.contrast import GRAPHICS, readable
from tui_infer.themes import inspector_colors, session_color

FILL_LEVELS = 4


class Ink:
    """Every style that panels use; Rich caches the rendering of a Style, so the same objects are reused."""

    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        colors = inspector_colors(theme)
        self._ground = self.background.hex6
        self.base = Style(bgcolor=self._ground)
        self.text = self._style(colors.text)
        self.strong = self._style(colors.text, bold=True)
        self.dim = self._style(colors.dim)
        self.faint = self._style(colors.faint)
        self.rule = self._plain(colors.rule)
        self.title = self._style(colors.title, bold=True)
        self.graph = self._style(colors.graph)
        self.eager = self._style(colors.eager)
        self.prefill = self._style(colors.prefill)
        self.schedule = self._style(colors.schedule)
        self.launch = self._style(colors.launch)
        self.device = self._style(colors.device)
        self.read = self._style(colors.read)
        self.cached = self._style(colors.cached)
        self.free = self._plain(colors.free)
        self.null = self._style(colors.null)
        self.ok = self._style(colors.ok)
        self.warn = self._style(colors.warn)
        self.error = self._style(colors.error)
        self.freed = self._style(colors.text)
        self._tiles: dict[tuple[int, int, bool, int, int, bool], Style] = {}
        self._letters: dict[int, Style] = {}
        self._cached: dict[tuple[int, int, int, int], Style] = {}
        self._shades: dict[tuple[str, int], Style] = {}

    def _style(self, color: str, bold: bool = False) -> Style:
        """For text: with the contrast that reading takes."""
        return self._plain(readable(Color.parse(color), self.background).hex6, bold)

    def _plain(self, color: str, bold: bool = False) -> Style:
        # Lines are drawn as they are: without a ground of their own the terminal's would show through.
        return Style(color=color, bgcolor=self._ground, bold=bold or None)

    @cached_property
    def background(self) -> Color:
        """What the panels stand on."""
        fallback = "#121212" if self._theme.dark else "#efefef"
        color = Color.parse(self._theme.background or fallback)
        return Color.parse(fallback) if color.ansi is not None else color

    def mode(self, mode: str) -> Style:
        """The colour of graph or eager."""
        return self.graph if mode == "graph" else self.eager

    def lit(self, style: Style) -> Style:
        """The same colour as a filled tile with the background's colour as ink."""
        return Style(color=self.background.hex6, bgcolor=style.color, bold=True)

    def load(self, share: float) -> Style:
        """Green, yellow, red by how full something is, from 0 to 1."""
        return self.ok if share < 0.75 else self.warn if share < 0.92 else self.error

    def shade(self, style: Style, percent: int) -> Style:
        """The style's colour mixed ``percent`` of the way from the background."""
        name = style.color.name if style.color else "#808080"
        key = (name, percent)
        found = self._shades.get(key)
        if found is None:
            mixed = self.background.blend(Color.parse(name), percent / 100)
            found = self._shades[key] = self._plain(mixed.hex6)
        return found

    def letter(self, color: int) -> Style:
        """A chat's letter in running text."""
        found = self._letters.get(color)
        if found is None:
            found = self._letters[color] = self._style(session_color(self._theme, color), bold=True)
        return found

    def tile(
        self, color: int, level: int, *, shared: bool, glow: int, focused: int, leaving: bool = False
    ) -> Style:
        """A cell of the block map.

        ``level`` from 0 to FILL_LEVELS says how full the block is, ``glow`` how new it is (2 the newest, 0
        not at all), ``focused`` how much it stands out: -1 fades, 1 is the focused chat, 2 the one that is
        pointed at.
        """
        key = (color, level, shared, int(glow), int(focused), leaving)
        found = self._tiles.get(key)
        if found is None:
            found = self._tiles[key] = self._make_tile(*key)
        return found

    def _make_tile(
        self, color: int, level: int, shared: bool, glow: int, focused: int, leaving: bool
    ) -> Style:
        hue = Color.parse(session_color(self._theme, color))
        if focused < 0:
            ink, ground = self.background.blend(hue, 0.45), self.background.blend(hue, 0.08)
            ink = readable(ink, ground, GRAPHICS)
            return Style(color=ink.hex6, bgcolor=ground.hex6, underline=shared, strike=leaving)
        if glow > 1 or focused > 1:
            ground = hue if level == FILL_LEVELS or glow > 1 else self.background.blend(hue, 0.75)
            ink = readable(self.background, ground)
            return Style(color=ink.hex6, bgcolor=ground.hex6, bold=True, underline=shared, strike=leaving)
        full = 0.5 if glow else 0.38 if focused else 0.27
        share = full * (0.25 + 0.75 * level / FILL_LEVELS)
        ink = hue if level == FILL_LEVELS or focused or glow else self.background.blend(hue, 0.85)
        ground = self.background.blend(hue, share)
        bold = bool(focused or glow)
        ink = readable(ink, ground)
        return Style(color=ink.hex6, bgcolor=ground.hex6, bold=bold, underline=shared, strike=leaving)

    def cached_tile(self, color: int, level: int = FILL_LEVELS, *, glow: int, focused: int = 0) -> Style:
        """Blocks that nobody holds and whose content is kept; ``level`` is their share of the cell."""
        key = (color, level, int(glow), focused)
        found = self._cached.get(key)
        if found is None:
            hue = Color.parse(session_color(self._theme, color))
            share = 0.22 if focused < 0 else 0.85 if glow or focused > 0 else 0.42
            share *= 0.7 + 0.3 * level / FILL_LEVELS
            ink = readable(self.background.blend(hue, share), self.background, GRAPHICS)
            found = self._cached[key] = self._plain(ink.hex6)
        return found

    @cached_property
    def token(self) -> Style:
        """Text of every other token."""
        return Style(color=self.text.color, bgcolor=self.background.blend(self._text_color, 0.09).hex6)

    @cached_property
    def token_odd(self) -> Style:
        """Text of the tokens between those."""
        return Style(color=self.text.color, bgcolor=self.background.blend(self._text_color, 0.2).hex6)

    @cached_property
    def _text_color(self) -> Color:
        return Color.parse(self.text.color.name if self.text.color else "#808080")

    @cached_property
    def cursor(self) -> Style:
        """The cell under the cursor: the strongest contrast that the theme has."""
        return Style(color=self._ground, bgcolor=self.strong.color, bold=True)

    @cached_property
    def marked(self) -> Style:
        """The cell under the cursor while the keys go elsewhere."""
        return Style(color=self._ground, bgcolor=self.dim.color, bold=True)
