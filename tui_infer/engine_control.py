"""What keys, the palette and commands do to the engine itself, or to the recording in its place."""

from typing import TYPE_CHECKING

from engine.config import EngineConfig
from tui_infer.screens.ask import Ask

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

TITLE = "Engine"


class EngineControl:
    """Restarts, pauses and steps the engine; a recording that is played does what comes nearest."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app

    # --- another process ---------------------------------------------------------------------------

    def ask_restart(self) -> None:
        """Start a new engine process in place of one that failed; where one runs, ask first."""
        app = self._app
        if app.replay is not None:
            app.replay.restart()
        elif app.state.phase == "loading":
            app.state.notice(TITLE, "It is loading already.")
        elif app.state.phase == "failed":
            self.restart()
        else:
            question = "Restart the engine? Answers under way are stopped; chats are kept."
            app.push_screen(Ask(question, "Restart", "Go on"), lambda sure: self.restart() if sure else None)

    def restart(self, config: EngineConfig | None = None) -> None:
        """Another engine process, with another configuration where one is given; the chats stay."""
        app = self._app
        for session in list(app.state.sessions.values()):
            if session.id not in app.state.pending:
                app.state.cancel(session.id)
        app.state.restarting()
        app.run_worker(app.client.restart(config), group="engine", exclusive=True)

    # --- the one that runs -------------------------------------------------------------------------

    def when_ready(self) -> bool:
        """Whether an engine can do something now; where none can, say why."""
        app = self._app
        if app.replay is not None:
            app.state.notice("Recording", app.state.read_only)
            return False
        if app.state.phase != "ready":
            stopped = f"It has stopped; {app.state.keys['restart']} restarts it."
            words = stopped if app.state.phase == "failed" else "It is not ready yet."
            app.state.notice(TITLE, words, "warning")
        return app.state.phase == "ready"

    def toggle_mode(self) -> None:
        if self.when_ready():
            self._app.state.toggle_mode()

    def toggle_pause(self) -> None:
        if self._app.replay is not None:
            self._app.replay.toggle_play()
        elif self.when_ready():
            self._app.state.toggle_pause()

    def step_once(self) -> None:
        """One more step, which is shown: the look at the past is over."""
        self._app.time.leave()
        if self._app.replay is not None:
            self._app.replay.step_once()
        elif self.when_ready():
            state = self._app.state
            state.step_once()
            if not state.load.active and not any(session.busy for session in state.sessions.values()):
                state.notice("Nothing to step", "No prompt waits, and no answer is under way.")
