"""How well the default model predicts English, in its file's own bits and in float32."""

import pytest
import torch

from benchmarks.cpu_quality import OWN_BITS, REFERENCE, Form, against, leave_to_kernel, opened, predicted
from engine.models.decoder import FusedDecoder
from engine.models.packed import PackedWeight, kernel_missing
from engine.models.tiled import TiledWeight
from engine.native.library import native_missing
from tests.engine.prose import TEXT

MOST_LOSS = 0.01  # of the perplexity
TOKENS = 600  # of the text


@pytest.fixture(scope="module")
def exact():
    """The text's tokens, and what float32 makes of them: losses and likeliest tokens."""
    with opened(REFERENCE) as engine:
        ids = torch.tensor(engine.tokenizer.encode(TEXT)[:TOKENS])
        assert len(ids) == TOKENS
        found = predicted(engine, ids, TOKENS)
    assert 5 < found[0].mean().exp() < 60, "the model reads English"
    return ids, found


def kinds(decoder):
    """Classes of the matrices of all layers."""
    names = ("qkv", "out", "gate_up", "down")
    return {type(getattr(layer, name)) for layer in decoder.layers for name in names}


@pytest.mark.skipif(bool(native_missing()), reason=native_missing() or "it is there")
def test_perplexity_in_the_files_own_bits_is_within_a_percent_of_float32_in_c(exact):
    ids, found = exact
    with opened(OWN_BITS) as engine:
        assert isinstance(engine.runner.model, FusedDecoder)
        assert kinds(engine.runner.model) == {TiledWeight}
        own = predicted(engine, ids, TOKENS)
    assert against(*own, *found)["ratio"] == pytest.approx(1, abs=MOST_LOSS)
    assert not torch.equal(own[0], found[0]), "the numbers are others"


@pytest.mark.skipif(bool(kernel_missing()), reason=kernel_missing() or "it is there")
def test_perplexity_in_the_files_own_bits_is_within_a_percent_of_float32_by_torch(exact):
    """Both by the copies for many rows, where memory has room for them, and by the packed kernel alone."""
    ids, found = exact
    with opened(Form("own bits", native=False)) as engine:
        decoder = engine.runner.model
        assert isinstance(decoder, FusedDecoder)
        assert kinds(decoder) == {PackedWeight}
        many = predicted(engine, ids, TOKENS)
        leave_to_kernel(decoder)
        few = predicted(engine, ids, TOKENS)
        assert all(layer.down.wide is None for layer in decoder.layers)
    assert against(*many, *found)["ratio"] == pytest.approx(1, abs=MOST_LOSS)
    assert against(*few, *found)["ratio"] == pytest.approx(1, abs=MOST_LOSS)
