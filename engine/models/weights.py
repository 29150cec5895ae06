"""Weights from safetensors into a transformers model, mapped from disk where they need no cast."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from engine.errors import ModelError
from engine.models.source import OnProgress, weight_files
from engine.records import Progress

FLOATS = ("F64", "F32", "BF16", "F16")
OTHER_BYTES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}


class Shards:
    """The safetensors files of a folder: which tensors there are and their shapes, from the headers alone.

    Raises:
        ModelError: a file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._stored: dict[str, str] = {}
        self._paths = weight_files(folder)
        for path in self._paths:
            try:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 - not a dict
                        part = file.get_slice(name)
                        self.shapes[name] = tuple(part.get_shape())
                        self._stored[name] = part.get_dtype()
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{path} cannot be read: {error}.", "The file may be cut short; fetch it again."
                ) from error

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Memory of all tensors once floating ones are ``dtype``."""
        total = 0
        for name, shape in self.shapes.items():
            stored = self._stored[name]
            total += math.prod(shape) * (dtype.itemsize if stored in FLOATS else OTHER_BYTES.get(stored, 1))
        return total

    def read(
        self,
        dtype: torch.dtype,
        device: torch.device,
        progress: OnProgress,
        as_stored: Callable[[str], bool] = lambda _: False,
    ) -> dict[str, Tensor]:
        """All tensors on ``device``. Those stored as ``dtype`` stay mapped to the file on a CPU.

        Args:
            as_stored: whether a tensor keeps the dtype of the file, by its name.
        """
        tensors: dict[str, Tensor] = {}
        done, total = 0, sum(math.prod(shape) for shape in self.shapes.values()) or 1
        for path in self._paths:
            with safe_open(path, framework="pt", device=str(device)) as file:
                for name in file.keys():  # noqa: SIM118
                    tensor = file.get_tensor(name)
                    cast = tensor.is_floating_point() and not as_stored(name)
                    tensors[name] = tensor.to(dtype) if cast else tensor
                    done += tensor.numel()
                    progress(Progress("loading weights", path.name, done / total))
        return tensors


@dataclass(frozen=True, slots=True)
class Build:
    """What a model is made from.

    Attributes:
        kind: transformers model class.
        attention: name of the attention implementation.
        as_stored: tensors that keep the dtype of their file, and so stay mapped; by name.
    """

    kind: Any
    config: Any
    folder: Path
    shards: Shards
    dtype: torch.dtype
    device: torch.device
    attention: str
    trust_remote_code: bool
    as_stored: Callable[[str], bool] = lambda _: False

    def run(self, progress: OnProgress) -> nn.Module:
        """The model with its weights, in eval mode and without gradients.

        Where file and module names agree, tensors are put in place as they are; that is some ten times
        faster than the general way, which renames, fuses and initialises, and serves everything else.

        Raises:
            ModelError: weights are missing or have other shapes than the configuration says.
        """
        model = self._direct(progress)
        if model is None:
            model = self._general(progress)
        return model.to(self.device).eval().requires_grad_(False)

    def _direct(self, progress: OnProgress) -> Any | None:
        try:
            from transformers.initialization import no_init_weights
        except ImportError:
            return None
        # Not built on the meta device, where position frequencies would be lost. The parameters are pages
        # never touched, so until they are replaced they cost address space and no memory.
        with no_init_weights():
            model = self.kind._from_config(self.config, attn_implementation=self.attention, dtype=self.dtype)
        if any(
            getattr(model, name, None) for name in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
        ):
            return None
        tied = set(model._tied_weights_keys or ()) if self.config.tie_word_embeddings else set()
        wanted = {name: tuple(value.shape) for name, value in model.state_dict().items() if name not in tied}
        if wanted != self.shards.shapes:
            return None
        tensors = self.shards.read(self.dtype, self.device, progress, self.as_stored)
        model.load_state_dict(tensors, strict=False, assign=True)
        model.tie_weights()
        if (self.folder / "generation_config.json").is_file():
            settings = type(model.generation_config)
            model.generation_config = settings.from_pretrained(str(self.folder), local_files_only=True)
        return model

    def _general(self, progress: OnProgress) -> Any:
        progress(Progress("loading weights", self.folder.name))
        try:
            model, info = self.kind.from_pretrained(
                str(self.folder),
                config=self.config,
                dtype=self.dtype,
                attn_implementation=self.attention,
                trust_remote_code=self.trust_remote_code,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            raise ModelError(
                f"The weights in {self.folder} do not fit the configuration: {_first_line(error)}",
                "Fetch config.json and the weights from the same revision.",
            ) from error
        missing = sorted(info["missing_keys"])
        if missing:
            raise ModelError(
                f"{self.folder} lacks {len(missing)} weights, such as {missing[0]}.",
                "Fetch config.json and the weights from the same revision.",
            )
        progress(Progress("loading weights", self.folder.name, 1.0))
        return model


def num_bytes(model: nn.Module) -> int:
    """Bytes of parameters and buffers; tied ones count once."""
    tensors = {tensor.data_ptr(): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return sum(tensor.nbytes for tensor in tensors.values())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
