"""Themes as data: TOML files in, Textual themes out, and one line for each file that cannot be used."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from pygments.styles import get_all_styles  # type: ignore[import-untyped, unused-ignore]
from textual.color import Color, ColorParseError
from textual.theme import Theme

from tui_infer.color_depth import ANSI, Depth
from tui_infer.locations import theme_dirs

DARK, LIGHT = "dark", "light"
PALETTE_SIZE = 12

_COLORS = (
    "primary",
    "secondary",
    "accent",
    "success",
    "warning",
    "error",
    "foreground",
    "background",
    "surface",
    "panel",
)
_TOP_LEVEL = {"name", "dark", "code", "depth", "base", "colors", "variables", "sessions", "inspector"}
_NAME = re.compile(r"[\w][\w .+-]{0,39}")
_VARIABLE = re.compile(r"[a-z][a-z0-9-]*")
_TEXT_STYLE = re.compile(r"(none|bold|dim|italic|underline|reverse|strike|not|auto|\s|[bui])+")


@dataclass(frozen=True, slots=True)
class InspectorColors:
    """Colours of the inspector as ``#rrggbb``."""

    text: str
    dim: str
    faint: str
    rule: str
    title: str
    graph: str
    eager: str
    prefill: str
    schedule: str
    launch: str
    device: str
    read: str
    cached: str
    free: str
    null: str
    ok: str
    warn: str
    error: str


@dataclass
class AppTheme(Theme):
    """A Textual theme that also knows the chats' palette, the inspector's colours and the code style.

    ``depth`` says how many colours the terminal gets: all, its own sixteen, or none.
    """

    code: str = "default"
    depth: Depth = "full"
    palette: tuple[str, ...] = ()
    inspector: InspectorColors | None = None
    source: str = ""


class ThemeProblem(ValueError):
    """A theme file that cannot be used; the text names the key and says why."""


# --- what the app asks -----------------------------------------------------------------------------


def load_themes(folders: Sequence[Path] | None = None) -> tuple[list[Theme], list[str]]:
    """All usable themes, and a line for each file that is not: its name, the key and the reason.

    ``folders`` are read in order and later ones win, so that a user's file may replace a shipped one of
    the same name; a broken file replaces nothing. None takes the shipped folder, then the user's.
    """
    found: dict[str, dict[str, Any]] = {}
    themes: dict[str, Theme] = {}
    problems: list[str] = []
    for folder in theme_dirs() if folders is None else folders:
        for path in sorted(folder.glob("*.toml")):
            try:
                data = _read(path)
                theme = parse_theme(data, bases=found, source=str(path))
            except ThemeProblem as problem:
                problems.append(f"{path.name}: {problem}")
            else:
                found[theme.name] = _merged(data, found)
                themes[theme.name] = theme
    return list(themes.values()), problems


def choose_theme(name: str, themes: Iterable[Theme]) -> tuple[str, str]:
    """``(theme to use, problem)``: the built-in dark theme and the reason when ``name`` is not there."""
    names = [theme.name for theme in themes]
    if name in names:
        return name, ""
    fallback = DARK if DARK in names else (names[0] if names else "textual-dark")
    known = ", ".join(sorted(names)) or "none"
    return fallback, f"unknown theme {name!r}: using {fallback!r}. Known themes: {known}."


def session_colors(theme: Theme) -> list[str]:
    """Twelve well separated colours for chats; a theme that brings none gets evenly spaced hues."""
    if isinstance(theme, AppTheme) and theme.palette:
        return list(theme.palette)
    lightness, saturation = (0.70, 0.62) if theme.dark else (0.34, 0.70)
    hues = (step * 5 % PALETTE_SIZE / PALETTE_SIZE for step in range(PALETTE_SIZE))
    return [Color.from_hsl(hue, saturation, lightness).hex for hue in hues]


