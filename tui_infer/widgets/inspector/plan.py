"""How many rows each panel gets: what matters most grows first, and nothing ever overlaps."""

from collections.abc import Mapping, Sequence

FRAME_ROWS = 1
TWO_COLUMNS = 118

# Rows of content that a panel needs to say anything at all, in the order in which panels are given up.
_LEAST = {"batch": 2, "step": 2, "ab": 3, "kv": 2, "table": 1, "events": 2, "gpu": 1}
_GIVEN_UP_FIRST = ("events", "gpu", "table", "kv", "step")

# Panels grow to these rows in this order while there is room.
_GROWTH = (
    ("ab", 5),
    ("step", 4),
    ("kv", 4),
    ("batch", 3),
    ("table", 2),
    ("step", 7),
    ("kv", 6),
    ("batch", 4),
    ("gpu", 2),
    ("ab", 12),
    ("step", 10),
    ("batch", 5),
    ("kv", 9),
    ("table", 3),
    ("batch", 7),
    ("gpu", 6),
    ("step", 13),
    ("events", 5),
    ("kv", 14),
    ("events", 8),
    ("table", 4),
)


def plan_rows(
    names: Sequence[str],
    rows: int,
    most: Mapping[str, int],
    *,
    greedy: Sequence[str] = (),
    keep: str = "",
) -> dict[str, int]:
    """Content rows for each panel that is shown, frames not counted; ``most`` caps what a panel can use.

    Every panel costs one row of frame and the column one more at its end. Panels that do not fit are
    missing from the answer; ``keep`` names one that is the last to go. What is left over goes to ``greedy``
    panels, each up to its most; the last of them takes the rest.
    """
    shown = list(names)
    while len(shown) > 1 and _needed(shown, most) > rows:
        shown.remove(_next_to_go(shown, keep))
    given = {name: min(_LEAST[name], most.get(name, 1 << 30)) for name in shown}
    left = rows - _needed(shown, most)
    if left < 0:
        only = shown[0]
        return {only: max(1, rows - 2 * FRAME_ROWS)} if rows >= 3 else {}
    for name, target in _GROWTH:
        if name in given:
            more = min(left, max(0, min(target, most.get(name, target)) - given[name]))
            given[name] += more
            left -= more
    takers = [name for name in greedy if name in given] or shown[:1]
    for name in takers:
        room = left if name == takers[-1] else max(0, most.get(name, 1 << 30) - given[name])
        given[name] += min(left, room)
        left -= min(left, room)
    return given


def _next_to_go(shown: Sequence[str], keep: str) -> str:
    rest = [name for name in shown if name != keep]
    return next((name for name in _GIVEN_UP_FIRST if name in rest), rest[-1])


def _needed(shown: Sequence[str], most: Mapping[str, int]) -> int:
    content = sum(min(_LEAST[name], most.get(name, 1 << 30)) for name in shown)
    return content + FRAME_ROWS * (len(shown) + 1)
