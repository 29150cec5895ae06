"""Settings of the app itself; what the engine needs is in ``engine.config``."""

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.errors import ConfigError

Layout = Literal["auto", "1", "2", "4"]
InspectorMode = Literal["auto", "side", "full", "hidden"]


class Settings(BaseModel):
    """How the app looks and behaves; frozen, validated, unknown keys refused, nothing coerced.

    The bounds of sampling are those of ``engine.request.SamplingParams``, so that a value which the
    engine would refuse is refused here, with the file's name.

    Attributes:
        theme: name of a theme file; an unknown name gives the built-in one and a toast.
        layout: panes at start; ``auto`` follows the number of chats as far as they fit.
        inspector: ``auto`` shows it beside the chats where the terminal is wide enough.
        fps: most screen updates a second while something changes; nothing runs while idle.
        system: system prompt of new chats; empty leaves it to the model's chat template.
        max_tokens: longest answer in tokens.
        temperature: 0 is greedy.
        top_p: share of probability mass that is sampled from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    theme: str = "dark"
    layout: Layout = "auto"
    inspector: InspectorMode = "auto"
    fps: int = Field(default=20, ge=5, le=60)
    system: str = ""
    max_tokens: int = Field(default=1024, ge=1, le=2**31)
    temperature: float = Field(default=0.7, ge=0.0, le=100.0)
    top_p: float = Field(default=0.95, gt=0.0, le=1.0)


def load_settings(path: Path) -> Settings:
    """The settings in a TOML file; the defaults where there is none.

    Raises:
        ConfigError: naming the file, the key and the reason.
    """
    try:
        return Settings.model_validate(tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        hint = "Correct it or take the line out."
        if first["type"] == "extra_forbidden":
            hint = f"The keys are {', '.join(Settings.model_fields)}."
        raise ConfigError(f"{path}: {key}: {first['msg']}.", hint) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}.", "Correct the file or move it away.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