def session_color(theme: Theme, index: int) -> str:
    """The colour of the chat with this index; indexes beyond the palette start over, -1 is nobody's chat."""
    if index < 0:
        return inspector_colors(theme).dim
    palette = session_colors(theme)
    return palette[index % len(palette)]


def inspector_colors(theme: Theme) -> InspectorColors:
    """Colours of the panels; a theme that brings none gets them from its own colours."""
    if isinstance(theme, AppTheme) and theme.inspector is not None:
        return theme.inspector
    system = theme.to_color_system().generate()

    def plain(name: str) -> Color:
        color = Color.parse(system[name])
        return Color.parse("#808080") if color.ansi is not None else Color(*color.rgb)

    foreground, background = plain("foreground"), plain("background")
    success, warning, error = plain("success").hex, plain("warning").hex, plain("error").hex
    return InspectorColors(
        text=foreground.hex,
        dim=foreground.blend(background, 0.40).hex,
        faint=foreground.blend(background, 0.70).hex,
        rule=foreground.blend(background, 0.80).hex,
        title=foreground.blend(background, 0.20).hex,
        graph=success,
        eager=warning,
        prefill=plain("accent").hex,
        schedule=foreground.blend(background, 0.50).hex,
        launch=plain("primary").hex,
        device=success,
        read=plain("secondary").hex,
        cached=foreground.blend(background, 0.45).hex,
        free=foreground.blend(background, 0.75).hex,
        null=foreground.blend(background, 0.55).hex,
        ok=success,
        warn=warning,
        error=error,
    )


def code_style(theme: Theme) -> str:
    """Name of the Pygments style for code in answers."""
    if isinstance(theme, AppTheme):
        return theme.code
    return "one-dark" if theme.dark else "xcode"


# --- from a file to a theme ------------------------------------------------------------------------


