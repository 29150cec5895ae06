"""The one boundary between foreign text and the terminal.

Model output, file content, pasted text, titles and error messages pass here once. What comes out holds
no character that a terminal acts upon. The mapping goes character by character, so that a text cut into
pieces anywhere gives the same result as the whole.
"""

_PICTURES = 0x2400  # Unicode "control pictures": U+2400 is the picture of U+0000, and so on to U+241F

_KEPT = {0x09, 0x0A}
_DROPPED = [
    0x0D,  # carriage return: moves the cursor; CRLF becomes LF, streams of it stay prefix-stable
    *range(0x202A, 0x202F),  # bidirectional embeddings and overrides reorder what is drawn around them
    *range(0x2066, 0x206A),  # bidirectional isolates, for the same reason
    0xFEFF,  # byte order mark: no width in some terminals, one cell in others
]

_TABLE: dict[int, int | None] = {
    **{code: _PICTURES + code for code in range(0x20) if code not in _KEPT},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),  # C1 controls: some terminals read 0x9B as CSI
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),  # lone surrogates cannot be encoded
    0x2028: 0x0A,
    0x2029: 0x0A,
    **dict.fromkeys(_DROPPED),
}

TAB_WIDTH = 4


def sanitize(text: str) -> str:
    """Return ``text`` with line feeds and tabs kept and every other control made visible or dropped."""
    return text.translate(_TABLE)


def sanitize_paste(text: str) -> str:
    """Like ``sanitize``, with CRLF and lone CR read as line ends, which is what terminals send in a paste."""
    return sanitize(text.replace("\r\n", "\n").replace("\r", "\n"))


def one_line(text: str, limit: int = 200) -> str:
    """``text`` as a single clean line of at most ``limit`` characters, for titles, banners and toasts."""
    line = " ".join(sanitize(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
