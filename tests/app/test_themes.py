"""Themes: the shipped ones are legible, broken files are told and never fatal."""

import itertools
from pathlib import Path

import pytest
from textual.app import App
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from tests.app.driving import ask, running, settled
from tests.app.scripted import ScriptedClient
from tui_infer.config import Settings
from tui_infer.locations import bundled_themes_dir, theme_dirs
from tui_infer.themes import (
    PALETTE_SIZE,
    AppTheme,
    choose_theme,
    code_style,
    inspector_colors,
    load_themes,
    session_color,
    session_colors,
)
from tui_infer.widgets.chat.code import highlight
from tui_infer.widgets.chat.palette import Palette, make_palette
from tui_infer.widgets.inspector.ink import Ink

SHIPPED = {
    theme.name: theme for theme in load_themes([bundled_themes_dir()])[0] if isinstance(theme, AppTheme)
}
# Of the others the terminal's palette decides: what they show is in test_color_depth.py.
COLORED = {name: theme for name, theme in SHIPPED.items() if theme.depth == "full"}


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast ratio, from 1 to 21."""

    def luminance(color: str) -> float:
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in Color.parse(color).normalized
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def oklab(color: str) -> tuple[float, float, float]:
    """OKLab coordinates (Björn Ottosson, 2020)."""
    r, g, b = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in Color.parse(color).normalized
    )
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    medium = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def distance(first: str, second: str) -> float:
    return sum((a - b) ** 2 for a, b in zip(oklab(first), oklab(second))) ** 0.5


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def shipped_text(name: str = "dark") -> str:
    return (bundled_themes_dir() / f"{name}.toml").read_text(encoding="utf-8")


def test_a_dark_and_a_light_theme_are_shipped_without_problems() -> None:
    themes, problems = load_themes([bundled_themes_dir()])
    assert not problems
    assert {(theme.name, theme.dark) for theme in themes} >= {("dark", True), ("light", False)}


def test_the_shipped_themes_are_for_every_eye_and_every_terminal() -> None:
    assert set(SHIPPED) >= {"dark", "light", "high-contrast", "colorblind", "16-colors", "no-color"}
    assert len(COLORED) >= 6
    assert {theme.depth for theme in SHIPPED.values()} == {"full", "16", "none"}


@pytest.mark.parametrize("theme", COLORED.values(), ids=COLORED)
def test_text_has_the_contrast_that_reading_takes(theme: AppTheme) -> None:
    colors = inspector_colors(theme)
    ground = theme.background
    assert ground
    for text in (theme.foreground, colors.text):
        assert text
        assert contrast(text, ground) >= 10
    for text in (theme.primary, theme.error, theme.warning, theme.success, *session_colors(theme)):
        assert text
        assert contrast(text, ground) >= 4.5, text
    for text in (colors.dim, colors.title, colors.graph, colors.eager, colors.prefill, colors.error):
        assert contrast(text, ground) >= 4.5, text


# What eyes without one kind of cones see, on linear sRGB (Machado, Oliveira and Fernandes, 2009).
BLINDNESS = {
    "protanopia": (
        0.152286,
        1.052583,
        -0.204868,
        0.114503,
        0.786281,
        0.099216,
        -0.003882,
        -0.048116,
        1.051998,
    ),
    "deuteranopia": (
        0.367322,
        0.860646,
        -0.227968,
        0.280085,
        0.672501,
        0.047413,
        -0.011820,
        0.042940,
        0.968881,
    ),
}


def seen(color: str, matrix: tuple[float, ...]) -> str:
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in Color.parse(color).normalized
    ]
    mixed = [sum(a * b for a, b in zip(matrix[row * 3 : row * 3 + 3], linear)) for row in range(3)]
    encoded = [
        12.92 * p if p <= 0.0031308 else 1.055 * p ** (1 / 2.4) - 0.055 for p in (max(0, m) for m in mixed)
    ]
    return "#" + "".join(f"{round(255 * min(1.0, part)):02x}" for part in encoded)


@pytest.mark.parametrize("kind", BLINDNESS)
def test_in_the_colour_blind_theme_what_differs_in_meaning_differs_for_every_eye(kind: str) -> None:
    theme, matrix = SHIPPED["colorblind"], BLINDNESS[kind]
    colors = inspector_colors(theme)
    for first, second in (
        (colors.graph, colors.eager),
        (colors.eager, colors.prefill),
        (colors.graph, colors.prefill),
        (colors.ok, colors.error),
        (colors.ok, colors.warn),
        (colors.warn, colors.error),
        (colors.launch, colors.read),
    ):
        assert distance(seen(first, matrix), seen(second, matrix)) > 0.08, (first, second)
    for first, second in itertools.pairwise(session_colors(theme)[:6]):
        assert distance(seen(first, matrix), seen(second, matrix)) > 0.08, (first, second)


def test_the_theme_of_high_contrast_has_seven_to_one_for_all_text() -> None:
    theme = SHIPPED["high-contrast"]
    assert theme.background
    assert theme.panel
    colors = inspector_colors(theme)
    texts = [theme.foreground, theme.primary, theme.secondary, theme.accent, theme.error, theme.warning]
    texts += [colors.dim, colors.title, colors.graph, colors.eager, colors.prefill, *session_colors(theme)]
    for text in texts:
        assert text
        assert contrast(text, theme.background) >= 7, text
        assert contrast(text, theme.panel) >= 7, text


@pytest.mark.parametrize("theme", COLORED.values(), ids=COLORED)
def test_all_text_on_the_chats_grounds_can_be_read(theme: AppTheme) -> None:
    palette = palette_for(theme)
    for name in ("base", "muted", "faint", "user", "code", "link", "quote", "fence", "fence_label", "error"):
        style = getattr(palette, name)
        assert contrast(style.color.get_truecolor().hex, style.bgcolor.get_truecolor().hex) >= 4.5, name


@pytest.mark.parametrize("theme", COLORED.values(), ids=COLORED)
def test_highlighted_code_can_be_read(theme: AppTheme) -> None:
    palette = palette_for(theme)
    source = '@cache\nclass A(int):\n    """Doc."""  # why\n    def f(self, x=1.5):\n        return f"{x}"\n'
    seen = set()
    for line in highlight(source, "python", palette):
        for text, style in line:
            if text.strip():
                assert style.color is not None
                assert style.bgcolor is not None
                seen.add(style.color.get_truecolor().hex)
                assert contrast(style.color.get_truecolor().hex, style.bgcolor.get_truecolor().hex) >= 4.5, (
                    text
                )
    assert len(seen) > 3  # it is coloured


@pytest.mark.parametrize("theme", COLORED.values(), ids=COLORED)
def test_the_inspectors_text_and_the_letters_on_blocks_can_be_read(theme: AppTheme) -> None:
    ink = Ink(theme)
    styles = [
        ink.text,
        ink.dim,
        ink.faint,
        ink.title,
        ink.graph,
        ink.eager,
        ink.prefill,
        ink.schedule,
        ink.launch,
    ]
    styles += [ink.device, ink.read, ink.cached, ink.null, ink.ok, ink.warn, ink.error, ink.lit(ink.graph)]
    for color in range(PALETTE_SIZE):
        styles += [ink.letter(color)]
        styles += [
            ink.tile(color, level, shared=False, glow=glow, focused=focused)
            for level in (0, 2, 4)
            for glow in (0, 1, 2)
            for focused in (0, 1, 2)
        ]
    for style in styles:
        assert style.color is not None
        assert style.bgcolor is not None
        assert contrast(style.color.get_truecolor().hex, style.bgcolor.get_truecolor().hex) >= 4.5, style


@pytest.mark.parametrize("theme", COLORED.values(), ids=COLORED)
async def test_whatever_the_app_shows_as_text_can_be_read(theme: AppTheme) -> None:
    answer = "Some **bold** text, `code`, a [link](http://a.b).\n\n> quoted\n\n"
    answer += "```python\ndef f(): return 1  # one\n```\n"
    client = ScriptedClient(answer, rate=2000, graphs=True)
    async with running(client, size=(160, 48), settings=Settings(theme=theme.name, layout="2")) as (
        app,
        pilot,
    ):
        await ask(app, pilot, "hello")
        await pilot.press("ctrl+n")
        await ask(app, pilot, "hello")
        await settled(app)
        await pilot.pause()
        seen = 0
        for line in app.screen._compositor.render_strips():
            for segment in line:
                style = segment.style
                if style is None or not any(character.isalnum() for character in segment.text):
                    continue
                assert style.color is not None
                assert style.bgcolor is not None
                ink, ground = style.color.get_truecolor().hex, style.bgcolor.get_truecolor().hex
                # one letter can be the mark of a cached block, which is a graphic
                least = 3.0 if len(segment.text.strip()) == 1 else 4.5
                assert contrast(ink, ground) >= least, segment
                seen += 1
        assert seen > 100


def palette_for(theme: AppTheme) -> Palette:
    """The chats' styles of a theme, as the screen makes them."""
    variables = {**theme.to_color_system().generate(), **theme.variables}
    return make_palette(variables, Color.parse(theme.background or ""), code_style(theme))


