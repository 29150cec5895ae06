"""Without a card, kernels run in Triton's interpreter; that has to be said before triton is imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def bench():
    """Makes services; their threads end with the test."""
    from engine.records import Shutdown
    from tests.engine.serving import Bench

    benches = []

    def make(*args, **kwargs):
        benches.append(Bench(*args, **kwargs))
        return benches[-1]

    yield make
    for made in benches:
        made.post(Shutdown())
        made.thread.join(10)
        assert not made.thread.is_alive()
