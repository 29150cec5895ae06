"""Inline Markdown tokens as styled spans."""

from collections.abc import Sequence

from markdown_it.token import Token
from rich.style import Style

from tui_infer.sanitize import sanitize
from tui_infer.widgets.chat.palette import Palette
from tui_infer.widgets.chat.wrap import Span

_BOLD = Style(bold=True)
_ITALIC = Style(italic=True)
_STRIKE = Style(strike=True)


def inline_spans(tokens: Sequence[Token], style: Style, palette: Palette) -> list[Span]:
    """Spans of one ``inline`` token's children on top of ``style``.

    Links and images are shown as text, with the address behind it where it differs.
    """
    spans: list[Span] = []
    stack = [style]
    targets: list[tuple[str, int]] = []
    for token in tokens:
        match token.type:
            case "text":
                spans.append((token.content, stack[-1]))
            case "softbreak" | "hardbreak":
                spans.append(("\n", stack[-1]))
            case "code_inline":
                spans.append((f"\u00a0{token.content}\u00a0", palette.code))  # the pad is part of the word
            case "strong_open":
                stack.append(stack[-1] + _BOLD)
            case "em_open":
                stack.append(stack[-1] + _ITALIC)
            case "s_open":
                stack.append(stack[-1] + _STRIKE)
            case "link_open":
                targets.append((str(token.attrs.get("href", "")), len(spans)))
                stack.append(palette.link)
            case "strong_close" | "em_close" | "s_close":
                stack.pop()
            case "link_close":
                stack.pop()
                href, start = targets.pop()
                label = "".join(text for text, _ in spans[start:])
                if href and href.removeprefix("mailto:") != label:
                    spans.append((f" ({href})", palette.muted))
            case "image":
                label = token.content or "image"
                spans.append((label, palette.link))
                if source := str(token.attrs.get("src", "")):
                    spans.append((f" ({source})", palette.muted))
            case _:
                spans.append((token.content, stack[-1]))
    # entities such as &#8238; come into being in the parser, behind the first sanitize
    return [(sanitize(text), span_style) for text, span_style in spans if text]
