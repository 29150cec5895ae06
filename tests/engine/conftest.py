"""Without a card, kernels run in Triton's interpreter; that has to be said before triton is imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def bench():
    """Makes services; their threads end with the test."""
    from engine.commands import Shutdown
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


@pytest.fixture
def small_copies(monkeypatch):
    """The bandwidth of copies has tests of its own; elsewhere it need not take a second each time."""
    monkeypatch.setattr("engine.bench.measure.CPU_COPY_BYTES", 2**22)


@pytest.fixture
def graphs(monkeypatch):
    """Engines under measurement decode as on a GPU, with recorded operations in the place of CUDA graphs."""
    from engine.bench import session
    from engine.core import Engine
    from tests.engine.recorder import with_graphs

    def engine(config, progress=None):
        made = Engine(config, progress)
        with_graphs(made)
        return made

    monkeypatch.setattr(session, "Engine", engine)
