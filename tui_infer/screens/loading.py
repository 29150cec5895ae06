"""What a model that is being loaded in place of another is at."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import ProgressBar, Static

from tui_infer.sanitize import one_line
from tui_infer.screens.dialog import Dialog
from tui_infer.state import AppState


class Loading(Dialog[None]):
    """Stage, share and detail of a load; it goes when the load has ended, and ``Esc`` hides it before."""

    CSS_PATH = "loading.tcss"
    BINDINGS = [Binding("escape,enter", "hide", "hide", show=False)]

    def __init__(self, state: AppState, model: str, words: str = "") -> None:
        super().__init__()
        self._state = state
        self._model = model
        self._words = words

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(f"Loading {one_line(self._model, 200)}", id="model", markup=False)
            if self._words:
                yield Static(self._words, id="needs", markup=False)
            yield Static("", id="stage", markup=False)
            yield ProgressBar(total=1.0, show_eta=False, id="share")
            yield Static("", id="detail", markup=False)
            yield Static(
                "The chats go on with it. Esc hides this, the load goes on.", id="hint", markup=False
            )

    def on_mount(self) -> None:
        self.follow()

    def follow(self) -> None:
        """Show what the state says now; leave when nothing is loading any more."""
        if self._state.phase != "loading":
            self.dismiss(None)
            return
        if not self.query(ProgressBar):
            return  # not composed yet
        progress = self._state.progress
        self.query_one("#stage", Static).update(one_line(progress.stage, 200))
        self.query_one("#detail", Static).update(one_line(progress.detail, 200))
        bar = self.query_one("#share", ProgressBar)
        bar.display = progress.fraction is not None
        bar.update(progress=progress.fraction or 0.0)

    def action_hide(self) -> None:
        self.dismiss(None)
