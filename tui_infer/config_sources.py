"""Where settings come from: defaults, then the file, the environment, the command line; and who said what.

A value is named by its path, ``engine.max_batch``. An environment variable is ``TUI_INFER_`` and the path in
capitals, with two underscores for the dot: ``TUI_INFER_ENGINE__MAX_BATCH``.
"""

import os
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from time import strftime
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from engine.errors import ConfigError
from tui_infer.config import EngineTable, Preset, Settings
from tui_infer.keymap import KeymapProblem, check_keymap
from tui_infer.locations import config_file

PREFIX = "TUI_INFER_"
# Variables of that name that are no settings: folders, and what tests and measurements read.
NOT_SETTINGS = frozenset(
    PREFIX + name for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "LOG_DIR", "PROPERTY_RUNS", "RESULTS")
)
# The engine reads these by itself; here they are only looked at.
SWITCHES = frozenset((PREFIX + "NATIVE",))
NO_COLOR, NO_COLOR_THEME = "NO_COLOR", "no-color"
TABLES = ("engine", "keys", "presets")

Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """Who gave a value: ``default``, ``file``, ``environment`` or ``option``, and where."""

    kind: str
    where: str = ""

    def __str__(self) -> str:
        return self.where or self.kind


DEFAULT = Origin("default")


@dataclass(frozen=True)
class Config:
    """The settings in effect, and the origin of every value that is not a default, by its path."""

    path: Path
    settings: Settings
    origins: Mapping[Path_, Origin] = field(default_factory=dict)

    @property
    def engine(self) -> Mapping[str, Any]:
        """What was said for the engine, by field of ``EngineConfig``."""
        return self.settings.engine_values()

    @property
    def recording(self) -> Mapping[str, Any]:
        """What ``recording_writer`` takes: ``record`` with the time of now in it, and ``no_text``."""
        if not self.settings.record:
            return {}
        return {"record": strftime(self.settings.record), "no_text": not self.settings.record_text}

    def origin(self, path: Path_) -> Origin:
        """Who gave this value."""
        return self.origins.get(path, DEFAULT)


def load_config(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    options: Mapping[Path_, tuple[str, Any]] | None = None,
) -> Config:
    """The settings in effect.

    ``options`` gives for a value's path the option's name and the value; None takes the user's file and this
    process's environment.

    Raises:
        ConfigError: naming the file, variable or option, the key and the reason.
    """
    path = config_file() if path is None else path
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[Path_, Origin] = {}
    if environ.get(NO_COLOR):
        _put(values, origins, ("theme",), NO_COLOR_THEME, Origin("environment", NO_COLOR))
    _take_file(path, values, origins)
    _take_environment(environ, values, origins)
    for where, (name, value) in (options or {}).items():
        _put(values, origins, where, value, Origin("option", name))
    return Config(path, _validated(path, values, origins), origins)


# --- the file --------------------------------------------------------------------------------------


def _take_file(path: Path, values: dict[str, Any], origins: dict[Path_, Origin]) -> None:
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for whoever writes to it
            raise ConfigError(f"{path} is not a file.", "Move it away.")
        text = path.read_text("utf-8-sig")  # some editors put a mark in front
        data = tomllib.loads(text)
    except FileNotFoundError:
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}.", "Correct the file or move it away.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    lines = _lines(text)
    for where, value in _leaves(data):
        line = lines.get(where) or lines.get(where[:-1])
        _put(values, origins, where, value, Origin("file", f"{path}:{line}" if line else str(path)))


def _leaves(data: Mapping[str, Any], above: Path_ = ()) -> list[tuple[Path_, Any]]:
    """Paths and values; the tables of the settings are gone through, and so is each preset."""
    found: list[tuple[Path_, Any]] = []
    for key, value in data.items():
        path = (*above, key)
        table = path[0] in TABLES and len(path) <= (2 if path[0] == "presets" else 1)
        if table and isinstance(value, dict) and value:
            found += _leaves(value, path)
        else:
            found.append((path, value))
    return found


_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"""\s*([\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*([\w-]+|"[^"]*"|'[^']*'))*\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def _lines(text: str) -> dict[Path_, int]:
    """The line on which each key stands, as far as that is plain to see; the first one counts."""
    found: dict[Path_, int] = {}
    table: Path_ = ()
    quotes = ""  # of a text of several lines
    for number, line in enumerate(text.splitlines(), 1):
        if quotes:
            if quotes in line:
                quotes = ""
            continue
        if match := _HEADER.match(line):
            table = _parts(match[1])
            found.setdefault(table, number)
        elif match := _KEY.match(line):
            found.setdefault((*table, *_parts(match[0].rpartition("=")[0])), number)
        for mark in ('"""', "'''"):
            if line.count(mark) % 2:
                quotes = mark
    return found


def _parts(dotted: str) -> Path_:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


# --- the environment -------------------------------------------------------------------------------


def variable_of(path: Sequence[str]) -> str:
    """The environment variable that gives this value."""
    return PREFIX + "__".join(part.upper().replace("-", "_") for part in path)