@pytest.mark.parametrize(
    "theme", [theme for theme in SHIPPED.values() if theme.depth != "none"], ids=lambda theme: theme.name
)
def test_session_colours_are_well_apart_and_neighbours_most(theme: AppTheme) -> None:
    palette = session_colors(theme)
    assert len(palette) == PALETTE_SIZE
    for first, second in itertools.combinations(palette, 2):
        assert distance(first, second) > 0.045, (first, second)
    for first, second in itertools.pairwise(palette[:6]):
        assert distance(first, second) > 0.14, (first, second)


@pytest.mark.parametrize("theme", SHIPPED.values(), ids=SHIPPED)
async def test_the_app_takes_a_shipped_theme_and_its_variables(theme: AppTheme) -> None:
    class Bare(App[None]):
        CSS = "Screen { background: $session-3; color: $inspector-graph; }"

    app = Bare()
    app.register_theme(theme)
    app.theme = theme.name
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.current_theme is theme
        assert app.screen.styles.background == Color.parse(session_color(theme, 2))


def test_colour_indexes_beyond_the_palette_start_over() -> None:
    theme = SHIPPED["dark"]
    assert session_color(theme, PALETTE_SIZE + 1) == session_color(theme, 1)


@pytest.mark.parametrize("name", sorted(BUILTIN_THEMES))
def test_any_textual_theme_gives_colours_for_everything(name: str) -> None:
    theme = BUILTIN_THEMES[name]
    assert len(set(session_colors(theme))) == PALETTE_SIZE
    colors = inspector_colors(theme)
    for field in colors.__slots__:
        assert Color.parse(getattr(colors, field)).ansi is None
    assert code_style(theme)


