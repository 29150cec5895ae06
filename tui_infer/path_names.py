"""Names of files and folders that begin with what is typed. Reads the disk, so it is called on a thread."""

import os
from itertools import islice
from pathlib import Path

from engine.paths import user_path
from tui_infer.completion import Choice, Paths
from tui_infer.sanitize import sanitize

MOST_READ = 20_000  # entries of a folder that are looked at
MOST_SHOWN = 200


def path_choices(wanted: Paths, folder: Path) -> tuple[Choice, ...]:
    """Folders first, then files, by name; hidden ones only where a dot is typed. Empty where none is read."""
    head, _, start = wanted.typed.rpartition("/")
    head = f"{head}/" if "/" in wanted.typed else ""
    if wanted.typed == "~":
        return (_choice(wanted, "~/", "folder"),)
    found: list[tuple[bool, str]] = []
    try:
        with os.scandir(folder / user_path(head)) as entries:
            for entry in islice(entries, MOST_READ):
                if _fits(entry.name, start):
                    found.append((not entry.is_dir(), entry.name))
    except (OSError, ValueError):
        return ()
    found.sort(key=lambda item: (item[0], item[1].casefold()))
    return tuple(
        _choice(wanted, f"{head}{name}{'' if is_file else '/'}", "" if is_file else "folder")
        for is_file, name in found[:MOST_SHOWN]
    )


def _fits(name: str, start: str) -> bool:
    """Case matters only where upper case is typed; names that cannot be shown as they are cannot be typed."""
    if name.startswith(".") and not start.startswith("."):
        return False
    if sanitize(name) != name or "\n" in name or '"' in name:
        return False
    return name.startswith(start) or (start.islower() and name.casefold().startswith(start))


def _choice(wanted: Paths, path: str, help: str) -> Choice:
    if not wanted.mention:
        return Choice(path, path, help)
    if any(character.isspace() or character in "'`@" for character in path):
        closing = "" if path.endswith("/") else '"'
        return Choice(f'@"{path}{closing}', path, help)
    return Choice(f"@{path}", path, help)
