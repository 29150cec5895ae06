"""The link between state and store: it hears what changed and has it written half a second later."""

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from tui_infer.session import SessionState
from tui_infer.state import AppState
from tui_infer.store import snapshot
from tui_infer.store.chat_write import INTERRUPTED
from tui_infer.store.errors import words_of
from tui_infer.store.layout import layout_text
from tui_infer.store.lazy import StoredSession
from tui_infer.store.restore import GONE, restore
from tui_infer.store.rows import ChatRow, Draft, Place
from tui_infer.store.store import CLOSE_S, Store

SAVE_S = 0.5
RETRY_S = 5.0  # after a write that failed
TITLE = "Chats are not saved"


class View(Protocol):
    """What only the screen knows."""

    def place(self, session: SessionState) -> Place:
        """Where the reader of a chat is."""

    def inspector(self) -> str:
        """The inspector's mode as it was chosen."""

    def store_drafts(self) -> None:
        """Bring drafts up to what stands in the prompts."""


@dataclass(slots=True, eq=False)
class _Record:
    """A chat that the store has, or will have. ``place`` is where its reader was, before it is shown."""

    session: SessionState
    saved: snapshot.Saved = field(default_factory=snapshot.Saved)
    model_name: str = ""
    place: Place = None
    writing: bool = False