def test_a_users_theme_may_hold_only_what_differs(tmp_path: Path) -> None:
    write(tmp_path, "mine.toml", 'name = "mine"\nbase = "dark"\n[colors]\nprimary = "#ff8800"\n')
    themes, problems = load_themes([bundled_themes_dir(), tmp_path])
    assert not problems
    mine = next(theme for theme in themes if theme.name == "mine")
    assert mine.primary == "#ff8800"
    assert mine.background == SHIPPED["dark"].background
    assert session_colors(mine) == session_colors(SHIPPED["dark"])


def test_a_users_theme_replaces_a_shipped_one_of_the_same_name(tmp_path: Path) -> None:
    write(tmp_path, "dark.toml", shipped_text().replace('background = "#13151a"', 'background = "#000000"'))
    themes, problems = load_themes([bundled_themes_dir(), tmp_path])
    assert not problems
    assert [theme.background for theme in themes if theme.name == "dark"] == ["#000000"]


def test_a_broken_file_replaces_nothing(tmp_path: Path) -> None:
    write(tmp_path, "dark.toml", shipped_text().replace('"#67b9fb"', '"blurple"'))
    themes, problems = load_themes([bundled_themes_dir(), tmp_path])
    assert len(problems) == 1
    assert [theme.background for theme in themes if theme.name == "dark"] == ["#13151a"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('primary = "#67b9fb"', 'primary = "blurple"'), ["colors.primary", "'blurple'"]),
        (('primary = "#67b9fb"', 'primary = "ansi_red"'), ["colors.primary", "solid colour"]),
        (('primary = "#67b9fb"', 'primary = "#67b9fb80"'), ["colors.primary", "solid colour"]),
        (('primary = "#67b9fb"', "primary = 3"), ["colors.primary", "3"]),
        (('primary = "#67b9fb"\n', ""), ["colors.primary", "missing"]),
        (('graph = "#5fd3b0"', 'grpah = "#5fd3b0"'), ["inspector.grpah", "unknown"]),
        (("dark = true\n", ""), ["dark", "missing"]),
        (("dark = true", 'dark = "yes"'), ["dark", "'yes'"]),
        (('name = "dark"', 'name = "[/red]"'), ["name", "[/red]"]),
        (('name = "dark"\n', ""), ["name", "missing"]),
        (('code = "one-dark"', 'code = "no-such-style"'), ["code", "no-such-style"]),
        (("dark = true", "dark = true\ndepth = 256"), ["depth", "256", "'16'"]),
        (('"#c099ed", ', ""), ["sessions.palette", "11 entries"]),
        (('"#c099ed"', '"violett"'), ["sessions.palette[6]", "violett"]),
        (('border = "#3d8bc7"', 'border = "; } Screen { display: none"'), ["variables.border"]),
        (('border = "#3d8bc7"', 'Border_X = "#3d8bc7"'), ["variables.Border_X"]),
        (("[colors]", 'theme = "x"\n[colors]'), ["theme", "unknown"]),
        (("[colors]", "[colors"), ["not valid TOML", "line"]),
        (('name = "dark"', 'name = "dark"\nbase = "nothing"'), ["base", "'nothing'"]),
    ],
)
def test_a_problem_names_file_key_and_reason(
    tmp_path: Path, change: tuple[str, str], words: list[str]
) -> None:
    text = shipped_text()
    assert change[0] in text
    write(tmp_path, "broken.toml", text.replace(*change, 1))
    themes, problems = load_themes([tmp_path])
    assert themes == []
    (problem,) = problems
    assert problem.startswith("broken.toml: ")
    assert "\n" not in problem
    for word in words:
        assert word in problem


