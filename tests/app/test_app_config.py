"""The settings: every option can stand in them, the later source wins, and what cannot be used is named."""

import json
import os
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.request import SamplingParams
from tui_infer.cli import cli, main
from tui_infer.config import EngineTable, Preset, Settings, load_settings
from tui_infer.config_cli import starter
from tui_infer.config_sources import known_paths, load_config, variable_of
from tui_infer.keymap import all_keys


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, "utf-8")
    return path


def test_without_a_file_there_are_defaults(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "config.toml") == Settings()


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    path = write(tmp_path, "theme = 'light'\nlayout = '2'\n")
    assert load_settings(path) == Settings(theme="light", layout="2")


def test_every_option_of_the_app_the_chat_and_the_engine_can_stand_in_the_settings() -> None:
    here = set(Settings.model_fields) | set(EngineTable.model_fields)
    chat = cli.commands["chat"]
    of_one_run = {"help", "version", "plain", "whole_lines"}
    here |= {"no_text", "no_history"}  # record_text and history
    for command in (cli, chat):
        names = {name for option in command.params if (name := option.name)}
        assert names - here - of_one_run == set()
    assert set(EngineTable.model_fields) == set(EngineConfig.__struct_fields__)
    assert set(Settings.model_fields) >= set(SamplingParams.__struct_fields__)
    assert set(Preset.model_fields) == {*SamplingParams.__struct_fields__, "system"}


def test_engine_options_have_the_forms_of_the_command_line(tmp_path: Path) -> None:
    path = write(
        tmp_path, "[engine]\nkv_memory = '2GiB'\ngraph_sizes = 'none'\nmax_batch = 3\nmode = 'eager'\n"
    )
    said = load_config(path, environ={})
    assert EngineConfig(**said.engine) == EngineConfig(
        kv_memory=2 << 30, graph_sizes=(), max_batch=3, mode="eager"
    )


def test_a_preset_has_sampling_parameters_and_a_system_prompt(tmp_path: Path) -> None:
    path = write(tmp_path, "[presets.brief]\ntemperature = 0\nstop = ['END']\nsystem = 'In one line.'\n")
    preset = load_settings(path).presets["brief"]
    assert preset.sampling() == {"temperature": 0.0, "stop": ("END",)}
    assert preset.system == "In one line."


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("fps = 0", "fps", "greater than or equal to 5"),
        ("layout = '3'", "layout", "'1', '2' or '4'"),
        ("colour = 'red'", "colour", "no such key"),
        ("fps = ", "config.toml", "no TOML"),
        ("max_tokens = 999999999999", "max_tokens", "from 1 to 2147483648"),
        ("max_tokens = '256'", "max_tokens", "valid integer"),
        ("max_tokens = true", "max_tokens", "valid integer"),
        ("top_p = '0.9'", "top_p", "valid number"),
        ("temperature = nan", "temperature", "finite number"),
        ("stop = ['']", "stop", "empty string"),
        ("engine = 3", "engine", "must be a table"),
        ("[engine]\nmax_batch = 0", "engine.max_batch", "at least 1"),
        ("[engine]\nkv_memory = '2q'", "engine.kv_memory", "no size"),
        ("[engine]\nattention = 'fast'", "engine.attention", "'auto'"),
        ("[presets.a]\ntemperature = -1", "presets.a.temperature", "from 0 to 100"),
        ("presets.a = 3", "presets.a", "must be a table"),
        ('[presets."[/red]\\u001b"]', "presets", "'[/red]␛' is no name"),
        ('[presets." a"]', "presets", "is no name"),
        ('[presets.""]', "presets", "is no name"),
        ("[keys]\nnew = 3", "keys.new", "valid string"),
    ],
)
def test_a_broken_config_file_is_told_by_file_key_and_reason(
    tmp_path: Path, text: str, key: str, reason: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert str(path) in caught.value.message
    assert key in caught.value.message
    assert reason in caught.value.message


def test_a_byte_order_mark_in_front_of_the_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xef\xbb\xbffps = 30\n")
    assert load_settings(tmp_path / "config.toml").fps == 30


def test_a_pipe_in_the_place_of_the_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.toml")
    with pytest.raises(ConfigError, match=r"config\.toml is not a file"):
        load_settings(tmp_path / "config.toml")


def test_a_problem_names_the_line_that_it_stands_on(tmp_path: Path) -> None:
    text = '# about\nsystem = """\nfps = 1\n"""\n\n[engine]\nmodel = "x"\nmax_batch = 0\n'
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=rf"{path}:8: engine\.max_batch"):
        load_settings(path)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("temprature = 1", "temperature"),
        ("max_batch = 8", "engine.max_batch"),
        ("[engine]\nmax_bach = 8", "max_batch"),
        ("[presets.a]\ntop-p = 0.5", "top_p"),
    ],
)
def test_an_unknown_key_lists_those_that_may_be_meant(tmp_path: Path, text: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(write(tmp_path, text))
    assert meant in caught.value.hint


def test_the_file_yields_to_the_environment_and_that_to_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, "fps = 10\ntheme = 'light'\nmax_tokens = 5\n")
    environ = {"TUI_INFER_THEME": "dark", "TUI_INFER_MAX_TOKENS": "6"}
    said = load_config(path, environ, {("max_tokens",): ("--max-tokens", 7)})
    assert (said.settings.fps, said.settings.theme, said.settings.max_tokens) == (10, "dark", 7)
    assert said.settings.layout == "auto"
    origins = {name: str(said.origin((name,))) for name in ("fps", "theme", "max_tokens", "layout")}
    assert origins == {
        "fps": f"{path}:1", "theme": "TUI_INFER_THEME", "max_tokens": "--max-tokens", "layout": "default",
    }  # fmt: skip


