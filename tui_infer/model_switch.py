"""Another model in place of the one that runs: choosing it, loading it, and going back where that fails."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.paths import user_path
from tui_infer.model_catalog import LocalModel, facts_of, local_models, titled
from tui_infer.model_files import ModelFacts
from tui_infer.model_memory import Fit, Room, fit, room_for
from tui_infer.nvml import GpuMonitor
from tui_infer.sanitize import one_line
from tui_infer.screens.ask import Ask
from tui_infer.screens.loading import Loading
from tui_infer.screens.models import ModelPicker
from tui_infer.slash import raw_of

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

GROUP = "models"


class ModelSwitch:
    """What ``/model``, its key and the picker do. The chats stay; what is under way is stopped."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app
        self._loading = ""  # the model that is on its way in place of the former one
        self._former: EngineConfig | None = None
        self._screen: Loading | None = None

    def command(self, words: Sequence[str]) -> str:
        """``/model NAME`` loads, ``/model`` opens the picker; returns why it cannot, or an empty string."""
        if self._app.replay is not None:
            return "This is a recording: no engine runs."
        name = raw_of(words).strip()
        if name:
            self._app.run_worker(lambda: self._look(name), thread=True, group=GROUP, exclusive=True)
        else:
            picker = ModelPicker(self._find, self._app.client.config.model, self._app.state.active)
            self._app.push_screen(picker, lambda model: self._look_again(model))
        return ""

    def _find(self) -> tuple[list[LocalModel], Room]:
        """The models of this machine and the room there is; on a thread."""
        folders = [user_path(folder) for folder in self._app.settings.model_folders]
        models = local_models([*folders, Path.cwd()], self._app.client.config.model)
        return titled(models), self._room()

    def _room(self) -> Room:
        status = self._app.state.status if self._app.state.phase == "ready" else None
        config = self._app.client.config
        if status is None or status.device_uuid is None:
            return room_for(config, status, self._app.gpu.reading)
        monitor = GpuMonitor(status.device_uuid)  # the panel's reading may be old, or none
        try:
            return room_for(config, status, monitor.read())
        finally:
            monitor.close()

    def _look_again(self, model: str | None) -> None:
        if model:
            self._app.run_worker(
                lambda: self._look(model, told=True), thread=True, group=GROUP, exclusive=True
            )

    def _look(self, model: str, told: bool = False) -> None:
        """See on a thread what it needs, then load it or ask; ``told`` is who knows already what it stops."""
        facts = facts_of(model) or ModelFacts()
        self._app.call_from_thread(self._weigh, model, fit(facts, self._room()), facts.problem, told)

    def _weigh(self, model: str, needs: Fit, problem: str, told: bool) -> None:
        state = self._app.state
        stops = " Answers under way are stopped." if state.active and not told else ""
        if problem:
            state.notice("Model not loaded", f"{model}: {problem}", "error")
        elif needs.fits is False:
            question = f"{one_line(model)} does not fit. {needs.words()}{stops} Try it all the same?"
            self._app.push_screen(
                Ask(question, "Try it", "Keep the model"), lambda sure: self._sure(sure, model)
            )
        elif stops:
            question = f"Load {one_line(model)}?{stops} Chats are kept."
            self._app.push_screen(
                Ask(question, "Load it", "Keep the model"), lambda sure: self._sure(sure, model, needs)
            )
        else:
            self.load(model, needs.words())

    def _sure(self, sure: bool | None, model: str, needs: Fit | None = None) -> None:
        if sure:
            self.load(model, needs.words() if needs is not None else "")

    def load(self, model: str, words: str = "") -> None:
        """Restart the engine with this model; options that belong to the former one alone are left out."""
        client, state = self._app.client, self._app.state
        try:
            config = msgspec.structs.replace(
                client.config, model=model, revision=None, trust_remote_code=False
            )
        except EngineError as error:
            state.notice("Model not loaded", str(error), "error")
            return
        if state.phase == "ready":
            self._former = client.config
        self._loading = model
        self._app.engine.restart(config)
        self._screen = Loading(state, model, words)
        self._app.push_screen(self._screen)

    def follow(self) -> None:
        """See what became of the load; one that failed goes back to the model before, with the reason."""
        state = self._app.state
        if self._screen is not None:
            self._screen.follow()
        if not self._loading or state.phase == "loading":
            return
        self._screen = None
        model, self._loading = self._loading, ""
        former, self._former = self._former, None
        if state.phase == "ready":
            name = state.status.model_name if state.status is not None else model
            state.notice(
                f"{name} is loaded", "The chats go on with it; it reads them again at the next prompt."
            )
        elif state.failure is not None and former is not None:
            why = f"{state.failure.message} {state.failure.hint}"
            state.notice(f"{model} is not loaded", f"{why} Back to {former.model}.", "error")
            self._app.engine.restart(former)
