"""How rows of a decode batch move on by themselves: by torch, and by the kernel in Triton's interpreter."""

import random

import pytest
import torch

from engine.advance import (
    ADDED,
    COLUMNS,
    CONTEXTS,
    FRESH,
    IDS,
    LENGTHS,
    NO_SLOT,
    NO_SOURCE,
    POSITIONS,
    SLOTS,
    SOURCE,
    advance,
)
from tests.engine.interpreted import interpreter  # noqa: F401

BLOCK_SIZE = 4


def rows_of(*rows, width: int = 5, tokens=(50, 51, 52, 53)):
    """Columns, lengths, tables and tokens of rows given as dicts of what is not zero."""
    columns = torch.zeros(COLUMNS, len(rows), dtype=torch.int64)
    columns[SOURCE] = NO_SOURCE
    lengths = columns[LENGTHS].view(torch.int32)
    for number, row in enumerate(rows):
        for column, value in row.items():
            columns[column, number] = value
        lengths[number] = row[CONTEXTS]
    tables = torch.arange(1, len(rows) * width + 1, dtype=torch.int32).view(len(rows), width)
    return columns, lengths, tables, torch.tensor(tokens[: len(rows)])


def going_on(position: int, token: int = 9) -> dict[int, int]:
    return {IDS: token, POSITIONS: position, CONTEXTS: position + 1, SLOTS: 77}


PADDING = {CONTEXTS: 1, SLOTS: NO_SLOT}


def launches():
    from engine.kernels.advance import advance as kernel

    return {"torch": advance, "triton": kernel}


@pytest.mark.parametrize("by", ["torch", "triton"])
def test_a_row_goes_on_with_its_own_token_at_the_next_place(by):
    columns, lengths, tables, tokens = rows_of(going_on(2), going_on(3), going_on(10), PADDING)
    launches()[by](columns, lengths, tables, tokens, 3, BLOCK_SIZE)
    assert columns[IDS].tolist() == [50, 51, 52, 0]
    assert columns[POSITIONS].tolist() == [3, 4, 11, 0]
    assert columns[CONTEXTS].tolist() == [4, 5, 12, 1]
    assert lengths[:3].tolist() == [4, 5, 12]
    # Rows have blocks 1 to 5, 6 to 10 and 11 to 15 in order.
    assert columns[SLOTS].tolist() == [1 * 4 + 3, 7 * 4 + 0, 13 * 4 + 3, NO_SLOT]


@pytest.mark.parametrize("by", ["torch", "triton"])
def test_a_block_that_was_added_enters_the_table_and_takes_the_token(by):
    columns, lengths, tables, tokens = rows_of({**going_on(3), ADDED: 40}, going_on(3))
    launches()[by](columns, lengths, tables, tokens, 2, BLOCK_SIZE)
    assert tables.tolist() == [[1, 40, 3, 4, 5], [6, 7, 8, 9, 10]]
    assert columns[SLOTS].tolist() == [40 * 4, 7 * 4]
    assert columns[ADDED].tolist() == [0, 0]


@pytest.mark.parametrize("by", ["torch", "triton"])
def test_a_fresh_row_stays_where_the_host_put_it_and_takes_the_token_of_its_source(by):
    told = {**going_on(6, token=7), FRESH: 1}
    columns, lengths, tables, tokens = rows_of({**told, SOURCE: 2}, told, {**told, SOURCE: 0}, going_on(6))
    launches()[by](columns, lengths, tables, tokens, 4, BLOCK_SIZE)
    assert columns[IDS].tolist() == [52, 7, 50, 53]
    assert columns[POSITIONS].tolist() == [6, 6, 6, 7]
    assert columns[SLOTS].tolist()[:3] == [77] * 3
    assert columns[CONTEXTS].tolist() == lengths.tolist()[:4] == [7, 7, 7, 8]
    assert columns[FRESH].tolist() == [0] * 4
    launches()[by](columns, lengths, tables, tokens, 4, BLOCK_SIZE)
    assert columns[IDS].tolist() == [50, 51, 52, 53]
    assert columns[POSITIONS].tolist() == [7, 7, 7, 8]


@pytest.mark.parametrize("by", ["torch", "triton"])
def test_padding_stays_padding_however_often_it_is_moved_on(by):
    fresh = {**PADDING, FRESH: 1}
    columns, lengths, tables, tokens = rows_of(PADDING, fresh, {**fresh, SOURCE: -1})
    before = columns.clone()
    before[FRESH] = 0
    for _ in range(3):
        launches()[by](columns, lengths, tables, tokens, 3, BLOCK_SIZE)
    assert torch.equal(columns, before)


@pytest.mark.parametrize("by", ["torch", "triton"])
def test_a_token_that_is_none_becomes_zero(by):
    fresh = {**going_on(1), FRESH: 1, SOURCE: 0}
    columns, lengths, tables, tokens = rows_of(going_on(1), fresh, tokens=(-1, 5))
    launches()[by](columns, lengths, tables, tokens, 2, BLOCK_SIZE)
    assert columns[IDS].tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_the_kernel_writes_what_torch_writes_and_nothing_else(seed):
    chance, rows = random.Random(seed), (1, 5, 33, 150)[seed]
    columns = torch.randint(0, 1000, (COLUMNS, rows), generator=torch.Generator().manual_seed(seed))
    width = 9
    columns[POSITIONS] %= width * BLOCK_SIZE - 2
    columns[FRESH] %= 2
    columns[ADDED] *= columns[ADDED] % 2
    columns[SOURCE] = columns[SOURCE] % (rows + 1) - 1
    columns[SLOTS, ::3] = NO_SLOT
    columns[SOURCE, ::3] = NO_SOURCE
    lengths = columns[LENGTHS].view(torch.int32)
    tables = torch.randint(1, 500, (rows, width), dtype=torch.int32)
    tokens = torch.randint(-1, 300, (rows,))
    kept = tokens.clone()
    other, other_tables = columns.clone(), tables.clone()
    size = chance.randrange(1, rows + 1)
    for _ in range(2):
        launches()["torch"](columns, lengths, tables, tokens, size, BLOCK_SIZE)
        lengths_of_other = other[LENGTHS].view(torch.int32)
        launches()["triton"](other, lengths_of_other, other_tables, tokens, size, BLOCK_SIZE)
        assert torch.equal(columns, other)
        assert torch.equal(tables, other_tables)
    assert torch.equal(tokens, kept)