def test_a_file_that_is_not_text_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "noise.toml").write_bytes(b"\xff\xfe\x00")
    themes, problems = load_themes([tmp_path])
    assert themes == []
    assert problems[0].startswith("noise.toml: cannot be read")


def test_folders_that_do_not_exist_hold_no_themes(tmp_path: Path) -> None:
    assert load_themes([tmp_path / "nowhere"]) == ([], [])


def test_the_default_folders_are_the_shipped_and_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUI_INFER_CONFIG_DIR", str(tmp_path))
    folder = theme_dirs()[1]
    folder.mkdir(parents=True)
    write(folder, "mine.toml", 'name = "mine"\nbase = "light"\n')
    themes, problems = load_themes()
    assert not problems
    assert {theme.name for theme in themes} >= {"dark", "light", "mine"}


def test_an_unknown_theme_gives_the_built_in_one_and_says_so() -> None:
    themes = list(SHIPPED.values())
    assert choose_theme("light", themes) == ("light", "")
    name, problem = choose_theme("solarised", themes)
    assert name == "dark"
    assert "'solarised'" in problem
    assert "light" in problem


def test_without_any_theme_textuals_own_is_used() -> None:
    name, problem = choose_theme("dark", [])
    assert name in BUILTIN_THEMES
    assert problem
