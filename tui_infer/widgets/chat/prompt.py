"""The prompt of a pane: several lines, history, paste of anything."""

from collections.abc import Callable

from textual import events
from textual.binding import Binding, BindingType
from textual.document._document_navigator import DocumentNavigator
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Selection

from tui_infer.sanitize import sanitize_paste
from tui_infer.session import SessionState
from tui_infer.widgets.chat.assist import Assist
from tui_infer.widgets.chat.quick_wrap import QuickWrap

NEWLINE_KEYS = frozenset({"ctrl+j", "shift+enter", "alt+enter", "ctrl+enter"})

# TextArea's keys that are prefixes of multiplexers, suspend, or belong to the app.
_TAKEN = {"ctrl+a", "ctrl+f", "ctrl+z", "ctrl+c", "f6", "f7", "pageup", "pagedown"}


def _editing_keys() -> list[BindingType]:
    """TextArea's keys less the taken ones."""
    bindings: list[BindingType] = []
    for binding in TextArea.BINDINGS:
        assert isinstance(binding, Binding)
        keys = [key for key in binding.key.split(",") if key not in _TAKEN]
        if keys:
            bindings.append(Binding(",".join(keys), binding.action, binding.description, show=False))
    return bindings


class Prompt(TextArea, inherit_bindings=False):
    """Enter sends; ctrl+j, and shift+enter or alt+enter where the terminal tells them apart, break the line.

    The draft belongs to the chat: ``bind`` loads it, every change is stored. Up on the first row and down
    on the last go through earlier prompts; past the newest, the draft comes back.
    """

    DEFAULT_CSS = """
    Prompt {
        height: auto;
        min-height: 1;
        max-height: 40%;
        border: none;
        padding: 0 1;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        scrollbar-gutter: stable;
        &:focus { border: none; }
    }
    """

    BINDINGS = [
        *_editing_keys(),
        Binding("ctrl+underscore", "undo", "Undo", show=False),
    ]

    class Scroll(Message):
        """A key that is meant for the transcript: ``page_up``, ``page_down``, ``start``, ``end``."""

        def __init__(self, where: str) -> None:
            super().__init__()
            self.where = where

    def __init__(self, prompts: list[str], send: Callable[[str], bool]) -> None:
        super().__init__(
            soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False, tab_behavior="focus"
        )
        self.cursor_blink = False  # a blinking cursor is a timer that never sleeps
        self.prompts = prompts
        self._send = send
        self._session: SessionState | None = None
        self.take_back: Callable[[], str] = lambda: ""  # the last queued prompt, out of the queue
        self.drafted: Callable[[], None] = lambda: None  # another draft stands here
        self.assist: Assist | None = None

    # --- the chat ----------------------------------------------------------------------------------

    def bind(self, session: SessionState) -> None:
        """Edit another chat's draft."""
        if session is self._session:
            return
        self.store_draft()
        self._close_list()
        self._session = session
        marked = session.draft_selection
        self._show(session.draft)
        if marked is not None:
            self.selection = Selection(*map(self.document_place, marked))

    def document_place(self, place: tuple[int, int]) -> tuple[int, int]:
        """The nearest place that there is in the text."""
        row = min(place[0], self.document.line_count - 1)
        return row, min(place[1], len(self.document.get_line(row)))

    def on_text_area_selection_changed(self, event: TextArea.SelectionChanged) -> None:
        event.stop()
        if self._session is not None:
            self._session.draft_selection = (self.selection.start, self.selection.end)

    def store_draft(self) -> None:
        """Write what was typed into the chat's state."""
        if self._session is not None:
            self._session.draft = self.text

    def reload(self) -> None:
        """Show the chat's draft, which was made another."""
        if self._session is not None:
            self._show(self._session.draft)

    def _show(self, text: str) -> None:
        self.load_text(text)
        self.move_cursor(self.document.end)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        self.store_draft()
        self.drafted()
        if self.assist is not None:
            self.assist.changed()

    def on_blur(self) -> None:
        self._close_list()

    def _close_list(self) -> None:
        if self.assist is not None:
            self.assist.close()

    def replace_typed(self, text: str, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Write in place of what stands between two places, as if it were typed."""
        if result := self._replace_via_keyboard(text, start, end):
            self.move_cursor(result.end_location)

    def give_back(self, text: str) -> None:
        """A text that could not be sent, before what was typed since."""
        self._show(f"{text}\n{self.text}" if self.text else text)
        self.store_draft()

    def clear_sent(self) -> None:
        """The text was sent: an empty draft, and the history starts at its newest again."""
        if self._session is not None:
            self._session.recall = None
            self._session.stash = ""
        self._show("")
        self.store_draft()

    # --- keys --------------------------------------------------------------------------------------

    async def _on_key(self, event: events.Key) -> None:
        key = event.key
        if self.assist is not None:
            if self.assist.key(event):
                self._take(event)
                return
            if event.is_printable or key in ("backspace", "delete"):
                self.assist.typed()
            else:
                self.assist.close()
        if key == "enter":
            self._take(event)
            # At once, not by a message: the keys after it may go to another chat, or write the next prompt.
            if self._send(self.text):
                self.clear_sent()
        elif key in NEWLINE_KEYS:
            self._take(event)
            self._replace_via_keyboard("\n", *self.selection)
        elif key in ("up", "down") and self._recall(-1 if key == "up" else 1):
            self._take(event)
        elif where := self._scroll_key(key):
            self._take(event)
            self.post_message(self.Scroll(where))
        elif bindings := self._bindings.key_to_bindings.get(key):
            # Here and now. Else the key goes up to the app and comes back as an action, behind whatever was
            # typed after it: keys that come faster than that would edit another text than the one on screen.
            self._take(event)
            for binding in bindings:
                if await self.app.run_action(binding.action, self):
                    break

    def _take(self, event: events.Event) -> None:
        event.stop()
        event.prevent_default()

    def _scroll_key(self, key: str) -> str:
        if not self.text and key in ("home", "end"):
            return {"home": "start", "end": "end"}[key]
        return {
            "pageup": "page_up",
            "pagedown": "page_down",
            "ctrl+home": "start",
            "ctrl+end": "end",
            "alt+up": "up",
            "alt+down": "down",
        }.get(key, "")

    async def _on_paste(self, event: events.Paste) -> None:
        """All lines of a paste, whatever their line ends; nothing is sent."""
        self._take(event)
        if self.assist is None or not self.assist.paste(event.text):
            self.replace_typed(sanitize_paste(event.text), *self.selection)

    def _set_document(self, text: str, language: str | None) -> None:
        super()._set_document(text, language)
        self.wrapped_document = QuickWrap(self.document, self.wrap_width, self.indent_width)
        self.navigator = DocumentNavigator(self.wrapped_document)

    def _rewrap_and_refresh_virtual_size(self) -> None:
        """Wrap again only at another width: a large paste changes height and scroll bar, each of which would
        wrap all of its lines once more.
        """
        wrapped = self.wrapped_document
        if isinstance(wrapped, QuickWrap) and wrapped.width == self.wrap_width:
            self._line_cache.clear()
            self._refresh_size()
        else:
            super()._rewrap_and_refresh_virtual_size()

    def _take_back(self) -> bool:
        """Edit the last queued prompt, which is no longer queued then; only where nothing is typed."""
        if self.text or self._session is None or self._session.recall is not None:
            return False
        if queued := self.take_back():
            self._show(queued)
        return bool(queued)

    # --- history -----------------------------------------------------------------------------------

    def _recall(self, step: int) -> bool:
        """Show the prompt before or after; False where the key is an ordinary move of the cursor."""
        if step < 0 and self._take_back():
            return True
        session, prompts = self._session, self.prompts
        if session is None or not prompts:
            return False
        cursor = self.selection.end
        at_edge = (
            self.navigator.is_first_wrapped_line(cursor)
            if step < 0
            else self.navigator.is_last_wrapped_line(cursor)
        )
        if not at_edge or (session.recall is None and step > 0):
            return False
        position = (len(prompts) if session.recall is None else session.recall) + step
        if position < 0:
            return True
        if position >= len(prompts):
            session.recall = None
            self._show(session.stash)
        else:
            self.recall(position)
        return True

    def recall(self, position: int) -> None:
        """Show an earlier prompt; the draft comes back past the newest."""
        if self._session is not None:
            if self._session.recall is None:
                self._session.stash = self.text
            self._session.recall = position
        self._show(self.prompts[position])
