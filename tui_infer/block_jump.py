"""Where in a chat the text of a block stands."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tui_infer.session import Turn
from tui_infer.token_texts import RequestText


@dataclass(frozen=True, slots=True)
class Place:
    """Characters ``[start, end)`` of the text of a turn."""

    turn: int
    start: int
    end: int


def letters_of(text: str) -> tuple[str, list[int]]:
    """Letters and digits of a text, with their places in it.

    Templates, markup, line breaks and characters split over tokens differ between what the model read, what
    is kept and what is drawn; letters and digits do not.
    """
    places = [place for place, character in enumerate(text) if character.isalnum()]
    return "".join(text[place] for place in places), places


def place_of(text: RequestText, turns: Sequence[Turn], start: int, end: int) -> Place | None:
    """The place in the chat of the request's tokens ``[start, end)``; None where no turn has it.

    Tokens of the chat template and of the system prompt belong to no turn; the turn that follows is taken.
    """
    before = len(letters_of("".join(text.slice(0, start)))[0])
    inside = len(letters_of("".join(text.slice(start, end)))[0])
    whole, _ = letters_of("".join(text.slice(0, len(text))))
    first, last = before, max(before + inside, before + 1)
    best: tuple[int, Place] | None = None
    after: Place | None = None
    position = 0
    for number, turn in enumerate(turns[: text.turn + 1]):
        letters, places = letters_of(turn.text)
        if not letters:
            continue
        found = whole.find(letters, position)
        if found < 0 and number == text.turn:  # the answer grows: its newest text may not be drawn yet
            found = len(letters_of("".join(text.pieces))[0])
        if found < 0:
            continue
        position = found + len(letters)
        low, high = max(first, found), min(last, found + len(letters))
        if low < high:
            place = Place(number, places[low - found], places[high - found - 1] + 1)
            if best is None or high - low > best[0]:
                best = (high - low, place)
        elif found >= last and after is None:
            after = Place(number, places[0], places[min(len(places), 12) - 1] + 1)
    return best[1] if best is not None else after


def nearest(letters: str, wanted: str, expected: int) -> int:
    """Where ``wanted`` stands in ``letters``, nearest to ``expected``; -1 where it does not."""
    found: list[int] = []
    position = letters.find(wanted)
    while position >= 0:
        found.append(position)
        position = letters.find(wanted, position + 1)
    if not found:
        return -1
    right = bisect_left(found, expected)
    return min(found[max(0, right - 1) : right + 1], key=lambda place: abs(place - expected))
