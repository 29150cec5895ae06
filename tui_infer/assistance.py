"""What a prompt asks the app while it is typed: what can follow, and how much it is."""

from typing import TYPE_CHECKING

from engine.models.source import KNOWN_MODELS
from tui_infer.completion import World
from tui_infer.meter import Meter, meter
from tui_infer.parameters import texts_of
from tui_infer.presets import words_of
from tui_infer.run_until import CONDITIONS
from tui_infer.session import SessionState
from tui_infer.slash import COMMANDS

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp


class Assistance:
    """The answers of an app that has none."""

    @property
    def world(self) -> World:
        """What there is to choose from."""
        return World({})

    def meter(self, session: SessionState) -> Meter:
        """The context of a chat with its draft."""
        return meter(session, None)

    def drafted(self, session: SessionState) -> None:
        """Another draft stands in a prompt."""


NO_ASSISTANCE = Assistance()


class AppAssistance(Assistance):
    """The answers of the app."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app

    @property
    def world(self) -> World:
        state = self._app.state
        return World(
            commands=COMMANDS,
            themes=self._app.theme_names,
            letters={session.letter: session.title for session in state.sessions.values()},
            parameters=texts_of(state.current.params),
            presets={name: words_of(preset) for name, preset in self._app.settings.presets.items()},
            conditions={condition.word: condition.words for condition in CONDITIONS},
            models={name: known.title for name, known in KNOWN_MODELS.items()},
            search_key=state.keys["search"],
        )

    def meter(self, session: SessionState) -> Meter:
        state = self._app.state
        held = state.mirror.num_held(session.request) if session.request is not None else 0
        return meter(session, state.status, self._app.drafts.of(session), held)

    def drafted(self, session: SessionState) -> None:
        self._app.drafts.changed(session)
        self._app.archive.touch(session.id)
