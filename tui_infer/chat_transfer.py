"""Chats to files and back, as the app does it: ``/export chat``, ``/import`` and their palette entries.

Files are read and written on a thread. Methods return why they cannot, or an empty string, as slash commands
do; what happens later is a notice.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import strftime
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.paths import kind_of, user_path
from tui_infer.chat_files import MOST_BYTES, NotImported, chats_of, record_of
from tui_infer.chat_markdown import FORMS
from tui_infer.commands import Command
from tui_infer.export import ExportError, write_new
from tui_infer.sanitize import one_line
from tui_infer.screens.ask import AskPath
from tui_infer.session import SessionState
from tui_infer.slash import Say, read
from tui_infer.widgets.inspector.lines import counted
from tui_infer.workspace import Workspace

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

ALL = "all"
USAGE = "It takes: chat FILE.md or chat FILE.json, and 'all' behind it for every chat."
WORKERS = "chat files"

# What the palette offers.
COMMANDS = (
    Command("Export this chat as Markdown", "/export chat FILE.md", "app.export_chat('.md', False)"),
    Command("Export this chat as JSON", "with token ids and numbers", "app.export_chat('.json', False)"),
    Command("Export all chats as Markdown", "/export chat FILE.md all", "app.export_chat('.md', True)"),
    Command("Export all chats as JSON", "/import brings them back", "app.export_chat('.json', True)"),
    Command("Import chats from a file…", "/import FILE", "app.import_chats"),
)


class ChatTransfer:
    """Export of the focused chat or of all, and import into new ones."""

    commands = COMMANDS

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app

    def export(self, words: Sequence[str]) -> str:
        """``FILE.md|FILE.json [all]``; a name may hold blanks, and a file that is there is left alone."""
        every = len(words) > 1 and words[-1].lower() == ALL
        name = " ".join(words[:-1] if every else words)
        form = FORMS.get(Path(name).suffix.lower())
        if not name or form is None:
            return USAGE
        state = self._app.state
        self._app.main.store_drafts()
        chats = [chat for chat in state.sessions.values() if chat.turns or chat.draft] if every else []
        records = [record_of(_without_command(chat)) for chat in chats or [state.current]]
        path = user_path(name)
        count = counted(len(records), "chat") if every else f"“{state.current.title}”"

        def write() -> None:
            try:
                write_new(path, form(records))
            except ExportError as error:
                self._say("Not exported", str(error), "error")
            else:
                self._say("Exported", f"{count} to {path}")

        self._app.run_worker(write, thread=True, group=WORKERS)
        return ""

    def export_as(self, suffix: str, *, every: bool) -> None:
        """Into the folder in which the app was started, under a new name."""
        name = f"{'chats' if every else 'chat'}-{strftime('%Y%m%d-%H%M%S')}{suffix}"
        self.export([name, ALL] if every else [name])

    def bring(self, words: Sequence[str]) -> str:
        """``FILE``: its chats as new ones, the first of them focused; without words, ask for the file."""
        if self._app.replay is not None:
            return "A recording takes no chats: it shows those that were recorded."
        if not words:
            self._app.push_screen(AskPath("Import chats from which file?", "chats.json"), self._asked)
            return ""
        path = user_path(" ".join(words))

        def read() -> None:
            try:
                chats = read_chats(path)
            except EngineError as error:
                self._say("Not imported", f"{path}: {error}", "error")
            else:
                self._app.call_from_thread(self._take, chats, path)

        self._app.run_worker(read, thread=True, group=WORKERS)
        return ""

    def _asked(self, name: str | None) -> None:
        if name and name.strip():
            self.bring([name.strip()])

    def _take(self, chats: list[SessionState], path: Path) -> None:
        state = self._app.state
        self._app.main.store_drafts()
        adopt(state, chats, state.status.model_path if state.status is not None else "")
        self._app.main.fit_panes()
        what = f"“{chats[0].title}”" if len(chats) == 1 else f"{len(chats)} chats"
        state.notice("Imported", f"{what} from {path.name}")

    def _say(self, title: str, message: str, severity: str = "information") -> None:
        state = self._app.state
        self._app.call_from_thread(state.notice, title, message, severity)


def _without_command(chat: SessionState) -> SessionState:
    """A command in the prompt, such as the one that is being obeyed, is no draft."""
    return chat if isinstance(read(chat.draft), Say) else replace(chat, draft="")


def read_chats(path: Path) -> list[SessionState]:
    """The chats of a file.

    Raises:
        NotImported: the file cannot be read, is too large, or holds no chats.
    """
    if os.path.exists(path) and not kind_of(path):  # a pipe would wait for its writer
        raise NotImported("It is no ordinary file.")
    try:
        with path.open("rb") as file:
            return chats_of(file.read(MOST_BYTES + 1))
    except OSError as error:
        raise NotImported(f"It cannot be read: {one_line(error.strerror or str(error))}.") from None
    except ValueError as error:  # a name that no file can have
        raise NotImported(f"It cannot be read: {one_line(str(error))}.") from None


def adopt(state: Workspace, chats: Sequence[SessionState], model_path: str) -> list[SessionState]:
    """Make open chats of imported ones, under keys of their own, and focus the first.

    Token ids mean something to the model that made them only, so that those of another than ``model_path``
    are left out; the next answer then reads the whole conversation again.
    """
    opened = []
    for chat in chats:
        session = state.new_session()
        for name in ("title", "titled", "turns", "draft", "params", "system"):
            setattr(session, name, getattr(chat, name))
        if chat.history_ids and chat.model == model_path:
            session.history_ids, session.model = chat.history_ids, chat.model
        else:
            session.forget_tokens()
        opened.append(session)
        state.announce("turns", session.id)
    if opened:
        state.focus(opened[0].id)
    return opened
