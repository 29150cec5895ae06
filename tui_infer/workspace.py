"""The chats of the app and what a user can do with them. Plain data, no Textual."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.commands import AnyCommand, Cancel, Message, Submit
from engine.request import SamplingParams
from tui_infer.arrangement import Arrangement
from tui_infer.pane_layout import PaneLayout
from tui_infer.sanitize import one_line, sanitize
from tui_infer.session import NEW_TITLE, PALETTE_SIZE, SessionState, first_free, letter_of
from tui_infer.widgets.inspector.view import SessionTag

Topic = Literal["sessions", "turns", "rewritten", "engine", "steps", "notice", "title"]
Phase = Literal["loading", "ready", "failed"]
Severity = Literal["information", "warning", "error"]
Subscriber = Callable[[str], None]

TITLE_LENGTH = 60
CLOSED_LETTERS = 8  # chats that were closed, whose letters are not given again at once


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to tell the user once."""

    title: str
    message: str
    severity: Severity = "information"


@dataclass
class Workspace:
    """Sessions, focus and panes. Commands for the engine leave through ``send``; prompts that were sent
    before the engine was ready wait in ``pending``. Subscribers are told the topic that changed, and read.
    """

    send: Callable[[AnyCommand], None]
    params: SamplingParams = field(default_factory=SamplingParams)
    system: str = ""
    sessions: dict[str, SessionState] = field(default_factory=dict)
    focused: str = ""
    layout: PaneLayout = field(default_factory=PaneLayout)
    arrangement: Arrangement = field(default_factory=Arrangement)
    phase: Phase = "loading"
    tags: dict[int, SessionTag] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    pending: dict[str, Submit] = field(default_factory=dict)
    recording: bool = False  # what happens is written to a file
    unsaved: str = ""  # why chats are not on the disk, as long as that is so
    replay: str = ""  # where playback of a recording stands
    read_only: str = ""  # why prompts cannot be sent, where that is so
    theme: tuple[str, str] = ("", "")  # chosen in the app, and what the settings said then
    to_all: bool = False  # what is sent goes to all chats that are shown
    _subscribers: dict[str, list[Subscriber]] = field(default_factory=dict)
    _created: int = 0

    def __post_init__(self) -> None:
        if not self.sessions:
            self.new_session()

    # --- subscribers -------------------------------------------------------------------------------

    def subscribe(self, topic: Topic, callback: Subscriber) -> None:
        """Call ``callback(session id or "")`` after each change of ``topic``."""
        self._subscribers.setdefault(topic, []).append(callback)

    def _changed(self, topic: Topic, session: str = "") -> None:
        for callback in self._subscribers.get(topic, ()):
            callback(session)

    def announce(self, topic: Topic, session: str = "") -> None:
        """Tell the subscribers of a change that was made from outside."""
        self._changed(topic, session)

    def notice(self, title: str, message: str, severity: Severity = "information") -> None:
        self.notices.append(Notice(one_line(title), one_line(message, 600), severity))
        self._changed("notice")

    # --- sessions ----------------------------------------------------------------------------------

    @property
    def current(self) -> SessionState:
        return self.sessions[self.focused]

    @property
    def newest_step(self) -> int:
        """Number of the engine's newest step, -1 before the first."""
        return -1

    @property
    def active(self) -> int:
        """Chats with an answer under way."""
        return sum(session.busy for session in self.sessions.values())

    def new_session(self, *, focus: bool = True) -> SessionState:
        """Open an empty chat, and focus it unless told otherwise."""
        self._created += 1
        index = first_free(self._taken_letters())
        session = SessionState(
            id=f"chat-{self._created}",
            letter=letter_of(index),
            color=index % PALETTE_SIZE,
            params=self.params,
            system=self.system,
        )
        self.sessions[session.id] = session
        if focus:
            self.focus(session.id)
        else:
            self._changed("sessions", session.id)
        return session

    def _taken_letters(self) -> set[str]:
        """Letters of open chats, and of those closed last whose blocks the cache may still have: a new chat
        under one of these would pass for their owner.
        """
        closed: dict[str, str] = {}
        for tag in reversed(self.tags.values()):
            if len(closed) == CLOSED_LETTERS:
                break
            if tag.session not in self.sessions:
                closed[tag.session] = tag.letter
        return {*closed.values(), *(session.letter for session in self.sessions.values())}

    def open_stored(self, session: SessionState) -> None:
        """Take in a chat of the store under an id of this run; its letter stays where no open chat has it."""
        self._created += 1
        session.id = f"chat-{self._created}"
        used = {other.letter for other in self.sessions.values()}
        if not session.letter or session.letter in used:
            index = first_free(self._taken_letters())
            session.letter, session.color = letter_of(index), index % PALETTE_SIZE
        self.sessions[session.id] = session
        self._changed("sessions", session.id)

    def focus(self, session_id: str) -> None:
        """Make a chat the focused one; if no pane shows it, it takes the pane of the one before."""
        session = self.sessions.get(session_id)
        if session is None:
            return
        self.layout.focus(session_id, self.focused, len(self.sessions))
        self.focused = session_id
        session.unread = False
        self._changed("sessions", session_id)

    def step_focus(self, step: int) -> None:
        """Focus the next or previous chat of the session bar, round the ends."""
        order = list(self.sessions)
        self.focus(order[(order.index(self.focused) + step) % len(order)])

    def focus_number(self, number: int) -> None:
        """Focus chat ``number``, counted from 1; others are ignored."""
        order = list(self.sessions)
        if 1 <= number <= len(order):
            self.focus(order[number - 1])

    def close_session(self, session_id: str) -> None:
        """Close a chat; its answer is cancelled and later events of it are ignored. One chat remains."""
        if session_id not in self.sessions:
            return
        self.cancel(session_id)
        order = list(self.sessions)
        position = order.index(session_id)
        del self.sessions[session_id]
        self.layout.forget(session_id)
        if not self.sessions:
            self.new_session()
        elif self.focused == session_id:
            rest = self.layout.slots or list(self.sessions)
            neighbours = [other for other in order[position + 1 :] + order[:position][::-1] if other in rest]
            self.focus(neighbours[0] if neighbours else rest[0])
        self._changed("sessions")

    def start_over(self, session_id: str) -> SessionState:
        """Put an empty chat, with the same letter and parameters, in the place of one, which is closed."""
        old = self.sessions[session_id]
        self.cancel(session_id)
        new = self.new_session(focus=False)
        new.letter, new.color, new.params, new.system = old.letter, old.color, old.params, old.system
        del self.sessions[new.id]
        self.sessions = {
            (new.id if chat == session_id else chat): (new if chat == session_id else session)
            for chat, session in self.sessions.items()
        }
        self.layout.slots = [new.id if slot == session_id else slot for slot in self.layout.slots]
        if self.focused == session_id:
            self.focus(new.id)
        self._changed("sessions")
        return new

    def replace_sessions(self, sessions: dict[str, SessionState]) -> None:
        """Other chats, in their order, in place of those that are there; the focus is the caller's to set."""
        for gone in self.sessions.keys() - sessions.keys():
            self.layout.forget(gone)
        self.sessions = sessions

    def rename(self, session_id: str, title: str) -> None:
        """Give a chat a title; an empty one goes back to the automatic title."""
        session = self.sessions.get(session_id)
        if session is None:
            return
        session.titled = bool(one_line(title))
        session.title = one_line(title) or title_of(session)
        for request, tag in self.tags.items():
            if tag.session == session_id:
                self.tags[request] = tag_of(session)
        self._changed("sessions", session_id)

    # --- layout ------------------------------------------------------------------------------------

    def cycle_layout(self) -> None:
        self.layout.cycle(len(self.sessions))
        self._changed("sessions")

    def toggle_zoom(self) -> None:
        self.layout.zoomed = not self.layout.zoomed
        self._changed("sessions")

    def panes(self, room: int) -> list[str]:
        """Ids of the chats to show, at most ``room`` of them, the focused one always among them."""
        return self.layout.choose(list(self.sessions), self.focused, room)

    # --- what a user does --------------------------------------------------------------------------

    def submit(self, session_id: str, text: str, typed: str | None = "") -> bool:
        """Send a prompt; False when there is nothing to send or the last answer is still under way.

        ``typed`` is what the history of prompts keeps, where that is not the text itself; with None nothing.
        """
        session = self.sessions[session_id]
        session.bring()
        if why := self.read_only or session.read_only:
            if text.strip():
                self.notice("Not sent", why, "warning")
            return False
        text = sanitize(text).strip("\n")
        if not text.strip() or session.busy:
            return False
        messages = session.messages(text)
        session.begin(text, self.newest_step)
        if typed is not None:
            self.remember(sanitize(typed) or text)
        if not session.titled and session.title == NEW_TITLE:
            session.title = title_of(session)
        self.ask(session, messages)
        return True

    def ask(
        self,
        session: SessionState,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        answered: int = 0,
    ) -> None:
        """Have the answer made that was opened, behind the chat's history; ``answered`` as in ``Submit``."""
        history = [*session.history_ids, *(session.turns[-1].token_ids if answered else [])]
        command = Submit(
            session=session.id,
            epoch=session.epoch,
            prompt=list(messages),
            params=params or session.params,
            history=history or None,
            answered=answered,
        )
        if self.phase == "ready":
            self.send(command)
        else:
            self.pending[session.id] = command
        self._changed("turns", session.id)
        self._changed("sessions", session.id)

    def remember(self, typed: str) -> None:
        """Keep what was typed in the history of prompts, once where it was sent to several chats."""
        if self.prompts[-1:] != [typed]:
            self.prompts.append(typed)

    def cancel(self, session_id: str) -> bool:
        """Stop the answer of a chat: idle at once, partial text kept, late events ignored."""
        session = self.sessions.get(session_id)
        if session is None or not session.busy or self.read_only:
            return False
        if self.pending.pop(session_id, None) is None:
            self.send(Cancel(session=session.id, epoch=session.epoch))
        session.close_answer("cancelled", "stopped")
        self._changed("turns", session.id)
        self._changed("sessions", session.id)
        return True


def tag_of(session: SessionState) -> SessionTag:
    """How the inspector names the owner of a block."""
    return SessionTag(letter=session.letter, color=session.color, title=session.title, session=session.id)


def title_of(session: SessionState) -> str:
    """The automatic title: the start of the first prompt, without the files behind it."""
    first = next((turn.text for turn in session.turns if turn.role == "user"), "")
    return one_line(first.strip().partition("\n\n")[0], TITLE_LENGTH) or NEW_TITLE
