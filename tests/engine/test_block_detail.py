"""What a block holds, who counts on it, and the text of its tokens."""

import random

import pytest
from transformers import AutoTokenizer

from engine.block_detail import HASH_DIGITS, block_detail
from engine.errors import RequestError
from engine.pieces import TokenPieces
from engine.prefix import block_key, root_key
from tests.engine.test_text import BYTES, HARD, PIECES
from tests.engine.token_device import Harness


def detail(harness, block):
    return block_detail(block, harness.steps, harness.scheduler, lambda ids: [str(token) for token in ids])


def step(harness):
    """A step with the number that the engine keeps in the pool."""
    harness.step()
    harness.pool.step = harness.steps + 1


def test_every_block_tells_the_tokens_that_were_computed_into_it_at_every_step():
    random.seed(3)
    harness = Harness(num_blocks=24, block_size=4, prefill_chunk=8)
    requests, seen = [], set()
    for number in range(160):
        if number % 9 == 0:
            start = requests[0].prompt_ids[:8] if requests else []
            requests.append(harness.submit(start + [random.randrange(50) for _ in range(9)], max_tokens=12))
        step(harness)
        held = {}
        for request in requests:
            for index, block in enumerate(request.block_table):
                end = min((index + 1) * 4, request.num_computed)
                held.setdefault(block, []).append(request.token_ids()[index * 4 : end])
        for block in range(1, 24):
            told = detail(harness, block)
            if block in held:
                assert told.token_ids in held[block]
                assert told.references == len(held[block])
                assert told.pieces == [str(token) for token in told.token_ids]
            else:
                assert told.references == 0
                assert bool(told.token_ids) == bool(told.hash)  # cached blocks keep both, free ones neither
            seen.add((told.references > 1, told.references > 0, bool(told.hash)))
    assert len(seen) == 5  # shared, held, cached and free ones, published or not


def test_a_published_block_has_the_key_of_its_prefix_as_text_also_when_nobody_holds_it():
    harness = Harness(num_blocks=24, block_size=4)
    request = harness.submit([5, 6, 7, 8, 9, 10, 11, 12, 13], max_tokens=2)
    step(harness)
    first, second = request.block_table[:2]
    one = block_key(root_key({}), (5, 6, 7, 8))
    keys = {first: one, second: block_key(one, (9, 10, 11, 12))}
    harness.run()
    for block, key in keys.items():
        told = detail(harness, block)
        assert (told.hash, told.references) == (key.hex()[:HASH_DIGITS], 0)
    assert detail(harness, second).token_ids == [9, 10, 11, 12]


def test_the_last_use_is_the_step_of_the_last_taking_sharing_or_release():
    harness = Harness(num_blocks=24, block_size=4)
    first = harness.submit([1, 2, 3, 4, 5], max_tokens=4)
    step(harness)
    block = first.block_table[0]
    for _ in range(2):
        step(harness)
        assert detail(harness, block).last_used == 1
    harness.run()
    released = detail(harness, block).last_used
    assert released == 4
    harness.pool.step = harness.steps + 1
    harness.submit([1, 2, 3, 4, 6], max_tokens=8)
    step(harness)
    assert detail(harness, block).last_used == 5
    step(harness)
    assert detail(harness, block).last_used == 5
    assert detail(harness, 20).last_used == 0


@pytest.mark.parametrize("block", [-1, 24, 10**12])
def test_a_block_that_is_not_there_is_refused_with_those_that_are(block):
    with pytest.raises(RequestError, match=f"There is no block {block}; the blocks are 0 to 23"):
        detail(Harness(num_blocks=24), block)


def test_the_null_block_is_nobodys_and_holds_nothing():
    told = detail(Harness(num_blocks=24), 0)
    assert (told.references, told.hash, told.token_ids, told.pieces) == (0, "", [], [])


# --- pieces --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HARD)
@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["byte-level", "sentencepiece"])
def test_pieces_join_to_the_text_but_for_characters_that_are_split(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = TokenPieces(tokenizer).of(ids)
    assert len(pieces) == len(ids)
    joined = "".join(pieces)
    if text.isascii() and tokenizer is BYTES:
        assert joined == text
    for piece in pieces:
        assert piece == "\ufffd" or piece in " " + text


def test_the_space_before_a_word_is_part_of_its_piece_where_decoders_drop_it():
    ids = PIECES.convert_tokens_to_ids(["▁Hello", "▁world", "lo", "▁▁"])
    assert TokenPieces(PIECES).of(ids) == [" Hello", " world", "lo", "  "]


def test_special_tokens_show_as_they_are_written_and_ids_without_a_token_are_empty():
    end = BYTES.convert_tokens_to_ids("<|end|>")
    assert TokenPieces(BYTES).of([end, 100_000]) == ["<|end|>", ""]


def test_a_tokenizer_without_rust_is_used_too_and_ids_that_it_refuses_are_marked():
    class Slow:
        def decode(self, ids, **_):
            return {1: "one", 2: "two"}[ids[0]]

        def convert_ids_to_tokens(self, token):
            return {1: "▁one", 2: "two"}[token]

    assert TokenPieces(Slow()).of([1, 2, 3, 1]) == [" one", "two", "\ufffd", " one"]


def test_the_tokenizer_is_asked_once_for_each_of_20_000_tokens(default_model_dir):
    asked: list[int] = []
    tokenizer = AutoTokenizer.from_pretrained(default_model_dir)

    class Counting:
        def __getattr__(self, name):
            found = getattr(tokenizer, name)
            if not callable(found):
                return found

            def counted(*args, **kwargs):
                asked.append(1)
                return found(*args, **kwargs)

            return counted

    pieces = TokenPieces(Counting())
    ids = [random.Random(1).randrange(49_000)] * 100 + [n * 7 % 49_000 for n in range(20_000)]
    first = pieces.of(ids)
    assert len(asked) <= 3 * len(set(ids)) + 10
    asked.clear()
    assert pieces.of(ids) == first
    assert len(asked) <= 10
