"""From chat to chat, and from one layout of their panes to the next."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp


class Navigation:
    """What keys, tabs and commands do to which chats are shown, and to which of them has the focus."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app

    # --- chats -------------------------------------------------------------------------------------

    def new(self) -> None:
        """Open a chat; where a recording plays, say why not."""
        app = self._app
        if app.replay is not None and not app.engine.when_ready():
            return
        app.state.new_session()
        app.main.fit_panes()

    def step(self, by: int) -> None:
        """To the next chat, or to one before; in the inspector to the next panel. In a list above the prompt
        the same key takes the choice.
        """
        app = self._app
        if app.main.inspector.has_panel_focus:
            app.main.dock.step_panel(by)
            return
        if by > 0 and app.main.take_choice():
            return
        app.state.step_focus(by)
        self._show()

    def to_number(self, number: int) -> None:
        """To the chat at this place among the tabs."""
        self._app.state.focus_number(number)
        self._show()

    def to(self, session: str) -> None:
        """To the chat with this id."""
        self._app.state.focus(session)
        self._app.main.fit_panes()

    def _show(self) -> None:
        """Show the focused chat; keys that move in time go on doing so."""
        main = self._app.main
        in_time = main.focused is main.timeline
        main.fit_panes()
        if in_time:
            main.focus_timeline()

    # --- panes -------------------------------------------------------------------------------------

    def cycle_layout(self) -> None:
        """The next number of panes."""
        app = self._app
        app.state.cycle_layout()
        app.main.fit_panes()
        # Two layouts can look the same, with fewer chats than panes or too little room for them.
        name = {"1": "one pane", "2": "two panes", "4": "2×2 panes"}[app.state.layout.name]
        shown = len(app.main.visible_panes)
        missing = "" if shown == int(app.state.layout.name) else f" ({shown} shown)"
        app.toasts.flash("Layout", f"{name}{missing}")

    def toggle_zoom(self) -> None:
        """The focused chat alone, or all panes again."""
        self._app.state.toggle_zoom()
        self._app.main.fit_panes()
