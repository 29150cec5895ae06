"""The bones of a transformers module: its tree, plain attributes and small buffers, without its weights.

``bones_of`` takes them from a module, ``assembled`` makes modules of them that have no code, for the fused
decoder, which only reads attributes and weights. So nothing that transformers computed is computed by
another program, and starts that know the bones import none of its models.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

MOST_NUMBERS = 1 << 14  # in buffers that the weights lack; position frequencies are a few dozen
LABELS = ("id2label", "label2id")  # in configurations, with keys that are no strings


class Buffer(msgspec.Struct, frozen=True):
    """A float32 tensor that no weight file has."""

    shape: list[int]
    values: list[float]


class Bones(msgspec.Struct, frozen=True):
    """All of a module but its weights.

    Attributes:
        architecture: name of its class.
        config: values of its configuration.
        parts: plain attributes of every module, by its path.
        lists: paths of modules that are lists.
        buffers: by path.
        ties: weights that are another one, by path.
    """

    architecture: str
    config: dict[str, Any]
    parts: dict[str, dict[str, bool | int | float | str | None]]
    lists: list[str]
    buffers: dict[str, Buffer]
    ties: dict[str, str]


class PlainConfig:
    """The values of a transformers configuration as attributes."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        vars(self).update(values)

    def get_text_config(self, decoder: bool = False) -> "PlainConfig":
        """Itself: a model that also takes images is no plain one."""
        return self

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Part(nn.Module):
    """A module without code."""


def bones_of(model: nn.Module, stored: Mapping[str, Any]) -> Bones | None:
    """The bones of a module; None where something in it is more than bones can say.

    Args:
        stored: the names that the weight files have.
    """
    config: Any = model.config
    values = {name: value for name, value in config.to_dict().items() if name not in LABELS}
    if json.loads(json.dumps(values, default=lambda _: None)) != values or not _same(config, values):
        return None
    parts: dict[str, dict[str, Any]] = {}
    lists: list[str] = []
    for path, module in model.named_modules():
        parts[path] = _attributes(module)
        if isinstance(module, nn.ModuleList):
            lists.append(path)
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    ties, buffers = _ties(tensors, stored), {}
    for path, tensor in tensors.items():
        if path in stored or path in ties:
            continue
        if tensor.dtype != torch.float32 or tensor.numel() > MOST_NUMBERS:
            return None
        buffers[path] = Buffer(list(tensor.shape), tensor.flatten().tolist())
    return Bones(type(model).__name__, values, parts, lists, buffers, ties)


def assembled(bones: Bones, tensors: Mapping[str, Tensor], device: torch.device) -> nn.Module:
    """Modules of bones and weights, in eval mode.

    Raises:
        KeyError: a weight is missing.
    """
    made: dict[str, nn.Module] = {}
    lists = set(bones.lists)
    kind = type(bones.architecture, (Part,), {})
    for path, attributes in bones.parts.items():
        module = made[path] = kind() if not path else nn.ModuleList() if path in lists else Part()
        for name, value in attributes.items():
            setattr(module, name, value)
        if path:
            parent, _, name = path.rpartition(".")
            made[parent].add_module(name, module)
    for path, tensor in tensors.items():
        _put(made, path, nn.Parameter(tensor, requires_grad=False))
    for path, source in bones.ties.items():
        _put(made, path, nn.Parameter(tensors[source], requires_grad=False))
    for path, buffer in bones.buffers.items():
        parent, _, name = path.rpartition(".")
        values = torch.tensor(buffer.values, dtype=torch.float32, device=device).view(buffer.shape)
        made[parent].register_buffer(name, values)
    root = made[""]
    root.config = PlainConfig(bones.config)  # type: ignore[assignment]
    return root.eval()


def _put(made: Mapping[str, nn.Module], path: str, parameter: nn.Parameter) -> None:
    parent, _, name = path.rpartition(".")
    made[parent].register_parameter(name, parameter)


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What is plain of a module's own, and the parameters that it could have and has not."""
    plain = (bool, int, float, str, type(None))
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, plain) and not name.startswith("_") and name != "training"
    }
    return {**found, **{name: None for name, value in module._parameters.items() if value is None}}


def _ties(tensors: Mapping[str, Tensor], stored: Mapping[str, Any]) -> dict[str, str]:
    places = {tensors[path].data_ptr(): path for path in tensors if path in stored}
    others = ((path, tensor) for path, tensor in tensors.items() if path not in stored)
    return {path: places[tensor.data_ptr()] for path, tensor in others if tensor.data_ptr() in places}


def _same(config: Any, values: Mapping[str, Any]) -> bool:
    """Whether attributes say what the dictionary says."""
    text = config.get_text_config(decoder=True)
    return text is config and all(
        getattr(config, name, None) == value or name in ("dtype", "model_type", "transformers_version")
        for name, value in values.items()
    )
