"""Recordings that are there: what ``tui-infer replay`` says when it is given no name."""

import shlex
from pathlib import Path

from tui_infer.locations import data_dir
from tui_infer.recording.format import SUFFIX
from tui_infer.sanitize import one_line

MOST = 5  # named of a folder


def own_folder() -> Path:
    """Where the app keeps recordings that it was given no name for. Not made here."""
    return data_dir() / "recordings"


def what_is_there() -> str:
    """One line: the recordings in the current folder and in the app's own, how to play one, and the demo."""
    demo = "--demo plays the one that comes with tui-infer."
    found = [(folder, names) for folder in (Path(), own_folder()) if (names := newest(folder))]
    if not found:
        return f"Name a recording; there is none in this folder. {demo}"
    path = found[0][0] / found[0][1][0]
    listed = "; ".join(_listed(folder, names) for folder, names in found)
    return f"Name a recording, as in tui-infer replay {one_line(shlex.quote(str(path)))}. {listed}. {demo}"


def newest(folder: Path) -> list[str]:
    """Names of the recordings in a folder, the newest first; none where it cannot be read."""
    try:
        files = [path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file()]
        files.sort(key=lambda path: (-path.stat().st_mtime, path.name))
    except OSError:
        return []
    return [path.name for path in files]


def _listed(folder: Path, names: list[str]) -> str:
    place = "In this folder" if folder == Path() else f"In {one_line(str(folder))}"
    more = f" and {len(names) - MOST:,} more" if len(names) > MOST else ""
    return f"{place}: {', '.join(one_line(name, 80) for name in names[:MOST])}{more}"