def _take_environment(
    environ: Mapping[str, str], values: dict[str, Any], origins: dict[Path_, Origin]
) -> None:
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in NOT_SETTINGS:
            continue
        path = _path_of(name)
        kind = bool if name in SWITCHES else _kind_of(path)
        if kind is None:
            known = [*map(variable_of, known_paths()), *NOT_SETTINGS, *SWITCHES]
            raise ConfigError(f"{name} is no setting.", _did_you_mean(name, known))
        try:
            value = value_of(environ[name], kind)
        except ValueError as error:
            raise ConfigError(f"{name}={environ[name]!r}: {error}.") from None
        if name in SWITCHES:
            continue
        _put(values, origins, path, value, Origin("environment", name))


def _path_of(name: str) -> Path_:
    parts = [part.lower() for part in name.removeprefix(PREFIX).split("__")]
    if parts[0] == "keys":
        parts[1:] = [part.replace("_", "-") for part in parts[1:]]
    return tuple(parts)


def _kind_of(path: Path_) -> Any:
    """The type of a value; None where there is no such setting."""
    match path:
        case ("keys", _):
            return str
        case ("engine", key) if key in EngineTable.model_fields:
            return EngineTable.model_fields[key].annotation
        case ("presets", _, key) if key in Preset.model_fields:
            return Preset.model_fields[key].annotation
        case (key,) if key in Settings.model_fields and key not in TABLES:
            return Settings.model_fields[key].annotation
    return None


def value_of(text: str, kind: Any) -> Any:
    """A value as a variable gives it: text as it is, numbers, true or false; lists as in TOML, or with commas
    between whole numbers.

    Raises:
        ValueError: saying what it should be.
    """
    kinds = _plain_kinds(kind)
    if tuple in kinds:
        return _list_of(text, kinds)
    if str in kinds:
        return text
    if bool in kinds:
        word = text.strip().lower()
        if word not in ("true", "1", "yes", "on", "false", "0", "no", "off"):
            raise ValueError("write true or false")
        return word in ("true", "1", "yes", "on")
    for number, words in ((int, "a whole number"), (float, "a number")):
        if number in kinds:
            try:
                return number(text)
            except ValueError:
                # A size such as 2GB is text, which the setting knows how to read.
                if number is int and re.fullmatch(r"\s*[\d.]+\s*[a-zA-Z]+\s*", text):
                    return text
                raise ValueError(f"write {words}") from None
    raise ValueError("it cannot be given by a variable")


def _list_of(text: str, kinds: set[Any]) -> Any:
    if text.lstrip().startswith("["):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            raise ValueError("write a list as in TOML") from None
    if text.strip().lower() == "none":
        return []
    if str in kinds:
        return [text]
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError("write whole numbers with commas between them") from None


def _plain_kinds(kind: Any) -> set[Any]:
    """The types in an annotation; what is inside a tuple as well."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _plain_kinds(get_args(kind)[0])
    if origin is Literal:
        return {type(value) for value in get_args(kind)}
    if origin in (Union, types.UnionType):
        return set().union(*(_plain_kinds(part) for part in get_args(kind)))
    if origin is tuple:
        return {tuple, *(part for part in get_args(kind) if part is not Ellipsis)}
    return set() if kind is type(None) else {kind}


# --- all together ----------------------------------------------------------------------------------


def known_paths() -> list[Path_]:
    """The paths of all settings that have a fixed name."""
    plain = [(key,) for key in Settings.model_fields if key not in TABLES]
    return [*plain, *(("engine", key) for key in EngineTable.model_fields)]


def _put(
    values: dict[str, Any], origins: dict[Path_, Origin], path: Path_, value: Any, origin: Origin
) -> None:
    table = values
    for part in path[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = table[part] = {}
        table = inner
    table[path[-1]] = value
    origins[path] = origin


def _validated(path: Path, values: dict[str, Any], origins: Mapping[Path_, Origin]) -> Settings:
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = tuple(map(str, first["loc"]))
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        named = _named(path, where, origins)
        raise ConfigError(f"{named}: {_reason(dict(first))}.{more}", _hint(dict(first), where)) from None
    try:
        check_keymap(settings.keys)
    except KeymapProblem as problem:
        named = _named(path, ("keys", problem.id), origins)
        raise ConfigError(f"{named}: {problem}.", problem.hint) from None
    return settings


def _named(path: Path, where: Path_, origins: Mapping[Path_, Origin]) -> str:
    """Where a value was said, and its key."""
    for length in range(len(where), 0, -1):
        if origin := origins.get(where[:length]):
            return f"{origin.where}: {'.'.join(where)}"
    return f"{path}: {'.'.join(where)}"


def _reason(error: dict[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        return "there is no such key"
    if error["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return "it must be a table"
    return str(error["msg"]).removeprefix("Value error, ").rstrip(".")


def _hint(error: dict[str, Any], where: Path_) -> str:
    if error["type"] != "extra_forbidden":
        return "Correct it or take it out."
    match where:
        case ("engine", *_):
            beside: list[str] = list(EngineTable.model_fields)
        case ("presets", *_):
            beside = list(Preset.model_fields)
        case _:
            beside = [*Settings.model_fields, *(f"engine.{key}" for key in EngineTable.model_fields)]
    return _did_you_mean(where[-1], beside)


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    by_end = {name.rpartition(".")[2]: name for name in known}
    close = get_close_matches(word, known, 3, 0.75) or get_close_matches(word, list(by_end), 3, 0.75)
    close = close or get_close_matches(word, known, 1, 0.5)
    if close:
        return f"Did you mean {' or '.join(by_end.get(name, name) for name in close)}?"
    return "'tui-infer config' shows all there are."