def parse_theme(
    data: Mapping[str, Any], *, bases: Mapping[str, Mapping[str, Any]] | None = None, source: str = ""
) -> AppTheme:
    """A theme from the content of a TOML file.

    ``bases`` are the contents of the themes read before, by name, for ``base = "..."``.

    Raises:
        ThemeProblem: naming the key that is missing, unknown or has a bad value.
    """
    _refuse_unknown("", data, _TOP_LEVEL)
    data = _merged(data, bases or {})
    name = _typed(data, "name", str, "a string")
    if not _NAME.fullmatch(name):
        raise ThemeProblem(f"name = {name!r} must be 1 to 40 letters, digits, spaces, '.', '+', '-' or '_'")
    code = data.get("code", "default")
    if code not in set(get_all_styles()):
        raise ThemeProblem(f"code = {code!r} is not a Pygments style")
    depth = data.get("depth", "full")
    if depth not in get_args(Depth):
        raise ThemeProblem(f"depth = {depth!r} must be one of {', '.join(map(repr, get_args(Depth)))}")
    if depth == "16":
        data = _with_nominal_colors(data)
    colors = _section_of_colors(data, "colors", _COLORS)
    panel_colors = _section_of_colors(data, "inspector", [item.name for item in fields(InspectorColors)])
    palette = _palette(data)
    variables = _variables(data)
    variables |= {f"session-{number}": color for number, color in enumerate(palette, 1)}
    variables |= {f"inspector-{key}": color for key, color in panel_colors.items()}
    return AppTheme(
        name=name,
        dark=_typed(data, "dark", bool, "true or false"),
        variables=variables,
        code=code,
        depth=depth,
        palette=palette,
        inspector=InspectorColors(**panel_colors),
        source=source,
        primary=colors["primary"],
        secondary=colors["secondary"],
        accent=colors["accent"],
        success=colors["success"],
        warning=colors["warning"],
        error=colors["error"],
        foreground=colors["foreground"],
        background=colors["background"],
        surface=colors["surface"],
        panel=colors["panel"],
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise ThemeProblem(f"not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ThemeProblem(f"cannot be read: {error}") from error


def _merged(data: Mapping[str, Any], bases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """``data`` over the theme that it names as its base."""
    name = data.get("base")
    if name is None:
        return dict(data)
    if not isinstance(name, str) or name not in bases:
        raise ThemeProblem(
            f"base = {name!r} is not a theme; known here: {', '.join(sorted(bases)) or 'none'}"
        )
    merged = {**bases[name], **{key: value for key, value in data.items() if key != "base"}}
    for section in ("colors", "variables", "sessions", "inspector"):
        own = data.get(section)
        if isinstance(own, dict):
            merged[section] = {**bases[name].get(section, {}), **own}
    if "name" not in data:
        raise ThemeProblem("name is missing")
    return merged


def _refuse_unknown(section: str, data: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in data:
        if key not in known:
            where = f"{section}.{key}" if section else key
            raise ThemeProblem(f"{where} is unknown; known here: {', '.join(sorted(known))}")


def _with_nominal_colors(value: Any) -> Any:
    """The names of the terminal's sixteen colours become what they stand for, wherever they are."""
    if isinstance(value, dict):
        return {key: _with_nominal_colors(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_nominal_colors(inner) for inner in value]
    return ANSI.get(value, value) if isinstance(value, str) else value


def _typed(data: Mapping[str, Any], key: str, kind: type, words: str) -> Any:
    if key not in data:
        raise ThemeProblem(f"{key} is missing")
    value = data[key]
    if not isinstance(value, kind):
        raise ThemeProblem(f"{key} = {value!r} must be {words}")
    return value


def _section_of_colors(data: Mapping[str, Any], section: str, keys: Sequence[str]) -> dict[str, str]:
    table = _typed(data, section, dict, "a table")
    _refuse_unknown(section, table, keys)
    missing = [key for key in keys if key not in table]
    if missing:
        raise ThemeProblem(f"{section}.{missing[0]} is missing")
    return {key: _color(f"{section}.{key}", table[key]) for key in keys}


def _palette(data: Mapping[str, Any]) -> tuple[str, ...]:
    table = _typed(data, "sessions", dict, "a table")
    _refuse_unknown("sessions", table, ["palette"])
    colors = table.get("palette")
    if not isinstance(colors, list) or len(colors) != PALETTE_SIZE:
        count = f"{len(colors)} entries" if isinstance(colors, list) else repr(colors)
        raise ThemeProblem(f"sessions.palette must be a list of {PALETTE_SIZE} colours, not {count}")
    return tuple(_color(f"sessions.palette[{index}]", color) for index, color in enumerate(colors))


def _color(key: str, value: object) -> str:
    """``#rrggbb`` of a colour; alpha and terminal colours would make contrast a guess."""
    try:
        color = Color.parse(value) if isinstance(value, str) else None
    except ColorParseError:
        color = None
    if color is None or color.ansi is not None or color.a != 1:
        raise ThemeProblem(f'{key} = {value!r} is not a solid colour such as "#67b9fb"')
    return color.hex6.lower()


def _variables(data: Mapping[str, Any]) -> dict[str, str]:
    table = data.get("variables", {})
    if not isinstance(table, dict):
        raise ThemeProblem(f"variables = {table!r} must be a table")
    for key, value in table.items():
        if not _VARIABLE.fullmatch(key):
            raise ThemeProblem(f"variables.{key} is not a name of lower-case letters, digits and '-'")
        if not (isinstance(value, str) and (_TEXT_STYLE.fullmatch(value) or _is_color_with_alpha(value))):
            raise ThemeProblem(f"variables.{key} = {value!r} is neither a colour nor a text style")
    return dict(table)


def _is_color_with_alpha(value: str) -> bool:
    """``<colour>`` or ``<colour> <percent>%``, as style sheets write it."""
    color, _, alpha = value.strip().partition(" ")
    try:
        Color.parse(color)
    except ColorParseError:
        return color == "auto" and re.fullmatch(r"\d{1,3}%", alpha.strip()) is not None
    return not alpha or re.fullmatch(r"\d{1,3}%", alpha.strip()) is not None
