"""``tui-infer config``: the settings in effect, who gave each value, and a file to start with."""

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from engine.errors import ConfigError
from tui_infer.options import app_sampling_options, engine_options, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tui_infer.config_sources import Config

_SWITCHES_OFF = {"no_text": "record_text", "no_history": "history"}  # options, and what they say no to
WIDTH = 40  # cells of a setting before the origin


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--path", "only_path", is_flag=True, help="Print the file's name only.")
@click.option("--init", is_flag=True, help="Write a file to start with, where there is none.")
@click.option("--keys", "only_keys", is_flag=True, help="Print the keys that can be bound, by id.")
@click.option("--theme", metavar="NAME", help="Theme of the app.")
@click.option("--system", metavar="TEXT", help="System message of new chats.")
@app_sampling_options
@engine_options
@click.pass_obj
def config(
    group: dict[str, Any], as_json: bool, only_path: bool, init: bool, only_keys: bool, **values: Any
) -> int:
    """Print the settings in effect, and where each comes from.

    Defaults, then the file, then TUI_INFER_... variables, then options; the later wins. What is printed can
    be used as the file. Options given here are those that the app would get.
    """
    if sum((as_json, only_path, init, only_keys)) > 1 and not (as_json and only_keys):
        raise click.UsageError("--json, --path, --init and --keys are asked for one at a time.")
    from tui_infer.config_sources import load_config
    from tui_infer.locations import config_file

    if only_path:
        click.echo(config_file())
        return 0
    if init:
        return _begin(config_file())
    said = load_config(options=_options({**group, **_given(values)}))
    if only_keys:
        return _print_keys(said, as_json)
    click.echo(json.dumps(as_object(said), indent=2) if as_json else "\n".join(as_lines(said)))
    return 0


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != ()}


def _options(values: Mapping[str, Any]) -> dict[tuple[str, ...], tuple[str, Any]]:
    """Options by the path of the setting that they give; ``--seed`` is the engine's here."""
    from tui_infer.config import SAMPLING, EngineTable

    found: dict[tuple[str, ...], tuple[str, Any]] = {}
    for name, value in _given(values).items():
        option = f"--{name.replace('_', '-')}"
        value = text_of(value) if isinstance(value, str) else value
        if name in _SWITCHES_OFF and value:
            found[_SWITCHES_OFF[name],] = (option, False)
        if name in EngineTable.model_fields:
            found["engine", name] = (option, value)
        elif name in SAMPLING or name in ("theme", "system", "record"):
            found[name,] = (option, value)
    return found


# --- what is printed -------------------------------------------------------------------------------


