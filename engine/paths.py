"""Folders of the engine. Torch-free."""

import os
from pathlib import Path
from typing import Literal

import platformdirs

APP_NAME = "tui-infer"


def user_path(text: str) -> Path:
    """A path as a user writes it: ``~`` is a home folder; one of nobody's is a name like any other."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def kind_of(path: Path) -> Literal["folder", "file", ""]:
    """What is at a path; nothing where it cannot be looked at, or where no file can have that name."""
    if os.path.isdir(path):  # unlike pathlib's, these never raise
        return "folder"
    return "file" if os.path.isfile(path) else ""


def cache_dir() -> Path:
    """Where things live that can be made again; ``TUI_INFER_CACHE_DIR`` overrides. Not created here."""
    override = os.environ.get("TUI_INFER_CACHE_DIR")
    return user_path(override) if override else platformdirs.user_cache_path(APP_NAME)


def model_cache_dir() -> Path:
    """Where converted models are kept, one folder each."""
    return cache_dir() / "models"
