"""Where the blocks of the inspector and the chats meet: asking the engine, highlighting, jumping to text."""

from textual import on
from textual.timer import Timer

from tui_infer.block_jump import place_of
from tui_infer.state import AppState
from tui_infer.widgets.chat.hovered import Hovered
from tui_infer.widgets.chat.pane import Pane
from tui_infer.widgets.direct import ImmediateScreen
from tui_infer.widgets.inspector.block_detail import BlockCard
from tui_infer.widgets.inspector.block_host import BlockHost
from tui_infer.widgets.inspector.inspector import Inspector

HIGHLIGHT_S = 2.0  # a mouse that rests somewhere does not fade the other chats for ever


class BlockViews(ImmediateScreen, inherit_bindings=False):
    """Base of the main screen."""

    inspector: Inspector
    _state: AppState
    _highlight_timer: Timer | None = None

    def fit_panes(self) -> None:
        raise NotImplementedError

    def show_chats(self) -> None:
        """Make room for the panes where the inspector takes the whole screen."""
        raise NotImplementedError

    @property
    def visible_panes(self) -> list[Pane]:
        raise NotImplementedError

    @on(BlockCard.Asked)
    def _when_asked(self, event: BlockCard.Asked) -> None:
        self._state.inspect(event.block)

    @on(Hovered)
    def _when_hovered(self, event: Hovered) -> None:
        self.inspector.highlight(event.session)
        if self._highlight_timer is not None:
            self._highlight_timer.stop()
            self._highlight_timer = None
        if event.session:
            self._highlight_timer = self.set_timer(
                HIGHLIGHT_S, lambda: self.inspector.highlight(""), name="highlight"
            )

    @on(BlockHost.ChatWanted)
    def _when_chat_wanted(self, event: BlockHost.ChatWanted) -> None:
        """Go to the chat of a block, and to the text that the block holds."""
        state = self._state
        tag = state.tags.get(event.request)
        session = state.sessions.get(tag.session) if tag is not None else None
        if session is None:
            state.notice(f"Block {event.block:,}", "Its chat is gone.")
            return
        state.focus(session.id)
        self.show_chats()
        text, size = state.texts.of(event.request), state.mirror.block_size
        start = event.index * size
        place = place_of(text, session.turns, start, start + size) if text is not None else None
        pane = next((pane for pane in self.visible_panes if pane.session is session), None)

        def show() -> None:
            if pane is None or place is None:
                shown = False
            else:
                shown = pane.transcript.show_text(place.turn, place.start, place.end)
            if not shown:
                state.notice(f"Block {event.block:,}", "No text of this chat is known for it.")

        self.call_after_refresh(show)  # a pane that was hidden has no width before
