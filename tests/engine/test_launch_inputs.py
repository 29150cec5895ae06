"""Inputs of a launch say what the requests say now, whatever was kept of the step before."""

import random
from dataclasses import fields

import pytest
import torch

from engine.kv_cache import NULL_BLOCK
from engine.launch_inputs import InputBuilder, LaunchInputs
from engine.request import Request, SamplingParams
from engine.sampling_batch import SamplingBatch, SamplingColumns

CPU = torch.device("cpu")
SIZE = 4
VOCAB = 100


def request(id: int, prompt: int = 5, output: int = 1, **params) -> Request:
    """Token ``100 * id + i`` at position i, block ``10 * id + i`` in place i."""
    ids = [100 * id + position for position in range(prompt + output)]
    made = Request(id, ids[:prompt], SamplingParams(**params), seed=id, output_ids=ids[prompt:])
    made.block_table = [10 * id + place for place in range(-(-len(ids) // SIZE))]
    return made


def go_on(request: Request) -> None:
    request.add_token(100 * request.id + request.num_tokens)
    if -(-request.num_tokens // SIZE) > len(request.block_table):
        request.block_table.append(10 * request.id + len(request.block_table))


def assert_decodes(inputs: LaunchInputs, requests: list[Request]) -> None:
    batch, count = inputs.batch, len(requests)
    lengths = [request.num_tokens for request in requests]
    assert inputs.input_ids.tolist() == [request.output_ids[-1] for request in requests]
    assert inputs.positions.tolist() == [length - 1 for length in lengths]
    assert inputs.rows.tolist() == list(range(count))
    width = max(len(request.block_table) for request in requests)
    assert batch.block_tables.is_contiguous()
    assert batch.block_tables.tolist() == [
        request.block_table + [NULL_BLOCK] * (width - len(request.block_table)) for request in requests
    ]
    assert batch.slot_mapping.tolist() == [
        request.block_table[(length - 1) // SIZE] * SIZE + (length - 1) % SIZE
        for request, length in zip(requests, lengths)
    ]
    assert batch.context_lens.tolist() == list(batch.contexts or ()) == lengths
    assert batch.cu_seqlens_q.tolist() == list(range(count + 1))
    assert batch.query_lens == (1,) * count
    assert batch.decode
    assert {inputs.input_ids.dtype, inputs.positions.dtype, inputs.rows.dtype} == {torch.int64}
    assert batch.slot_mapping.dtype == torch.int64
    assert {batch.block_tables.dtype, batch.context_lens.dtype, batch.cu_seqlens_q.dtype} == {torch.int32}


def test_decode_inputs_are_those_of_the_requests_after_every_kind_of_change():
    rng = random.Random(1)
    builder = InputBuilder(SIZE, CPU)
    running = [request(id, prompt=rng.randrange(1, 9)) for id in range(1, 5)]
    for step in range(300):
        assert_decodes(builder.decode(running), running)
        for each in running:
            go_on(each)
        change = rng.randrange(8)
        if change == 0:
            rng.shuffle(running)
        elif change == 1 and len(running) > 1:
            running.pop(rng.randrange(len(running)))
        elif change == 2 and len(running) < 6:
            running.append(request(step + 10, prompt=rng.randrange(1, 9)))
        elif change == 3:  # preempted and back, in other blocks
            table = rng.choice(running).block_table
            table[:] = [block + 1000 for block in table]
        elif change == 4:  # a block that two shared is copied for one of them
            rng.choice(running).block_table[-1] += 5000


def test_a_table_that_changed_in_place_is_not_the_one_that_was_kept():
    builder = InputBuilder(SIZE, CPU)
    one = request(1, prompt=10)
    before = builder.decode([one]).batch.block_tables
    one.block_table[0] = 77
    assert builder.decode([one]).batch.block_tables.tolist() == [one.block_table]
    assert before.tolist() == [[10, 11, 12]]


def test_packed_inputs_lie_one_behind_the_other():
    builder = InputBuilder(SIZE, CPU)
    inputs = builder.packed([[3, 4], [8]], [11, 12, 13, 14], [3, 4, 5, 0], [3, 1], [2, 3])
    batch = inputs.batch
    assert inputs.input_ids.tolist() == [11, 12, 13, 14]
    assert inputs.positions.tolist() == [3, 4, 5, 0]
    assert inputs.rows.tolist() == [2, 3]
    assert batch.slot_mapping.tolist() == [3 * SIZE + 3, 4 * SIZE, 4 * SIZE + 1, 8 * SIZE]
    assert batch.block_tables.tolist() == [[3, 4], [8, NULL_BLOCK]]
    assert batch.context_lens.tolist() == list(batch.contexts or ()) == [6, 1]
    assert batch.cu_seqlens_q.tolist() == [0, 3, 4]
    assert batch.query_lens == (3, 1)
    assert not batch.decode


def test_a_position_outside_of_its_table_is_refused():
    builder = InputBuilder(SIZE, CPU)
    short = request(1, prompt=10)
    short.block_table.pop()
    with pytest.raises(IndexError, match="position 10 is outside a table of 2 blocks of 4"):
        builder.decode([request(2), short])
    with pytest.raises(IndexError, match="position 4 is outside a table of 1 blocks of 4"):
        builder.packed([[1]], [0] * 5, list(range(5)), [5], [4])


# --- sampling parameters -------------------------------------------------------------------------------


def assert_same(left: SamplingBatch, right: SamplingBatch) -> None:
    for name in (field.name for field in fields(SamplingBatch)):
        one, other = getattr(left, name), getattr(right, name)
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype
            assert one.tolist() == other.tolist(), name
        elif name == "ways" and one is not None:
            for way in (field.name for field in fields(one)):
                assert getattr(one, way).tolist() == getattr(other, way).tolist()
        elif name == "penalties" and one is not None:
            for column in (field.name for field in fields(one)):
                assert getattr(one, column).tolist() == getattr(other, column).tolist()
        else:
            assert one == other, name


KINDS: list[dict] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.95},
    {},
    {"min_p": 0.1},
    {"top_k": 20},
    {"top_k": 400, "top_p": 0.9},
    {"logprobs": 3},
    {"repetition_penalty": 1.2},
]


def test_kept_columns_are_those_of_the_requests_after_every_kind_of_change():
    rng = random.Random(2)
    columns = SamplingColumns(CPU, VOCAB)
    running = [request(id, **KINDS[id]) for id in range(1, 4)]
    kept = 0
    for step in range(400):
        before = columns._batch
        batch = columns.of(running)
        kept += before is not None and columns._batch is before
        assert_same(batch, SamplingBatch.of(running, CPU, VOCAB))
        for each in running:
            go_on(each)
        change = rng.randrange(12)
        if change == 0:
            rng.shuffle(running)
        elif change == 1 and len(running) > 1:
            running.pop(rng.randrange(len(running)))
        elif change == 2 and len(running) < 6:
            running.append(request(step + 10, **rng.choice(KINDS)))
        elif change == 3:  # the same chat with other parameters
            rng.choice(running).params = SamplingParams(**rng.choice(KINDS))
        elif change == 4:  # a fork draws by a seed of its own
            rng.choice(running).seed = 1000 + step
        elif change == 5:  # another one, in the place of one that has ended
            running[0] = request(step + 10, **KINDS[1])
    assert kept > 50


def test_columns_of_requests_that_ask_the_same_are_built_once(monkeypatch: pytest.MonkeyPatch):
    columns = SamplingColumns(CPU, VOCAB)
    running = [request(id, **KINDS[1]) for id in range(1, 4)]
    columns.of(running)
    monkeypatch.setattr(SamplingBatch, "of", None)
    for each in running:
        go_on(each)
    assert columns.of(running).position.tolist() == [request.num_tokens for request in running]


def test_penalties_are_counted_anew_for_every_step():
    columns = SamplingColumns(CPU, VOCAB)
    one = request(1, **KINDS[-1])
    for _ in range(3):
        assert_same(columns.of([one]), SamplingBatch.of([one], CPU, VOCAB))
        go_on(one)
