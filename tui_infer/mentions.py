"""``@file`` in a prompt: which files are meant, and the prompt with their text. Plain data, no Textual.

``@notes.md`` or ``@"my notes.md"`` at the start of a word means a file where there is one; anything else
stays the text that it is: ``@@notes.md``, ``me@host``, a name that no file has, whatever stands in code.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from engine.errors import EngineError
from engine.paths import user_path
from tui_infer.sanitize import one_line, sanitize_paste

MOST_BYTES = 256 * 1024  # of all files of a prompt together
MOST_FILES = 32

_MENTION = re.compile(r"""(?<![^\s(\[{"'])@(?:"([^"\n]+)"|([^\s"'`@][^\s"`]*))""")
# The last word of a line that is being typed, in the same form; a quote need not be closed yet.
MENTION_START = re.compile(r"""(?<![^\s(\[{"'])@(?:"([^"\n]*)|([^\s"'`@][^\s"`]*|))$""")
_CODE = re.compile(
    r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|`[^`\n]+`", re.DOTALL | re.MULTILINE
)
_BEHIND = ".,;:!?)]}'"  # what may follow a name without being a part of it
_TICKS = re.compile(r"`+")


class MentionError(EngineError):
    """A file that cannot be in a prompt: too large, not text, not readable."""

    title = "file not included"


class Mention(NamedTuple):
    """Characters ``[start, end)`` of a prompt that name a file as the user wrote it."""

    start: int
    end: int
    name: str


class Included(NamedTuple):
    """A prompt with its files: what is sent, and the names of the files."""

    text: str
    files: tuple[str, ...] = ()


Reader = Callable[[Path], bytes]


def mentions(text: str) -> list[Mention]:
    """What could be files, whether there are any or not."""
    return list(_found(text)) if "@" in text else []


def _found(text: str) -> Iterator[Mention]:
    code = [match.span() for match in _CODE.finditer(text)] if "`" in text or "~~~" in text else []
    for match in _MENTION.finditer(text):
        if not any(start <= match.start() < end for start, end in code):
            yield Mention(match.start(), match.end(), match[1] or match[2])


def include(text: str, folder: Path) -> Included:
    """The prompt with the text of its files behind it, each in a fence under its name. Reads the disk.

    Raises:
        MentionError: naming the file, and the numbers where it is too large.
    """
    found: list[tuple[Mention, Path]] = []
    for mention in mentions(text):
        if hit := _file_of(mention, folder):
            found.append(hit)
    if not found:
        return Included(text)
    paths = list(dict.fromkeys(path for _, path in found))
    if len(paths) > MOST_FILES:
        raise MentionError(f"The prompt names {len(paths)} files; it may have {MOST_FILES}.")
    names = {path: one_line(mention.name) for mention, path in reversed(found)}
    blocks: list[str] = []
    room = MOST_BYTES
    for path in paths:
        content, size = _read(path, names[path], room)
        room -= size
        blocks.append(_block(names[path], path.suffix, content))
    return Included("\n\n".join([_plain(text, found), *blocks]), tuple(names[path] for path in paths))


def _file_of(mention: Mention, folder: Path) -> tuple[Mention, Path] | None:
    """The regular file that is meant; what follows a name as punctuation may belong to the sentence."""
    start, end, name = mention
    while name:
        path = folder / user_path(name)
        try:
            if stat.S_ISREG(path.stat().st_mode):
                return Mention(start, end, name), path
        except (OSError, ValueError):  # no such file, a name that is too long, a null character
            pass
        if name[-1] not in _BEHIND or end - start != len(name) + 1:
            return None
        name, end = name[:-1], end - 1
    return None


def _read(path: Path, name: str, room: int) -> tuple[str, int]:
    """Text and size in bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(room + 1)
            size = max(len(data), os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise MentionError(f"{name} cannot be read: {error.strerror}.") from None
    if size > room:
        rest = "" if room == MOST_BYTES else f", of which {MOST_BYTES - room:,} are taken"
        raise MentionError(
            f"{name} has {size:,} bytes; the files of a prompt may have {MOST_BYTES:,}{rest}.",
            "Paste the part that matters.",
        )
    if b"\0" in data:
        raise MentionError(f"{name} is no text: it has null bytes.")
    try:
        return sanitize_paste(data.decode("utf-8-sig")), size
    except UnicodeDecodeError as error:
        raise MentionError(f"{name} is not UTF-8: byte {error.start:,} is no text.") from None


def _block(name: str, suffix: str, content: str) -> str:
    longest = max((len(run) for run in _TICKS.findall(content)), default=0)
    fence = "`" * max(3, longest + 1)
    kind = suffix[1:] if suffix[1:].isalnum() else ""
    return f"{name}:\n\n{fence}{kind}\n{content.rstrip()}\n{fence}"


def _plain(text: str, found: list[tuple[Mention, Path]]) -> str:
    """The text with plain names, so that it means the same when it is sent once more."""
    parts: list[str] = []
    at = 0
    for mention, _ in found:
        parts += [text[at : mention.start], mention.name]
        at = mention.end
    return "".join([*parts, text[at:]]).rstrip()
