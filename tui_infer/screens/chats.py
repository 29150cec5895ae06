"""The list of all chats: found by what was said in them, opened, archived, renamed, deleted."""

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tui_infer.keys import CHATS_KEYS, bindings_of
from tui_infer.screens.dialog import Dialog
from tui_infer.store.search import Hit
from tui_infer.themes import session_color
from tui_infer.widgets.bar import fit
from tui_infer.widgets.chat.marks import MARKS

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp
    from tui_infer.archive import ChatArchive
    from tui_infer.chat_list import Entry

ARCHIVED, ELSEWHERE = "▫", "⧉"
MUTED = "$foreground 60%"
WIDE = 84  # columns of the list from which it names models
NARROW = 50  # below these its columns stand close together
SMALL = 20  # rows of the terminal below which the list takes all of them
MOST_SHOWN = 300


class ChatsScreen(Dialog[None]):
    """What is typed is looked for in all chats. Enter goes to the chat, and to the place of the hit."""

    CSS_PATH = "chats.tcss"
    HELP = CHATS_KEYS[0].group
    BINDINGS = [
        Binding("escape", "leave", "back", show=False),
        Binding("up", "move('up')", "chat before", show=False),
        Binding("down", "move('down')", "next chat", show=False),
        Binding("pageup", "move('page_up')", "page up", show=False),
        Binding("pagedown", "move('page_down')", "page down", show=False),
        *bindings_of(CHATS_KEYS, priority=True),
    ]

    def __init__(self, archive: "ChatArchive", words: str = "") -> None:
        super().__init__()
        self._archive = archive
        self._words = words
        self._entries: dict[str, Entry] = {}

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Input(self._words, placeholder="Find words in all chats", id="words", max_length=500)
            yield Static("", id="count", markup=False)
            yield OptionList(id="chats", markup=False)
            yield Static("", id="keys", markup=False)

    def on_mount(self) -> None:
        words = self.query_one("#words", Input)
        words.cursor_blink = False
        words.focus()
        words.cursor_position = len(self._words)
        self.query_one("#chats", OptionList).can_focus = False
        self._search(first=True)

    def on_resize(self) -> None:
        self.set_class(self.size.height < SMALL, "-small")
        self.call_after_refresh(self.redraw)  # once the list has its new width

    def redraw(self) -> None:
        """Draw what was found again: its chats may have changed."""
        if not self.left:
            self._write(list(self._entries.values()))

    def _start(self, group: str, work: Callable[..., Coroutine[Any, Any, None]], *given: object) -> None:
        """Start a worker in place of the one before of its group.

        It gets no coroutine, which nobody would await where the screen is left before it runs.
        """
        started: Any = partial(work, *given)
        self.run_worker(started, group=group, exclusive=True)

    # --- finding -----------------------------------------------------------------------------------

    def _search(self, *, first: bool = False) -> None:
        """The newest search is the only one; what is shown stays until it has found something."""
        if not self.left:
            self._start("find", self._find, first)

    async def _find(self, first: bool) -> None:
        if first:
            await self._archive.settle()
        if self.left:
            return
        query = self.query_one("#words", Input).value
        try:
            found = await self._archive.find(query)
        except Exception as error:
            if self.left:
                return
            self.query_one("#count", Static).update(Content(f"It cannot be searched: {error}"))
            return
        self._entries = {entry.key: entry for entry in found}
        self.redraw()

    @on(Input.Changed)
    def _words_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._search()

    # --- drawing -----------------------------------------------------------------------------------

    def _write(self, entries: "list[Entry]") -> None:
        options = self.query_one("#chats", OptionList)
        chosen = self._chosen
        shown = entries[:MOST_SHOWN]
        options.clear_options()
        width = max(20, options.size.width - 2)
        options.add_options(Option(self._line(entry, width), id=entry.key) for entry in shown)
        keys = [entry.key for entry in shown]
        if shown:
            options.highlighted = keys.index(chosen) if chosen in keys else 0
        self.query_one("#count", Static).update(Content(self._count(entries)))
        self._write_keys()

    def _count(self, entries: "list[Entry]") -> str:
        query = self.query_one("#words", Input).value.strip()
        if not entries:
            return "Nothing was found." if query else "There are no chats yet."
        count = f"{len(entries)} chat{'s' if len(entries) != 1 else ''}"
        if query:
            hits = sum(max(1, entry.hit.turns) for entry in entries if entry.hit is not None)
            count = f"{hits} hit{'s' if hits != 1 else ''} in {count}"
        more = "; type to find the others" if len(entries) > MOST_SHOWN else ""
        return f"{count}, {MOST_SHOWN} shown{more}" if more else count

    def _line(self, entry: "Entry", width: int) -> Content:
        """One row for a chat, and one for what was found in it."""
        app = cast("TuiInferApp", self.app)
        session = app.state.sessions.get(entry.session)
        when = _date(entry.updated)
        size = f"{entry.turns} msg"
        right = f"{size:>8}  {when:>10}" if width >= NARROW else f"{size} {when}"
        if width >= WIDE:
            right = f"{fit(entry.model, 22):<22}  {right}"
        mark, mark_style = self._mark(entry)
        letter, color = "", "$foreground"
        if session is not None:
            letter, color = session.letter, session_color(app.current_theme, session.color)
        unread = "*" if session is not None and session.unread else ""
        left = f"{letter:<2} "
        room = width - cell_len(right) - cell_len(left) - 4
        title = fit(entry.title, max(4, room - len(unread))) + unread
        gap = " " * max(1, room - cell_len(title) + 1)
        style = MUTED if entry.archived or entry.held else "bold" if unread else "$foreground"
        parts: list[str | tuple[str, str]] = [
            (f"{mark} ", mark_style),
            (left, f"bold {color}"),
            (title, style),
            gap,
            (right, MUTED),
        ]
        if entry.held:
            parts.append(("\n     open in another tui-infer", "$text-warning"))
        elif entry.hit is not None and entry.hit.snippet:
            parts += ["\n     ", *_snippet(entry.hit, width - 6)]
        return Content.assemble(*parts)

    def _mark(self, entry: "Entry") -> tuple[str, str]:
        app = cast("TuiInferApp", self.app)
        session = app.state.sessions.get(entry.session)
        if session is not None:
            mark, color = MARKS[session.status]
            return mark, f"${color}"
        return (ELSEWHERE, "$text-warning") if entry.held else (ARCHIVED, MUTED)

    def _write_keys(self) -> None:
        entry = self._entries.get(self._chosen)
        away = "archive" if entry is None or not entry.archived else "take out of the archive"
        names = {"chats-archive": away, "chats-rename": "rename", "chats-delete": "delete"}
        keys = cast("TuiInferApp", self.app).state.keys
        words = " · ".join(f"{keys[id]} {name}" for id, name in names.items())
        self.query_one("#keys", Static).update(Content(f"Enter go there · {words} · Esc back"))

    # --- keys --------------------------------------------------------------------------------------

    @property
    def _chosen(self) -> str:
        """Key of the chat that is highlighted."""
        options = self.query_one("#chats", OptionList)
        index = options.highlighted
        return options.get_option_at_index(index).id or "" if index is not None else ""

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self._write_keys()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._go()

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._go()

    def on_click(self, event: events.Click) -> None:
        if event.widget is self:
            self.dismiss(None)

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_move(self, how: str) -> None:
        getattr(
            self.query_one("#chats", OptionList),
            f"action_cursor_{how}" if how in ("up", "down") else f"action_{how}",
        )()

    def _go(self) -> None:
        if (entry := self._entries.get(self._chosen)) is not None:
            self._start("open", self._open, entry)

    async def _open(self, entry: "Entry") -> None:
        session = await self._archive.open(entry.key)
        if session is None:
            return
        hit = entry.hit
        if hit is not None:
            self.app.call_after_refresh(self._archive.reveal, session, hit)
        self.dismiss(None)

    def action_archive(self) -> None:
        if (entry := self._entries.get(self._chosen)) is not None:
            self._start("away", self._put_away, entry)

    async def _put_away(self, entry: "Entry") -> None:
        await self._archive.put_away(entry.key)
        self._search()

    def action_rename(self) -> None:
        if (entry := self._entries.get(self._chosen)) is not None:
            self._start("rename", self._rename, entry)

    async def _rename(self, entry: "Entry") -> None:
        await self._archive.rename(entry)
        self._search(first=True)

    def action_delete(self) -> None:
        if (entry := self._entries.get(self._chosen)) is not None:
            self._start("delete", self._delete, entry)

    async def _delete(self, entry: "Entry") -> None:
        hidden = await self._archive.hidden(entry.key)
        if await self._archive.delete(entry.key, entry.title, entry.turns, hidden):
            self._search()


def _snippet(hit: Hit, width: int) -> list[str | tuple[str, str]]:
    """What was found with the text around it, the words marked."""
    text = fit(hit.snippet, width)
    parts: list[str | tuple[str, str]] = []
    at = 0
    for start, end in hit.marks:
        if start >= len(text):
            break
        parts += [(text[at:start], MUTED), (text[start:end], "bold $text-accent")]
        at = end
    return [*parts, (text[at:], MUTED)]


def _date(updated: float | None) -> str:
    """The time of today, the day of this year, or the whole date."""
    if updated is None:
        return "now"
    then, now = time.localtime(updated), time.localtime()
    if then[:3] == now[:3]:
        return time.strftime("%H:%M", then)
    if then.tm_year == now.tm_year and updated < time.time():
        return time.strftime("%d %b", then)
    return time.strftime("%Y-%m-%d", then)
