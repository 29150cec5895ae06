"""The truth of the app: chats, layout and what the engine reported. Plain data, no Textual.

Widgets hold none of it and can be rebuilt from it at any time. ``AppState.apply`` is the reducer of engine
events.
"""

import time
from dataclasses import dataclass, field

from msgspec.structs import replace

from engine.commands import Submit
from engine.records import (
    AnyEvent,
    BlockDetail,
    BlockSnapshot,
    Delta,
    EngineStatus,
    Failed,
    Finished,
    ModeChanged,
    Paused,
    Progress,
    Ready,
    Rejected,
    Started,
    Steps,
)
from tui_infer.answer_trace import AnswerTrace
from tui_infer.engine_state import STARTING, EngineState
from tui_infer.engine_words import slow_for
from tui_infer.load import SyntheticLoad
from tui_infer.mirror import BlockMirror
from tui_infer.past import Timeline
from tui_infer.queueing import answered
from tui_infer.sanitize import one_line, sanitize
from tui_infer.session import SessionState, SessionStatus
from tui_infer.token_texts import TokenTexts
from tui_infer.widgets.inspector.view import SessionTag
from tui_infer.workspace import Topic, tag_of

MAX_TAGS = 1024
REFUSED = "command ignored"  # title of the engine's answer to a command that it cannot follow


