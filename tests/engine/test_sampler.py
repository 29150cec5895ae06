"""Sampling: distributions, extremes, penalties, and independence from whoever else is in the batch."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.noise import log_exponential, random_bits, row_keys, row_keys_on_host
from engine.request import Request, SamplingParams
from engine.sampler import NO_TOKEN, Sampled, _argmax, _penalise, _select, sample
from engine.sampling_batch import SORTED_TOP_K, SamplingBatch

CPU = torch.device("cpu")
VOCAB = 1000


def request(
    seed: int = 0, output: list[int] | None = None, prompt: Sequence[int] = (1, 2, 3), **params
) -> Request:
    """``prompt`` may be a range where only its length matters."""
    ids = prompt if isinstance(prompt, range) else list(prompt)
    return Request(seed, ids, SamplingParams(**params), seed=seed, output_ids=list(output or []))


def run(logits: Tensor, requests: list[Request]) -> Sampled:
    """What is sampled on a CPU; the way of other devices has to give the same."""
    batch = SamplingBatch.of(requests, CPU, logits.shape[-1])
    sampled = sample(logits, batch)
    assert sample(logits, as_on_a_device(batch)).token_ids.tolist() == sampled.token_ids.tolist()
    return sampled


def as_on_a_device(batch: SamplingBatch) -> SamplingBatch:
    return replace(batch, ways=None)


def tokens(logits: Tensor, requests: list[Request]) -> list[int]:
    return run(logits, requests).token_ids.tolist()


def draws(logits: Tensor, count: int, **params) -> Tensor:
    """Tokens at ``count`` positions of one seeded request."""
    parts: list[Tensor] = []
    for first in range(0, count, 1000):
        rows = [
            request(7, prompt=range(first + row + 1), **params) for row in range(min(1000, count - first))
        ]
        parts.append(run(logits.expand(len(rows), -1), rows).token_ids)
    return torch.cat(parts)


def assert_follows(drawn: Tensor, probabilities: Tensor) -> None:
    """Chi-square at one in a million, and nothing at all where the probability is 0."""
    counts = torch.bincount(drawn, minlength=len(probabilities)).double()
    expected = probabilities.double() * len(drawn)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    freedom = int(kept.sum()) - 1
    statistic = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
    # Wilson and Hilferty's normal approximation of the chi-square quantile, 4.75 standard deviations.
    bound = freedom * (1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < bound, f"chi-square {statistic:.1f} over {bound:.1f} with {freedom} degrees"


TEN = torch.tensor([0.22, 0.18, 0.15, 0.13, 0.10, 0.08, 0.06, 0.04, 0.03, 0.01])


def only(probabilities: Tensor, kept: int) -> Tensor:
    cut = probabilities.clone()
    cut[kept:] = 0
    return cut / cut.sum()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, TEN),
        ({"temperature": 0.5}, (TEN**2) / (TEN**2).sum()),
        ({"temperature": 2.0}, TEN.sqrt() / TEN.sqrt().sum()),
        ({"top_k": 4}, only(TEN, 4)),
        ({"top_p": 0.7}, only(TEN, 5)),  # 0.68 after four
        ({"top_p": 0.5}, only(TEN, 3)),
        ({"min_p": 0.3}, only(TEN, 6)),  # 0.066 and above
        ({"top_k": 6, "top_p": 0.75}, only(TEN, 4)),  # 0.68 of 0.86 is 0.79, 0.55 of it 0.64
        ({"top_k": 8, "top_p": 0.9, "min_p": 0.5}, only(TEN, 4)),
        ({"top_p": 0.8, "temperature": 0.5}, only(TEN**2, 4)),
    ],
)
def test_20_000_draws_follow_the_distribution(params: dict, expected: Tensor):
    assert_follows(draws(TEN.log(), 20_000, **params), expected)


def test_draws_follow_a_wide_distribution_under_every_filter():
    torch.manual_seed(3)
    logits = torch.randn(VOCAB) * 2
    chances = logits.double().softmax(-1)
    ordered = chances.sort(descending=True)
    nucleus = ordered.indices[: int((ordered.values.cumsum(-1) < 0.9).sum()) + 1]
    assert 20 < len(nucleus) < 500
    expected = torch.zeros(VOCAB, dtype=torch.double)
    expected[nucleus] = chances[nucleus]
    assert_follows(draws(logits, 4_000, top_p=0.9), expected / expected.sum())


def test_different_seeds_at_one_position_are_independent_too():
    rows = [request(seed) for seed in range(20_000)]
    assert_follows(run(TEN.log().expand(20_000, -1), rows).token_ids, TEN)


def test_neighbouring_positions_and_seeds_are_uncorrelated():
    keys = row_keys(torch.arange(64).repeat_interleave(64), torch.arange(64).repeat(64))
    noise = log_exponential(keys, torch.arange(256, dtype=torch.int32)).double()
    assert noise.isfinite().all()
    mean = -(-noise).mean()  # Gumbel noise has Euler's constant as mean and pi**2/6 as variance
    assert abs(-mean - 0.57722) < 0.01
    assert abs(noise.var() - math.pi**2 / 6) < 0.02
    noise = noise - noise.mean()
    for shift in (1, 64):
        assert abs((noise[:-shift] * noise[shift:]).mean()) < 0.01
    assert abs((noise[:, :-1] * noise[:, 1:]).mean()) < 0.01


def hash_in_plain_integers(seed: int, position: int, token: int) -> tuple[int, int, int]:
    """Both key words and the bits of a token, unsigned."""

    def mix(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    key = mix((mix((seed + 0xD1B54A32D192ED03) % 2**64) + position * 0x9E3779B97F4A7C15) % 2**64)
    low, high = key % 2**32, key >> 32
    z = token ^ low
    z = (z ^ z >> 16) * 0x21F0AAAD % 2**32 ^ high
    z = (z ^ z >> 15) * 0xD35A2D97 % 2**32
    return low, high, z ^ z >> 15


def test_the_hash_is_wrapping_arithmetic_and_the_same_for_ever():
    """A seed written down today gives the same answer tomorrow, and on another device."""
    seeds, positions, ids = [0, 1, 2**63 - 1], [0, 5, 100_000], [0, 1, 151_935]
    keys = row_keys(torch.tensor(seeds), torch.tensor(positions))
    assert torch.equal(keys, row_keys_on_host(torch.tensor(seeds), torch.tensor(positions)))
    bits = random_bits(keys, torch.tensor(ids, dtype=torch.int32))
    for row, (seed, position) in enumerate(zip(seeds, positions)):
        for column, token in enumerate(ids):
            expected = hash_in_plain_integers(seed, position, token)
            found = (*keys[row].tolist(), int(bits[row, column]))
            assert tuple(word % 2**32 for word in found) == expected
    assert bits[0].tolist() == [-152656448, -118630825, -1928847340]


# --- extremes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 1e-6},
        {"temperature": 1e-30},
        {"top_k": 1},
        {"min_p": 1.0},
        {"top_p": 1e-4},
        {"top_p": 1e-30},
        {"top_p": 1e-4, "top_k": 50},
        {"temperature": 1e-6, "top_p": 1e-4, "min_p": 1.0, "top_k": 1},
        {"temperature": 0.0, "top_p": 0.5, "top_k": 600, "logprobs": 2},
    ],
)
def test_extremes_are_finite_and_equal_greedy(params: dict, scale: float, dtype: torch.dtype):
    torch.manual_seed(1)
    logits = (torch.randn(16, 300) * scale).to(dtype)  # 16-bit logits have ties
    assert scale < 1 or "top_p" not in params or logits.float().softmax(-1).amax() > 1e-4
    rows = [request(seed, **params) for seed in range(16)]
    assert tokens(logits, rows) == logits.float().argmax(-1).tolist()


def test_a_high_temperature_is_nearly_uniform_and_finite():
    assert_follows(draws(TEN.log(), 5_000, temperature=100.0), (TEN.log() / 100).softmax(-1))


@pytest.mark.parametrize("params", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 0.0}])
def test_forbidden_tokens_are_never_drawn(params: dict):
    logits = torch.full((64, VOCAB), -torch.inf)
    logits[:, [3, 500]] = torch.tensor([0.0, 0.1])
    drawn = set(tokens(logits, [request(seed, **params) for seed in range(64)]))
    assert drawn <= {3, 500}


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 3}])
def test_a_row_without_a_finite_maximum_gives_no_token_and_others_are_unharmed(params: dict):
    torch.manual_seed(2)
    logits = torch.randn(4, 50)
    rows = [request(seed, **params) for seed in range(4)]
    expected = tokens(logits, rows)
    logits[1, 7] = torch.nan
    logits[2] = -torch.inf
    assert tokens(logits, rows) == [expected[0], NO_TOKEN, NO_TOKEN, expected[3]]


# --- filters, exactly ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_radix_select_equals_a_sort(seed: int):
    rng = torch.Generator().manual_seed(seed)
    keys = torch.randint(0, 2**31 - 1 if seed % 2 else 50, (5, 400), generator=rng, dtype=torch.int32)
    weights = torch.randint(0, 1000, (5, 400), generator=rng)
    total = weights.sum(-1, keepdim=True)
    wanted = (total * torch.rand(5, 1, generator=rng)).long().clamp(min=1)
    order = keys.sort(dim=-1)
    reached = weights.gather(1, order.indices).cumsum(-1)
    expected = order.values.gather(1, (reached < wanted).sum(-1, keepdim=True))
    assert torch.equal(_select(keys, weights, wanted), expected)


@pytest.mark.parametrize("top_k", [2, 40, SORTED_TOP_K, SORTED_TOP_K + 1, 900, 5_000])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.05])
def test_only_tokens_inside_top_k_and_top_p_are_drawn(top_k: int, top_p: float):
    torch.manual_seed(4)
    logits = torch.randn(VOCAB)
    ordered = logits.double().sort(descending=True)
    chances = ordered.values[:top_k].softmax(-1)
    kept = int((chances.cumsum(-1) < top_p).sum()) + 1
    allowed = set(ordered.indices[:kept].tolist())
    drawn = set(draws(logits, 2_000, top_k=top_k, top_p=top_p).tolist())
    assert drawn <= allowed
    assert len(drawn) > min(len(allowed), 40) * 0.7


@pytest.mark.parametrize("top_k", [3, SORTED_TOP_K + 1])
def test_tokens_as_likely_as_the_last_of_top_k_stay(top_k: int):
    logits = torch.arange(VOCAB, 0, -1).float()
    logits[top_k - 2 : top_k + 3] = logits[top_k - 1]
    drawn = set(draws(logits, 4_000, top_k=top_k, temperature=100.0).tolist())
    assert drawn & set(range(top_k, top_k + 3)) == set(range(top_k, top_k + 3))
    assert max(drawn) == top_k + 2


@pytest.mark.parametrize("columns", [1, 63, 64, 128, 640, 1000])
def test_argmax_is_the_first_of_equals(columns: int):
    values = torch.randint(0, 4, (50, columns), generator=torch.Generator().manual_seed(1)).float()
    expected = [row.index(max(row)) for row in values.tolist()]
    assert _argmax(values)[:, 0].tolist() == expected


# --- one row's business --------------------------------------------------------------------------------

MANY = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 700},
    {"temperature": 1.2, "top_k": 700, "top_p": 0.8},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.5},
    {"min_p": 0.05},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    {"temperature": 0.0, "repetition_penalty": 2.0},
    {"logprobs": 5},
]


@pytest.mark.parametrize("seed", range(50))
def test_a_row_gives_the_same_token_alone_and_in_any_batch(seed: int):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    logits = torch.randn(len(MANY), VOCAB) * rng.choice([0.3, 1.0, 4.0])
    if seed % 2:
        logits = logits.mul(32).round().div(32)  # with ties
    rows = [
        request(seed * 100 + row, [rng.randrange(VOCAB) for _ in range(rng.randrange(9))], **params)
        for row, params in enumerate(MANY)
    ]
    together = tokens(logits, rows)
    alone = [tokens(logits[row : row + 1], [rows[row]])[0] for row in range(len(rows))]
    assert together == alone
    order = list(range(len(rows)))
    rng.shuffle(order)
    some = order[:4]
    assert tokens(logits[some], [rows[row] for row in some]) == [together[row] for row in some]


def test_a_seed_gives_other_tokens_at_other_positions_and_the_same_at_the_same():
    logits = torch.zeros(1, VOCAB)
    first = [tokens(logits, [request(5, [0] * position)])[0] for position in range(30)]
    again = [tokens(logits, [request(5, [0] * position)])[0] for position in range(30)]
    other = [tokens(logits, [request(6, [0] * position)])[0] for position in range(30)]
    assert first == again
    assert len(set(first)) > 20
    assert sum(a == b for a, b in zip(first, other)) < 3


def test_a_resumed_request_draws_what_it_would_have_drawn():
    """Where prompt ends and output begins does not matter: noise belongs to the absolute position."""
    logits = torch.zeros(1, VOCAB)
    assert tokens(logits, [request(5, [4, 5], prompt=[1, 2])]) == tokens(
        logits, [request(5, [], prompt=[1, 2, 4, 5])]
    )


def test_logits_are_left_as_they_were():
    torch.manual_seed(0)
    logits = torch.randn(len(MANY), VOCAB)
    before = logits.clone()
    run(logits, [request(row, [1, 1, 2], **params) for row, params in enumerate(MANY)])
    assert torch.equal(logits, before)


# --- penalties -----------------------------------------------------------------------------------------


def penalised(prompt: list[int], output: list[int], **params) -> list[float]:
    """What becomes of logits 2, -2, 2, -2."""
    batch = SamplingBatch.of([request(0, output, prompt, **params)], CPU, 4)
    assert batch.penalties is not None
    return _penalise(torch.tensor([[2.0, -2.0, 2.0, -2.0]]), batch.penalties)[0].tolist()


def test_repetition_sees_prompt_and_output_once_each():
    assert penalised([0], [1, 1], repetition_penalty=2.0) == [1.0, -4.0, 2.0, -2.0]
    assert penalised([0, 0, 0], [0], repetition_penalty=2.0) == [1.0, -2.0, 2.0, -2.0]


def test_presence_and_frequency_see_the_output_only():
    assert penalised([0, 3], [1, 1, 2], presence_penalty=0.5) == [2.0, -2.5, 1.5, -2.0]
    assert penalised([0, 3], [1, 1, 2], frequency_penalty=0.5) == [2.0, -3.0, 1.5, -2.0]
    assert penalised([0, 3], [1, 1, 2], frequency_penalty=-0.5) == [2.0, -1.0, 2.5, -2.0]


def test_penalties_of_one_row_leave_the_others_alone():
    logits = torch.tensor([[3.0, 2.9, 0.0, 0.0]] * 3)
    rows = [
        request(0, [0], temperature=0.0),
        request(1, [0], temperature=0.0, presence_penalty=1.0),
        request(2, [], prompt=[0], temperature=0.0, presence_penalty=1.0),
    ]
    assert tokens(logits, rows) == [0, 1, 0]


def test_penalties_count_what_came_since_the_last_step():
    row = request(0, [0], temperature=0.0, frequency_penalty=1.0)
    logits = torch.tensor([[3.0, 2.5, 0.0, 0.0]])
    chosen: list[int] = []
    for _ in range(4):
        chosen += tokens(logits, [row])
        row.output_ids.append(chosen[-1])
    assert chosen == [1, 0, 1, 0]


# --- log probabilities ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.0}, {"temperature": 0.3, "repetition_penalty": 1.5}]
)
def test_logprobs_are_those_of_the_raw_logits(params: dict):
    torch.manual_seed(9)
    logits = torch.randn(4, VOCAB) * 5
    sampled = run(logits, [request(seed, [5, 6], logprobs=3, **params) for seed in range(4)])
    expected = logits.double().log_softmax(-1)
    for row, token in enumerate(sampled.token_ids.tolist()):
        best = expected[row].topk(3).indices.tolist()
        found = sampled.logprobs_of(row, 3)
        assert set(found) == {*best, token}
        for id, value in found.items():
            assert value == pytest.approx(float(expected[row, id]), abs=1e-4)


def test_rows_get_as_many_logprobs_as_they_asked_for():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]] * 3)
    rows = [request(0, temperature=0.0, logprobs=count) for count in (0, 1, 3)]
    sampled = run(logits, rows)
    assert [len(sampled.logprobs_of(row, r.params.logprobs)) for row, r in enumerate(rows)] == [1, 1, 3]
    assert run(logits, [request(0)] * 3).logprobs_of(0, 5) == {}


# --- what a graph needs --------------------------------------------------------------------------------


def test_sampling_on_a_device_reads_nothing_back_to_the_host():
    """Runs on fake tensors, which have shapes and no data: whatever looked at a value would fail."""
    rows = [request(row, [1, 1, 2], **params) for row, params in enumerate(MANY)]
    batch = as_on_a_device(SamplingBatch.of(rows, CPU, VOCAB))
    logits = torch.randn(len(MANY), VOCAB)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        sampled = sample(mode.from_tensor(logits), batch)
    assert sampled.token_ids.shape == (len(MANY),)


def test_a_greedy_batch_draws_no_noise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.sampler.log_exponential", None)
    assert tokens(torch.eye(3), [request(0, temperature=0.0)] * 3) == [0, 1, 2]


# --- threads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "used"), [(3 * VOCAB, 1), (3 * VOCAB - 1, 2)])
def test_few_logits_are_one_threads_work_and_the_others_are_back_behind_it(
    monkeypatch: pytest.MonkeyPatch, most: int, used: int
):
    monkeypatch.setattr("engine.sampler.ONE_THREADS", most)
    seen: list[int] = []

    def argmax(values: Tensor) -> Tensor:
        seen.append(torch.get_num_threads())
        if len(seen) > 1:
            raise MemoryError
        return _argmax(values)

    monkeypatch.setattr("engine.sampler._argmax", argmax)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        batch = SamplingBatch.of([request(0, temperature=0.0)] * 3, CPU, VOCAB)
        sample(torch.zeros(3, VOCAB), batch)
        assert torch.get_num_threads() == 2
        with pytest.raises(MemoryError):
            sample(torch.zeros(3, VOCAB), batch)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [used, used]
