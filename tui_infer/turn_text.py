"""What of a message is copied or quoted, as text."""

from dataclasses import dataclass

from tui_infer.widgets.chat.blocks import parser


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A block of code of a message, without its fence; ``language`` is empty where none was named."""

    language: str
    source: str


def code_blocks(text: str) -> list[CodeBlock]:
    """The blocks of code of a Markdown text, also those in lists and quotes, in their order."""
    found = []
    for token in parser().parse(text):
        if token.type in ("fence", "code_block"):
            words = token.info.split()
            found.append(CodeBlock(words[0] if words else "", token.content.removesuffix("\n")))
    return found


def quoted(text: str) -> str:
    """The text as a Markdown quote."""
    lines = text.strip("\n").split("\n")
    return "\n".join(f"> {line}" if line.strip() else ">" for line in lines)


def with_quote(draft: str, text: str) -> str:
    """A draft with a quote behind it, and room for what is to be said of it."""
    before = f"{draft.rstrip()}\n\n" if draft.strip() else ""
    return f"{before}{quoted(text)}\n\n"
