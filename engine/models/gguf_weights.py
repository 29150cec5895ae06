"""A GGUF file's own bits as the weights of the fused decoder, straight from the mapped file.

The converted folder has the same weights dequantised, under the names and in the order of the transformers
modules. A few rows of every matrix are compared with it, so that a file whose rows stand in another order
is never multiplied as if they did not.
"""

import struct
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.models.arena import ALIGNMENT
from engine.models.gguf_bits import FORMATS, nibbles
from engine.models.gguf_reader import GGUFFile
from engine.models.packed import GROUP, Nibbles, PackedWeight
from engine.models.packer import Packer
from engine.models.tiled import LANES, TiledWeight, tile_bytes

# Of the Llama family; all else stays as it was loaded.
MATRICES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
HEAD, EMBEDDING = "output", "token_embd"
SAMPLED_ROWS = 16
SAME = 2**-7  # relative; the folder may hold what the file says rounded to bfloat16
BROKEN = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, struct.error)


class GGUFWeights:
    """Packs the linears of a transformers module from the file that it was converted from.

    Args:
        path: the ``.gguf`` file.
        heads, kv_heads: of the model; the rows of queries and keys may stand in pairs within each.
        dtype: in which the engine computes.
        room: bytes that copies in ``dtype`` may take, for products of many rows; all have one, or none has.
        tiled: lay the weights out for the C decoder, which needs no copies.
        untiled: why that is not done, for the note.

    Raises:
        OSError, ValueError, KeyError, IndexError, TypeError: the file cannot be read; all are in ``BROKEN``.
    """

    def __init__(
        self,
        path: Path,
        heads: int,
        kv_heads: int,
        dtype: torch.dtype,
        room: int,
        *,
        tiled: bool = False,
        untiled: str = "",
    ) -> None:
        file = GGUFFile(path, lists=False)
        self.dtype = dtype
        self._heads = {"attn_q": heads, "attn_k": kv_heads}
        self._tensors = {tensor.name.removesuffix(".weight"): tensor for tensor in file.tensors}
        copies = sum(int(tensor.n_elements) for tensor in self._tensors.values() if len(tensor.shape) > 1)
        self.packer = Packer(
            dtype,
            copies * dtype.itemsize <= room,
            tiled=tiled,
            tiled_bytes=self._tiled_bytes() if tiled else 0,
            untiled=untiled,
        )
        self._packed: Counter[str] = Counter()
        self._dequantised: Counter[tuple[str, str]] = Counter()

    def weight(self, names: Sequence[str], weights: Sequence[Tensor]) -> PackedWeight | TiledWeight | Tensor:
        """See ``Packing``."""
        return self.packer.fuse([self._part(name, weight) for name, weight in zip(names, weights)], weights)

    def head(self, weight: Tensor) -> PackedWeight | TiledWeight | None:
        """See ``Packing``."""
        return self.packer.head(self._part("lm_head", weight), weight)

    def num_bytes(self) -> int:
        """About what all weights will take, the copies for many rows included."""
        total = 0
        for name, tensor in self._tensors.items():
            numbers = int(tensor.n_elements)
            bits = FORMATS[tensor.tensor_type.name][0] if tensor.tensor_type.name in FORMATS else 0
            total += numbers * (bits * (GROUP + 8) // GROUP) // 8
            kept = not bits or not name.startswith("blk.")  # beside the packed form, or in its place
            total += numbers * self.dtype.itemsize * (kept + (self.packer.wide and bits > 0))
        return total

    def _tiled_bytes(self) -> int:
        """Of all matrices once they are tiled, those of many numbers that stay tensors not counted."""
        total = 0
        for name, tensor in self._tensors.items():
            if len(tensor.shape) == 2 and (name.startswith("blk.") or name == self._place("lm_head")):
                kind = FORMATS.get(tensor.tensor_type.name, (16,))[0]
                inputs, outputs = int(tensor.shape[0]), int(tensor.shape[1])
                total += -(-outputs // LANES) * tile_bytes(kind, inputs) + ALIGNMENT
        return total

    def note(self) -> str:
        """What became of the weights so far, in words: ``4 bits from Q4_1, 8 bits from Q8_0``."""
        kinds = ", ".join(f"{FORMATS[kind][0]} bits from {kind}" for kind in self._packed)
        number = str(self.dtype).removeprefix("torch.")
        others = ", ".join(
            f"{name} of {count} layers ({kind})" if count > 1 else f"{name} ({kind})"
            for (name, kind), count in self._dequantised.items()
        )
        rest = f"; in {number}: {others}" if others else ""
        return f"Weights: {kinds or 'none packed'}{rest}{self.packer.note()}."

    def _part(self, name: str, weight: Tensor) -> Nibbles | Tensor:
        """A linear's numbers, or the module's own weight where they cannot be packed."""
        place = self._place(name)
        tensor = self._tensors.get(place)
        kind = "not in the file" if tensor is None else str(tensor.tensor_type.name)
        if tensor is not None and kind in FORMATS and weight.shape[1] % FORMATS[kind][1] == 0:
            raw = _mapped(tensor.data).view(weight.shape[0], -1)
            for order in self._orders(place, weight.shape[0]):
                ordered = raw if order is None else raw[order]
                if _agree(kind, ordered, weight):
                    self._packed[kind] += 1
                    return nibbles(kind, ordered)
            kind = f"{kind} in an order of its own"
        self._dequantised[place.rpartition(".")[2], kind] += 1
        return weight.to(self.dtype)

    def _place(self, name: str) -> str:
        """The file's name for a linear of the module."""
        if name == "lm_head":
            return HEAD if HEAD in self._tensors else EMBEDDING
        layer, _, matrix = name.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{MATRICES[matrix]}"

    def _orders(self, place: str, rows: int) -> list[Tensor | None]:
        """Orders in which a matrix's rows may have to be taken; None is the file's.

        Files of the Llama family have the two halves of each query and key head in turns, as their rotary
        positions pair them; transformers has them one after the other.
        """
        heads = self._heads.get(place.rpartition(".")[2])
        if heads is None:
            return [None]
        halves_last = torch.arange(rows).view(heads, -1, 2).transpose(1, 2).reshape(-1)
        return [None, halves_last]


def _mapped(data: Any) -> Tensor:
    """Bytes of the mapped file as a tensor, which nobody writes to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(data))


def _agree(kind: str, raw: Tensor, weight: Tensor) -> bool:
    """Whether the first and the last rows of a file's matrix are those of the module's."""
    rows = torch.tensor([*range(min(SAMPLED_ROWS, len(raw))), len(raw) - 1])
    mine, theirs = nibbles(kind, raw[rows]).values(), weight[rows].float()
    return torch.allclose(mine, theirs, rtol=SAME, atol=SAME * theirs.abs().max().item() / 8)


def is_matrix(name: str) -> bool:
    """Whether a weight of a transformers module is one that is packed."""
    parts = name.removeprefix("model.layers.").removesuffix(".weight").partition(".")
    return name.startswith("model.layers.") and parts[2] in MATRICES
