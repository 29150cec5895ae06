"""Drawing by its kernels on a card: the plain way's tokens, the same in any batch and by replay."""

from dataclasses import replace

import pytest

from engine.request import Request, SamplingParams

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

VOCAB = 151_936
KINDS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=0.7, top_p=0.95),
    SamplingParams(temperature=1.5, top_p=0.5),
    SamplingParams(temperature=1.0, min_p=0.05),
    SamplingParams(temperature=1.0, top_p=0.9, top_k=20),
    SamplingParams(temperature=1.0, top_p=0.9, top_k=1000),
)


def rows_of(count, params=KINDS):
    from engine.sampling_batch import SamplingBatch

    requests = [Request(row, [1] * (row + 1), params[row % len(params)], seed=row) for row in range(count)]
    generator = torch.Generator(device="cuda").manual_seed(count)
    logits = torch.randn(count, VOCAB, device="cuda", generator=generator) * 2.5
    return logits, SamplingBatch.of(requests, torch.device("cuda"), VOCAB), requests


@pytest.mark.parametrize("count", [1, 7, 64, 256])
@torch.inference_mode()
def test_tokens_are_those_of_the_plain_way_but_for_near_ties(count):
    """Logarithms of the two differ in their last bits, which decides where two tokens all but tie."""
    from engine.sampler import draw_plainly, sample

    logits, batch, _ = rows_of(count)
    found = sample(logits, batch).token_ids
    plain = draw_plainly(logits, batch, whole=True)
    assert (found != plain).sum() <= count // 100
    assert torch.equal(found, sample(logits, batch).token_ids)


@torch.inference_mode()
def test_a_row_draws_the_same_alone_beside_others_and_by_replay():
    from engine.sampler import sample
    from engine.sampling_batch import SamplingBatch

    logits, batch, requests = rows_of(21)
    together = sample(logits, batch).token_ids
    for row, request in enumerate(requests):
        alone = SamplingBatch.of([request], torch.device("cuda"), VOCAB)
        assert torch.equal(sample(logits[row : row + 1], alone).token_ids, together[row : row + 1])
    plain = replace(batch, kind=replace(batch.kind, candidates=0, select_k=False))
    out = torch.empty(len(logits), dtype=torch.int64, device="cuda")
    expected = sample(logits, plain).token_ids.clone()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        sample(logits, plain, out)
    for _ in range(3):
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)


@torch.inference_mode()
def test_draws_come_as_often_as_tokens_are_likely():
    """Inside the nucleus of float64, within five standard deviations each."""
    from engine.sampler import sample

    params = SamplingParams(temperature=0.8, top_p=0.9)
    logits, batch, _ = rows_of(4096, (params,))
    logits = logits[:1, :64].contiguous()
    exact = (logits[0].double() / 0.8).softmax(0)
    order = exact.argsort(descending=True)
    kept = order[exact[order].cumsum(0) - exact[order] < 0.9]
    tokens = sample(logits.repeat(4096, 1), batch).token_ids
    found = torch.bincount(tokens, minlength=64)
    assert found[kept].sum() == 4096
    share = exact[kept] / exact[kept].sum()
    deviation = (share * (1 - share) * 4096).sqrt()
    assert ((found[kept] - share * 4096).abs() <= 5 * deviation).all()
