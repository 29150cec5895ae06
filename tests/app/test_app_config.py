from pathlib import Path

import pytest

from engine.errors import ConfigError
from tui_infer.config import Settings, load_settings


def test_without_a_file_there_are_defaults(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "config.toml") == Settings()


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("theme = 'light'\nlayout = '2'\n")
    assert load_settings(path) == Settings(theme="light", layout="2")


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("fps = 0", "fps", "greater than or equal to 5"),
        ("layout = '3'", "layout", "'1', '2' or '4'"),
        ("colour = 'red'", "colour", "not permitted"),
        ("fps = ", "config.toml", "no TOML"),
        ("max_tokens = 999999999999", "max_tokens", "less than or equal to 2147483648"),
        ("max_tokens = '256'", "max_tokens", "valid integer"),
        ("top_p = '0.9'", "top_p", "valid number"),
        ("temperature = nan", "temperature", "finite number"),
    ],
)
def test_a_broken_file_names_file_key_and_reason(tmp_path: Path, text: str, key: str, reason: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert str(path) in caught.value.message
    assert key in caught.value.message
    assert reason in caught.value.message