def _values(said: "Config") -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and values of all settings, in the order of the file."""
    from engine.config import EngineConfig
    from tui_infer.config_sources import known_paths

    settings, usual = said.settings, EngineConfig()
    for path in known_paths():
        if path[0] != "engine":
            yield path, getattr(settings, path[0])
    for path in known_paths():
        if path[0] == "engine":
            value = getattr(settings.engine, path[1])
            yield path, getattr(usual, path[1]) if value is None else value
    for id, keys in settings.keys.items():
        yield ("keys", id), keys
    for name, preset in settings.presets.items():
        for key, value in preset.given().items():
            yield ("presets", name, key), value


def as_object(said: "Config") -> dict[str, Any]:
    """All settings with their origins: ``default``, ``file``, ``environment`` or ``option``, and where."""
    values = {}
    for path, value in _values(said):
        origin = said.origin(path)
        values[".".join(path)] = {"value": value, "origin": origin.kind, "where": origin.where or None}
    return {"file": str(said.path), "exists": said.path.is_file(), "settings": values}


def as_lines(said: "Config") -> list[str]:
    """All settings as TOML, the origin of each behind it; what is not set is a comment."""
    lines = [f"# {said.path}{'' if said.path.is_file() else ' (there is none yet)'}"]
    table: tuple[str, ...] = ()
    for path, value in _values(said):
        if path[:-1] != table:
            table = path[:-1]
            lines += ["", f"[{'.'.join(_toml_key(part) for part in table)}]"]
        key = _toml_key(path[-1])
        text = f"# {key} is not set" if value is None else f"{key} = {toml_value(value)}"
        origin = str(said.origin(path)).replace(f"{said.path}:", f"{said.path.name}:")
        lines.append(f"{text:<{WIDTH}}  # {origin}")
    return lines


def _print_keys(said: "Config", as_json: bool) -> int:
    from tui_infer.keymap import check_keymap, contexts, effective

    now = effective(check_keymap(said.settings.keys))
    if as_json:
        click.echo(json.dumps(now, indent=2))
        return 0
    for where, keys in contexts().items():
        click.echo(f"# {where}")
        for key in keys:
            words = f" (bound here; {key.keys})" if now[key.id] != key.keys else ""
            click.echo(f"{key.id:<16} {now[key.id]:<14} {key.label}{words}")
    return 0


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple() | list():
            return f"[{', '.join(map(toml_value, value))}]"
    return str(value)


def _toml_key(key: str) -> str:
    plain = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if plain else toml_value(key)


# --- a file to start with --------------------------------------------------------------------------


def _begin(path: "Path") -> int:
    """Write the commented file where there is none.

    Raises:
        ConfigError: there is one already, or it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(starter())
    except FileExistsError:
        raise ConfigError(
            f"{path} is there already and stays as it is.", "'tui-infer config' shows it."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
    click.echo(path)
    return 0


def starter() -> str:
    """Every setting as a comment with its default, or with an example where it has none."""
    from tui_infer.config import EngineTable, Settings
    from tui_infer.config_sources import TABLES
    from tui_infer.keymap import all_keys

    lines = [
        "# Settings of tui-infer. A commented line has the default; 'tui-infer config' prints what holds.",
        "",
    ]
    for key, info in Settings.model_fields.items():
        if key in TABLES:
            continue
        lines += _entry(key, info.default, info.description or "")
    lines += ["", "# What the engine is started with; also for run, bench and serve.", "#[engine]"]
    from engine.config import EngineConfig

    usual, helps = EngineConfig(), option_helps(engine_options)
    for key in EngineTable.model_fields:
        lines += _entry(key, getattr(usual, key), helps.get(key, ""))
    lines += [
        "",
        "# Sampling parameters and a system prompt under a name.",
        "#[presets.precise]",
        "#temperature = 0.0",
        '#system = "Answer in one sentence."',
        "",
        "",
        '# Keys by id, such as "ctrl+y", or several as "ctrl+y,f12".',
        "#[keys]",
    ]
    for bound in all_keys():
        line = f"#{bound.id} = {toml_value(bound.keys)}"
        lines.append(f"{line:<30}  # {bound.label}")
    return "\n".join(lines) + "\n"


_EXAMPLES = {
    "seed": 1, "max_model_len": 4096, "block_size": 16, "num_blocks": 1024, "kv_memory": "2GB",
    "graph_sizes": (1, 2, 4, 8), "threads": 1, "revision": "main",
}  # fmt: skip


def _entry(key: str, value: Any, words: str) -> list[str]:
    """A setting as a comment; one without a default gets an example, and says so."""
    if value is None:
        value, words = _EXAMPLES[key], f"{words} Not set; for example:"
    comment = textwrap.wrap(words, 100, initial_indent="# ", subsequent_indent="# ")
    return [*comment, f"#{key} = {toml_value(value)}", ""]


def option_helps(decorate: Callable[[Any], Any]) -> dict[str, str]:
    """The help of each option that a decorator adds, without its default."""

    def nothing() -> None:
        pass

    options = getattr(decorate(nothing), "__click_params__", [])
    return {
        option.name: (option.help or "").partition("  [")[0] for option in options if option.name is not None
    }
