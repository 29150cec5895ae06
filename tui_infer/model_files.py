"""What a model's files say of it, from their headers: parameters, number format, KV size. Torch-free."""

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from engine.errors import ModelError
from engine.models.source import check_folder, weight_files
from engine.models.support import context_limit, unsupported_feature

MOST_HEADER = 100 << 20  # bytes of JSON; safetensors itself allows no more
MOST_ENTRIES = 5_000_000  # of a GGUF header's lists

_SHORT = {"F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "fp8", "F8_E5M2": "fp8"}
# Sizes of GGUF's scalar values by their type; 8 is text, 9 a list.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_GGML = {
    0: "f32", 1: "f16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 30: "bf16",
}  # fmt: skip


class BadHeader(Exception):
    """The file is not what its name says."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What can be told without loading. None where the files do not say.

    Attributes:
        parameters: how many numbers the weights are.
        dtype: the format of most of them on disk, in short: ``bf16``, ``Q4_K``.
        disk_bytes: size of the weights' files.
        kv_numbers: keys and values of one token, as numbers.
        context: longest sequence in tokens.
        problem: why the engine cannot run it, as far as that shows here; empty otherwise.
    """

    parameters: int | None = None
    dtype: str = ""
    disk_bytes: int | None = None
    kv_numbers: int | None = None
    context: int | None = None
    architecture: str = ""
    problem: str = ""


def facts_of_folder(folder: Path) -> ModelFacts:
    """A folder with ``config.json`` and safetensors; what is wrong with it becomes its problem."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        if not isinstance(config, dict):
            raise BadHeader("config.json is no object")
        architecture = str((config.get("architectures") or [config.get("model_type", "")])[0])
        check_folder(folder, folder.name)
        counts: Counter[str] = Counter()
        size = 0
        for file in weight_files(folder):
            counts += _safetensors(file)
            size += file.stat().st_size
    except ModelError as error:
        return ModelFacts(problem=error.message)
    except (OSError, ValueError, BadHeader, KeyError, TypeError, IndexError) as error:
        return ModelFacts(problem=f"Its files cannot be read: {error}.")
    values = SimpleNamespace(**{"model_type": "", **config})
    try:
        reason = unsupported_feature(values)
        context = context_limit(values)[0]
    except (TypeError, ValueError, AttributeError):
        reason, context = "", None
    return ModelFacts(
        parameters=sum(counts.values()),
        dtype=_most(counts),
        disk_bytes=size,
        kv_numbers=_kv_numbers(
            config.get("num_hidden_layers"),
            config.get("num_key_value_heads") or config.get("num_attention_heads"),
            config.get("head_dim") or _ratio(config.get("hidden_size"), config.get("num_attention_heads")),
        ),
        context=context,
        architecture=architecture,
        problem=f"It cannot be run here: {reason}." if reason else "",
    )


def facts_of_gguf(file: Path) -> ModelFacts:
    """A GGUF file, by its own header."""
    try:
        with file.open("rb") as opened:
            fields, counts = _gguf(opened)
        size = file.stat().st_size
    except (OSError, BadHeader, struct.error, OverflowError, UnicodeDecodeError) as error:
        return ModelFacts(problem=f"It cannot be read: {error}.")
    kind = str(fields.get("general.architecture", ""))

    def of(name: str) -> Any:
        return fields.get(f"{kind}.{name}")

    heads = of("attention.head_count")
    return ModelFacts(
        parameters=sum(counts.values()),
        dtype=_most(counts),
        disk_bytes=size,
        kv_numbers=_kv_numbers(
            of("block_count"),
            of("attention.head_count_kv") or heads,
            of("attention.key_length") or _ratio(of("embedding_length"), heads),
        ),
        context=of("context_length"),
        architecture=kind,
    )


def _ratio(size: Any, heads: Any) -> int | None:
    return size // heads if isinstance(size, int) and isinstance(heads, int) and heads else None


def _kv_numbers(layers: Any, heads: Any, head_dim: Any) -> int | None:
    sizes = (layers, heads, head_dim)
    return 2 * math.prod(sizes) if all(isinstance(size, int) and size > 0 for size in sizes) else None


def _most(counts: Mapping[str, int]) -> str:
    return max(counts, key=lambda name: counts[name], default="")


def _safetensors(file: Path) -> Counter[str]:
    """Numbers by their format."""
    counts: Counter[str] = Counter()
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", _bytes(opened, 8))
        if length > MOST_HEADER:
            raise BadHeader(f"{file.name} has no safetensors header")
        header = json.loads(_bytes(opened, length))
    for name, tensor in header.items():
        if name != "__metadata__":
            counts[_SHORT.get(tensor["dtype"], str(tensor["dtype"]).lower())] += math.prod(tensor["shape"])
    return counts


def _gguf(opened: IO[bytes]) -> tuple[dict[str, Any], Counter[str]]:
    """The fields that are single values, and numbers by their format."""
    magic, version, tensors, count = struct.unpack("<4sIQQ", _bytes(opened, 24))
    if magic != b"GGUF" or version not in (2, 3) or max(tensors, count) > MOST_ENTRIES:
        raise BadHeader("it has no GGUF header")
    fields: dict[str, Any] = {}
    for _ in range(count):
        name = _text(opened)
        fields[name] = _value(opened, _number(opened, "I"))
    counts: Counter[str] = Counter()
    for _ in range(tensors):
        _text(opened)
        dimensions = _number(opened, "I")
        if dimensions > 8:
            raise BadHeader("its list of tensors is damaged")
        shape = [_number(opened, "Q") for _ in range(dimensions)]
        kind = _number(opened, "I")
        opened.seek(8, 1)
        counts[_GGML.get(kind, f"type {kind}")] += math.prod(shape)
    return fields, counts


def _value(opened: IO[bytes], kind: int) -> Any:
    """A value; a list is skipped and comes as None."""
    if kind == _TEXT:
        return _text(opened)
    if kind != _LIST:
        return _number(opened, _scalar(kind))
    of, length = struct.unpack("<IQ", _bytes(opened, 12))
    if length > MOST_ENTRIES:
        raise BadHeader("one of its lists is damaged")
    if of in _SCALARS:
        opened.seek(length * struct.calcsize(f"<{_SCALARS[of]}"), 1)
        return None
    for _ in range(length):
        _value(opened, of)
    return None


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise BadHeader(f"a value of an unknown type, {kind}")
    return _SCALARS[kind]


def _number(opened: IO[bytes], form: str) -> Any:
    return struct.unpack(f"<{form}", _bytes(opened, struct.calcsize(f"<{form}")))[0]


def _text(opened: IO[bytes]) -> str:
    length = _number(opened, "Q")
    if length > MOST_HEADER:
        raise BadHeader("a text in it is damaged")
    return _bytes(opened, length).decode(errors="replace")


def _bytes(opened: IO[bytes], count: int) -> bytes:
    data = opened.read(count)
    if len(data) != count:
        raise BadHeader("it ends too early")
    return data
