"""All chats, open and archived, from the app's side: saving, the list of them, and what is done to one."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from tui_infer.chat_list import ChatList, Entry
from tui_infer.commands import Command
from tui_infer.sanitize import one_line
from tui_infer.screens.ask import Ask, Rename
from tui_infer.session import SessionState
from tui_infer.slash import raw_of
from tui_infer.store.errors import words_of
from tui_infer.store.keeper import Keeper
from tui_infer.store.restore import adopt, reopen
from tui_infer.store.rows import Place
from tui_infer.store.search import Hit
from tui_infer.store.store import Store
from tui_infer.versions import num_hidden

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp
    from tui_infer.screens.main import MainScreen

T = TypeVar("T")

TITLE = "Chats"


class ChatArchive:
    """With a store, chats outlive the app: closing one archives it. Without, there is only what is open."""

    commands = (
        Command("Delete this chat…", "/delete; for good, also from the archive", "app.delete_chat"),
        Command("Go on with the model that runs", "/adopt; where the chat's own is gone", "app.adopt_chat"),
    )

    def __init__(self, app: "TuiInferApp", store: Store | None) -> None:
        self._app = app
        self._store = store
        self._list = ChatList(app.state, store)
        self._screen: MainScreen | None = None
        self.chosen_inspector = ""
        self.keeper: Keeper | None = None
        if store is not None:
            self.keeper = Keeper(store, app.state, self, lambda delay, call: app.set_timer(delay, call))
            settings = app.settings
            self.chosen_inspector = self.keeper.restore((settings.layout, settings.inspector))
            if store.claimed.elsewhere:
                app.state.notice(TITLE, _elsewhere(store.claimed.elsewhere))

    # --- saving ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The app is up: from here on changes are saved."""
        _ = self._main  # while it is there: the last save comes when it is gone
        if self.keeper is not None:
            self.keeper.begin()

    def touch(self, session: str) -> None:
        """What no topic tells: a draft, the reader's place."""
        if self.keeper is not None:
            self.keeper.touch(session)

    def finish(self) -> str:
        """The app is over: save what is left; what could not be saved, or an empty string."""
        return self.keeper.finish() if self.keeper is not None else ""

    def place(self, session: SessionState) -> Place:
        """Where the reader of a chat is, or was when it was saved."""
        if (main := self._main) is not None and (document := main.document_of(session.id)) is not None:
            return document.place
        return self.saved_place(session)

    @property
    def _main(self) -> "MainScreen | None":
        """The main screen, once it is made; also when it is gone, for the last save."""
        if self._screen is None and self._app.screen_stack:
            self._screen = self._app.main
        return self._screen

    def saved_place(self, session: SessionState) -> Place:
        return self.keeper.place(session) if self.keeper is not None else None

    def inspector(self) -> str:
        if (main := self._main) is not None:
            return main.dock.chosen
        return self.chosen_inspector or self._app.settings.inspector

    def store_drafts(self) -> None:
        if (main := self._main) is not None:
            main.store_drafts()

    # --- the list ----------------------------------------------------------------------------------

    def show(self, words: Sequence[str] = ()) -> str:
        """``/chats [words]``: the list of all chats, searched for these words."""
        from tui_infer.screens.chats import ChatsScreen

        self._app.push_screen(ChatsScreen(self, raw_of(words)))
        return ""

    def follow(self, topics: set[str]) -> None:
        """Draw in the list what changed, while it is open."""
        from tui_infer.screens.chats import ChatsScreen

        screen = self._app.screen
        if isinstance(screen, ChatsScreen) and "sessions" in topics:
            screen.redraw()

    async def settle(self) -> None:
        """Have the store know what the app knows."""
        if self.keeper is not None:
            self.store_drafts()
            await self.keeper.flush()

    async def find(self, query: str) -> list[Entry]:
        """All chats that have these words, or all, the ones used last first."""
        return await self._list.find(query)

    def live(self, key: str) -> SessionState | None:
        """The chat of this key, where it is open here."""
        return self._list.live(key)

    # --- one chat ----------------------------------------------------------------------------------

    async def open(self, key: str, *, focus: bool = True) -> SessionState | None:
        """Open a chat or go to it; None, with the reason as a notice, where that cannot be."""
        state = self._app.state
        session = self.live(key)
        if session is None:
            session = await self._from_store(key)
        if session is not None and focus:
            state.focus(session.id)
            self._app.main.show_chats()
        return session

    async def _from_store(self, key: str) -> SessionState | None:
        keeper, store, state = self.keeper, self._store, self._app.state
        if keeper is None or store is None:
            state.notice(TITLE, "The chat is gone.", "warning")
            return None
        await keeper.flush()
        try:
            row = await asyncio.wrap_future(store.open(key))
            body = await asyncio.to_thread(store.body, key)
        except Exception as error:
            state.notice("Not opened", words_of(error), "warning")
            return None
        if (there := self.live(key)) is not None:
            return there
        self._app.main.store_drafts()
        model = state.status.model_path if state.status is not None else ""
        session = reopen(state, row, lambda _: body, model)
        keeper.know(row, session)
        self._app.main.fit_panes()
        return session

    def reveal(self, session: SessionState, hit: Hit) -> None:
        """Bring what was found into view."""
        if hit.position is None:
            return
        for pane in self._app.main.visible_panes:
            if pane.session is session:
                pane.transcript.show_text(hit.position, hit.start, hit.end)

    def close(self) -> None:
        """Close the focused chat: into the archive; where there is none, ask before its text is lost."""
        app = self._app
        app.main.store_drafts()
        session = app.state.current

        def answered(sure: bool | None) -> None:
            if sure and session.id in app.state.sessions:
                self.archive(session)

        name = f"chat {session.letter}, “{session.title}”"
        draft = bool(session.draft.strip())
        if self.keeper is not None and session.busy:
            question = f"Close {name}? Its answer stops; the chat and what it said so far are kept."
            app.push_screen(Ask(question, "Close it", "Keep it open"), answered)
        elif self.keeper is None and (session.turns or draft):
            lost = "Its text is lost" if session.turns else "Its unsent prompt is lost"
            app.push_screen(Ask(f"Close {name}? {lost}.", "Close it", "Keep it"), answered)
        else:
            answered(True)

    def archive(self, session: SessionState) -> None:
        """Close an open chat; the store keeps it, if it is worth that."""
        kept = self.keeper is not None and bool(session.turns or session.draft.strip())
        self._app.main.forget(session.id)
        self._app.state.close_session(session.id)
        self._app.main.fit_panes()
        if kept:
            self._app.state.notice("Archived", f"“{session.title}” is kept; /chats finds it.")

    async def put_away(self, key: str) -> None:
        """From open to archived, or back."""
        session = self.live(key)
        if session is None:
            await self.open(key, focus=False)
        else:
            self.archive(session)
            await self.settle()

    async def hidden(self, key: str) -> int:
        """Messages of other versions that a chat has; 0 where that cannot be read."""
        if (session := self.live(key)) is not None:
            return num_hidden(session.turns)
        if self._store is not None:
            with contextlib.suppress(Exception):  # deleting it tells what is wrong
                return num_hidden((await asyncio.to_thread(self._store.body, key)).turns)
        return 0

    def delete(self, key: str, title: str, turns: int, hidden: int = 0) -> "asyncio.Future[bool]":
        """Delete a chat after a question, which tells of messages, ``hidden`` ones of other versions too;
        whether it was.
        """
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answered(sure: bool | None) -> None:
            if sure:
                self._app.run_worker(self._delete(key, done), group="delete")
            else:
                _tell(done, False)

        size = f"{turns} message{'s' if turns != 1 else ''}"
        size += f" and {hidden} of other versions" if hidden else ""
        question = f"Delete “{one_line(title, 60)}” with {size}? This cannot be undone."
        self._app.push_screen(Ask(question, "Delete it", "Keep it"), answered)
        return done

    async def _delete(self, key: str, done: "asyncio.Future[bool]") -> None:
        state, session = self._app.state, self.live(key)
        if session is not None:
            if self.keeper is not None:
                self.keeper.forget(key)
            self._app.main.forget(session.id)
            state.close_session(session.id)
            self._app.main.fit_panes()
        try:
            if self._store is not None:
                await asyncio.wrap_future(self._store.delete(key))
        except Exception as error:
            state.notice("Not deleted", words_of(error), "error")
            _tell(done, False)
            return
        _tell(done, True)

    def delete_current(self) -> str:
        """``/delete``: the focused chat."""
        if self._app.replay is not None:
            return self._app.state.read_only
        session = self._app.state.current
        self.delete(session.key, session.title, len(session.turns), num_hidden(session.turns))
        return ""

    def rename(self, entry: Entry) -> "asyncio.Future[None]":
        """Ask for a title, and give it to a chat; done once it has it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def renamed(title: str | None) -> None:
            if title is None:
                _tell(done, None)
            else:
                self._app.run_worker(self._rename(entry.key, one_line(title), done), group="rename")

        self._app.push_screen(Rename(entry.title, entry.title), renamed)
        return done

    async def _rename(self, key: str, title: str, done: "asyncio.Future[None]") -> None:
        session = self.live(key)
        try:
            if session is not None:
                self._app.state.rename(session.id, title)
            elif self._store is not None:
                await asyncio.wrap_future(self._store.rename(key, title))
        except Exception as error:
            self._app.state.notice("Not renamed", words_of(error), "warning")
        _tell(done, None)

    def adopt(self) -> str:
        """``/adopt``: let the model that runs go on with the focused chat, whose own is gone."""
        state, session = self._app.state, self._app.state.current
        if not adopt(session):
            return "Its model is there, so that it can go on as it is."
        state.announce("sessions", session.id)
        name = state.status.model_name if state.status is not None else "the model that loads now"
        state.notice(
            "Chat goes on", f"The next prompt goes to {name}, with the whole conversation before it."
        )
        return ""


def _tell(waiting: "asyncio.Future[T]", result: T) -> None:
    """Answer whoever waits; a list that was left meanwhile does not any more."""
    if not waiting.done():
        waiting.set_result(result)


def _elsewhere(chats: int) -> str:
    count = "1 open chat" if chats == 1 else f"{chats} open chats"
    return f"Another tui-infer has {count}, which are its own until it ends. This one begins without them."
