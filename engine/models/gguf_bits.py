"""The blocks of a GGUF tensor as 4-bit numbers with scales, bit for bit what the file says.

Formats: https://github.com/ggml-org/ggml (``ggml-common.h``); all here have groups of 32 numbers.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from engine.models.packed import GROUP, Nibbles

K_BLOCK = 256  # numbers in a block of the K formats


def _q4_0(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N, groups, 18]: a float16 scale, then 16 bytes of numbers from -8."""
    scale = _halves(blocks, 0)
    return _low_then_high(blocks[..., 2:]), scale, torch.zeros_like(scale)


def _q4_1(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N, groups, 20]: float16 scale and least value, then 16 bytes of numbers from 0."""
    scale, least = _halves(blocks, 0), _halves(blocks, 2)
    return _low_then_high(blocks[..., 4:]), scale, least + 8 * scale


def _q4_k(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N, blocks, 144]: float16 factors, 12 bytes with 6 bits of scale and least value for 8 groups, numbers.

    Each 32 bytes hold two groups: the low halves are the first, the high halves the second.
    """
    rows = blocks.shape[0]
    packed = blocks[..., 4:16].to(torch.int32)
    first, second, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat((first & 63, (high & 15) | (first >> 6 << 4)), dim=-1)
    leasts = torch.cat((second & 63, (high >> 4) | (second >> 6 << 4)), dim=-1)
    scale = _halves(blocks, 0).unsqueeze(-1) * scales
    least = _halves(blocks, 2).unsqueeze(-1) * leasts
    numbers = blocks[..., 16:].unflatten(-1, (4, GROUP))
    q = torch.empty(*numbers.shape[:3], 2, GROUP, dtype=torch.uint8)
    q[..., 0, :] = numbers & 15
    q[..., 1, :] = numbers >> 4
    scale, least = scale.view(rows, -1), least.view(rows, -1)
    return q.view(rows, -1), scale, 8 * scale - least


def _q8_0(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N, groups, 34]: a float16 scale, then 32 signed bytes: halves of ``16 (high - 8) + (low - 8) + 8``."""
    scale = _halves(blocks, 0)
    numbers = blocks[..., 2:].flatten(1) ^ 128
    q = torch.empty(numbers.shape[0], 2, numbers.shape[1], dtype=torch.uint8)
    q[:, 0] = numbers >> 4
    q[:, 1] = numbers & 15
    both = torch.cat((16 * scale, scale), dim=1)
    return q.flatten(1), both, torch.cat((torch.zeros_like(scale), 8 * scale), dim=1)


_Unpack = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
# Bits of a number, numbers and bytes of a block, and what takes blocks apart.
FORMATS: dict[str, tuple[int, int, int, _Unpack]] = {
    "Q4_0": (4, GROUP, 18, _q4_0),
    "Q4_1": (4, GROUP, 20, _q4_1),
    "Q4_K": (4, K_BLOCK, 144, _q4_k),
    "Q8_0": (8, GROUP, 34, _q8_0),
}


def nibbles(kind: str, raw: Tensor) -> Nibbles:
    """The numbers of a matrix.

    Args:
        kind: one of ``FORMATS``.
        raw: [N, bytes] uint8, rows of blocks as the file has them.
    """
    bits, _, size, unpack = FORMATS[kind]
    return Nibbles(*unpack(raw.unflatten(1, (-1, size))), bits)


def _halves(blocks: Tensor, at: int) -> Tensor:
    """[N, groups] float32 of the float16 at a byte of every block."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).squeeze(-1).float()


def _low_then_high(numbers: Tensor) -> Tensor:
    """[N, K] of bytes [N, groups, 16]: the low halves are the first 16 numbers of a group."""
    q = torch.empty(*numbers.shape[:2], 2, GROUP // 2, dtype=torch.uint8)
    q[:, :, 0] = numbers & 15
    q[:, :, 1] = numbers >> 4
    return q.flatten(1)
