"""Parameters that belong together, and the named ones of the config."""

from typing import NamedTuple

import msgspec

from engine.request import SamplingParams
from tui_infer.config import Preset


class Sampling(NamedTuple):
    """How a chat answers: its sampling parameters and its system prompt."""

    params: SamplingParams
    system: str


def over(preset: Preset, sampling: Sampling) -> Sampling:
    """What a preset makes of a chat's parameters; what it leaves out stays as it is."""
    system = sampling.system if preset.system is None else preset.system
    return Sampling(msgspec.structs.replace(sampling.params, **preset.sampling()), system)


def words_of(preset: Preset) -> str:
    """``temperature 0.2, top p 0.9, system prompt``, for a list."""
    said = [f"{name.replace('_', ' ')} {_word(value)}" for name, value in preset.sampling().items()]
    if preset.system is not None:
        said.append("system prompt" if preset.system else "no system prompt")
    return ", ".join(said) or "nothing"


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(repr(text) for text in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
