"""The kernels that draw tokens, interpreted, against the plain way and against probabilities in float64."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import Request, SamplingParams
from engine.sampler import NO_TOKEN, USUAL, graph_kind, sample
from engine.sampling_batch import SamplingBatch, SamplingKind
from tests.engine.interpreted import interpreter  # noqa: F401

CPU = torch.device("cpu")
KINDS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=2.0, top_p=0.5, min_p=0.01),
    SamplingParams(temperature=0.3, top_p=0.99),
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=1.0, top_p=1e-9),
    SamplingParams(temperature=0, top_p=0.5),
)


def drawn(logits: torch.Tensor, batch: SamplingBatch) -> list[int]:
    from engine.kernels.draw import draw

    return draw(logits, batch).tolist()


def batch_of(params, vocab, tokens=1, seed=0) -> SamplingBatch:
    """Without ``ways``, so that the plain way is the one that a device without kernels takes."""
    requests = [Request(row, [1] * tokens, p, seed=seed + row) for row, p in enumerate(params)]
    return replace(SamplingBatch.of(requests, CPU, vocab), ways=None)


@pytest.mark.parametrize("scale", [0.3, 3.0, 10.0])
@pytest.mark.parametrize("vocab", [7, 2048, 10_000])
def test_tokens_are_those_of_the_plain_way(vocab, scale):
    logits = torch.randn(len(KINDS), vocab, generator=torch.Generator().manual_seed(vocab)) * scale
    for tokens in (1, 2):
        batch = batch_of(KINDS, vocab, tokens)
        assert drawn(logits, batch) == sample(logits, batch).token_ids.tolist()


def test_a_row_draws_the_same_in_any_batch():
    """Slices are smaller where rows are few."""
    logits = torch.randn(len(KINDS), 5000, generator=torch.Generator().manual_seed(3)) * 2
    batch = batch_of(KINDS, 5000)
    together = drawn(logits, batch)
    for row in range(len(KINDS)):
        assert drawn(logits[row : row + 1], batch.rows(torch.tensor([row]))) == together[row : row + 1]


def test_columns_may_lie_between_others():
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(4))
    batch = batch_of(KINDS[:3], 300)
    apart = {name: torch.zeros(3, 2).to(getattr(batch, name).dtype) for name in ("temperature", "min_p")}
    for name, column in apart.items():
        column[:, :1] = getattr(batch, name)
    marks = torch.zeros(3, 8, dtype=torch.bool)
    marks[:, :1] = batch.greedy
    spread = replace(
        batch,
        greedy=marks[:, :1],
        temperature=apart["temperature"][:, :1],
        min_p=apart["min_p"][:, :1],
    )
    assert drawn(logits, spread) == drawn(logits, batch)


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, of infinity less infinity
def test_rows_without_a_finite_maximum_have_no_token():
    logits = torch.randn(5, 4100, generator=torch.Generator().manual_seed(5))
    logits[0] = -torch.inf
    logits[1, 4000] = torch.nan
    logits[2, 7] = torch.inf
    logits[3, 100:] = -torch.inf
    params = [SamplingParams(temperature=0.8, top_p=0.9)] * 5
    tokens = drawn(logits, batch_of(params, 4100))
    assert tokens[:3] == [NO_TOKEN] * 3
    assert 0 <= tokens[3] < 100
    assert 0 <= tokens[4] < 4100


def test_of_equals_the_first_is_the_most_likely():
    logits = torch.zeros(2, 3000)
    logits[:, [40, 2900]] = 5.0
    assert drawn(logits, batch_of([KINDS[0], KINDS[6]], 3000)) == [40, 40]


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 10_000),
    st.floats(0.01, 0.999),
    st.sampled_from([0.2, 1.0, 3.0]),
    st.sampled_from([0.5, 2.0, 8.0]),
)
def test_only_tokens_of_the_nucleus_are_drawn(seed, top_p, temperature, scale):
    """The nucleus in float64, with room for tokens whose probabilities the kernels hold to be equal."""
    vocab = 96
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed)) * scale
    logits = logits.repeat(4, 1)
    params = [SamplingParams(temperature=temperature, top_p=top_p)] * 4
    exact = (logits[0].double() / temperature).softmax(0)
    order = exact.argsort(descending=True)
    before = exact[order].cumsum(0) - exact[order]
    inside = set(order[before < top_p * (1 + 1e-5)].tolist())
    assert set(drawn(logits, batch_of(params, vocab, seed=seed))) <= inside


def test_tokens_come_as_often_as_they_are_likely():
    """300 draws; chi-square of 7 degrees of freedom, of which 99.99 % lie below 29.9."""
    vocab, draws = 8, 300
    logits = torch.linspace(-1.5, 1.5, vocab).repeat(draws, 1)
    tokens = drawn(logits, batch_of([SamplingParams(temperature=1.3)] * draws, vocab))
    expected = (logits[0].double() / 1.3).softmax(0) * draws
    found = torch.bincount(torch.tensor(tokens), minlength=vocab).double()
    assert ((found - expected) ** 2 / expected).sum() < 29.9


def test_one_graph_draws_with_and_without_top_p_where_there_are_kernels():
    plain = SamplingKind(whole=True)
    assert graph_kind(plain, torch.device("cuda")) == USUAL
    assert graph_kind(plain, CPU) == plain
    for kind in (SamplingKind(), SamplingKind(whole=True, select_k=True), SamplingKind(candidates=32)):
        assert graph_kind(kind, torch.device("cuda")) == kind


def test_the_benchmark_lists_a_line_a_kind_of_drawing():
    from benchmarks import drawing

    rows = [
        {"rows": count, "logits": "flat", "kind": kind, "kernels_us": 8.6, "torch_us": 1100.2, "equal": count}
        for count in (1, 256)
        for kind in list(drawing.KINDS)[:2]
    ]
    assert drawing.table(rows).splitlines()[2:] == [
        "| greedy, flat | 9, 1,100 | 9, 1,100 |",
        "| temperature 0.7, flat | 9, 1,100 | 9, 1,100 |",
    ]
    flat, peaked = (drawing.logits_of(2, look, CPU, 10_000) for look in ("flat", "peaked"))
    assert torch.equal(flat, drawing.logits_of(2, "flat", CPU, 10_000))
    assert peaked.amax(-1).min() > flat.amax(-1).max()