class Keeper:
    """Saves what the topics "turns" and "sessions" name. No timer runs while nothing changes.

    A chat that is closed becomes an archived one; ``forget`` before it is closed keeps it from that. Where a
    write fails nothing is lost but time: the whole chat is written again.
    """

    def __init__(
        self, store: Store, state: AppState, view: View, later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self.store = store
        self._state = state
        self._view = view
        self._later = later
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.Context()
        self._records: dict[str, _Record] = {}
        self._forgotten: set[str] = set()
        self._dirty: set[str] = set()  # ids; an empty one means all
        self._due = False
        self._results: deque[tuple[_Record | None, Future, Callable[[], None] | None]] = deque()
        self._failing: set[_Record | None] = set()  # None is what belongs to no chat
        self._prompts = 0
        self._unwritten: list[str] = []  # prompts
        self._layout = ""
        self._defaults = ("", "")
        for topic in ("turns", "sessions", "rewritten"):
            state.subscribe(topic, self.touch)
        state.subscribe("engine", self._engine_changed)

    # --- start -------------------------------------------------------------------------------------

    def restore(self, defaults: tuple[str, str]) -> str:
        """Open what the last run had; the inspector's mode, empty where the settings are to decide.

        ``defaults`` are the layout and the inspector of the settings.
        """
        self._defaults, claimed = defaults, self.store.claimed
        sessions, inspector = restore(self._state, claimed, self.store.body, defaults)
        for row, session in zip(claimed.chats, sessions):
            self.know(row, session)
        self._prompts = len(self._state.prompts)
        return inspector

    def know(self, row: ChatRow, session: StoredSession) -> None:
        """A chat was opened from the store: what it has of it."""
        saved = snapshot.Saved(row.meta, row.draft)
        self._forgotten.discard(row.key)
        self._records[row.key] = _Record(session, saved, row.meta.model_name, row.meta.place)
        session.on_loaded = self.loaded

    def loaded(self, session: SessionState) -> None:
        """The turns of a chat came from the store."""
        if (record := self._records.get(session.key)) is not None and record.session is session:
            record.saved = snapshot.as_read(session, record.saved)

    def place(self, session: SessionState) -> Place:
        """Where the reader of a chat was when it was saved."""
        record = self._records.get(session.key)
        return record.place if record is not None else None

    def begin(self) -> None:
        """The event loop runs: from here on changes are saved."""
        self._loop, self._context = asyncio.get_running_loop(), contextvars.copy_context()
        self.touch()

    # --- what changed ------------------------------------------------------------------------------

    def touch(self, session: str = "") -> None:
        """A chat changed, or with an empty id anything."""
        changed = self._state.sessions.values() if not session else [self._state.sessions.get(session)]
        for chat in changed:
            if chat is not None:
                self._meet(chat)  # now, so that it is kept even if it is closed before it is saved
        self._dirty.add(session)
        self._wake(SAVE_S)

    def _meet(self, session: SessionState) -> None:
        known = session.key in self._records or session.key in self._forgotten
        if not known and _worth_keeping(self._state, session):
            self._records[session.key] = _Record(session)

    def _wake(self, delay_s: float) -> None:
        if not self._due and self._loop is not None:
            self._due = True
            self._later(delay_s, self._tick)

    def _tick(self) -> None:
        self._due = False
        self.save()

    def _engine_changed(self, _: str) -> None:
        status = self._state.status
        if status is None or self._state.phase != "ready":
            return
        for session in self._state.sessions.values():
            if session.model == status.model_path and session.read_only.startswith(GONE):
                session.read_only = ""  # it runs, wherever its files went

    def forget(self, key: str) -> None:
        """A chat is about to be deleted: nothing of it is saved any more."""
        self._records.pop(key, None)
        self._forgotten.add(key)

    # --- saving ------------------------------------------------------------------------------------

    def save(self) -> None:
        """Have all changes written, on the store's thread."""
        dirty, self._dirty = self._dirty, set()
        open_chats = {session.key: session for session in self._state.sessions.values()}
        for key, session in open_chats.items():
            self._meet(session)
            record = self._records.get(key)
            if record is not None and (record.saved.meta is None or {"", session.id} & dirty):
                self._save(record, archived=False)
        for key, record in list(self._records.items()):
            if open_chats.get(key) is not record.session:
                self._archive(record)
        self._save_layout()
        self._save_prompts()

    def _save(self, record: _Record, *, archived: bool) -> bool:
        """Whether the store has, or is about to have, the chat as it is now."""
        session = record.session
        if record.writing:
            self._dirty.add(session.id)  # in order, and never more than one at a time
            return False
        record.place = self._view.place(session)
        status = self._state.status
        if status is not None and session.model == status.model_path:
            record.model_name = status.model_name
        elif not session.model:
            record.model_name = ""
        meta = snapshot.meta_of(session, record.place, record.model_name)
        draft = _draft(self._state, session)
        try:
            write, saved = snapshot.take(session, record.saved, meta, draft, archived=archived)
        except (ValueError, OverflowError, TypeError) as error:  # one chat must not keep the others from it
            self._failing.add(record)
            self._failed(record, error)
            return False
        if write is not None:
            record.saved, record.writing = saved, True
            self._follow(record, self.store.write(write))
        return True

    def _archive(self, record: _Record) -> None:
        """The chat was closed."""
        session = record.session
        if record.writing:
            self._dirty.add(session.id)
        elif record.saved.archived:
            del self._records[session.key]
        elif snapshot.is_loaded(session) and not session.turns and not session.draft.strip():
            del self._records[session.key]
            self._follow(None, self.store.delete(session.key), lambda: None)
        else:
            self._save(record, archived=True)

    def _save_layout(self) -> None:
        text = layout_text(self._state, self._view.inspector(), self._defaults)
        if text != self._layout:
            self._layout = text
            self._follow(None, self.store.write_layout(text), self._forget_layout)

    def _forget_layout(self) -> None:
        self._layout = ""

    def _save_prompts(self) -> None:
        prompts = self._state.prompts[self._prompts :]
        self._prompts = len(self._state.prompts)
        prompts, self._unwritten = [*self._unwritten, *prompts], []
        if prompts:
            self._follow(None, self.store.add_prompts(prompts), lambda: self._unwritten.extend(prompts))

    # --- what became of it -------------------------------------------------------------------------

    def _follow(
        self, record: _Record | None, future: Future, failed: Callable[[], None] | None = None
    ) -> None:
        """Hear of a write; ``failed`` is called, on the loop, where it must be done again."""

        def done(future: Future) -> None:  # on the store's thread
            self._results.append((record, future, failed))
            if self._loop is not None and not self._loop.is_closed():
                with contextlib.suppress(RuntimeError):  # it closed this moment: `finish` looks
                    # In the app's context, not in that of the store's thread: its timers need it.
                    self._loop.call_soon_threadsafe(self._drain, context=self._context)

        future.add_done_callback(done)

    def _drain(self) -> None:
        while self._results:
            record, future, failed = self._results.popleft()
            if record is not None:
                record.writing = False
            error = future.exception()
            if error is None:
                self._failing.discard(record)
                continue
            self._failing.add(record)
            self._failed(record, error)
            if failed is not None:
                failed()
        if self.problem and not self._failing:
            self._tell("")
            self._state.notice("Chats are saved again", "What could not be written is on the disk now.")
        if self._dirty:
            self._wake(RETRY_S if self._failing else SAVE_S)

    def _failed(self, record: _Record | None, error: BaseException) -> None:
        if record is not None:
            record.saved = snapshot.Saved()
        self._dirty.add("")
        problem = words_of(error) if isinstance(error, Exception) else repr(error)
        if problem != self.problem:
            self._tell(problem)
            self._state.notice(TITLE, f"{problem} They go on in memory, and saving is tried again.", "error")

    def _tell(self, problem: str) -> None:
        """Why chats are not saved, or that they are: marked as long as it is so."""
        self._state.unsaved = problem
        self._state.announce("engine")

    @property
    def problem(self) -> str:
        """Why chats are not on the disk now; empty where they are."""
        return self._state.unsaved

    async def flush(self) -> None:
        """Save now, and wait until it is written or has failed."""
        self.save()
        with contextlib.suppress(Exception):  # of the writes before it is heard one by one
            await asyncio.wrap_future(self.store.settle())
        self._drain()

    def finish(self) -> str:
        """The app is over: save the last changes and let go; what could not be saved, or an empty string."""
        self._view.store_drafts()
        for session in self._state.sessions.values():
            if session.busy:
                session.close_answer("cancelled", INTERRUPTED)
        for _ in range(2):  # what is being written now may fail, and is then written as a whole
            try:
                self.store.settle().result(CLOSE_S)
            except TimeoutError:
                break
            except Exception:
                pass  # the writes before it are heard of one by one
            self._drain()
            self._dirty.add("")
            self.save()
        if not self.store.close():
            return f"The last changes of chats are not saved: {self.store.path} could not be written in time."
        self._drain()
        return f"The last changes of chats are not saved: {self.problem}" if self.problem else ""


def _worth_keeping(state: AppState, session: SessionState) -> bool:
    """Whether something would be lost with it: a new chat that nobody touched is not kept."""
    if not snapshot.is_loaded(session):
        return True
    return bool(
        session.turns
        or session.draft.strip()
        or session.titled
        or session.queue
        or session.params != state.params
        or session.system != state.system
    )


def _draft(state: AppState, session: SessionState) -> Draft:
    """The user's own unsent text: while an earlier prompt is only looked at, what stood there before."""
    shown, text = session.recall, session.draft
    if shown is not None and 0 <= shown < len(state.prompts) and state.prompts[shown] == text:
        text = session.stash
    return Draft(text, session.editing, session.edit_stash)