@dataclass
class AppState(EngineState):
    """Everything that the screen shows.

    ``unknown_events`` counts events of sessions that are gone; ``stale_events`` those of an older epoch of a
    session that lives.
    """

    texts: TokenTexts = field(default_factory=TokenTexts)
    unknown_events: int = 0
    stale_events: int = 0
    _requests: dict[tuple[str, int], int] = field(default_factory=dict)  # by session and epoch, under way
    _traces: dict[int, AnswerTrace] = field(default_factory=dict)
    _away: set[int] = field(default_factory=set)  # requests that were preempted and not computed since
    _told_slow: bool = False  # once is enough, however often the engine starts

    def __post_init__(self) -> None:
        super().__post_init__()
        self.load = SyntheticLoad(
            lambda command: self.send(command),
            self._remember_tag,
            lambda why: self.notice("Synthetic load stopped", why, "warning"),
        )

    def restarting(self) -> None:
        """A new engine process is on its way: nothing of the old one's requests or blocks holds."""
        self.phase = "loading"
        self.progress = STARTING
        self.failure = None
        self._set_paused(False)
        self.detail = None
        self.texts.clear()
        self.mirror = BlockMirror()
        self.history.clear()
        self.timeline = Timeline(self.history, self.mirror)
        self.past = self.moment = None
        self._traces.clear()
        self._away.clear()
        self.log.clear()
        self.load.lost()
        self.until, self.pause_reason = None, ""
        self._requests.clear()
        self.tags = {}
        for session in self.sessions.values():
            session.request = None
            for turn in session.turns:
                if turn.trace is not None:  # the new engine counts its steps from 0
                    turn.trace = AnswerTrace() if session.busy and turn is session.answer else None
                if turn.trace is not None and turn.token_ids:  # it goes on
                    turn.trace.resume(-1, len(turn.token_ids), len(turn.text))
        self._changed("engine")

    # --- the reducer -------------------------------------------------------------------------------

    def apply(self, event: AnyEvent) -> None:
        """Take in one engine event. Late, stale and unknown events change nothing and never raise."""
        match event:
            case Started() | Finished():
                self._log_ending(event)
                self._apply_to_session(event)
            case Delta() | Rejected():
                self._apply_to_session(event)
            case Steps():
                self._apply_steps(event)
            case BlockSnapshot():
                self.timeline.restore(event)
                self.log.settled(event.step, time.time())
                self._changed("steps")
            case BlockDetail():
                self.detail = event
                self._changed("steps")
            case Progress():
                self.progress = event
                self._changed("engine")
            case Ready():
                self._ready(event.status)
            case ModeChanged():
                self._set_effective_mode(event.mode, event.reason)
                if self._asked_modes:
                    self._asked_modes.popleft()
                if event.reason:
                    self.notice(f"Steps stay {event.mode}", event.reason, "warning")
                self._changed("engine")
            case Paused():
                self._paused(event)
            case Failed():
                self._failed(event)

    def _ready(self, status: EngineStatus) -> None:
        before = self.status.model_path if self.status is not None else status.model_path
        for session in self.sessions.values():  # token ids of another tokenizer mean nothing
            if (session.model or before) != status.model_path:
                session.forget_tokens()
        self.status, self.phase, self.failure = status, "ready", None
        self._set_effective_mode(status.mode, status.mode_reason)
        self._asked_modes.clear()
        self._set_paused(False)
        self.mirror = BlockMirror(status.num_blocks, status.block_size)
        self.timeline = Timeline(self.history, self.mirror)
        self.log.ready(status, time.time())
        waiting, self.pending = self.pending, {}
        for command in waiting.values():
            self._send_waiting(command)
        slow = slow_for(status)
        if slow and not self._told_slow and not self.replay:
            self._told_slow = True
            self.notice("Slower than it could be", slow)
        self._changed("engine")

    def _send_waiting(self, command: Submit) -> None:
        """Send a prompt from before the engine was ready; where that came with another model, as text."""
        session = self.sessions[command.session]
        if command.history is None or session.history_ids:
            self.send(command)
        elif command.answered:
            session.close_answer("cancelled", "another model was loaded, which cannot go on with it")
        else:
            last = len(session.turns) - 2
            messages = session.messages_at(last, session.turns[last].text)
            self.send(replace(command, prompt=list(messages), history=None))

    def _failed(self, event: Failed) -> None:
        if not event.fatal:
            self.until = None if event.title == REFUSED else self.until
            self.notice(event.title, f"{event.message} {event.hint}", "error")
            return
        self.phase, self.failure = "failed", event
        self.load.lost()
        self.until, self.pause_reason = None, ""
        self._asked_modes.clear()
        for session in self.sessions.values():
            if session.busy and session.id not in self.pending:
                session.close_answer("error", "the engine stopped")
                self._changed("turns", session.id)
        self._changed("engine")
        self._changed("sessions")

    def _apply_steps(self, event: Steps) -> None:
        doing: dict[int, SessionStatus] = {}  # by request, what the last of these steps did with its prompt
        self.timeline.extend(event.records, event.dropped)
        for record in event.records:
            for row in record.rows:
                if trace := self._traces.get(row.request):
                    trace.compute(record.index, row.context)
            self.log.take(record)
        if self.ab is not None:
            self.ab.observe(event.records)
        for record in event.records:
            doing |= dict.fromkeys(record.preempted, "queued")
            doing |= {row.request: "prefill" for row in record.rows if row.prefill}
        for request, what in doing.items():
            (self._away.add if what == "queued" else self._away.discard)(request)
        for session in self.sessions.values():
            now = doing.get(session.request) if session.busy and session.request is not None else None
            if now is not None and now != session.status and "queued" in (now, session.status):
                session.status = now
                self._changed("sessions", session.id)
        self._changed("steps")

    def _log_ending(self, event: Started | Finished) -> None:
        """Which request it was that ends, also of a chat that went on or is gone."""
        key = (event.session, event.epoch)
        if isinstance(event, Started):
            self._requests[key] = event.request
        elif (request := self._requests.pop(key, None)) is not None:
            self._away.discard(request)
            self.log.ended(request, event.reason)

    def _apply_to_session(self, event: Started | Delta | Finished | Rejected) -> None:
        if self.load.owns(event.session):
            if not isinstance(event, Delta):  # nobody reads its text
                self.load.apply(event, time.monotonic())
            return
        session = self.sessions.get(event.session)
        if session is None:
            self.unknown_events += 1
            return
        if event.epoch != session.epoch:
            self.stale_events += 1
            return
        was = session.status
        match event:
            case Started() if session.busy:
                session.request = event.request
                self._follow(event, session)
                session.history_ids = list(event.prompt_ids)
                session.model = self.status.model_path if self.status is not None else ""
                if session.answer is not None:
                    session.answer.asked = len(event.prompt_ids)
                    session.answer.seed = event.seed
                self._remember(event.request, session)
                self.texts.started(event, len(session.turns) - 1)
            case Started():  # cancelled on its way in: the blocks still belong to it for a moment
                self._remember(event.request, session)
            case Delta():
                turn = session.answer
                if turn is not None and turn.trace is not None:
                    turn.trace.receive(event.text, len(event.token_ids), event.ends, len(turn.text))
                self.texts.delta(event)
                clock = self.running
                by_hand = clock.by_hand and clock.stands
                now = clock.read(self.clock())
                session.receive(sanitize(event.text), event.token_ids, now, by_hand=by_hand)
                if session.request in self._away:  # what it made before comes behind the news of that
                    session.status = "queued"
            case Finished():
                if session.busy:
                    self._finish(session, event)
                session.record_stats(event)
                self.texts.ended(event.session, event.epoch)
            case Rejected() if session.busy:
                session.close_answer("error", one_line(f"{event.message} {event.hint}", 400))
        self._changed("turns", session.id)
        if session.status != was:
            hidden = session.id not in self.layout.shown
            session.unread = session.unread or (hidden and session.id != self.focused and not session.busy)
            self._changed("sessions", session.id)
        if isinstance(event, Finished) and was != session.status:
            answered(self, session)

    def _follow(self, event: Started, session: SessionState) -> None:
        """From here on the steps say which tokens the answer had after each of them."""
        turn = session.answer
        if turn is None or turn.trace is None:
            return
        turn.trace.request, turn.trace.prompt_tokens = event.request, len(event.prompt_ids)
        if session.begun:  # characters and stop strings that were cut in their middle are made anew
            if event.text:
                turn.text = sanitize(event.text)
                turn.version += 1
            turn.trace.restart(len(event.text), len(turn.text))
        self._traces[event.request] = turn.trace
        while len(self._traces) > MAX_TAGS:
            del self._traces[next(iter(self._traces))]

    def _finish(self, session: SessionState, event: Finished) -> None:
        if event.reason == "error":
            session.close_answer("error", one_line(event.error or "the engine gave no reason", 400))
        elif event.reason == "cancelled":
            session.close_answer("cancelled", "stopped")
        else:
            session.close_answer("done", "length limit reached" if event.reason == "length" else "")

    def _remember(self, request: int, session: SessionState) -> None:
        """Blocks outlive their requests in the cache, so the owner's tag is kept for a good while."""
        self._remember_tag(request, tag_of(session))

    def _remember_tag(self, request: int, tag: SessionTag) -> None:
        self.tags[request] = tag
        while len(self.tags) > MAX_TAGS:
            del self.tags[next(iter(self.tags))]


__all__ = ["AppState", "Topic"]
