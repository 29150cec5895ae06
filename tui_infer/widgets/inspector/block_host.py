"""What opens, moves and closes the card of a block inside the inspector."""

from textual import on
from textual.message import Message
from textual.widget import Widget

from tui_infer.widgets.inspector.block_detail import BlockCard, holder_of
from tui_infer.widgets.inspector.kvmap import KVPanel
from tui_infer.widgets.inspector.table import TablePanel


class BlockHost(Widget):
    """Base of the inspector: the map, the table and the card speak to each other through it.

    ``highlighted`` is the session whose blocks stand out, because the mouse points at its tab or pane.
    """

    highlighted = ""

    class ChatWanted(Message):
        """The text of ``block`` is to be shown in the chat of ``request``, as its logical block ``index``."""

        def __init__(self, block: int, request: int, index: int) -> None:
            super().__init__()
            self.block = block
            self.request = request
            self.index = index

    def _draw(self) -> None:
        raise NotImplementedError

    def rearrange(self) -> None:
        raise NotImplementedError

    @property
    def map(self) -> KVPanel:
        return self.query_one("#kv", KVPanel)

    @property
    def card(self) -> BlockCard:
        return self.query_one("#card", BlockCard)

    @property
    def opened_block(self) -> int | None:
        """The block whose card is open."""
        return self.card.block if self.is_mounted else None

    def open_block(self, block: int) -> None:
        """Show the card of a block; the map's cursor goes there."""
        fresh = self.card.block is None
        self.card.open(block)
        self.map.opened = block
        self.map.go_to(block)
        if fresh:
            self.rearrange()
        self._draw()

    def close_block(self) -> bool:
        """Take the card away; False when none was open."""
        if not self.is_mounted or self.card.block is None:
            return False
        if self.card.has_focus:
            self.map.focus(scroll_visible=False)
        self.card.close()
        self.map.opened = None
        self.rearrange()
        self._draw()
        return True

    def highlight(self, session: str) -> None:
        """Let the blocks of a session stand out; an empty one ends it."""
        if session != self.highlighted:
            self.highlighted = session
            self._draw()

    @on(KVPanel.Chosen)
    def _when_chosen(self, event: KVPanel.Chosen) -> None:
        event.stop()
        if event.again and self.card.block == event.block:
            self.close_block()
        else:
            self.open_block(event.block)

    @on(KVPanel.Moved)
    def _when_moved(self, event: KVPanel.Moved) -> None:
        event.stop()
        if self.card.block is not None and self.card.block != event.block:
            self.card.open(event.block)
            self.map.opened = event.block
            self._draw()

    @on(TablePanel.Chosen)
    def _when_entry_chosen(self, event: TablePanel.Chosen) -> None:
        event.stop()
        if event.open or self.card.block is not None:
            self.open_block(event.block)
        else:
            self.map.go_to(event.block)

    @on(BlockCard.Closed)
    def _when_closed(self, event: BlockCard.Closed) -> None:
        event.stop()
        self.close_block()

    @on(KVPanel.ChatWanted)
    @on(BlockCard.ChatWanted)
    @on(TablePanel.ChatWanted)
    def _when_chat_wanted(
        self, event: KVPanel.ChatWanted | BlockCard.ChatWanted | TablePanel.ChatWanted
    ) -> None:
        event.stop()
        frame = self.map.last_frame
        holder = holder_of(frame, event.block) if frame is not None else None
        if holder is not None:
            self.post_message(self.ChatWanted(event.block, *holder))
        else:
            self.app.notify(f"No chat holds block {event.block:,}.", title="Block", timeout=3, markup=False)
