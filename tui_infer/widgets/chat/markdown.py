"""A growing Markdown text: what is finished is rendered once, only the end is rendered again.

A block is finished when another block has begun after it on a complete line; from then on, no further
text can change it (there are no reference definitions and no HTML). This makes the final view equal to
one render of the whole text, whatever the pieces were.

Most pieces are a word of a paragraph or of a list's last item. They change the inline content of that one
paragraph and nothing else, so that only this is parsed again.
"""

import re
from collections.abc import Sequence

from markdown_it.token import Token

from tui_infer.widgets.chat.blocks import parser, render_blocks, split
from tui_infer.widgets.chat.palette import Palette
from tui_infer.widgets.chat.wrap import Line

_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_AROUND_A_PARAGRAPH = {"list_item_close", "bullet_list_close", "ordered_list_close", "blockquote_close"}


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

    def grow(self, piece: str) -> bool:
        """Take in more of the last line, where nothing but the words of a paragraph can come of it; False
        where that is not certain.

        A line of a paragraph with a letter in it stays one, whatever follows on the line: rules, underlines
        of headings and of tables have none, and the marks of lists, quotes and fences come first.
        """
        inline = _last_paragraph(self._tokens)
        if inline is None or "\n" in piece:
            return False
        line = inline.content[inline.content.rfind("\n") + 1 :]
        source = self.source[self.source.rfind("\n") + 1 :]
        start = source.rfind(line)
        if start < 0 or source[start + len(line) :].strip(" ") or not any(map(str.isalpha, line)):
            return False
        self.source += piece
        inline.content = (inline.content + source[start + len(line) :] + piece).rstrip()
        inline.children = parser().parseInline(inline.content)[0].children
        inline.meta.clear()
        self._key = None
        return True

    def lines(self, width: int, palette: Palette) -> list[Line]:
        key = (width, palette)
        if self._key != key:
            self._lines = render_blocks(self._tokens, width, palette, palette.base)
            self._key = key
        return self._lines


def _last_paragraph(tokens: Sequence[Token]) -> Token | None:
    """The inline token of the paragraph that a block ends with."""
    index = len(tokens) - 1
    while index > 0 and tokens[index].type in _AROUND_A_PARAGRAPH:
        index -= 1
    return tokens[index - 1] if index > 0 and tokens[index].type == "paragraph_close" else None


class MarkdownText:
    """Text that only grows at its end. ``finished`` blocks never change; ``tail`` holds the others."""

    def __init__(self) -> None:
        self.finished: list[Block] = []
        self.tail: list[Block] = []
        self._text = ""
        self._done = 0

    def update(self, text: str, *, final: bool) -> None:
        """Take in the whole text so far. A text that is not a continuation starts from nothing."""
        if text.startswith(self._text):
            if not final and self.tail and self.tail[-1].grow(text[len(self._text) :]):
                self._text = text
                return
        elif text[: self._done] != self._text[: self._done]:
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
