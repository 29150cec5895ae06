"""Searching the history of prompts. Plain data, no Textual."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tui_infer.sanitize import one_line

MOST_SEARCHED = 10_000  # characters of a prompt that are looked at
MOST_SHOWN = 400
BEFORE = 20  # characters shown before a hit far behind


@dataclass(slots=True)
class Search:
    """A search that is being typed. ``hits`` are places in ``prompts``, the newest first, equal prompts once;
    ``at`` is the one that is chosen.
    """

    prompts: Sequence[str]
    query: str = ""
    hits: list[int] = field(default_factory=list)
    at: int = 0

    def __post_init__(self) -> None:
        self.type("")

    def type(self, query: str) -> None:
        """Look for another text; case matters only where upper case is typed."""
        self.query = query
        fold = query == query.lower()
        seen: set[str] = set()
        self.hits, self.at = [], 0
        for place in range(len(self.prompts) - 1, -1, -1):
            prompt = self.prompts[place]
            head = prompt[:MOST_SEARCHED]
            if query in (head.lower() if fold else head) and prompt not in seen:
                seen.add(prompt)
                self.hits.append(place)

    def move(self, step: int) -> None:
        """Choose an older (1) or newer (-1) hit; it stops at the ends."""
        self.at = max(0, min(len(self.hits) - 1, self.at + step))

    @property
    def chosen(self) -> int | None:
        """The place of the chosen prompt; None where nothing fits."""
        return self.hits[self.at] if self.hits else None

    def line(self, place: int) -> str:
        """A prompt as one line, cut so that the hit is in view."""
        head = self.prompts[place][:MOST_SEARCHED]
        start = head.lower().find(self.query.lower()) if self.query else 0
        if start <= 2 * BEFORE:
            return one_line(head[: 4 * MOST_SHOWN], MOST_SHOWN)
        return "…" + one_line(head[start - BEFORE : start + 4 * MOST_SHOWN], MOST_SHOWN)
