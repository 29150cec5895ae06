"""Styles of the panels, resolved once a theme."""

from functools import cached_property

from rich.style import Style
from textual.color import Color
from textual.theme import Theme

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
        self.rule = self._style(colors.rule)
        self.title = self._style(colors.title, bold=True)
        self.graph = self._style(colors.graph)
        self.eager = self._style(colors.eager)
        self.prefill = self._style(colors.prefill)
        self.schedule = self._style(colors.schedule)
        self.launch = self._style(colors.launch)
        self.device = self._style(colors.device)
        self.read = self._style(colors.read)
        self.cached = self._style(colors.cached)
        self.free = self._style(colors.free)
        self.null = self._style(colors.null)
        self.ok = self._style(colors.ok)
        self.warn = self._style(colors.warn)
        self.error = self._style(colors.error)
        self.freed = self._style(colors.text)
        self._tiles: dict[tuple[int, int, bool, bool, bool], Style] = {}
        self._letters: dict[int, Style] = {}
        self._cached: dict[tuple[int, bool], Style] = {}
        self._shades: dict[tuple[str, int], Style] = {}

    def _style(self, color: str, bold: bool = False) -> Style:
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
            found = self._shades[key] = self._style(mixed.hex6)
        return found

    def letter(self, color: int) -> Style:
        """A chat's letter in running text."""
        found = self._letters.get(color)
        if found is None:
            found = self._letters[color] = self._style(session_color(self._theme, color), bold=True)
        return found

    def tile(self, color: int, level: int, *, shared: bool, glow: bool, focused: bool) -> Style:
        """A cell of the block map: ``level`` from 0 to FILL_LEVELS says how full the block is."""
        key = (color, level, shared, glow, focused)
        found = self._tiles.get(key)
        if found is None:
            found = self._tiles[key] = self._make_tile(*key)
        return found

    def _make_tile(self, color: int, level: int, shared: bool, glow: bool, focused: bool) -> Style:
        hue = Color.parse(session_color(self._theme, color))
        if glow:
            return Style(color=self.background.hex6, bgcolor=hue.hex6, bold=True, underline=shared)
        full = 0.38 if focused else 0.27
        share = full * (0.25 + 0.75 * level / FILL_LEVELS)
        ink = hue if level == FILL_LEVELS or focused else self.background.blend(hue, 0.85)
        ground = self.background.blend(hue, share)
        return Style(color=ink.hex6, bgcolor=ground.hex6, bold=focused, underline=shared)

    def cached_tile(self, color: int, *, glow: bool) -> Style:
        """A block that nobody holds and whose content is kept."""
        key = (color, glow)
        found = self._cached.get(key)
        if found is None:
            hue = Color.parse(session_color(self._theme, color))
            ink = self.background.blend(hue, 0.85 if glow else 0.42)
            found = self._cached[key] = self._style(ink.hex6)
        return found