def test_a_variable_gives_text_numbers_switches_lists_and_what_is_in_tables(tmp_path: Path) -> None:
    environ = {
        "TUI_INFER_SYSTEM": "true",
        "TUI_INFER_HISTORY": "off",
        "TUI_INFER_TEMPERATURE": "0",
        "TUI_INFER_SEED": "7",
        "TUI_INFER_STOP": '["a", "b"]',
        "TUI_INFER_ENGINE__GRAPH_SIZES": "1,2",
        "TUI_INFER_ENGINE__KV_MEMORY": "2GB",
        "TUI_INFER_KEYS__CHAT_1": "f11",
        "TUI_INFER_PRESETS__WARM__TEMPERATURE": "1.5",
    }
    settings = load_config(tmp_path / "none.toml", environ).settings
    assert (settings.system, settings.history, settings.temperature, settings.seed) == ("true", False, 0.0, 7)
    assert settings.stop == ("a", "b")
    assert settings.engine_values() == {"graph_sizes": (1, 2), "kv_memory": 2_000_000_000}
    assert settings.keys == {"chat-1": "f11"}
    assert settings.presets["warm"].temperature == 1.5


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("TUI_INFER_TEMPERATURE", "warm", "a number"),
        ("TUI_INFER_TEMPERATURE", "-1", "from 0 to 100"),
        ("TUI_INFER_FPS", "many", "a whole number"),
        ("TUI_INFER_HISTORY", "maybe", "true or false"),
        ("TUI_INFER_ENGINE__MAX_BATCH", "0", "at least 1"),
        ("TUI_INFER_ENGINE__GRAPH_SIZES", "1;2", "whole numbers with commas"),
        ("TUI_INFER_STOP", "[1", "a list as in TOML"),
        ("TUI_INFER_TEMPRATURE", "1", "TUI_INFER_TEMPERATURE"),
        ("TUI_INFER_ENGINE", "x", "no setting"),
        ("TUI_INFER_KEYS__NEW", "ctrl+i", "cannot tell"),
    ],
)
def test_a_broken_variable_is_told_by_its_name_and_reason(
    tmp_path: Path, name: str, value: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "none.toml", {name: value})
    assert caught.value.message.startswith(name)
    assert reason in str(caught.value)


def test_the_folders_are_no_settings(tmp_path: Path) -> None:
    environ = {"TUI_INFER_CONFIG_DIR": "/a", "TUI_INFER_DATA_DIR": "/b", "TUI_INFER_CACHE_DIR": "/c"}
    assert load_config(tmp_path / "none.toml", environ).settings == Settings()


def test_no_color_takes_the_theme_without_colours_unless_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert load_config(path, {"NO_COLOR": "1"}).settings.theme == "no-color"
    assert load_config(path, {"NO_COLOR": ""}).settings.theme == "dark"
    assert load_config(path, {"NO_COLOR": "1", "TUI_INFER_THEME": "light"}).settings.theme == "light"
    assert load_config(write(tmp_path, "theme = 'light'"), {"NO_COLOR": "1"}).settings.theme == "light"


# --- tui-infer config ------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the settings of this test."""
    monkeypatch.setenv("TUI_INFER_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("NO_COLOR", raising=False)
    return tmp_path


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["config", *arguments], standalone_mode=False)
    assert result.exception is None, result.exception
    return result.stdout


