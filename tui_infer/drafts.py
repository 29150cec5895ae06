"""What is typed, counted on a thread while it is typed; and prompts that name files, read before they go.

One count runs at a time and a quarter of a second apart, so that typing costs nothing; no timer runs while
nobody types.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual.timer import Timer

from engine.errors import EngineError
from tui_infer.mentions import Included, MentionError, include, mentions
from tui_infer.meter import NO_DRAFT, Draft
from tui_infer.session import SessionState
from tui_infer.slash import Say, read
from tui_infer.token_count import Count, TokenCounter
from tui_infer.widgets.chat.pane import Pane

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

COUNT_S = 0.25

Deliver = Callable[[str], bool]  # takes the text as the model gets it; whether it went
Act = Callable[[str], str]  # the same; why it did not go, or an empty string

WAITS = "The files of the prompt before are being read still."


class Drafts:
    """Counts by chat, and the sending of prompts with files."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app
        self._counter = TokenCounter()
        self._counts: dict[str, Draft] = {}
        self._due: set[str] = set()
        self._timer: Timer | None = None
        self._counting = False
        self._reading: set[str] = set()
        self._counted_by = ""  # the model whose tokens these are; none gives guesses
        app.state.subscribe("engine", self._engine_changed)

    # --- counting ----------------------------------------------------------------------------------

    def of(self, session: SessionState) -> Draft:
        """What sending the draft of a chat would add, as far as it was counted."""
        return self._counts.get(session.id, NO_DRAFT) if session.draft else NO_DRAFT

    def changed(self, session: SessionState) -> None:
        """Another draft stands in a prompt."""
        if not session.draft:
            if self._counts.pop(session.id, None) is not None:
                self._show(session.id)
            return
        self._due.add(session.id)
        self._wait()

    @property
    def _model(self) -> str:
        status = self._app.state.status
        return status.model_path if status is not None else ""

    def _engine_changed(self, _: str) -> None:
        """With another model, or the first one, a draft has other tokens."""
        if self._model != self._counted_by:
            self._counted_by = self._model
            for chat in self._counts:
                if chat in self._app.state.sessions:
                    self._due.add(chat)
            self._wait()

    def _wait(self) -> None:
        """Count a moment later what is due, if anything is and no count is under way."""
        if self._due and self._timer is None and not self._counting:
            self._timer = self._app.set_timer(COUNT_S, self._begin, name="draft count")

    def _begin(self) -> None:
        self._timer = None
        due, self._due = self._due, set()
        sessions = [self._app.state.sessions[chat] for chat in due if chat in self._app.state.sessions]
        if sessions:
            self._counting = True
            self._app.run_worker(self._count(sessions), group="drafts")

    async def _count(self, sessions: list[SessionState]) -> None:
        path = self._model
        try:
            for session in sessions:
                said = read(session.draft)
                if isinstance(said, Say):
                    rest = [message.content for message in session.messages("")[:-1]]
                    draft = await asyncio.to_thread(self._measure, said.text, rest, path)
                else:
                    draft = NO_DRAFT
                self._counts[session.id] = draft
                self._show(session.id)
        finally:
            self._counting = False
        if path != self._model:  # it came meanwhile
            self._due.update(session.id for session in sessions)
        self._wait()

    def _measure(self, text: str, rest: list[str], path: str) -> Draft:
        """On a thread."""
        try:
            included = include(text, Path.cwd())
        except MentionError as error:
            return Draft(problem=error.message)
        counts = [self._counter.count(part, path) for part in (*rest, included.text)]
        total = Count(sum(count.tokens for count in counts), all(count.exact for count in counts))
        return Draft(total, len(included.files))

    def _show(self, session: str) -> None:
        if (pane := self._pane(session)) is not None:
            pane.update_frame(focused=pane.has_class("-current"))

    # --- sending -----------------------------------------------------------------------------------

    def send(self, session: SessionState, text: str, typed: str, deliver: Deliver) -> bool:
        """Send a prompt; one that may name files when they were read. Whether the prompt is done with: where
        a file cannot be sent, it comes back.
        """
        if session.id in self._reading:
            self._app.state.notice("Not sent", WAITS, "warning")
            return False
        if not mentions(text):
            return deliver(text)
        # What is edited goes in place of what stands in the context: the engine judges.
        to = self._app.several.receivers if self._app.state.to_all else [session.id]
        used = self.least_used(to) if session.editing is None else None
        alive = self._app.state.sessions
        self._read(session, text, typed, used, lambda whole: session.id in alive and deliver(whole))
        return True

    def run(self, text: str, typed: str, used: int, act: Act) -> str:
        """Do what a command that was ``typed`` says with its prompt and the files that this names, in front
        of which ``used`` tokens stand. Returns why not, where that is known at once; else ``typed`` comes
        back into the prompt.
        """
        session, state = self._app.state.current, self._app.state
        if session.id in self._reading:
            return WAITS
        if not mentions(text):
            return act(text)

        def deliver(whole: str) -> bool:
            if problem := act(whole):
                state.notice("Not sent", problem, "warning")
            return not problem

        self._read(session, text, typed, used, deliver)
        return ""

    async def whole(self, text: str, used: int | None = 0) -> str:
        """The prompt with its files, which were read on a thread. With ``used``, the tokens in front of it,
        files are refused that surely do not fit.

        Raises:
            MentionError: as ``include`` does, or with the numbers of the context.
        """
        included = await asyncio.to_thread(include, text, Path.cwd())
        if used is not None and included.files:
            await self._check(included, used)
        return included.text

    def least_used(self, chats: Sequence[str]) -> int:
        """Tokens in the context of the emptiest of these chats: what does not fit there, fits nowhere."""
        sessions = self._app.state.sessions
        return min((sessions[chat].context_tokens for chat in chats if chat in sessions), default=0)

    def _read(self, session: SessionState, text: str, typed: str, used: int | None, deliver: Deliver) -> None:
        self._reading.add(session.id)
        self._app.run_worker(self._send(session, text, typed, used, deliver), group="files")

    async def _send(
        self, session: SessionState, text: str, typed: str, used: int | None, deliver: Deliver
    ) -> None:
        try:
            whole = await self.whole(text, used)
        except EngineError as error:
            self._app.state.notice("Not sent", str(error), "error")
            sent = False
        else:
            sent = deliver(whole)
        finally:
            self._reading.discard(session.id)
        if not sent:
            self._give_back(session, typed)

    async def _check(self, included: Included, used: int) -> None:
        """Refuse files that surely do not fit, before a chat has a turn of them."""
        status = self._app.state.status
        if status is None:
            return
        count = await asyncio.to_thread(self._counter.count, included.text, status.model_path)
        if count.exact and count.tokens >= status.max_model_len - used:
            names = ", ".join(included.files)
            taken = f", of which {used:,} are used" if used else ""
            raise MentionError(
                f"With {names} the prompt has {count.tokens:,} tokens; "
                f"the context has {status.max_model_len:,}{taken}.",
                "Paste the part that matters.",
            )

    def _give_back(self, session: SessionState, typed: str) -> None:
        """The prompt that could not be sent, before what was typed since."""
        if (pane := self._pane(session.id)) is not None:
            pane.prompt.give_back(typed)
        else:
            session.draft = f"{typed}\n{session.draft}" if session.draft else typed

    def _pane(self, session: str) -> Pane | None:
        """The pane that shows a chat; none where it is hidden, or the app is on its way out."""
        panes = self._app.main.visible_panes if self._app.screen_stack else []
        return next((pane for pane in panes if pane.session and pane.session.id == session), None)
