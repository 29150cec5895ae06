"""The only module that knows the app's folders. None of them is made here.

Each can be moved with an environment variable: ``TUI_INFER_CONFIG_DIR``, ``TUI_INFER_DATA_DIR``,
``TUI_INFER_LOG_DIR``, ``TUI_INFER_CACHE_DIR``.
"""

import os
from pathlib import Path

import platformdirs

from engine.paths import APP_NAME, cache_dir, model_cache_dir, user_path

__all__ = [
    "bundled_themes_dir",
    "cache_dir",
    "config_dir",
    "config_file",
    "data_dir",
    "demo_recording",
    "log_dir",
    "model_cache_dir",
    "theme_dirs",
    "user_themes_dir",
]

_PACKAGE = Path(__file__).resolve().parent


def config_dir() -> Path:
    """Settings and the user's own themes."""
    return _folder("CONFIG", platformdirs.user_config_path(APP_NAME))


def config_file() -> Path:
    """The settings file; it need not exist."""
    return config_dir() / "config.toml"


def data_dir() -> Path:
    """What cannot be made again: chats and prompt history."""
    return _folder("DATA", platformdirs.user_data_path(APP_NAME))


def log_dir() -> Path:
    """Logs of the app and of the engine process."""
    return _folder("LOG", platformdirs.user_log_path(APP_NAME))


def bundled_themes_dir() -> Path:
    """Themes that come with the app: inside the wheel, or beside the package in a checkout."""
    wheel = _PACKAGE / "_themes"
    return wheel if wheel.is_dir() else _PACKAGE.parent / "themes"


def demo_recording() -> Path:
    """The recording that comes with the app; a checkout may have none."""
    return _PACKAGE / "_demo" / "h200.tirec"


def user_themes_dir() -> Path:
    """Themes of the user's own; they win over bundled ones of the same name."""
    return config_dir() / "themes"


def theme_dirs() -> tuple[Path, Path]:
    """Where themes are read from, the later one winning."""
    return bundled_themes_dir(), user_themes_dir()


def all_folders() -> dict[str, Path]:
    """Every folder and file by its name, as ``tui-infer paths`` prints them."""
    return {
        "config": config_file(),
        "themes": user_themes_dir(),
        "bundled_themes": bundled_themes_dir(),
        "data": data_dir(),
        "logs": log_dir(),
        "cache": cache_dir(),
        "models": model_cache_dir(),
    }


def _folder(name: str, default: Path) -> Path:
    override = os.environ.get(f"TUI_INFER_{name}_DIR")
    return user_path(override) if override else default
