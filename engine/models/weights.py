"""Weights from safetensors into a transformers model, mapped from disk where they need no cast."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from engine.errors import ModelError
from engine.models.source import OnProgress, weight_files
from engine.records import Progress

NUM_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "BF16": 2,
    "F16": 2,
    "I16": 2,
    "U16": 2,
}
FLOATS = ("F64", "F32", "BF16", "F16")


class Shards:
    """The safetensors files of a folder: which tensors there are, and their sizes, from the headers alone.

    Raises:
        ModelError: a file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Path] = {}
        self.elements: dict[str, int] = {}
        self._stored: dict[str, str] = {}
        for path in weight_files(folder):
            try:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 - not a dict
                        part = file.get_slice(name)
                        self.files[name] = path
                        self._stored[name] = part.get_dtype()
                        self.elements[name] = _product(part.get_shape())
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{path} cannot be read: {error}.", "The file may be cut short; fetch it again."
                ) from error

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Memory of all tensors once floating ones are ``dtype``."""
        total = 0
        for name, elements in self.elements.items():
            stored = self._stored[name]
            total += elements * (dtype.itemsize if stored in FLOATS else NUM_BYTES.get(stored, 1))
        return total

    def read(self, dtype: torch.dtype, device: torch.device, progress: OnProgress) -> dict[str, Tensor]:
        """All tensors on ``device``. Those stored as ``dtype`` stay mapped to the file on a CPU."""
        tensors: dict[str, Tensor] = {}
        total, done = sum(self.elements.values()) or 1, 0
        for path in sorted(set(self.files.values())):
            with safe_open(path, framework="pt", device=str(device)) as file:
                for name in file.keys():  # noqa: SIM118
                    tensor = file.get_tensor(name)
                    tensors[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
                    done += self.elements[name]
                    progress(Progress("loading weights", path.name, done / total))
        return tensors


def build(
    kind: Any, config: Any, folder: Path, shards: Shards, dtype: torch.dtype, device: torch.device,
    attention: str, trust_remote_code: bool, progress: OnProgress,
) -> nn.Module:  # fmt: skip
    """A model with its weights.

    Where file and module names agree, tensors are put in place as they are; that is some ten times faster
    than the general way, which renames, fuses and initialises, and which is taken for everything else.

    Raises:
        ModelError: weights are missing or have other shapes than the configuration says.
    """
    model = _direct(kind, config, shards, dtype, device, attention, progress)
    if model is None:
        model = _general(kind, config, folder, dtype, device, attention, trust_remote_code, progress)
    return model.eval().requires_grad_(False)


def _direct(
    kind: Any, config: Any, shards: Shards, dtype: torch.dtype, device: torch.device,
    attention: str, progress: OnProgress,
) -> nn.Module | None:  # fmt: skip
    try:
        from transformers.initialization import no_init_weights
    except ImportError:
        return None
    with (
        no_init_weights()
    ):  # untouched pages: they cost address space, not memory, until the weights replace them
        model = kind._from_config(config, attn_implementation=attention, dtype=dtype)
    if getattr(model, "_keep_in_fp32_modules", None) or getattr(model, "_keep_in_fp32_modules_strict", None):
        return None
    wanted = model.state_dict()
    tied = set(model._tied_weights_keys or ()) if config.tie_word_embeddings else set()
    if set(shards.files) != set(wanted) - tied:
        return None
    if any(shards.elements[name] != value.numel() for name, value in wanted.items() if name not in tied):
        return None
    tensors = shards.read(dtype, device, progress)
    if any(tensors[name].shape != value.shape for name, value in wanted.items() if name not in tied):
        return None
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    return model.to(device)


def _general(
    kind: Any, config: Any, folder: Path, dtype: torch.dtype, device: torch.device,
    attention: str, trust_remote_code: bool, progress: OnProgress,
) -> nn.Module:  # fmt: skip
    progress(Progress("loading weights", folder.name))
    try:
        model, info = kind.from_pretrained(
            str(folder), config=config, dtype=dtype, attn_implementation=attention, local_files_only=True,
            use_safetensors=True, trust_remote_code=trust_remote_code, output_loading_info=True,
        )  # fmt: skip
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        raise ModelError(
            f"The weights in {folder} do not fit the configuration: {_first_line(error)}",
            "Fetch config.json and the weights from the same revision.",
        ) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            f"{folder} lacks {len(missing)} weights, such as {missing[0]}.",
            "The download was not finished; fetch it again.",
        )
    progress(Progress("loading weights", folder.name, 1.0))
    return model.to(device)


def num_bytes(model: nn.Module) -> int:
    """Bytes of parameters and buffers; tied ones count once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.numel() * tensor.element_size()
        for tensor in [*model.parameters(), *model.buffers()]
    }
    return sum(storages.values())


def _product(shape: list[int]) -> int:
    result = 1
    for size in shape:
        result *= int(size)
    return result


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
