"""Help while a prompt is typed: the list of what can follow, and the search of earlier prompts.

It opens by typing only: what is pasted, recalled or loaded opens nothing. The draft is changed by a choice
that the user makes, and by nothing else.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from textual import events

from tui_infer.completion import Offer, Paths, World, offer
from tui_infer.path_names import path_choices
from tui_infer.recall import Search
from tui_infer.sanitize import one_line, sanitize
from tui_infer.widgets.chat.choices import Choices, Row

if TYPE_CHECKING:
    from tui_infer.widgets.chat.prompt import Prompt

KEYS = "Tab takes it · ↑ ↓ choose · Esc back"
SEARCH_KEYS = "↑ or {key} older · Enter takes it · Esc back"
NOTHING = "no earlier prompt fits"
LONGEST_LINE = 4000  # characters; nobody types a longer one by hand


class Assist:
    """Belongs to one prompt; ``choices`` is where it shows its list."""

    def __init__(self, prompt: "Prompt", choices: Choices, world: Callable[[], World]) -> None:
        self._prompt = prompt
        self._choices = choices
        self._world = world
        self._offer: Offer | None = None
        self._at = 0
        self._moved = False
        self._typing = False
        self._seen: tuple[str, tuple[int, int]] | None = None
        self._wanted: Paths | None = None
        self.search: Search | None = None

    @property
    def open(self) -> bool:
        """Whether the list is shown."""
        return self.search is not None or self._offer is not None

    def close(self) -> bool:
        """Take the list away; False where there was none."""
        was = self.open
        self._offer = self._wanted = self.search = None
        self._typing = self._moved = False
        self._choices.hide()
        return was

    # --- typing ------------------------------------------------------------------------------------

    def typed(self) -> None:
        """A key that writes or deletes one character is about to do so."""
        self._typing = True

    def changed(self) -> None:
        """The text or the cursor is another one now: see what can follow."""
        if self.search is not None or not self._typing:
            return
        text, cursor = self._line()
        if (text, cursor) == self._seen and self._offer is not None:
            return
        self._seen = (text, cursor)
        self._moved, self._at = False, 0
        row, column = cursor
        document = self._prompt.document
        line = text[:column]
        alone = row == 0 and document.line_count == 1 and column == len(text)
        found = offer(line, self._world(), first=alone) if column <= LONGEST_LINE else None
        if isinstance(found, Paths):
            if self._offer is not None and self._offer.start != found.start:
                self._offer = None  # of another word: while the disk is read, no key may take from it
            if self._wanted != found:
                self._wanted = found
                self._look_up(found)
            return
        self._wanted = None
        self._show(found)

    def _line(self) -> tuple[str, tuple[int, int]]:
        """The line of the cursor, and where in the text that is; empty while something is selected."""
        start, end = self._prompt.selection
        if start != end:
            return "", end
        return self._prompt.document.get_line(end[0]), end

    def _look_up(self, wanted: Paths) -> None:
        """Have the disk read on a thread; the list shows what is there if it is still wanted then."""

        async def look() -> None:
            found = await asyncio.to_thread(path_choices, wanted, Path.cwd())
            if self._wanted == wanted:
                typed = f"@{wanted.typed}" if wanted.mention else wanted.typed
                done = len(found) == 1 and found[0].text == typed
                self._show(Offer(wanted.start, typed, () if done else found))

        self._prompt.run_worker(look(), group="paths", exclusive=True)

    def _show(self, found: Offer | None) -> None:
        self._offer = found if found is not None and (found.choices or found.usage) else None
        self._draw()

    def _draw(self) -> None:
        height = self._prompt.parent.size.height if self._prompt.parent is not None else 0  # type: ignore[attr-defined]
        if self.search is not None:
            self._draw_search(self.search, height)
        elif self._offer is None:
            self._choices.hide()
        else:
            rows = tuple(Row(choice.label, choice.help) for choice in self._offer.choices)
            usage = one_line(self._offer.usage)
            footer = f"{usage}   {KEYS}" if usage and rows else usage or KEYS
            self._choices.show(rows, self._at if rows else -1, footer, height)

    # --- keys --------------------------------------------------------------------------------------

    def key(self, event: events.Key) -> bool:
        """Take a key that is meant for the list; False where it is the prompt's."""
        if self.search is not None:
            return self._search_key(event)
        if event.key in ("enter", "up", "down", "right"):
            self.changed()  # keys that came in one piece with the text before them find its list too
        found = self._offer
        if found is None or not found.choices:
            return False
        match event.key:
            case "up" | "down":
                self._at = (self._at + (1 if event.key == "down" else -1)) % len(found.choices)
                self._moved = True
                self._draw()
            case "right":
                return self._at_end and self._take()
            case "enter":
                return self._enter(found)
            case _:
                return False
        return True

    def _enter(self, found: Offer) -> bool:
        """Take what was chosen; without a choice, only the start of a command's name is completed, which
        could not be sent anyway.
        """
        choice = found.choices[self._at]
        name = found.start == 0 and found.typed.startswith("/")
        known = found.typed[1:].lower() in self._world().commands
        if self._moved:
            sends = choice.final
            self._take()
            return not sends
        if name and not known and choice.text.startswith(found.typed.lower()):
            return self._take()
        return False

    def tab(self) -> bool:
        """Take the chosen one; False where there is none, and the key means something else."""
        if self.search is not None:
            return self.take_found()
        self.changed()
        return self._take()

    @property
    def _at_end(self) -> bool:
        line, (_, column) = self._line()
        return column == len(line)

    def _take(self, index: int | None = None) -> bool:
        found = self._offer
        if found is None or not found.choices:
            return False
        choice = found.choices[self._at if index is None else index]
        _, (row, column) = self._line()
        if column < found.start or choice.text == found.typed:
            self.close()
            return choice.text != found.typed
        self._prompt.replace_typed(choice.text, (row, found.start), (row, column))
        self._typing, self._seen = True, None
        self._offer = None
        self.changed()
        if self._wanted is None and self._offer is None:
            self._choices.hide()
        return True

    def click(self, index: int) -> None:
        """A row was clicked."""
        if self.search is not None:
            self.search.at = index
            self.take_found()
        else:
            self._take(index)

    # --- earlier prompts ---------------------------------------------------------------------------

    def begin_search(self) -> None:
        """Search the earlier prompts; while that is on, go to the next older one."""
        if self.search is None:
            self.close()
            self.search = Search(self._prompt.prompts)
        else:
            self.search.move(1)
        self._draw()

    def _search_key(self, event: events.Key) -> bool:
        search = self.search
        assert search is not None
        match event.key:
            case "enter":
                self.take_found()
            case "up":
                search.move(1)
            case "down":
                search.move(-1)
            case "backspace":
                search.type(search.query[:-1])
            case "ctrl+u" | "ctrl+w":
                search.type("" if event.key == "ctrl+u" else search.query.rstrip().rpartition(" ")[0])
            case _:
                if event.is_printable and event.character:
                    search.type(search.query + event.character)
        self._draw()
        return True

    def paste(self, text: str) -> bool:
        """A paste while a search is on is searched for; else it closes the list."""
        if self.search is None:
            self.close()
            return False
        self.search.type(self.search.query + one_line(text, 200))
        self._draw()
        return True

    def take_found(self) -> bool:
        """The chosen earlier prompt goes into the prompt; the draft comes back past the newest."""
        search = self.search
        place = search.chosen if search is not None else None
        if place is None:
            return True
        self.close()
        self._prompt.recall(place)
        return True

    def _draw_search(self, search: Search, height: int) -> None:
        shown: list[Row] = []
        fold = search.query.lower()
        for place in search.hits:
            line = search.line(place)
            start = line.lower().find(fold) if fold else -1
            shown.append(Row(line, "", (start, start + len(fold)) if start >= 0 else (0, 0)))
        count = f"{search.at + 1} of {len(search.hits)}" if search.hits else NOTHING
        keys = SEARCH_KEYS.format(key=self._world().search_key)
        words = f"search: {sanitize(search.query)}▏ {count} · {keys}"
        self._choices.show(tuple(shown), search.at if shown else -1, words, height)
