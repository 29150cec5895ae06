"""Command-line options of the engine and of sampling, and their way into the engine's own types."""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, get_args

import click
import msgspec

from engine.config import DEFAULT_MODEL, Attention, DType, EngineConfig, Mode, ModelImpl, Quant
from engine.request import SamplingParams

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1, **{unit: 1000**power for power, unit in enumerate("kmgt", 1)}}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("kmgt", 1)}


class ByteSize(click.ParamType):
    """``2GB``, ``512MiB``, ``1.5g`` or plain bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?i?)b?\s*", str(value).lower())
        if match is None or match[2] not in _UNITS:
            self.fail(f"{value!r} is no size; write 2GB, 512MiB or a number of bytes.", param, ctx)
        return int(float(match[1]) * _UNITS[match[2]])


class Integers(click.ParamType):
    """Whole numbers with commas between them; where there may be none of them, ``none`` says so."""

    name = "n,n,..."

    def __init__(self, *, none: bool = False) -> None:
        self._none = none

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        if self._none and str(value).strip().lower() == "none":
            return ()
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            nothing = " 'none' is the empty list." if self._none else ""
            self.fail(f"{value!r} is no list of whole numbers such as 1,2,4.{nothing}", param, ctx)


def _choice(literal: Any) -> click.Choice[str]:
    return click.Choice(get_args(literal), case_sensitive=False)


# None means "not given" throughout: what the command line leaves out is the engine's default. An option that
# may be repeated comes as () then.
_REPEATED = ("stop",)
_ENGINE = (
    click.option(
        "-m",
        "--model",
        metavar="MODEL",
        help=f"Name, folder, .gguf file, Hugging Face id, or shape:NAME.  [{DEFAULT_MODEL}]",
    ),
    click.option("--revision", metavar="REV", help="Branch, tag or commit of a Hugging Face id."),
    click.option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps."),
    click.option("--dtype", type=_choice(DType), help="Number format of weights and KV cache."),
    click.option("--quant", type=_choice(Quant), help="Weights in a GGUF file's own bits, or rounded."),
    click.option("--attention", type=_choice(Attention), help="Paged attention back end; auto tries them."),
    click.option("--mode", type=_choice(Mode), help="Start with CUDA graphs or eager; F2 switches."),
    click.option(
        "--model-impl", type=_choice(ModelImpl), help="Fused decoder or stock transformers modules."
    ),
    click.option("--max-batch", type=int, metavar="N", help="Most requests decoded in one step."),
    click.option("--max-model-len", type=int, metavar="N", help="Longest sequence, prompt and answer."),
    click.option("--block-size", type=int, metavar="N", help="Tokens in a KV block."),
    click.option("--num-blocks", type=int, metavar="N", help="KV blocks, the null block included."),
    click.option("--kv-memory", type=ByteSize(), help="Memory for the KV cache, such as 2GB."),
    click.option("--prefill-chunk", type=int, metavar="N", help="Most prompt tokens computed in one step."),
    click.option(
        "--graph-sizes", type=Integers(none=True), help="Padded batch sizes to capture, as 1,2,4; or none."
    ),
    click.option("--prefix-cache/--no-prefix-cache", default=None, help="Share blocks of common prefixes."),
    click.option(
        "--ahead/--no-ahead", default=None, help="Launch a step before the last one's tokens are read."
    ),
    click.option(
        "--gpu-memory-utilization", type=float, metavar="SHARE", help="Share of the card to use, 0.05 to 1."
    ),
    click.option("--seed", type=int, metavar="N", help="Seed of requests that bring none."),
    click.option("--threads", type=int, metavar="N", help="CPU threads."),
    click.option(
        "--trust-remote-code", is_flag=True, default=None, help="Run code that a model repository ships."
    ),
)


class _AppOption(click.Option):
    """A sampling option of the app, whose default is that of the settings and not the engine's."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from tui_infer.config import Settings  # only for the help: it takes a while

        record = super().get_help_record(ctx)
        if record is None or self.name not in Settings.model_fields:
            return record
        default = Settings.model_fields[self.name].default
        words = (self.help or "").partition("  [")[0]
        none = default is None or default is False or default == ()
        return record[0], words if none else f"{words}  [{default}]"


def _sampling(option: Callable[..., Callable[[F], F]]) -> tuple[Callable[[F], F], ...]:
    return (
        option("--temperature", type=float, metavar="T", help="0 is greedy.  [1.0]"),
        option("--top-p", type=float, metavar="P", help="Share of the probability mass to draw from.  [1.0]"),
        option("--top-k", type=int, metavar="K", help="Draw from the K likeliest tokens; 0 is off.  [0]"),
        option("--min-p", type=float, metavar="P", help="Least probability, relative to the likeliest.  [0]"),
        option("--repetition-penalty", type=float, metavar="X", help="Over prompt and answer.  [1.0]"),
        option("--presence-penalty", type=float, metavar="X", help="Over the answer.  [0]"),
        option("--frequency-penalty", type=float, metavar="X", help="Over the answer.  [0]"),
        option("--max-tokens", type=int, metavar="N", help="Longest answer.  [256]"),
        option("--stop", multiple=True, metavar="TEXT", help="Text that ends the answer; may be repeated."),
        option("--stop-token-ids", type=Integers(), help="Tokens that end the answer."),
        option("--ignore-eos", is_flag=True, default=None, help="Go on past the end token."),
        option(
            "--logprobs", type=int, metavar="N", help="Log probabilities of N tokens a step, with --json."
        ),
    )


def engine_options(function: F) -> F:
    """Adds an option for every field of ``EngineConfig``."""
    return _add(function, _ENGINE)


def sampling_options(function: F) -> F:
    """Adds an option for every field of ``SamplingParams`` but the seed: the engine's option gives it too."""
    return _add(function, _sampling(click.option))


def app_sampling_options(function: F) -> F:
    """The same with the defaults of the app's settings."""
    return _add(function, _sampling(partial(click.option, cls=_AppOption)))


def engine_config(*layers: Mapping[str, Any]) -> EngineConfig:
    """The configuration from option values, later layers winning; other keys are left alone.

    Raises:
        ConfigError: a value out of range.
    """
    return EngineConfig(**_given(EngineConfig.__struct_fields__, layers))


def sampling_params(*layers: Mapping[str, Any], base: SamplingParams | None = None) -> SamplingParams:
    """Sampling parameters from option values; what they leave out is as in ``base``.

    Raises:
        RequestError: a value out of range.
    """
    given = _given(SamplingParams.__struct_fields__, layers)
    return msgspec.structs.replace(base or SamplingParams(), **given)


def text_of(argument: str) -> str:
    """An argument as text that has a UTF-8 form; bytes that are none become replacement characters.

    Python hides bytes that the locale cannot decode in lone surrogates, and a tokenizer takes none.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(argument).decode(errors="replace")
        except UnicodeEncodeError:  # surrogates that no byte stands behind
            return argument.encode(errors="replace").decode()
    return argument


def _given(fields: tuple[str, ...], layers: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    return {
        name: value
        for layer in layers
        for name, value in layer.items()
        if name in fields and value is not None and not (value == () and name in _REPEATED)
    }


def _add(function: F, options: tuple[Callable[[F], F], ...]) -> F:
    for option in reversed(options):
        function = option(function)
    return function
