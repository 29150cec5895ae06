"""Events: what happened in the engine, line by line, with a cursor and two filters."""

from collections.abc import Iterable

from rich.style import Style
from textual import events
from textual.binding import Binding

from tui_infer.event_log import KIND_WORDS, KINDS, NOBODY, Entry, EntryKind, EventLog
from tui_infer.sanitize import one_line
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.ink import Ink
from tui_infer.widgets.inspector.lines import Line, counted, fit, width_of
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.view import SessionTag

PAGE = 10
KIND_WIDTH = 10
SHORT = {"captured": "captured", "hit": "prefix hit", "graph": "graph", "eager": "fell back"}


class EventsPanel(Panel):
    """The log's tail, or the lines around the cursor. ``only`` filters by chat and by kind of entry.

    The lines in view are looked up from the cursor or the end: a long log costs what a short one does.
    """

    NAME = "Events"
    HINTS = (("↑↓", "select"), ("Enter", "that step"), ("k", "kind"), ("f", "chat"), ("End", "follow"))
    BINDINGS = [
        Binding("up", "step(-1)", "earlier", show=False),
        Binding("down", "step(1)", "later", show=False),
        Binding("pageup", f"step(-{PAGE})", "page up", show=False),
        Binding("pagedown", f"step({PAGE})", "page down", show=False),
        Binding("home", "first", "oldest", show=False),
        Binding("end", "follow", "follow the newest", show=False),
        Binding("enter", "choose", "show that step", show=False),
        Binding("k", "next_kind(1)", "only one kind", show=False),
        Binding("K", "next_kind(-1)", "only one kind", show=False),
        Binding("f", "next_session(1)", "only one chat", show=False),
        Binding("F", "next_session(-1)", "only one chat", show=False),
        Binding("c", "clear", "all entries", show=False),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.kind: EntryKind | None = None
        self.session = ""
        self.selected: int | None = None  # number of the entry under the cursor; None follows the tail
        self._top = 0  # number of the first entry in view
        self._shown: list[Entry] = []

    # --- filters -----------------------------------------------------------------------------------

    def only(self, *, kind: EntryKind | None = None, session: str = "") -> None:
        """Show the entries of one kind, of one chat, or all; the newest ones come into view."""
        self.kind, self.session, self.selected = kind, session, None
        self.redraw()

    def action_next_kind(self, step: int) -> None:
        log = self._log
        if log is None:
            return
        there = log.kinds(log.end(self._at))
        choices: list[EntryKind | None] = [None, *(kind for kind in KINDS if kind in there)]
        now = choices.index(self.kind) if self.kind in choices else 0
        self.only(kind=choices[(now + step) % len(choices)], session=self.session)

    def action_next_session(self, step: int) -> None:
        choices = ["", *self._sessions()]
        now = choices.index(self.session) if self.session in choices else 0
        self.only(kind=self.kind, session=choices[(now + step) % len(choices)])

    def action_clear(self) -> None:
        self.only()

    def _sessions(self) -> dict[str, SessionTag]:
        """Chats by session, in the order of their letters."""
        tags = self._frame.view.tags.values() if self._frame else ()
        found = {tag.session: tag for tag in tags}
        return dict(sorted(found.items(), key=lambda item: (len(item[1].letter), item[1].letter)))

    def _wanted(self, entry: Entry) -> bool:
        if self.kind is not None and entry.kind != self.kind:
            return False
        if not self.session:
            return True
        frame = self._frame
        tags = [frame.tag(request) for request in (entry.request, entry.other)] if frame else []
        return any(tag is not None and tag.session == self.session for tag in tags)

    # --- cursor ------------------------------------------------------------------------------------

    @property
    def _log(self) -> EventLog | None:
        return self._frame.log if self._frame else None

    @property
    def _at(self) -> int | None:
        return self._frame.view.at if self._frame else None

    def action_step(self, step: int) -> None:
        log = self._log
        if log is None:
            return
        end = log.end(self._at)
        if self.selected is None:
            start: Iterable[Entry] = log.back(end, self._wanted)
            step = abs(step) if step < 0 else 1
        elif step < 0:
            start = log.back(min(end, log.place_of(self.selected)), self._wanted)
            step = -step
        else:
            start = log.forward(log.place_of(self.selected + 1), end, self._wanted)
        chosen = None
        for _, entry in zip(range(step), start):
            chosen = entry
        if chosen is not None:
            self.selected = chosen.number
            self.redraw()

    def action_first(self) -> None:
        log = self._log
        if log is not None:
            entry = next(log.forward(0, log.end(self._at), self._wanted), None)
            self.selected = entry.number if entry else None
            self.redraw()

    def action_follow(self) -> None:
        self.selected = None
        self.redraw()

    def action_choose(self) -> None:
        log = self._log
        if log is None:
            return
        if self.selected is None:
            self.action_step(-1)
        entry = next((entry for entry in self._shown if entry.number == self.selected), None)
        if entry is not None and entry.step > 0:
            self.post_message(self.StepChosen(entry.step))

    def on_click(self, event: events.Click) -> None:
        row = event.y - 1
        if 0 <= row < len(self._shown):
            again = self.selected == self._shown[row].number
            self.selected = self._shown[row].number
            self.redraw()
            if again:
                self.action_choose()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_step(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_step(3)
        log = self._log
        if log is not None and self.selected is not None:
            newest = next(log.back(log.end(self._at), self._wanted), None)
            if newest is not None and newest.number == self.selected:
                self.action_follow()

    # --- drawing -----------------------------------------------------------------------------------

    def headline(self, frame: Frame, width: int) -> Line:
        ink = frame.ink
        line: Line = []
        if self.session:
            tag = self._sessions().get(self.session)
            line += [("only ", ink.dim), (tag.letter, ink.letter(tag.color)) if tag else ("?", ink.dim)]
        if self.kind is not None:
            line += [(", " if line else "only ", ink.dim), (KIND_WORDS.get(self.kind, self.kind), ink.text)]
        if not line and frame.log is not None:
            count = frame.log.end(frame.view.at)
            line = [(f"{count:,} {'entry' if count == 1 else 'entries'}", ink.faint)] if count else []
        return line

    def body(self, frame: Frame, width: int, height: int) -> list[Line]:
        log, ink = frame.log, frame.ink
        if log is None or not log.end(frame.view.at):
            return [[(frame.waiting_text, ink.dim)]]
        self._shown = self._in_view(log, log.end(frame.view.at), height)
        if not self._shown:
            return [[("nothing of that kind so far", ink.dim), ("  c shows all", ink.faint)]]
        digits = max(3, len(f"{self._shown[-1].step}"))
        return [self._line(frame, entry, width, digits) for entry in self._shown]

    def _in_view(self, log: EventLog, end: int, height: int) -> list[Entry]:
        """At most ``height`` entries: the newest, or those around the cursor, which stay while it moves."""
        if self.selected is None:
            rows = [entry for _, entry in zip(range(height), log.back(end, self._wanted))][::-1]
        else:
            self._top = min(self._top, self.selected)
            rows = self._from(log, log.place_of(self._top), end, height)
            if not rows or rows[-1].number < self.selected:
                back = log.back(min(end, log.place_of(self.selected + 1)), self._wanted)
                rows = [entry for _, entry in zip(range(height), back)][::-1]
            if len(rows) < height:
                back = log.back(end, self._wanted)
                rows = [entry for _, entry in zip(range(height), back)][::-1]
        if rows:
            self._top = rows[0].number
        return rows

    def _from(self, log: EventLog, start: int, end: int, height: int) -> list[Entry]:
        return [entry for _, entry in zip(range(height), log.forward(start, end, self._wanted))]

    def _line(self, frame: Frame, entry: Entry, width: int, digits: int) -> Line:
        ink = frame.ink
        tag = frame.tag(entry.request)
        step = f"{entry.step}" if entry.step > 0 else "–"
        line: Line = [(step.rjust(digits), ink.dim), (" ", ink.dim)]
        letter = tag.letter if tag else "" if entry.request == NOBODY else "?"
        line.append((f"{letter[:3]:<3} ", ink.letter(tag.color) if tag else ink.dim))
        word = SHORT.get(entry.kind, entry.kind)
        line += [(word.ljust(KIND_WIDTH), _style(entry.kind, ink)), (" ", ink.dim)]
        line = fit([*line, *_words(frame, entry)], width)
        if entry.number != self.selected:
            return line
        base = ink.lit(ink.title if self.has_focus else ink.dim)
        text = "".join(part for part, _ in line)
        return [(text + " " * (width - width_of(line)), base)]


def _style(kind: EntryKind, ink: Ink) -> Style:
    styles: dict[EntryKind, Style] = {
        "admitted": ink.ok,
        "hit": ink.cached,
        "shared": ink.cached,
        "released": ink.dim,
        "evicted": ink.warn,
        "preempted": ink.error,
        "captured": ink.graph,
        "graph": ink.graph,
        "eager": ink.eager,
        "mode": ink.title,
        "cancelled": ink.warn,
        "finished": ink.ok,
    }
    return styles.get(kind, ink.text)


def _words(frame: Frame, entry: Entry) -> Line:
    """What happened, after the kind."""
    ink = frame.ink
    blocks = f"{counted(len(entry.blocks), 'block')}"
    which: Line = [(f" {spans(entry.blocks)}", ink.text)] if entry.blocks else []
    match entry.kind:
        case "admitted":
            return [(f"prefill {counted(entry.tokens, 'token')}" if entry.tokens else "", ink.dim)]
        case "hit":
            return [(f"{counted(entry.tokens, 'token')}, {blocks}", ink.text), *which]
        case "shared":
            other = frame.tag(entry.other)
            whose: Line = [(other.letter, ink.letter(other.color))] if other else [("another", ink.dim)]
            return [(f"{blocks} with ", ink.dim), *whose, *which]
        case "allocated" | "released" | "evicted":
            return [(blocks, ink.dim), *which]
        case "captured":
            return [(one_line(entry.text, 300), ink.text)]
        case "graph":
            return [("replayed at size ", ink.dim), (entry.text, ink.graph)]
        case "eager":
            return [("eager: ", ink.dim), (one_line(entry.text, 300), ink.text)]
        case "mode":
            return [("switched to ", ink.dim), (entry.text, ink.mode(entry.text))]
        case "finished":
            return [(one_line(entry.text, 80), ink.text)]
        case "preempted":
            return [("recomputed later", ink.dim)]
        case _:
            return []


def spans(blocks: tuple[int, ...]) -> str:
    """Block ids with runs drawn together: ``17–22 40``."""
    runs: list[list[int]] = []
    for block in sorted(blocks):
        if runs and block == runs[-1][-1] + 1:
            runs[-1][1:] = [block]
        else:
            runs.append([block])
    return " ".join("–".join(map(str, run)) for run in runs)
