"""On a CPU a token comes of few contenders; it has to be the one that the whole vocabulary gives."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import contenders, sampler
from engine.contenders import CANDIDATES, FOLD, GROUP, GROUPS, draw_free, draw_nucleus, likeliest
from engine.mass import MASS_BITS, mass_of, wanted_mass
from engine.noise import log_exponential, row_keys
from engine.request import Request, SamplingParams
from engine.sampler import NO_TOKEN, sample
from engine.sampling_batch import SamplingBatch

CPU = torch.device("cpu")
VOCABULARIES = (50, CANDIDATES, 1000, FOLD * CANDIDATES * 3, GROUP * GROUPS * 3, 10_007)
FINE = torch.float64


def randoms(columns: int, rng: torch.Generator) -> Tensor:
    return torch.randn(columns, generator=rng) * 3


def masked(columns: int, rng: torch.Generator) -> Tensor:
    """Most tokens are forbidden, as by a grammar."""
    keep = torch.rand(columns, generator=rng) < 0.01
    keep[int(torch.randint(columns, (1,), generator=rng))] = True
    return randoms(columns, rng).masked_fill(~keep, -torch.inf)


def bumpy(columns: int, rng: torch.Generator) -> Tensor:
    """Few likely tokens, and very many that are a little likely together."""
    values = torch.full((columns,), -6.0) + torch.randn(columns, generator=rng) * 0.01
    values[torch.randint(columns, (5,), generator=rng)] = 2.0
    return values


ROWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "random": randoms,
    "peaked": lambda columns, rng: randoms(columns, rng) * 5,
    "ties": lambda columns, rng: randoms(columns, rng).round(),
    "ties of bfloat16": lambda columns, rng: randoms(columns, rng).bfloat16().float(),
    "flat": lambda columns, rng: torch.zeros(columns),
    "nearly flat": lambda columns, rng: randoms(columns, rng) * 1e-3,
    "masked": masked,
    "bumpy": bumpy,
    "one alone": lambda columns, rng: torch.full((columns,), -torch.inf).index_fill(0, torch.tensor(7), 1.0),
    "nothing allowed": lambda columns, rng: torch.full((columns,), -torch.inf),
    "not a number": lambda columns, rng: randoms(columns, rng).index_fill(0, torch.tensor(3), torch.nan),
    "infinite": lambda columns, rng: randoms(columns, rng).index_fill(0, torch.tensor(9), torch.inf),
}

parameters = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-4, 0.3, 0.7, 1.0, 1.3, 5.0, 100.0]),
        "top_p": st.sampled_from([1e-30, 1e-4, 0.05, 0.5, 0.9, 0.95, 0.999, 1 - 2**-53, 1.0, 1.0]),
        "min_p": st.sampled_from([0.0, 0.0, 0.0, 1e-30, 1e-4, 0.05, 0.5, 1.0]),
        "top_k": st.sampled_from([0, 0, 0, 0, 1, 20, 300]),
    }
)
rows = st.lists(st.tuples(st.sampled_from(sorted(ROWS)), parameters), min_size=1, max_size=6)


def tokens(logits: Tensor, batch: SamplingBatch) -> list[int]:
    return sample(logits, batch).token_ids.tolist()


def ask(seed: int, position: int = 3, **params) -> Request:
    return Request(seed, [0] * position, SamplingParams(**params), seed=seed)


@settings(max_examples=300, deadline=None)
@given(rows, st.sampled_from(VOCABULARIES), st.integers(0, 2**31))
def test_every_token_is_the_one_that_a_draw_from_the_whole_vocabulary_gives(wanted, columns: int, seed: int):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.stack([ROWS[kind](columns, rng) for kind, _ in wanted])
    requests = [ask(seed + row, **params) for row, (_, params) in enumerate(wanted)]
    batch = SamplingBatch.of(requests, CPU, columns)
    before = logits.clone()
    found = tokens(logits, batch)
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    assert found == tokens(logits, replace(batch, ways=None))
    for row, request in enumerate(requests):  # and whoever is beside it
        alone = SamplingBatch.of([request], CPU, columns)
        assert tokens(logits[row : row + 1], alone) == found[row : row + 1]


@pytest.mark.parametrize("kind", ["random", "peaked", "ties", "flat", "masked", "bumpy"])
@pytest.mark.parametrize(
    "params", [{"temperature": 0.7, "top_p": 0.95}, {"top_p": 0.5, "min_p": 0.01}, {"min_p": 0.1}, {}]
)
def test_many_draws_of_one_row_are_those_of_the_whole_vocabulary(kind: str, params: dict):
    rng = torch.Generator().manual_seed(5)
    row = ROWS[kind](GROUP * GROUPS * 3, rng)
    requests = [ask(seed, position, **params) for seed in range(4) for position in range(1, 26)]
    batch = SamplingBatch.of(requests, CPU, len(row))
    logits = row.expand(len(requests), -1).contiguous()
    assert tokens(logits, batch) == tokens(logits, replace(batch, ways=None))


# --- who is decided here -------------------------------------------------------------------------------


def nucleus(row: Tensor, top_p: float, min_p: float = 0.0) -> tuple[int, bool]:
    """The token of a row, and whether it is left to the caller."""
    scaled = (row - row.amax())[None]
    keys = row_keys(torch.tensor([4]), torch.tensor([9]))
    drawn, left = draw_nucleus(
        scaled,
        scaled.argmax(-1, keepdim=True),
        keys,
        torch.tensor([[top_p]], dtype=FINE),
        torch.tensor([[min_p]]),
    )
    return int(drawn), bool(len(left))


def steps(equal: int, columns: int = 5000) -> Tensor:
    """``equal`` tokens of the same high logit, everything else far below."""
    row = torch.full((columns,), -30.0)
    row[torch.randperm(columns, generator=torch.Generator().manual_seed(1))[:equal]] = 3.0
    return row


def test_a_row_whose_nucleus_ends_inside_the_candidates_is_decided():
    assert not nucleus(steps(CANDIDATES - 1), 0.9)[1]


@pytest.mark.parametrize("equal", [CANDIDATES, CANDIDATES + 1, 3 * CANDIDATES])
def test_equals_of_the_last_candidate_leave_the_row_to_the_caller(equal: int):
    """They are all inside, whatever is wanted of them, and some may be no candidates."""
    assert nucleus(steps(equal), 0.9)[1]
    assert nucleus(steps(equal), 0.1)[1]
    assert nucleus(steps(equal), 1.0, min_p=0.5)[1]


def test_a_min_p_inside_the_candidates_decides_a_row_whose_nucleus_is_wider():
    row = torch.arange(0.0, -50.0, -0.01)
    assert nucleus(row, 0.999)[1]
    assert not nucleus(row, 0.999, min_p=0.5)[1]


def test_a_top_p_below_the_likeliest_token_alone_is_that_token():
    assert nucleus(steps(3 * CANDIDATES), 1e-4) == (int(steps(3 * CANDIDATES).argmax()), False)


def test_all_tokens_of_a_small_vocabulary_are_candidates():
    assert not nucleus(torch.zeros(CANDIDATES), 0.9)[1]


def test_free_rows_are_decided_unless_too_many_groups_may_hold_the_winner():
    rng = torch.Generator().manual_seed(2)
    peaked = torch.stack([randoms(GROUP * GROUPS * 3, rng) for _ in range(20)])
    keys = row_keys(torch.arange(20), torch.arange(20))
    drawn, left = draw_free(peaked - peaked.amax(-1, keepdim=True), keys)
    assert len(left) < 5
    ids = torch.arange(peaked.shape[1], dtype=torch.int32)
    expected = (peaked - peaked.amax(-1, keepdim=True) - log_exponential(keys, ids)).argmax(-1)
    decided = [row for row in range(20) if row not in left.tolist()]
    assert drawn[decided, 0].tolist() == expected[decided].tolist()


def test_a_free_row_with_as_good_a_group_behind_those_looked_into_is_left(monkeypatch: pytest.MonkeyPatch):
    """Without any noise all tokens are as good, and the first of them may be in any group."""
    monkeypatch.setattr(contenders, "random_bits", lambda keys, ids: torch.full((1, len(ids)), 5).int())
    flat = torch.zeros(1, GROUP * GROUPS * 3)
    assert draw_free(flat, torch.zeros(1, 2, dtype=torch.int32))[1].tolist() == [0]


def test_the_way_by_all_tokens_is_not_taken_for_the_usual_chat(monkeypatch: pytest.MonkeyPatch):
    rng = torch.Generator().manual_seed(3)
    logits = torch.stack([ROWS["peaked"](GROUP * GROUPS * 3, rng) for _ in range(4)])
    monkeypatch.setattr(sampler, "_draw_any", None)
    batch = SamplingBatch.of(
        [ask(row, temperature=0.7, top_p=0.95) for row in range(4)], CPU, logits.shape[1]
    )
    assert NO_TOKEN not in tokens(logits, batch)


# --- parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [300, 4096, 4100, FOLD * 2 * 100, FOLD * 2 * 100 + FOLD])
@pytest.mark.parametrize("ties", [False, True])
def test_the_likeliest_are_those_of_a_sort(columns: int, ties: bool):
    values = torch.randn(6, columns, generator=torch.Generator().manual_seed(columns))
    values = values.mul(2).round() if ties else values
    found, ids = likeliest(values, 100)
    assert torch.equal(found, values.sort(descending=True).values[:, :100])
    assert torch.equal(values.gather(1, ids), found)
    assert all(len(set(row)) == 100 for row in ids.tolist())


def test_mass_is_counted_exactly_where_rounding_decides_where_the_nucleus_ends():
    """Three tokens of one mass before 4,000 that lose a part of a unit each; top-p wants some units more."""
    scaled = torch.full((1, 5000), -torch.inf)
    scaled[0, 1000:] = -20.3
    scaled[0, [10, 20, 30]] = 0.0
    total = mass_of(scaled).sum()
    values = scaled.sort(descending=True).values[:, :100]
    for whole in (1, 2, 3):
        for units in (-2000, -1, 0, 1, 2000):
            share = torch.tensor([[((whole << MASS_BITS) + units) / int(total)]], dtype=FINE)
            reached = mass_of(values).cumsum(-1) >= wanted_mass(total, share)
            assert int(contenders._nucleus_end(values, scaled, share)) == reached[0].tolist().index(True)


@pytest.mark.parametrize("columns", [1000, GROUP * GROUPS * 3])
def test_of_equals_the_first_in_the_vocabulary_is_drawn(monkeypatch: pytest.MonkeyPatch, columns: int):
    for module in (contenders, sampler):
        monkeypatch.setattr(module, "log_exponential", lambda keys, ids: torch.zeros(1, ids.shape[-1]))
    monkeypatch.setattr(contenders, "logs_of_bits", torch.zeros_like)
    logits = torch.full((1, columns), -30.0)
    logits[0, torch.randperm(150, generator=torch.Generator().manual_seed(1))[:40]] = 3.0
    first = int((logits[0] > 0).nonzero()[0])
    for params in ({"top_p": 0.9}, {"min_p": 0.5}, {}):
        assert tokens(logits, SamplingBatch.of([ask(1, **params)], CPU, columns)) == [first]
