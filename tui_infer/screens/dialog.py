"""Screens over the main one that are left once, whatever is pressed meanwhile."""

from typing import TypeVar

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, Screen

Result = TypeVar("Result")


class LeftOnce(Screen[Result]):
    """Textual's ``dismiss`` takes away whatever lies on top. A second key of a quick pair, or an answer that
    comes when another dialog lies above, would so take away that, or the main screen.

    Here only what is on top goes, and its keys do nothing while something lies above it or once it is left.
    """

    @property
    def left(self) -> bool:
        """Whether it is gone, though its last messages and workers may not have ended."""
        return self not in self.app.screen_stack or not self.is_attached

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return super().check_action(action, parameters) if self.is_active else False


class Dialog(ModalScreen[Result], LeftOnce[Result]):  # in this order: styles come from the first
    """A dialog, under which the main screen is to be seen."""
