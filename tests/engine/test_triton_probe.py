"""Our own kernel in the trial that decides at start, by Triton's interpreter."""

import pytest
import torch

from engine.attention.needs import AttentionNeeds
from engine.attention.probe import probe
from tests.engine.interpreted import interpreter  # noqa: F401  (a fixture that applies by itself)


class Again:
    """In place of a graph: runs the function once more, into the output that it had."""

    def record(self, run):
        out = run()
        return (lambda: out.copy_(run())), out

    def close(self):
        pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "block_size"), [((9, 3, 64), 16), ((4, 2, 128), 5), ((2, 2, 96), 256)])
def test_our_kernel_passes_the_trial(heads, block_size, dtype):
    from engine.attention.triton import TritonAttention

    needs = AttentionNeeds(*heads, dtype, block_size, windowed=True)
    assert probe(TritonAttention(), needs, block_size, torch.device("cpu"), Again()) == ""
