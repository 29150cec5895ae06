"""The most likely token by its kernel, interpreted, as by torch."""

import pytest
import torch

from engine.sampler import NO_TOKEN, greedy_tokens
from tests.engine.interpreted import interpreter  # noqa: F401


@pytest.mark.parametrize("vocab", [1, 7, 4096, 4097, 10_000])
def test_the_kernel_takes_the_first_of_the_highest_as_torch_does(vocab):
    from engine.kernels.greedy import greedy

    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(vocab)).mul(3).round()
    logits[1] = -float("inf")
    logits[2, vocab // 2] = float("nan")
    logits[3, vocab - 1] = float("inf")
    logits[4] = logits[4].fill_(-2.0)
    tokens = torch.empty(6, dtype=torch.int64)
    greedy(logits, tokens)
    assert tokens.tolist() == greedy_tokens(logits).tolist()
    assert tokens[1:4].tolist() == [NO_TOKEN] * 3
    assert tokens[4] == 0
