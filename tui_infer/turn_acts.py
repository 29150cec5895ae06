"""Turns from the app's side: the messages of a chat under the keys, slash commands, and what is copied."""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tui_infer.clipboard import copy, inside_of
from tui_infer.commands import Command
from tui_infer.session import SessionState
from tui_infer.turn_text import code_blocks, with_quote
from tui_infer.turns import (
    ACTS,
    Seed,
    abandon_edit,
    branch,
    go_on,
    newest_versions,
    regenerate,
    resend,
    show_version,
    start_edit,
    why_not,
)
from tui_infer.versions import count
from tui_infer.widgets.chat.messages import Messages

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

NO_CODE = "There is no block of code in this message."
NOTHING = "Nothing was said here yet."
PAST = "This is the past; {} returns to now."
GREEDY = "The temperature is 0: another seed gives the same answer."


class TurnActs:
    """Methods that a slash command runs return why they cannot, or an empty string."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app
        self._code: tuple[str, int, int] = ("", 0, 0)  # chat, turn, and the block that was copied last

    # --- the messages under the keys ---------------------------------------------------------------

    @property
    def messages(self) -> Messages | None:
        """The transcript in which a message is marked."""
        focused = self._app.focused
        return focused if isinstance(focused, Messages) and focused.cursor is not None else None

    def do(self, what: str) -> None:
        """A key of the app or an entry of the palette: into the messages, or an act with the marked one, or
        else with the last.
        """
        if what == "messages":
            self._toggle()
        elif (shown := self.messages) is not None:
            shown.action_act(what)
        else:
            session = self._app.state.current
            self._report(what, self._act(session, self._usual(session, what), what, "", 0))

    def _toggle(self) -> None:
        app = self._app
        if self.messages is not None:
            app.main.fit_panes()
            return
        if app.state.moment is not None:
            app.state.notice("Messages", PAST.format(app.state.keys["past"]))
            return
        app.main.show_chats()
        pane = next((pane for pane in app.main.visible_panes if pane.session is app.state.current), None)
        if pane is None or not pane.transcript.enter():
            app.state.notice("Messages", NOTHING)

    def escape(self) -> bool:
        """One way back: from chosen lines to the message, to the prompt, and out of an edit."""
        app = self._app
        shown = self.messages
        if shown is not None:
            if not shown.leave_lines():
                app.main.fit_panes()
            return True
        app.main.store_drafts()
        session = app.state.current
        here = app.state.moment is None and app.main.dock.mode != "full" and self._at_prompt
        if here and abandon_edit(app.state, session):
            self._reload(session)
            return True
        return False

    @property
    def _at_prompt(self) -> bool:
        return not self._app.main.inspector.has_panel_focus

    def act(self, event: Messages.Act) -> None:
        """What was pressed at a message."""
        if event.session.id in self._app.state.sessions:
            problem = self._act(event.session, event.position, event.what, event.text, event.number)
            self._report(event.what, problem)

    def why_not(self, session: SessionState, position: int, what: str) -> str:
        """Why a key of the messages does nothing now."""
        if what == "code":
            return "" if code_blocks(session.turns[position].text) else NO_CODE
        if what == "edit":
            position &= ~1
        elif what in ("again", "new"):
            position |= 1
        return why_not(self._app.state, session, position, what) if what in ACTS else ""

    def _usual(self, session: SessionState, what: str) -> int:
        """The message that is meant where none is marked: the last, or the last with versions."""
        at = newest_versions(session) if what in ("earlier", "later") else None
        return at if at is not None else len(session.turns) - 1

    def _report(self, what: str, problem: str) -> None:
        if problem:
            self._app.state.notice("Not done", problem, "warning")

    def _act(self, session: SessionState, at: int, what: str, text: str, number: int) -> str:
        if not 0 <= at < len(session.turns):
            return NOTHING
        turn = session.turns[at]
        match what:
            case "copy":
                return self._copy(text or turn.text)
            case "code":
                return self._copy_code(session, at, number)
            case "quote":
                return self._quote(session, text or turn.text)
            case "edit":
                return self._edit(session, at)
            case "again":
                return self._again(session, at, "same")
            case "new":
                return self._again(session, at, "new")
            case "branch":
                return self._branch(session, at)
            case "go_on":
                return self._asked(session, go_on(self._app.state, session))
            case "earlier" | "later":
                return self._version(session, at, turn.place + (1 if what == "later" else -1))
        return ""

    # --- copy and quote ----------------------------------------------------------------------------

    def _copy(self, text: str) -> str:
        if not text:
            return "The message has no text."
        self._app.copy_to_clipboard(text)
        return ""

    def _copy_code(self, session: SessionState, at: int, number: int) -> str:
        blocks = code_blocks(session.turns[at].text)
        if not blocks:
            return NO_CODE
        if number > len(blocks):
            return f"There is no block {number}: the message has {len(blocks)} of code."
        before = self._code[2] if self._code[:2] == (session.key, at) else 0
        number = number or before % len(blocks) + 1
        self._code = (session.key, at, number)
        block = blocks[number - 1]
        more = f"{number} of {len(blocks)}" if len(blocks) > 1 else ""
        self._app.copy_to_clipboard(block.source, " ".join(filter(None, ("Code", more, block.language))))
        return ""

    def _quote(self, session: SessionState, text: str) -> str:
        if not text.strip():
            return "The message has no text."
        self._app.main.store_drafts()
        session.draft = with_quote(session.draft, text)
        self._reload(session)
        self._app.main.fit_panes()
        return ""

    # --- asking ------------------------------------------------------------------------------------

    def _edit(self, session: SessionState, at: int) -> str:
        self._app.main.store_drafts()
        if problem := start_edit(self._app.state, session, at):
            return problem
        self._reload(session)
        self._app.main.fit_panes()
        return ""

    def _again(self, session: SessionState, at: int, seed: Seed) -> str:
        problem = regenerate(self._app.state, session, at, seed)
        if not problem and seed != "same" and session.params.temperature == 0:
            self._app.state.notice("Same answer", GREEDY)
        return self._asked(session, problem)

    def resend(self, session: SessionState, text: str, typed: str) -> bool:
        """Ask what was edited; the draft from before stands in the prompt again. False: the text stays."""
        if problem := resend(self._app.state, session, text):
            self._report("edit", problem)
        else:
            self._app.state.remember(typed)
            self._reload(session)
            self._asked(session, "")
        return False

    def _asked(self, session: SessionState, problem: str) -> str:
        """An answer was asked for: its chat shows it."""
        if not problem:
            for pane in self._app.main.visible_panes:
                if pane.session is session:
                    pane.transcript.update()
                    pane.transcript.to_end()
        return problem

    def _branch(self, session: SessionState, at: int) -> str:
        new = branch(self._app.state, session, at)
        if isinstance(new, str):
            return new
        self._app.main.fit_panes()
        self._reload(new)
        part = "with its beginning" if new.turns else "from its start"
        self._app.state.notice(f"Chat {new.letter}", f"A branch of chat {session.letter}, {part}.")
        return ""

    def _version(self, session: SessionState, at: int, place: int) -> str:
        return show_version(self._app.state, session, at, place)

    def _reload(self, session: SessionState) -> None:
        """Bring what stands in the chat's prompt up to its draft."""
        for pane in self._app.main.visible_panes:
            if pane.session is session:
                pane.prompt.reload()

    # --- slash commands ----------------------------------------------------------------------------

    def retry(self, words: Sequence[str]) -> str:
        """``/retry``, ``/retry new``, ``/retry seed 7``: the last answer again."""
        session = self._app.state.current
        seed: Seed
        match [word.lower() for word in words]:
            case []:
                seed = "same"
            case ["new"]:
                seed = "new"
            case ["seed", number] | [number] if number.isdecimal() and int(number[:20]) < 2**63:
                seed = int(number)
            case _:
                return "It takes nothing for the same seed, new for another one, or seed and a number."
        return self._again(session, len(session.turns) - 1, seed)

    def edit(self, words: Sequence[str]) -> str:
        """``/edit [n]``: the last prompt, or the n-th."""
        session = self._app.state.current
        at = self._exchange(session, words)
        if isinstance(at, str):
            return at
        if problem := self.why_not(session, at, "edit"):
            return problem
        self._app.call_later(self._edit, session, at)  # the prompt is emptied behind its command
        return ""

    def go_on(self, words: Sequence[str]) -> str:
        """``/continue``."""
        session = self._app.state.current
        return "It takes nothing." if words else self._asked(session, go_on(self._app.state, session))

    def fork(self, words: Sequence[str]) -> str:
        """``/fork [n]``: a branch behind the last answer, or behind the n-th."""
        session = self._app.state.current
        at = self._exchange(session, words)
        if isinstance(at, str):
            return at
        if problem := self.why_not(session, at + 1, "branch"):
            return problem
        self._app.call_later(self._branch, session, at + 1)
        return ""

    def copy(self, words: Sequence[str]) -> str:
        """``/copy``, ``/copy code``, ``/copy code 2``: of the last answer."""
        session = self._app.state.current
        at = len(session.turns) - 1
        match [word.lower() for word in words]:
            case []:
                return self._act(session, at, "copy", "", 0)
            case ["code"]:
                return self._act(session, at, "code", "", 0)
            case ["code", number] if number.isdecimal() and int(number[:9]) > 0:
                return self._act(session, at, "code", "", int(number[:9]))
        return "It takes nothing, or code, or code and a number."

    def quote(self, words: Sequence[str]) -> str:
        """``/quote``: the last answer, into the prompt."""
        session = self._app.state.current
        if words:
            return "It takes nothing."
        if not session.turns or not session.turns[-1].text.strip():
            return NOTHING
        self._app.call_later(self._quote, session, session.turns[-1].text)
        return ""

    def version(self, words: Sequence[str]) -> str:
        """``/version n``: of the last message that has several."""
        session = self._app.state.current
        at = newest_versions(session)
        if at is None:
            return "No message of this chat has other versions."
        total = count(session.turns[at])
        if len(words) != 1 or not words[0].isdecimal() or not 1 <= int(words[0][:9]) <= total:
            return f"It takes a number from 1 to {total}; version {session.turns[at].place + 1} is shown."
        return self._version(session, at, int(words[0]) - 1)

    @staticmethod
    def _exchange(session: SessionState, words: Sequence[str]) -> int | str:
        """The place of the prompt that ``[n]`` names, the last one without it."""
        total = len(session.turns) // 2
        if not total:
            return NOTHING
        if not words:
            return 2 * total - 2
        if len(words) > 1 or not words[0].isdecimal() or not 1 <= int(words[0][:9]) <= total:
            return f"It takes the number of a prompt, 1 to {total}, or nothing for the last."
        return 2 * int(words[0]) - 2

    # --- the palette and the clipboard -------------------------------------------------------------

    @property
    def commands(self) -> Iterator[Command]:
        """Entries of the palette: of the marked message, or of the last one."""
        entries = [
            ("Copy the message", "c in the messages · /copy", "copy"),
            ("Copy a block of code", "b in the messages · /copy code", "code"),
            ("Quote the message in the prompt", "q in the messages · /quote", "quote"),
            ("Edit the prompt and ask again", "e in the messages · /edit", "edit"),
            ("Answer again, same seed", "r in the messages · /retry", "again"),
            ("Answer again, new seed", "n in the messages · /retry new", "new"),
            ("Let the answer go on", "o in the messages · /continue", "go_on"),
            ("Branch the chat here", "f in the messages · /fork", "branch"),
            ("Version before", "← in the messages · /version", "earlier"),
            ("Version after", "→ in the messages · /version", "later"),
        ]
        for title, help, what in entries:
            yield Command(f"Message: {title[0].lower()}{title[1:]}", help, f"app.turn({what!r})")

    def send_to_clipboard(self, text: str, what: str = "") -> None:
        """Copy, and tell what was done."""
        app = self._app
        to = "browser" if inside_of(os.environ) == "browser" else "terminal (OSC 52)"
        title = f"{what}, sent to the {to}" if what else f"Sent to the {to}"
        driver = app._driver
        copy(
            text,
            lambda sequence: driver.write(sequence) if driver is not None else None,
            lambda words: app.state.notice(title, words),
            os.environ,
        )
