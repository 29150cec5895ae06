"""Where two texts differ, word by word. Plain data, no Textual.

A word carries the space behind it. Scripts that put no spaces between words are compared by character.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

Span = tuple[int, int]

_NO_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
    "\u2e80-\u312f\u31a0-\ua4cf\uf900-\ufaff\uff66-\uff9f"  # Chinese, Japanese
    "\U00020000-\U0003ffff"
)
# marks that belong to the character before them, and what a joiner joins
_BOUND = (
    "(?:\u200d\\S|[\u0300-\u036f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u1dc0-\u1dff"
    "\u20d0-\u20ff\u3099\u309a\ufe00-\ufe0f\U0001f3fb-\U0001f3ff])*"
)
_TOKEN = re.compile(
    rf"[{_NO_SPACES}]{_BOUND}|(?:[^\W{_NO_SPACES}]{_BOUND})+[^\S\n]*|\n+|[^\S\n]+|[^\w\s]{_BOUND}[^\S\n]*"
)
MOST_PAIRS = 200_000  # of equal words in two texts; where there are more they are first cut into lines


@dataclass(frozen=True, slots=True)
class Difference:
    """What is only in the one and only in the other text, as spans of characters in their order.

    ``equal`` counts the characters before the first difference; ``same`` says that there is none.
    """

    left: tuple[Span, ...]
    right: tuple[Span, ...]
    equal: int
    same: bool


def tokens(text: str) -> list[str]:
    """The words of a text; joined they are the text."""
    return _TOKEN.findall(text)


def difference(left: str, right: str, *, left_open: bool = False, right_open: bool = False) -> Difference:
    """How ``right`` differs from ``left``.

    What is not there yet in an open text is no difference: behind the end of an open one nothing is marked in
    the other, and its last word may still grow.
    """
    a, b = tokens(left), tokens(right)
    if left_open:
        a = a[:-1]
    if right_open:
        b = b[:-1]
    only_a, only_b = _compare(a, b)
    if left_open or right_open:
        only_a, only_b = _less_tail(only_a, only_b, len(a), len(b), left_open, right_open)
    equal = _common(left, right)
    complete = equal == len(left) == len(right) and not (left_open or right_open)
    open_end = (left_open and equal == len(left)) or (right_open and equal == len(right))
    return Difference(_characters(a, only_a), _characters(b, only_b), equal, complete or open_end)


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    """How many characters, or words, are the same from the start."""
    count = 0
    for one, other in zip(left, right):
        if one != other:
            break
        count += 1
    return count


def _compare(a: Sequence[str], b: Sequence[str]) -> tuple[list[Span], list[Span]]:
    """Ranges of tokens that only one of both has."""
    start = _common(a, b)
    end = _common(a[start:][::-1], b[start:][::-1])
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    only_a: list[Span] = []
    only_b: list[Span] = []
    for low_a, high_a, low_b, high_b in _changes(a, b):
        if low_a < high_a:
            only_a.append((start + low_a, start + high_a))
        if low_b < high_b:
            only_b.append((start + low_b, start + high_b))
    return only_a, only_b


def _changes(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int, int, int]]:
    if _pairs(a, b) > MOST_PAIRS:
        return _changes_by_line(a, b)
    codes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(i1, i2, j1, j2) for tag, i1, i2, j1, j2 in codes if tag != "equal"]


def _pairs(a: Sequence[str], b: Sequence[str]) -> int:
    """How often a word of the one is a word of the other: what a comparison costs."""
    counts = Counter(b)
    return sum(count * counts[word] for word, count in Counter(a).items())


def _changes_by_line(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """The lines that differ, and in those of them that are small enough, the words."""
    (lines_a, starts_a), (lines_b, starts_b) = _lines(a), _lines(b)
    changes: list[tuple[int, int, int, int]] = []
    codes = SequenceMatcher(None, lines_a, lines_b, autojunk=_pairs(lines_a, lines_b) > MOST_PAIRS)
    for tag, i1, i2, j1, j2 in codes.get_opcodes():
        if tag == "equal":
            continue
        low_a, high_a, low_b, high_b = starts_a[i1], starts_a[i2], starts_b[j1], starts_b[j2]
        if _pairs(a[low_a:high_a], b[low_b:high_b]) > MOST_PAIRS:
            changes.append((low_a, high_a, low_b, high_b))
            continue
        for x1, x2, y1, y2 in _changes(a[low_a:high_a], b[low_b:high_b]):
            changes.append((low_a + x1, low_a + x2, low_b + y1, low_b + y2))
    return changes


def _lines(words: Sequence[str]) -> tuple[list[str], list[int]]:
    """Lines of tokens, and the number of the token that each starts with; last, how many there are."""
    lines: list[str] = []
    starts = [0]
    for index, word in enumerate(words, 1):
        if word[0] == "\n" or index == len(words):
            lines.append("".join(words[starts[-1] : index]))
            starts.append(index)
    return lines, starts


def _less_tail(
    only_a: list[Span], only_b: list[Span], length_a: int, length_b: int, a_open: bool, b_open: bool
) -> tuple[list[Span], list[Span]]:
    """Without what an open text may still bring: the tail of the other one beyond its own."""
    a_at_end = bool(only_a) and only_a[-1][1] == length_a
    b_at_end = bool(only_b) and only_b[-1][1] == length_b
    tail_a = only_a[-1][1] - only_a[-1][0] if a_at_end else 0
    tail_b = only_b[-1][1] - only_b[-1][0] if b_at_end else 0
    if a_open and b_at_end:
        only_b = _shortened(only_b, tail_a)
    if b_open and a_at_end:
        only_a = _shortened(only_a, tail_b)
    return only_a, only_b


def _shortened(spans: list[Span], length: int) -> list[Span]:
    """With at most ``length`` of the last span left."""
    low, high = spans[-1]
    return [*spans[:-1], (low, min(high, low + length))] if length else spans[:-1]


def _characters(words: Sequence[str], spans: Sequence[Span]) -> tuple[Span, ...]:
    places = [0]
    for word in words:
        places.append(places[-1] + len(word))
    return tuple((places[low], places[high]) for low, high in spans)
