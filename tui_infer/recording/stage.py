"""The stage: what a recording says besides the engine's events, brought into the app's state."""

from collections import deque
from dataclasses import replace

from engine.commands import Cancel, Submit
from tui_infer.nvml import HISTORY_READINGS, KEPT, GpuReading
from tui_infer.recording.format import (
    AnyEntry,
    ChatLook,
    Chats,
    Content,
    Reading,
    Restarting,
    Sent,
    Tags,
)
from tui_infer.recording.rewrite import rewrite
from tui_infer.sanitize import one_line, sanitize
from tui_infer.session import PALETTE_SIZE, SessionState
from tui_infer.state import AppState
from tui_infer.workspace import TITLE_LENGTH, tag_of

TEXT_LEFT_OUT = "(text was left out of the recording)"


class Stage:
    """Applies entries to a state, in their order. What a file says is foreign text and cleaned as such.

    The focus follows the recording until the viewer gives it to another chat.
    """

    def __init__(self, state: AppState, *, texts: bool = True) -> None:
        self.gpu = GpuReading()
        self._state = state
        self._texts = texts
        self._focus = state.focused
        self._past: dict[str, deque[float]] = {}

    def apply(self, entry: AnyEntry) -> None:
        """Take in an entry that is no event."""
        match entry:
            case Chats():
                self._chats(entry)
            case Content():
                self._content(entry)
            case Tags():
                self._state.tags.update(
                    {
                        request: replace(
                            tag, letter=one_line(tag.letter, 4), title=one_line(tag.title, TITLE_LENGTH)
                        )
                        for request, tag in entry.tags.items()
                    }
                )
            case Sent(command=Submit() as command):
                self._submit(command)
            case Sent(command=Cancel() as command):
                self._cancel(command)
            case Reading():
                self._reading(entry.reading)
            case Restarting():
                self._state.restarting()

    def clear(self) -> None:
        """Back to before the first entry: chats stay open, for they may come again, but empty."""
        state = self._state
        state.restarting()
        for session in state.sessions.values():
            session.turns = []
            session.history_ids = []
            session.epoch = 0
            session.status = "idle"
            session.unread = False
            state.announce("turns", session.id)
        state.unknown_events = state.stale_events = 0
        self._past = {}
        self.gpu = GpuReading()
        state.announce("sessions")

    # --- chats -----------------------------------------------------------------------------------

    def _chats(self, entry: Chats) -> None:
        state = self._state
        known, listed = state.sessions, {}
        for look in entry.chats:
            session = known.get(look.session) or SessionState(look.session, "", 0, params=state.params)
            _dress(session, look)
            listed[look.session] = session
        if not listed:
            return  # an app has one chat at least
        state.replace_sessions(listed)
        for request, tag in state.tags.items():
            if tag.session in listed:
                state.tags[request] = tag_of(listed[tag.session])
        followed = state.focused == self._focus or state.focused not in listed
        if followed and entry.focused in listed:
            self._focus = entry.focused
            state.focus(entry.focused)
        elif state.focused not in listed:
            state.focus(next(iter(listed)))
        state.announce("sessions")

    def _content(self, entry: Content) -> None:
        session = self._state.sessions.get(entry.session)
        if session is None:
            return
        rewrite(self._state, session, entry, self._shown)
        self._state.announce("turns", session.id)
        self._state.announce("sessions", session.id)

    def _submit(self, command: Submit) -> None:
        session = self._state.sessions.get(command.session)
        if session is None:
            return
        if session.epoch == command.epoch and session.answer is not None:
            return  # a Content brought the chat to where this is asked
        session.begin(self._shown(_prompt_text(command)), self._state.newest_step)
        session.epoch = command.epoch
        self._state.announce("turns", session.id)
        self._state.announce("sessions", session.id)

    def _cancel(self, command: Cancel) -> None:
        session = self._state.sessions.get(command.session)
        if session is None or session.epoch != command.epoch or not session.busy:
            return
        session.close_answer("cancelled", "stopped")
        self._state.announce("turns", session.id)
        self._state.announce("sessions", session.id)

    def _shown(self, text: str) -> str:
        return sanitize(text) if self._texts else TEXT_LEFT_OUT

    # --- the card --------------------------------------------------------------------------------

    def _reading(self, reading: GpuReading) -> None:
        if not self._past:
            self._past = {name: deque(reading.past.get(name, ()), maxlen=HISTORY_READINGS) for name in KEPT}
        if not reading.past and reading.available:
            for name, values in self._past.items():
                value = getattr(reading, name)
                if value is not None:
                    values.append(float(value))
        past = {name: tuple(values) for name, values in self._past.items()} if reading.available else {}
        card = None if reading.name is None else one_line(reading.name, 80)
        missing = {field: one_line(reason, 80) for field, reason in reading.missing.items()}
        reason = one_line(reading.reason, 400)
        self.gpu = replace(reading, name=card, reason=reason, missing=missing, past=past)


def _dress(session: SessionState, look: ChatLook) -> None:
    session.letter = one_line(look.letter, 4) or "?"
    session.color = look.color % PALETTE_SIZE
    session.title = one_line(look.title, TITLE_LENGTH)
    session.titled = look.titled


def _prompt_text(command: Submit) -> str:
    """What the user typed: the last message."""
    prompt = command.prompt
    if isinstance(prompt, str):
        return prompt
    last = prompt[-1] if prompt else ""
    return "" if isinstance(last, int | str) else last.content
