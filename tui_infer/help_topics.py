"""What the help says: sections of keys and words, in the order in which they are wanted. Knows no Textual."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from tui_infer.keymap import APP, KeyNames, contexts
from tui_infer.keys import PAST_HELP, PROMPT_KEYS

GROUPS = ("Chats", "Engine", "View", "App")
PROMPT, PAST, PANELS, COMMANDS, MARKS = "Prompt", "Looking back", "Panels", "Commands", "Marks"
SETTINGS = "Settings"
SETTINGS_ROWS = (
    ("tui-infer config", "what holds, and the file of the settings"),
    ("  --init", "write the config file to start with"),
    ("  --keys", "ids of keys; [keys] in the file rebinds them"),
    ("tui-infer paths", "the folders: settings, themes, chats"),
)

Row = tuple[str, str]


class Section(NamedTuple):
    """A heading, and what stands under it: a key, command or mark, and what it does or means."""

    title: str
    rows: tuple[Row, ...]


def sections(
    names: KeyNames, panels: Iterable[Section], commands: Sequence[Row], marks: Sequence[Row]
) -> list[Section]:
    """All of the help. ``panels`` are the keys of each panel of the inspector."""
    found: dict[str, list[Row]] = {group: [] for group in GROUPS}
    found[PROMPT] = list(PROMPT_KEYS)
    inner: dict[str, list[Row]] = {}
    for where, keys in contexts().items():
        for key in keys:
            if key.group:
                rows = found if where == APP else inner
                rows.setdefault(key.group, []).append((names.all(key.id), key.label))
    inner.setdefault(PANELS, []).insert(0, ("Tab 1…9", "next panel, panel 1…9 (in KV digits are a block)"))
    inner.setdefault(PAST, []).extend((names.fill(key), label) for key, label in PAST_HELP)
    return [
        *(Section(title, tuple(rows)) for title, rows in found.items()),
        *(Section(title, tuple(rows)) for title, rows in inner.items()),
        *panels,
        Section(COMMANDS, tuple(commands)),
        Section(SETTINGS, SETTINGS_ROWS),
        Section(MARKS, tuple(marks)),
    ]


def arranged(all_sections: Sequence[Section], first: Sequence[str]) -> list[Section]:
    """The sections with those of these titles before the others."""
    order = {title: place for place, title in enumerate(first)}
    return sorted(all_sections, key=lambda section: order.get(section.title, len(order)))


def matching(all_sections: Sequence[Section], words: str) -> list[Section]:
    """What has all these words in its rows or titles; sections without any are left out."""
    parts = words.lower().split()
    found: list[Section] = []
    for section in all_sections:
        rows = tuple(
            row
            for row in section.rows
            if all(part in f"{section.title} {row[0]} {row[1]}".lower() for part in parts)
        )
        if rows:
            found.append(Section(section.title, rows))
    return found


def topic_of(words: str, titles: Sequence[str], commands: Iterable[str]) -> tuple[str, str, str]:
    """What ``/help WORDS`` means: ``(title of a section, words to look for, problem)``, one of them given."""
    word = words.strip().lower()
    by_name = {title.lower(): title for title in titles}
    by_name |= {"keys": GROUPS[0], "inspector": PANELS, "past": PAST}
    by_name |= dict.fromkeys(("config", "rebind", "file", "folders"), SETTINGS)
    if word in by_name:
        return by_name[word], "", ""
    starts = [title for name, title in by_name.items() if name.startswith(word)]
    if word and starts:
        return starts[0], "", ""
    if word.removeprefix("/") in commands:
        return COMMANDS, f"/{word.removeprefix('/')}", ""
    close = get_close_matches(word, [*by_name, *commands], 2, 0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(by_name))}."
    return "", "", f"There is no help on {words.strip()!r}; {hint}"
