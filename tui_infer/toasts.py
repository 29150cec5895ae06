"""Toasts: what the app says in passing, over whatever is shown."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

FLASH_S = 2.0


class Toasts:
    """Shows the state's notices, and what follows each other quickly."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app

    def follow(self) -> None:
        """Show the notices since the last frame, none of them beside another that says the same."""
        app = self._app
        notices, app.state.notices = app.state.notices, []
        shown = {(toast.title, toast.message) for toast in app._notifications}
        for notice in notices:
            if (notice.title, notice.message) in shown:
                continue
            shown.add((notice.title, notice.message))
            app.notify(notice.message, title=notice.title, severity=notice.severity, markup=False)

    def flash(self, title: str, text: str) -> None:
        """A toast in place of the one before: going round quickly would pile them up."""
        app = self._app
        for toast in list(app._notifications):
            if toast.title == title:
                app._unnotify(toast)
        app.notify(text, title=title, timeout=FLASH_S, markup=False)
