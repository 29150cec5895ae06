"""The settings as they may stand in a file: names, types, bounds. ``config_sources`` brings them together.

What the engine needs is in ``engine.config``; the table ``[engine]`` has the same fields.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
)

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.request import SamplingParams
from tui_infer.sanitize import one_line

Layout = Literal["auto", "1", "2", "4"]
InspectorMode = Literal["auto", "side", "full", "hidden"]

SAMPLING = SamplingParams.__struct_fields__
PRESET_LENGTH = 40

# TOML has arrays only; ``()`` is what an engine's list is.
_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
Texts = Annotated[tuple[str, ...], _tuple]
Ids = Annotated[tuple[int, ...], _tuple]


class Table(BaseModel):
    """A table of the file: frozen, unknown keys refused, nothing coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def given(self) -> dict[str, Any]:
        """What is set, by key."""
        return {
            key: value for key in self.__class__.model_fields if (value := getattr(self, key)) is not None
        }


class _Sampled(Table):
    """A table with sampling parameters, which have the bounds of ``engine.request.SamplingParams``."""

    @field_validator(*SAMPLING, check_fields=False)
    @classmethod
    def _as_the_engine_takes_it(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.field_name is not None:
            _checked(SamplingParams, info.field_name, value)
        return value

    def sampling(self) -> dict[str, Any]:
        """What is set of the sampling parameters, by name."""
        return {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}


class Preset(_Sampled):
    """Sampling parameters and a system prompt under one name; what is left out stays as it is."""

    system: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: Texts | None = None
    stop_token_ids: Ids | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = None


def _checked(kind: Any, name: str, value: Any) -> None:
    """Raises ValueError, with the engine's words, where it would not take this value."""
    try:
        kind(**{name: value})
    except EngineError as error:
        raise ValueError(str(error)) from None


def _size(value: Any) -> Any:
    """``2GB`` as bytes, as the option takes it."""
    if not isinstance(value, str):
        return value
    import click

    from tui_infer.options import ByteSize

    try:
        return ByteSize().convert(value, None, None)
    except click.BadParameter as error:
        raise ValueError(error.message) from None


def _sizes(value: Any) -> Any:
    """``none`` is the empty list, as for the option."""
    if isinstance(value, str) and value.strip().lower() == "none":
        return ()
    return tuple(value) if isinstance(value, list) else value


class _EngineFields(Table):
    @field_validator(*EngineConfig.__struct_fields__, check_fields=False)
    @classmethod
    def _as_the_engine_takes_it(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.field_name is not None:
            _checked(EngineConfig, info.field_name, value)
        return value


def _engine_field(name: str, kind: Any) -> tuple[Any, None]:
    convert = {"kv_memory": _size, "graph_sizes": _sizes}.get(name)
    wanted = kind | None if kind is not None else None
    return (wanted if convert is None else Annotated[wanted, BeforeValidator(convert)], None)


_engine_fields: Any = {
    field.name: _engine_field(field.name, field.type) for field in msgspec.structs.fields(EngineConfig)
}
# All of the engine's fields, none of which must be given.
EngineTable: type[_EngineFields] = create_model("EngineTable", __base__=_EngineFields, **_engine_fields)


class Settings(_Sampled):
    """How the app looks and behaves, how answers are drawn, and what the engine is started with."""

    theme: str = Field(
        "dark", description="Name of a theme; an unknown one gives the built-in one and a toast."
    )
    layout: Layout = Field("auto", description='Panes at start: "auto", "1", "2" or "4".')
    inspector: InspectorMode = Field("auto", description='"auto", "side", "full" or "hidden".')
    fps: int = Field(20, ge=5, le=60, description="Most screen updates a second, 5 to 60.")
    history: bool = Field(True, description="Keep chats on disk and bring them back at the next start.")
    record: str = Field(
        "", description="Record each run to this file; %Y %m %d %H %M %S stand for the time. Empty: no."
    )
    record_text: bool = Field(True, description="Whether a recording has the texts of prompts and answers.")
    system: str = Field(
        "", description="System message of new chats; empty leaves it to the model's template."
    )
    temperature: float = Field(0.7, description="0 to 100; 0 is greedy.")
    top_p: float = Field(0.95, description="Share of the probability mass to draw from; above 0, up to 1.")
    top_k: int = Field(0, description="Draw from the so many likeliest tokens; 0 is off.")
    min_p: float = Field(0.0, description="Least probability, relative to the likeliest; 0 to 1.")
    repetition_penalty: float = Field(1.0, description="Over prompt and answer; 1 is none.")
    presence_penalty: float = Field(0.0, description="Over the answer; 0 is none.")
    frequency_penalty: float = Field(0.0, description="Over the answer; 0 is none.")
    seed: int | None = Field(None, description="Seed of new chats; without one each answer has its own.")
    max_tokens: int = Field(1024, description="Longest answer in tokens.")
    stop: Texts = Field((), description="Texts that end an answer.")
    stop_token_ids: Ids = Field((), description="Tokens that end an answer.")
    ignore_eos: bool = Field(False, description="Go on past the end token.")
    logprobs: int = Field(0, description="Log probabilities of so many tokens a step; 0 to 64.")
    model_folders: Texts = Field((), description="Folders that the model picker looks into.")
    engine: EngineTable = Field(default_factory=EngineTable)  # type: ignore[valid-type]
    keys: dict[str, str] = Field(default_factory=dict)
    presets: dict[str, Preset] = Field(default_factory=dict)

    @field_validator("presets")
    @classmethod
    def _with_names_that_can_be_typed(cls, presets: dict[str, Preset]) -> dict[str, Preset]:
        for name in presets:
            if not name or one_line(name, PRESET_LENGTH) != name:
                raise ValueError(
                    f"{one_line(name, 60)!r} is no name for a preset; it must be 1 to {PRESET_LENGTH} "
                    "characters, none of them a control, with single blanks"
                )
        return presets

    @property
    def params(self) -> SamplingParams:
        """Sampling parameters of new chats."""
        return SamplingParams(**self.sampling())

    def engine_values(self) -> Mapping[str, Any]:
        """What the file or the environment says for the engine, by field of ``EngineConfig``."""
        return self.engine.given()  # type: ignore[attr-defined]


def load_settings(path: Path) -> Settings:
    """The settings in a TOML file alone; the defaults where there is none.

    Raises:
        ConfigError: naming the file, the key and the reason.
    """
    from tui_infer.config_sources import load_config

    return load_config(path, environ={}).settings
