"""What is typed, counted on a thread while it is typed; and prompts that name files, read before they go.

One count runs at a time and a quarter of a second apart, so that typing costs nothing; no timer runs while
nobody types.
"""

import asyncio
from collections.abc import Callable
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
        if self._timer is None and not self._counting:
            self._timer = self._app.set_timer(COUNT_S, self._begin, name="draft count")

    def _begin(self) -> None:
        self._timer = None
        due, self._due = self._due, set()
        sessions = [self._app.state.sessions[chat] for chat in due if chat in self._app.state.sessions]
        if sessions:
            self._counting = True
            self._app.run_worker(self._count(sessions), group="drafts")

    async def _count(self, sessions: list[SessionState]) -> None:
        status = self._app.state.status
        path = status.model_path if status is not None else ""
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
        for chat in self._due:
            if chat in self._app.state.sessions:
                self.changed(self._app.state.sessions[chat])
                break

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
            why = "The files of the prompt before are being read still."
            self._app.state.notice("Not sent", why, "warning")
            return False
        if not mentions(text):
            return deliver(text)
        self._reading.add(session.id)
        self._app.run_worker(self._send(session, text, typed, deliver), group="files")
        return True

    async def _send(self, session: SessionState, text: str, typed: str, deliver: Deliver) -> None:
        try:
            included = await asyncio.to_thread(include, text, Path.cwd())
            await self._check(session, included)
        except EngineError as error:
            self._app.state.notice("Not sent", str(error), "error")
            sent = False
        else:
            sent = session.id in self._app.state.sessions and deliver(included.text)
        finally:
            self._reading.discard(session.id)
        if not sent:
            self._give_back(session, typed)

    async def _check(self, session: SessionState, included: Included) -> None:
        """Refuse files that surely do not fit, before the chat has a turn of them."""
        status = self._app.state.status
        if not included.files or status is None or session.editing is not None or self._app.state.to_all:
            return  # then the room is another one, and the engine judges
        count = await asyncio.to_thread(self._counter.count, included.text, status.model_path)
        room = status.max_model_len - session.context_tokens
        if count.exact and count.tokens >= room:
            names = ", ".join(included.files)
            used = f", of which {session.context_tokens:,} are used" if session.context_tokens else ""
            raise MentionError(
                f"With {names} the prompt has {count.tokens:,} tokens; "
                f"the context has {status.max_model_len:,}{used}.",
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
