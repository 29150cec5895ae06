"""Weights kept in four or eight bits on a CPU, multiplied by torch's packed 4-bit kernel.

The kernel multiplies rows of bfloat16 with 4-bit numbers in groups of 32 that share a scale and a zero. It
reads a quarter of what bfloat16 takes, and is fast for few rows only: it unpacks the weights for every four
of them. Beyond, a copy in the model's own format is faster, where memory has room for one.

Eight bits are two numbers of four: ``d * (16 * high + low)`` is one product over columns that are there
twice, the high ones with a scale of ``16 * d``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 32  # numbers that share a scale, in the kernel as in the file formats
CHUNK = 1024  # rows brought into the kernel's layout at once, a multiple of its blocks of at most 64
TILE = 16  # outputs that the kernel computes at once; fewer are filled up with zeros
# Rows up to which the packed kernel is faster than a copy in bfloat16, for four bits and for eight: measured
# on two cores with AVX-512 over the shapes of the default model, with one thread and with two.
PACKED_ROWS = {4: 6, 8: 2}


def kernel_missing() -> str:
    """Why this machine's torch has no fast packed kernel; empty where it has one."""
    if not hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu"):
        return f"torch {torch.__version__} has no packed 4-bit kernel for the CPU"
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in ("AVX2", "AVX512"):
        return f"torch's packed 4-bit kernel needs AVX2 or AVX-512, and this processor has {capability}"
    return ""


@dataclass(frozen=True, slots=True)
class Nibbles:
    """A matrix as 4-bit numbers: ``(q - 8) * scale + zero``.

    Attributes:
        q: [N, K], uint8 of 0 to 15. Eight bits have their high halves first, then the low ones: [N, 2 K].
        scale, zero: [N, groups] float32.
        bits: 4 or 8.
    """

    q: Tensor
    scale: Tensor
    zero: Tensor
    bits: int

    def values(self) -> Tensor:
        """[N, K] float32, what the numbers stand for."""
        groups = (self.q.float() - 8).unflatten(1, (-1, GROUP))
        values = (groups * self.scale.unsqueeze(-1) + self.zero.unsqueeze(-1)).flatten(1)
        if self.bits == 4:
            return values
        high, low = values.chunk(2, dim=1)
        return high + low

    @staticmethod
    def stacked(parts: Sequence["Nibbles"]) -> "Nibbles":
        """Matrices of the same width and bits under each other."""
        if len(parts) == 1:
            return parts[0]
        q = torch.cat([part.q for part in parts])
        scale, zero = torch.cat([part.scale for part in parts]), torch.cat([part.zero for part in parts])
        return Nibbles(q, scale, zero, parts[0].bits)


class Packed:
    """A matrix in the layout of the kernel.

    Attributes:
        rows: outputs.
        columns: inputs.
        bits: 4 or 8.
        nbytes: memory.
    """

    def __init__(self, nibbles: Nibbles) -> None:
        self.rows = nibbles.q.shape[0]
        self.bits = nibbles.bits
        self.columns = nibbles.q.shape[1] * 4 // self.bits
        missing = -self.rows % TILE
        q, scale, zero = (
            F.pad(tensor, (0, 0, 0, missing)) if missing else tensor
            for tensor in (nibbles.q, nibbles.scale, nibbles.zero)
        )
        convert = torch.ops.aten._convert_weight_to_int4pack_for_cpu
        self._q = torch.cat([convert(rows.int(), 1) for rows in q.split(CHUNK)])
        self._scales = torch.stack((scale, zero), dim=-1).bfloat16().transpose(0, 1).contiguous()
        self.nbytes = self._q.nbytes + self._scales.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        """[M, columns] bfloat16 -> [M, rows] bfloat16."""
        if self.bits == 8:
            x = torch.cat((x, x), dim=1)
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._q, GROUP, self._scales)
        return out if out.shape[1] == self.rows else out[:, : self.rows]


class Wide:
    """A copy of a matrix for products of many rows, in the order in which oneDNN reads it fastest.

    Attributes:
        nbytes: memory that it takes.

    Args:
        shared: the weight is held by somebody else too, so that it counts only where it is reordered.
    """

    def __init__(self, weight: Tensor, *, shared: bool = False) -> None:
        self._weight = weight
        self._reordered = weight.dtype == torch.bfloat16 and _reorders()
        if self._reordered:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), MANY_ROWS)
        self.nbytes = weight.nbytes if self._reordered or not shared else 0

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[M, columns] -> [M, rows], both of the weight's dtype."""
        if self._reordered:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, bias, "none", [], "")
            return out
        return F.linear(x, self._weight, bias)


MANY_ROWS = 64  # the batch that the order is chosen for


def _reorders() -> bool:
    operators = torch.ops.mkldnn
    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    known = torch.backends.mkldnn.is_available() and all(hasattr(operators, name) for name in names)
    return known and bool(operators._is_mkldnn_bf16_supported())


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [out, in] as its file has it, which ``linear`` takes in the place of a tensor.

    Attributes:
        parts: matrices under each other; those that no kernel packs are tensors.
        wide: what multiplies more rows than the packed kernel is fast for; None leaves all to the kernel.
        most_rows: rows up to which the parts are used where there is a ``wide``.
    """

    parts: tuple[Packed | Tensor, ...]
    wide: Wide | None = None
    most_rows: int = field(default=PACKED_ROWS[4])

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        first = self.parts[0]
        columns = first.columns if isinstance(first, Packed) else first.shape[1]
        return sum(part.rows if isinstance(part, Packed) else part.shape[0] for part in self.parts), columns

    @property
    def nbytes(self) -> int:
        """Memory of the parts and of the wide copy."""
        return sum(part.nbytes for part in self.parts) + (self.wide.nbytes if self.wide else 0)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See ``linear``."""
        if self.wide is not None and x.shape[0] > self.most_rows:
            return self.wide.multiply(x, bias)
        narrow = x.bfloat16()
        products = [
            part.multiply(narrow).to(x.dtype) if isinstance(part, Packed) else F.linear(x, part)
            for part in self.parts
        ]
        out = products[0] if len(products) == 1 else torch.cat(products, dim=1)
        return out if bias is None else out + bias


class Packing(Protocol):
    """Where the packed form of a module's linears comes from."""

    def weight(self, names: Sequence[str], weights: Sequence[Tensor]) -> Any:
        """Matrices under each other: a ``PackedWeight`` or ``TiledWeight``, or a tensor that stays so.

        Args:
            names: of the linears in the transformers module, such as ``model.layers.0.mlp.up_proj``.
            weights: the same, [out, in], as the module has them.
        """
        ...

    def head(self, weight: Tensor) -> Any:
        """The same of the output projection, which stays a tensor as well: embeddings read its rows.

        None where it cannot be packed.
        """
        ...

    def num_bytes(self) -> int:
        """About what all weights will take."""
        ...

    def note(self) -> str:
        """What became of the weights so far, in words."""
        ...


def linear(x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` for weights of either kind: [M, in] -> [M, out] of the dtype of ``x``."""
    if isinstance(weight, Tensor):
        return F.linear(x, weight, bias)
    return weight.multiply(x, bias)
