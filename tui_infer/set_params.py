"""Sampling parameters as words: what ``/set`` takes. Plain data, no Textual."""

import difflib
from collections.abc import Sequence

import msgspec

from engine.errors import RequestError
from engine.request import SamplingParams
from tui_infer.sanitize import one_line

NAMES = SamplingParams.__struct_fields__
_TYPES = {field.name: field.type for field in msgspec.structs.fields(SamplingParams)}
_OFF = ("none", "off")


def changed(params: SamplingParams, words: Sequence[str]) -> SamplingParams | str:
    """The parameters after ``temperature=0.5 top-p 0.9``, or what is wrong with that.

    ``none`` and ``off`` bring back the default of a parameter; stop texts and token ids have commas between
    them, ``\\n`` in a stop text is a line end.
    """
    values: dict[str, object] = {}
    rest = iter(words)
    for word in rest:
        given, equals, text = word.partition("=")
        text = text if equals else next(rest, "")
        name = given.lower().lstrip("-").replace("-", "_")
        if name not in NAMES:
            near = [known for known in NAMES if known.startswith(name)] or difflib.get_close_matches(
                name, NAMES
            )
            known = f"Did you mean {near[0]}?" if near else f"There are {', '.join(NAMES)}."
            return f"“{one_line(given, 40)}” is no parameter. {known}"
        if not text:
            return f"{name} has no value: write {name}=…"
        try:
            values[name] = _value(name, text)
        except (msgspec.ValidationError, ValueError):
            return f"{name}={one_line(text, 40)} is not understood{wanted(name)}."
    try:
        return msgspec.structs.replace(params, **values)
    except RequestError as error:
        return str(error)


def wanted(name: str) -> str:
    """What a parameter takes, to be put behind a complaint: ``; it must be from 0 to 100``."""
    if name in ("stop", "ignore_eos"):
        return "; it is true or false" if name == "ignore_eos" else ""
    if name == "stop_token_ids":
        return "; it takes numbers with commas between them"
    number = float if _TYPES[name] is float else int
    try:
        msgspec.structs.replace(SamplingParams(), **{name: number(-1e9)})  # far out of every range
    except RequestError as error:
        whole = " a whole number" if number is int else ""
        return f"; it must be{whole} {error.message.rpartition('must be ')[2].rstrip('.')}"
    return ""


def _value(name: str, text: str) -> object:
    if text.lower() in _OFF:
        return getattr(SamplingParams(), name)
    if name == "stop":
        return tuple(part.replace("\\n", "\n") for part in text.split(",") if part)
    if name == "stop_token_ids":
        return tuple(int(part) for part in text.split(","))
    return msgspec.convert(text, _TYPES[name], strict=False)
