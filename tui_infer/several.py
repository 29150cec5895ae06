"""Several chats at once, from the app's side: who gets what is sent, queues, and the compare view."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tui_infer.broadcast import Delivery, addressed, broadcast, deliver
from tui_infer.commands import Command
from tui_infer.compare import Comparison, Plan, read_plan, start, why_not_with
from tui_infer.queueing import clear, send_next, take
from tui_infer.screens.ask import Ask
from tui_infer.screens.compare import CompareScreen
from tui_infer.screens.compare_form import CompareForm
from tui_infer.session import SessionState
from tui_infer.slash import raw_of

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

NO_QUEUE = "No prompt is waiting in this chat. Enter while it answers puts one there."


class Several:
    """Methods that a slash command runs return why they cannot, or an empty string."""

    def __init__(self, app: "TuiInferApp") -> None:
        self._app = app
        self.comparison: Comparison | None = None
        self._panes = 0  # that were shown before the comparison

    # --- sending -----------------------------------------------------------------------------------

    @property
    def receivers(self) -> list[str]:
        """The chats that get what is sent now, by id: all that are shown, or only the focused one."""
        state = self._app.state
        shown = [pane.session.id for pane in self._app.main.visible_panes if pane.session is not None]
        return shown if state.to_all and state.focused in shown else [state.focused]

    def send(self, session: SessionState, text: str, typed: str) -> bool:
        """What Enter does with a text for the model; whether the prompt is done with.

        Behind an answer under way it is queued; without any text the queue goes on.
        """
        state = self._app.state
        if not text.strip():
            return self._send_next(session)
        if state.to_all and session.id in self.receivers:
            return self._send_to(self.receivers, text, typed)
        outcome = deliver(state, session, text, typed)
        if outcome == "sent":
            self._went_out([session.letter])
        elif outcome != "queued":
            state.notice("Not sent", outcome, "warning")
        return outcome in ("sent", "queued")

    def _send_to(self, chats: Sequence[str], text: str, typed: str, *, tell: bool = False) -> bool:
        done = broadcast(self._app.state, chats, text, typed)
        self._tell(done, tell=tell)
        self._went_out(done.sent)
        return done.taken

    def _send_next(self, session: SessionState) -> bool:
        if not session.queue:
            return False
        if why := self._app.state.read_only or session.read_only:
            self._app.state.notice("Not sent", why, "warning")
            return False
        sent = send_next(self._app.state, session)
        if sent:
            self._went_out([session.letter])
        return sent

    def _went_out(self, letters: Sequence[str]) -> None:
        """Show what was sent: now, not the past, and at the end of each chat."""
        if letters:
            self._app.time.leave(to_prompt=True)
        for pane in self._app.main.visible_panes:
            if pane.session is not None and pane.session.letter in letters:
                pane.transcript.to_end()

    def _tell(self, done: Delivery, *, tell: bool) -> None:
        state = self._app.state
        if done.refused:
            also = f" It was {done.words()}." if done.taken else ""
            names = ", ".join(letter for letter, _ in done.refused)
            state.notice(f"Not sent to {names}", f"{done.problem()}{also}", "warning")
        elif tell:
            state.notice("Several chats", f"The prompt was {done.words()}.")

    def toggle_all(self) -> None:
        """Send to all shown panes, or only to the focused one again."""
        state = self._app.state
        if state.read_only:
            state.notice("Not sent", state.read_only, "warning")
            return
        state.to_all = not state.to_all
        if state.to_all and len(self.receivers) == 1:
            more = f"{state.keys['new']} opens another, {state.keys['layout']} shows more."
            state.notice("Sending to all", f"Only one chat is shown now: {more}")
        state.announce("sessions")

    def all(self, words: Sequence[str]) -> str:
        """``/all TEXT``: once to all open chats."""
        if not (text := raw_of(words)):
            return "It takes the text that all open chats shall get."
        return self._once(list(self._app.state.sessions), text, f"/all {text}")

    def to(self, words: Sequence[str]) -> str:
        """``/to A,C TEXT``: once to these chats."""
        found = addressed(self._app.state, raw_of(words))
        if isinstance(found, str):
            return found
        return self._once(*found, f"/to {raw_of(words)}")

    def _once(self, chats: Sequence[str], text: str, typed: str) -> str:
        if why := self._app.state.read_only:
            return why
        drafts = self._app.drafts
        return drafts.run(text, typed, drafts.least_used(chats), lambda whole: self._out(chats, whole, typed))

    def _out(self, chats: Sequence[str], text: str, typed: str) -> str:
        done = broadcast(self._app.state, chats, text, typed)
        self._went_out(done.sent)
        if not done.taken:
            return done.problem()
        self._tell(done, tell=True)
        return ""

    # --- the queue ---------------------------------------------------------------------------------

    def take_back(self, session: SessionState) -> str:
        """The last queued prompt, out of the queue."""
        return take(self._app.state, session)

    def queue(self, words: Sequence[str]) -> str:
        """``/queue [next|clear|drop N]``; alone it lists what waits."""
        state, session = self._app.state, self._app.state.current
        match [word.lower() for word in words]:
            case []:
                lines = [f"{number}. {text}" for number, text in enumerate(session.queue, 1)]
                state.notice(f"Queue of chat {session.letter}", " · ".join(lines) or NO_QUEUE)
            case ["next"]:
                return "" if self._send_next(session) else NO_QUEUE
            case ["clear"]:
                count = clear(state, session)
                state.notice(
                    "Queue", f"{count} prompt{'s' if count != 1 else ''} taken out." if count else NO_QUEUE
                )
            case ["drop", number] if number.isdecimal() and 0 < int(number[:9]) <= len(session.queue):
                state.notice("Queue", f"Taken out: {take(state, session, int(number[:9]) - 1)}")
            case ["drop", number]:
                return f"There is no prompt {number}; {len(session.queue)} wait in chat {session.letter}."
            case _:
                return "It takes next, clear, drop N, or nothing."
        return ""

    def edit_last(self) -> None:
        """Take the last queued prompt back into the prompt, where that is empty."""
        state, session = self._app.state, self._app.state.current
        self._app.main.store_drafts()
        if session.draft.strip():
            state.notice("Queue", "The prompt has a text; ↑ in an empty prompt takes the last one back.")
        elif not session.queue:
            state.notice("Queue", NO_QUEUE)
        else:
            self._app.main.type_into_prompt(self.take_back(session))

    # --- comparing ---------------------------------------------------------------------------------

    def compare(self, words: Sequence[str] = ()) -> str:
        """``/compare temperature=0,1 PROMPT``; without words a form, or what is compared already."""
        state = self._app.state
        if why := state.read_only:
            return why
        if not words:
            self.ask()
            return ""
        plan = read_plan(raw_of(words), state.current.params, state.current.system)
        if isinstance(plan, str):
            return plan

        origin = state.current
        if plan.with_chat and (why := why_not_with(state, origin)):
            return why
        used = origin.context_tokens if plan.with_chat else 0
        typed = f"/compare {raw_of(words)}"
        return self._app.drafts.run(
            plan.prompt, typed, used, lambda whole: self.run(replace(plan, prompt=whole), origin)
        )

    def open(self) -> None:
        """Back to what is compared; the form where there is nothing."""
        if self.comparison is not None and self.comparison.columns(self._app.state):
            self._show()
        elif problem := self.compare():
            self._app.state.notice("Compare", problem, "warning")

    def ask(self) -> None:
        """The form."""
        self._app.main.store_drafts()
        current = self._app.state.current

        def answered(plan: Plan | None) -> None:
            if plan is not None:
                self._app.state.remember(plan.typed)
                if problem := self.run(plan, current):
                    self._app.state.notice("Compare", problem, "warning")

        draft = "" if current.draft.lstrip().startswith("/compare") else current.draft
        go_on = bool(current.turns) and not why_not_with(self._app.state, current)
        form = CompareForm(draft, current, self._app.drafts.whole, go_on=go_on)
        self._app.push_screen(form, answered)

    def run(self, plan: Plan, origin: SessionState) -> str:
        """Open the columns and show them. Returns why they cannot go on with the chat."""
        state = self._app.state
        if plan.with_chat and (why := why_not_with(state, origin)):
            return why
        if isinstance(self._app.screen, CompareScreen):
            self._app.pop_screen()
        if self.comparison is not None:
            self.comparison.followers.clear()
        share = state.status is None or state.status.prefix_cache
        self.comparison = start(state, plan, share=share, origin=origin)
        self._show()
        return ""

    def _show(self) -> None:
        assert self.comparison is not None
        self._panes = len(self._app.main.visible_panes)
        self._app.push_screen(CompareScreen(self._app.state, self.comparison), self._left)

    def _left(self, outcome: str | None) -> None:
        """The view was left: ``take ID`` closes the other columns, ``keep ID`` none, ``new`` asks again."""
        state, comparison = self._app.state, self.comparison
        what, _, chat = (outcome or "").partition(" ")
        if what == "take" and comparison is not None:
            self.comparison = None
            for session in comparison.columns(state):
                if session.id != chat:
                    self._app.main.forget(session.id)
                    state.close_session(session.id)
        for session in comparison.columns(state) if comparison is not None else ():
            session.unread = session.unread and session.busy  # they were read here
        if chat in state.sessions:
            state.focus(chat)
        self._app.main.catch_up()
        if what == "new":
            self.ask()
        elif (panes := len(self._app.main.visible_panes)) != self._panes:
            chats = len(state.sessions)
            told = f"{panes} pane{'s' if panes > 1 else ''}: {chats} chat{'s' if chats > 1 else ''} are open"
            self._app.toasts.flash("Layout", f"{told}; {state.keys['layout']} changes it.")

    def confirm_take(self, screen: CompareScreen, session: SessionState, others: int) -> None:
        """Ask before other columns are closed."""
        question = f"Go on with {session.letter} and close the other {others}?"
        if others == 1:
            question = f"Go on with {session.letter} and close the other one?"

        def answered(sure: bool | None) -> None:
            if sure:
                screen.dismiss(f"take {session.id}")

        if others:
            self._app.push_screen(
                Ask(question, "Close them" if others > 1 else "Close it", "Keep all"), answered
            )
        else:
            screen.dismiss(f"take {session.id}")

    # --- with every frame --------------------------------------------------------------------------

    def follow(self, changes: set[tuple[str, str]]) -> bool:
        """Bring the comparison on its way; whether its view is what is shown instead of the chats."""
        comparison = self.comparison
        if comparison is not None and comparison.followers:
            comparison.advance(self._app.state)
        for screen in self._app.screen_stack:
            if isinstance(screen, CompareScreen):
                screen.refresh_state(changes)
                return True
        return False

    # --- the palette -------------------------------------------------------------------------------

    @property
    def commands(self) -> Iterator[Command]:
        """What a key or a slash command does too."""
        state, session = self._app.state, self._app.state.current
        yield Command("Compare: new…", "/compare temperature=0,1 PROMPT", "app.several('ask')")
        if self.comparison is not None and self.comparison.columns(state):
            yield Command("Compare: back to the columns", state.keys["compare"], "app.several('open')")
        if session.queue:
            yield Command("Queue: send the next", "/queue next", "app.several('next')")
            yield Command("Queue: take the last back", "↑ in an empty prompt", "app.several('edit')")
            yield Command("Queue: empty it", "/queue clear", "app.several('clear')")

    def do(self, what: str) -> None:
        """An entry of the palette or a key."""
        problem = ""
        match what:
            case "all":
                self.toggle_all()
            case "open":
                self.open()
            case "ask":
                problem = self.compare()
            case "edit":
                self.edit_last()
            case "next" | "clear":
                problem = self.queue([what])
        if problem:
            self._app.state.notice("Not done", problem, "warning")
