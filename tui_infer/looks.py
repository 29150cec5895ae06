"""The app's themes: which there are, which is used, and what becomes of it when its file is saved."""

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App
from textual.filter import LineFilter, Monochrome, NoColor
from textual.theme import Theme

from tui_infer.color_depth import FewerColors
from tui_infer.locations import theme_dirs
from tui_infer.themes import AppTheme, choose_theme, load_themes

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

LOOK_S = 1.0  # between two looks at the folders
SETTLED_S = 0.15  # an editor writes in several strokes

Signature = frozenset[tuple[str, int, int]]


class Looks:
    """Themes by name. A thread looks at their folders, and wakes the app only when a file changed."""

    def __init__(self, app: "TuiInferApp", wanted: str) -> None:
        self._app = app
        # The theme decides how many colours there are; where NO_COLOR is set, that is a theme without any.
        app._filters = [kind for kind in app._filters if not isinstance(kind, Monochrome | NoColor)]
        self._filters: dict[tuple[str, str], LineFilter] = {}
        self._themes, self._problems = self._register(*load_themes())
        name, problem = choose_theme(wanted, self._themes.values())
        app.theme = name
        self._missed, self._instead = (wanted, name) if problem else ("", "")  # until its file is put right
        for text in [*self._problems, problem]:
            if text:
                app.state.notice("Theme not used", text, "warning")
        self._seen = signature(theme_dirs())
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def names(self) -> list[str]:
        """All themes that can be used, in the order of going through them."""
        return list(self._themes)

    @property
    def filters(self) -> list[LineFilter]:
        """What takes the theme's colours to those that the terminal shall get."""
        theme = self._app.current_theme
        if not isinstance(theme, AppTheme) or theme.depth == "full":
            return []
        key = (theme.depth, str(theme.background))
        if key not in self._filters:
            self._filters[key] = FewerColors(theme.depth, str(theme.background))
        return [self._filters[key]]

    def after(self, name: str) -> str:
        """The theme that follows this one."""
        names = self.names or [name]
        return names[(names.index(name) + 1) % len(names)] if name in names else names[0]

    def use(self, name: str) -> None:
        """A theme that the user chose; where chats are kept, later runs begin with it."""
        app = self._app
        app.theme, self._missed = name, ""
        app.state.theme = (name, app.settings.theme)
        app.state.announce("sessions")
        app.toasts.flash("Theme", name if app.keeper is not None else f"{name}, for this run")

    def recall(self) -> None:
        """Take the theme that was chosen in a run before, unless the settings say another one since."""
        name, said = self._app.state.theme
        if name in self._themes and said == self._app.settings.theme:
            self._app.theme, self._missed = name, ""

    # --- live --------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Follow the folders until ``end``."""
        self._thread = threading.Thread(target=self._watch, name="themes", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        folders = theme_dirs()
        while not self._ended.wait(LOOK_S):
            now = signature(folders)
            if now == self._seen:
                continue
            while not self._ended.wait(SETTLED_S) and now != (later := signature(folders)):
                now = later
            self._seen = now
            found = load_themes(folders)
            with contextlib.suppress(RuntimeError, CancelledError):  # the app has just ended
                self._app.call_from_thread(self.take, *found)

    def take(self, themes: Sequence[Theme], problems: Sequence[str]) -> None:
        """Use what the files say now. A theme whose file is broken stays as it was."""
        app, before = self._app, self._app.current_theme
        told = set(self._problems)
        source = Path(before.source).name if isinstance(before, AppTheme) else ""
        broken = any(problem.startswith(f"{source}: ") for problem in problems) if source else False
        self._themes, self._problems = self._register(themes, problems)
        if broken or before.name not in self._themes:
            app.register_theme(before)
            self._themes[before.name] = before
        for problem in problems:
            if problem not in told:
                kept = source and problem.startswith(f"{source}: ")
                title = "Theme stays as it was" if kept else "Theme not used"
                app.state.notice(title, problem, "warning")
        if self._missed in self._themes and app.theme == self._instead:
            app.theme = self._missed
        elif app.current_theme != before:
            app.mutate_reactive(App.theme)

    def _register(
        self, themes: Sequence[Theme], problems: Sequence[str]
    ) -> tuple[dict[str, Theme], list[str]]:
        for theme in themes:
            self._app.register_theme(theme)
        return {theme.name: theme for theme in themes}, list(problems)


def signature(folders: Sequence[Path]) -> Signature:
    """Which theme files there are, when each was written and how long it is."""
    found: set[tuple[str, int, int]] = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in folder.glob("*.toml"):
                with contextlib.suppress(OSError):
                    info = path.stat()
                    found.add((str(path), info.st_mtime_ns, info.st_size))
    return frozenset(found)
