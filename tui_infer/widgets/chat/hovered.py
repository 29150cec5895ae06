"""The mouse is over something of a chat."""

from textual.message import Message


class Hovered(Message):
    """``session`` is the chat whose tab or pane the mouse points at; empty where it left them."""

    def __init__(self, session: str) -> None:
        super().__init__()
        self.session = session
