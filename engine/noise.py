"""Random numbers without a state: a hash of (seed, position, token id).

Every draw is a pure function of its key, so a request gets the same noise alone, in any batch, after
a preemption and inside a CUDA graph, and nothing has to be saved or rolled back. All integer arithmetic
wraps modulo 2**32 or 2**64 in two's complement, with the same bits on every device.

The mixing steps are multiply and xor-shift rounds; 64-bit multipliers from Steele, Lea and Flood's
SplitMix64 (2014), 32-bit ones from Chris Wellons' "hash prospector" search for low bias.
"""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Words = TypeVar("Words", Tensor, np.ndarray)


def _signed(value: int, bits: int) -> int:
    """The two's complement reading of an unsigned constant."""
    return value - (1 << bits) if value >> (bits - 1) else value


START = _signed(0xD1B54A32D192ED03, 64)  # mixing leaves 0 at 0, which seed 0 must not be
POSITION = _signed(0x9E3779B97F4A7C15, 64)
MIX_64 = (_signed(0xBF58476D1CE4E5B9, 64), _signed(0x94D049BB133111EB, 64))
MIX_32 = (_signed(0x21F0AAAD, 32), _signed(0xD35A2D97, 32))


def row_keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """Two 32-bit words a row.

    Args:
        seeds: int64 [n].
        positions: int64 [n], the index in the sequence of the token that is drawn.

    Returns:
        int32 [n, 2].
    """
    bits = _mix_64(_mix_64(seeds + START) + positions * POSITION)
    return torch.stack((bits, bits >> 32), dim=1).to(torch.int32)


def row_keys_on_host(seeds: Tensor, positions: Tensor) -> Tensor:
    """``row_keys`` of few rows on the CPU: numpy takes a fifth of the time for so many small steps."""
    bits = _mix_64(_mix_64(seeds.numpy() + START) + positions.numpy() * POSITION)
    return torch.from_numpy(np.stack((bits, bits >> 32), axis=1).astype(np.int32))


def random_bits(keys: Tensor, ids: Tensor, scratch: Tensor | None = None) -> Tensor:
    """32 random bits for tokens of every row: int32 keys [n, 2], int32 ids [V] or [n, V] -> int32 [n, V]."""
    bits = ids ^ keys[:, :1]
    scratch = torch.empty_like(bits) if scratch is None else scratch
    _fold(bits, scratch, 16).mul_(MIX_32[0])
    bits ^= keys[:, 1:]  # behind a round, so that no two rows can be reorderings of the same numbers
    _fold(bits, scratch, 15).mul_(MIX_32[1])
    return _fold(bits, scratch, 15)


def log_exponential(keys: Tensor, ids: Tensor) -> Tensor:
    """Logarithms of standard exponential draws, float32 [n, V]; their negatives are Gumbel noise.

    The argmax of ``logits - log_exponential`` is a draw from the softmax of the logits (the Gumbel-max
    trick). Draws are finite: uniform numbers keep full relative precision towards 0, where the largest
    Gumbel values come from, and stay below 1.

    Args:
        keys: int32 [n, 2] of ``row_keys``.
        ids: int32, [V] for all rows or [n, V].
    """
    uniform = torch.empty(keys.shape[0], ids.shape[-1], device=ids.device)
    bits = random_bits(keys, ids, uniform.view(torch.int32)).bitwise_and_(0x7FFFFFFF)
    return logs_of_bits(bits, uniform)


def logs_of_bits(bits: Tensor, out: Tensor | None = None) -> Tensor:
    """The same of the lower 31 of ``random_bits``, int32 of any shape; more bits never give less."""
    uniform = torch.empty(bits.shape, device=bits.device) if out is None else out
    uniform.copy_(bits).add_(0.5).mul_(2.0**-31).clamp_(max=1.0 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_()


def _mix_64(bits: Words) -> Words:
    bits = (bits ^ ((bits >> 30) & (1 << 34) - 1)) * MIX_64[0]
    bits = (bits ^ ((bits >> 27) & (1 << 37) - 1)) * MIX_64[1]
    return bits ^ ((bits >> 31) & (1 << 33) - 1)


def _fold(bits: Tensor, scratch: Tensor, shift: int) -> Tensor:
    """``bits ^= bits >>> shift`` in place; the mask makes the shift one that brings in zeros."""
    torch.bitwise_right_shift(bits, shift, out=scratch)
    scratch &= (1 << (32 - shift)) - 1
    bits ^= scratch
    return bits
