"""A growing Markdown text: what is finished is rendered once, only the end is rendered again.

A block is finished when another block has begun after it on a complete line; from then on, no further
text can change it (there are no reference definitions and no HTML). This makes the final view equal to
one render of the whole text, whatever the pieces were.
"""

import re
from collections.abc import Sequence

from markdown_it.token import Token

from tui_infer.widgets.chat.blocks import parser, render_blocks, split
from tui_infer.widgets.chat.palette import Palette
from tui_infer.widgets.chat.wrap import Line

_LINES = re.compile(r"[^\n]*\n|[^\n]+")


class Block:
    """One top-level block: its source, its tokens (parsing is half of a render, so a new width does without),
    and its lines for the last width and palette.
    """

    __slots__ = ("_key", "_lines", "_tokens", "source")

    def __init__(self, source: str, tokens: Sequence[Token]) -> None:
        self.source = source
        self._tokens = tokens
        self._key: tuple[int, Palette] | None = None
        self._lines: list[Line] = []

    def lines(self, width: int, palette: Palette) -> list[Line]:
        key = (width, palette)
        if self._key != key:
            self._lines = render_blocks(self._tokens, width, palette, palette.base)
            self._key = key
        return self._lines


class MarkdownText:
    """Text that only grows at its end. ``finished`` blocks never change; ``tail`` holds the others."""

    def __init__(self) -> None:
        self.finished: list[Block] = []
        self.tail: list[Block] = []
        self._text = ""
        self._done = 0

    def update(self, text: str, *, final: bool) -> None:
        """Take in the whole text so far. A text that is not a continuation starts from nothing."""
        if not text.startswith(self._text) and text[: self._done] != self._text[: self._done]:
            self.finished, self._done = [], 0
        self._text = text
        rest = text[self._done :]
        known = {block.source: block for block in self.tail}
        blocks = self._blocks(rest)
        if len(blocks) > 1:
            complete = rest if final else rest[: rest.rfind("\n") + 1]
            settled = self._blocks(complete)[:-1]
            if settled:
                self.finished += [known.get(block.source, block) for block in settled]
                self._done += sum(len(block.source) for block in settled)
                blocks = self._blocks(text[self._done :])
        self.tail = [known.get(block.source, block) for block in blocks]

    def blocks(self) -> list[Block]:
        return self.finished + self.tail

    @staticmethod
    def _blocks(text: str) -> list[Block]:
        """Top-level blocks; their sources joined are ``text`` from the first block on."""
        if not text.strip():
            return []
        groups = list(split(parser().parse(text)))
        starts = [group[0].map[0] for group in groups if group[0].map is not None]
        lines = _LINES.findall(text)  # not splitlines, which knows more line ends than Markdown does
        bounds = [0, *starts[1:], len(lines)]
        return [
            Block("".join(lines[begin:end]), group) for group, begin, end in zip(groups, bounds, bounds[1:])
        ]