def test_config_prints_every_setting_as_toml_that_gives_the_same_settings(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, 'fps = 10\nsystem = "say \\"hi\\"\\n"\n[keys]\nnew = "ctrl+y"\n[presets."a b"]\nseed = 1\n')
    monkeypatch.setenv("TUI_INFER_ENGINE__MAX_BATCH", "8")
    text = printed("--theme", "light")
    for key in known_paths():
        assert key[-1] in text
    assert "fps = 10" in text
    origins = dict(line.rsplit("  # ", 1) for line in text.splitlines() if "  # " in line)
    origins = {key.split(" =")[0]: origin for key, origin in origins.items()}
    assert origins["fps"] == "config.toml:1"
    assert origins["max_batch"] == "TUI_INFER_ENGINE__MAX_BATCH"
    assert origins["theme"] == "--theme"
    assert origins["layout"] == "default"
    again = here / "again.toml"
    again.write_text(text)
    monkeypatch.delenv("TUI_INFER_ENGINE__MAX_BATCH")
    before, after = load_settings(here / "config.toml"), load_settings(again)
    assert after.theme == "light"
    assert EngineConfig(**after.engine_values()) == EngineConfig(max_batch=8)
    for key in set(Settings.model_fields) - {"theme", "engine"}:
        assert getattr(after, key) == getattr(before, key), key


def test_config_as_json_says_where_each_value_is_from(here: Path) -> None:
    write(here, "fps = 10\n")
    said = json.loads(printed("--json", "--seed", "3"))
    assert said["exists"]
    assert said["settings"]["fps"] == {"value": 10, "origin": "file", "where": f"{here / 'config.toml'}:1"}
    assert said["settings"]["engine.seed"] == {"value": 3, "origin": "option", "where": "--seed"}
    assert said["settings"]["theme"]["origin"] == "default"


def test_config_names_its_file_and_begins_one_once(here: Path) -> None:
    path = here / "config.toml"
    assert printed("--path") == f"{path}\n"
    assert not path.exists()
    assert printed("--init") == f"{path}\n"
    begun = path.read_text()
    assert load_settings(path) == Settings()
    path.write_text("fps = 10\n")
    result = CliRunner().invoke(cli, ["config", "--init"], standalone_mode=False)
    assert isinstance(result.exception, ConfigError)
    assert path.read_text() == "fps = 10\n"
    assert "fps = 20" in begun


def test_every_line_of_the_starter_is_valid_once_it_is_no_comment(tmp_path: Path) -> None:
    lines = [
        line[1:] if line[:1] == "#" and line[1:2] not in (" ", "") else line
        for line in starter().splitlines()
    ]
    data = tomllib.loads("\n".join(lines))
    assert set(data) == set(Settings.model_fields)
    assert set(data["engine"]) == set(EngineTable.model_fields)
    assert set(data["keys"]) == {key.id for key in all_keys()}
    settings = load_settings(write(tmp_path, "\n".join(lines)))
    assert (
        settings.model_copy(update={"engine": Settings().engine, "keys": {}, "presets": {}, "seed": None})
        == Settings()
    )


def test_config_lists_the_keys_by_id_as_they_are_bound(here: Path) -> None:
    write(here, "[keys]\nnew = 'ctrl+y'\n")
    lines = printed("--keys").splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("new ")] == [["new", "ctrl+y"]]
    keys = json.loads(printed("--keys", "--json"))
    assert keys["new"] == "ctrl+y"
    assert keys["help"] == "f1"


@pytest.mark.parametrize(
    "command", [["config"], ["run", "-p", "x"], ["chat", "--plain"], ["bench", "decode"]]
)
def test_a_broken_file_stops_every_command_that_uses_it(here: Path, command: list[str]) -> None:
    write(here, "[engine]\nmax_batch = 0\n")
    result = CliRunner().invoke(cli, command, standalone_mode=False)
    assert isinstance(result.exception, ConfigError)
    assert "config.toml:2: engine.max_batch" in str(result.exception)


def test_a_variable_has_the_name_of_its_path() -> None:
    assert variable_of(("engine", "max_batch")) == "TUI_INFER_ENGINE__MAX_BATCH"
    assert variable_of(("keys", "chat-1")) == "TUI_INFER_KEYS__CHAT_1"


def test_unknown_options_of_config_are_usage_errors() -> None:
    result = CliRunner().invoke(cli, ["config", "--json", "--init"], standalone_mode=False)
    assert isinstance(result.exception, click.UsageError)


def test_a_broken_file_and_a_broken_variable_end_with_code_2_and_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here, "[keys]\nnew = 'ctrl+m'\n")
    with pytest.raises(SystemExit) as ended:
        main(["config"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {here / 'config.toml'}:2: keys.new: ")
    assert told.count("\n") == 1
    write(here, "")
    monkeypatch.setenv("TUI_INFER_FPS", "1")
    with pytest.raises(SystemExit) as ended:
        main(["config"])
    assert ended.value.code == 2
    assert "TUI_INFER_FPS: fps: " in capsys.readouterr().err
