"""Steps launched ahead on a real card: the tokens of steps made one by one, and no wait between them."""

import random
import time

import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.request import FinishReason
from tests.gpu.results import write
from tests.gpu.test_graphs import MARGIN, flips, history, median

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

GREEDY = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, top_p=0.95, seed=3, max_tokens=170, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(default_model_dir):
    config = EngineConfig(
        model=str(default_model_dir), device="cuda", kv_memory=2 * 2**30, max_model_len=2048,
        max_batch=9, graph_sizes=(1, 2, 4, 8), prefill_chunk=192,
    )  # fmt: skip
    with Engine(config) as engine:
        yield engine


def play(engine, asked, ahead, mode="graph", cancel=lambda step, requests: None):
    """Requests, records and how often a step was under way when another had returned."""
    engine.pool.clear_cache()
    engine.set_mode(mode)
    waiting, requests, records, step, out = list(asked), [], [], 0, 0
    while waiting or engine.has_work:
        while waiting and waiting[0][0] <= step:
            _, prompt, params = waiting.pop(0)
            requests.append(engine.submit(prompt, params))
        cancel(step, requests)
        record = engine.step(ahead=ahead)
        out += engine._flight is not None
        if record is not None:
            records.append(record)
        step += 1
    engine.check()
    assert engine.pool.counts().used == 0
    first = records[0].index
    assert [record.index for record in records] == list(range(first, first + len(records)))
    return requests, records, out


@pytest.mark.parametrize("mode", ["graph", "eager"])
@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_one_chat_gets_the_same_tokens(engine, mode, params):
    """Alone every step has the same shapes either way, so not one token may differ."""
    asked = [(0, [11 + n for n in range(250)], params)]
    alone, _, none = play(engine, asked, ahead=False, mode=mode)
    ahead, records, out = play(engine, asked, ahead=True, mode=mode)
    assert none == 0
    assert out > 150
    assert ahead[0].output_ids == alone[0].output_ids
    assert ahead[0].text == alone[0].text
    assert {record.mode for record in records if record.kind == "decode"} == {mode}


def test_chats_that_come_and_go_get_the_tokens_of_steps_by_hand(engine):
    asked = list(history(24, 160, seed=5))
    alone, _, _ = play(engine, asked, ahead=False)
    ahead, records, out = play(engine, asked, ahead=True)
    found = flips(engine, alone, ahead)
    write("h200-ahead", {"parity": {"requests": 24, "steps": len(records), "ahead": out, "flips": found}})
    assert out > len(records) / 3
    assert {record.graph_size for record in records if record.decode_tokens} >= {1, 2, 4, 8, None}
    # A late row can keep a batch in a larger graph, whose products add in another order. What was drawn parts
    # where that meets the noise, whatever the margin of the logits.
    greedy = [flip for flip in found if asked[flip["request"]][2].temperature == 0]
    assert all(flip["margin"] < MARGIN for flip in greedy), greedy


def test_answers_that_end_by_themselves_or_are_cancelled_drop_their_late_token(engine):
    asked = [(0, [5 + row] * (250 + row), GREEDY) for row in range(4)]
    whole, _, _ = play(engine, asked, ahead=False)
    stops = [request.output_ids[20 + 9 * row] for row, request in enumerate(whole[:3])]
    ends = [(stop,) for stop in stops] + [()]  # the last one goes on until it is cancelled
    asked = [
        (0, prompt, SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, stop_token_ids=end))
        for (_, prompt, _), end in zip(asked, ends)
    ]

    def cancel(step, requests):
        if step == 12:
            engine.cancel(requests[3].id)

    ended, records, _ = play(engine, asked, ahead=True, cancel=cancel)
    for request, other, stop in zip(ended[:3], whole, stops):
        assert request.finish_reason == FinishReason.STOP
        assert request.output_ids == other.output_ids[: other.output_ids.index(stop) + 1]
    assert ended[3].finish_reason == FinishReason.CANCELLED
    assert ended[3].output_ids == whole[3].output_ids[: len(ended[3].output_ids)]
    rows = [row.request for record in records for row in record.rows if not row.prefill]
    assert [rows.count(request.id) for request in ended[:3]] == [
        len(request.output_ids) - 1 for request in ended[:3]
    ]


def test_a_steady_step_starts_no_copy_to_the_card_but_where_a_block_is_added(engine, monkeypatch):
    engine.pool.clear_cache()
    engine.set_mode("graph")
    requests = [engine.submit([9 + row] * 20, GREEDY) for row in range(3)]
    while not all(request.output_ids for request in requests):
        engine.step(ahead=True)
    for _ in range(3):
        engine.step(ahead=True)
    staging, sent = engine.runner.static.buffers._staging, []
    send = staging._send
    monkeypatch.setattr(staging, "_send", lambda *part: (sent.append(part[1]), send(*part)))
    blocks = [len(request.block_table) for request in requests]
    for _ in range(150):
        engine.step(ahead=True)
    grown = sum(len(request.block_table) for request in requests) - sum(blocks)
    assert len(sent) <= grown
    for request in requests:
        engine.cancel(request.id)
    while engine.step() is not None:
        pass


def test_wall_and_device_time_of_steps_ahead(engine):
    engine.pool.clear_cache()
    engine.set_mode("graph")
    found = {}
    for ahead in (False, True):
        engine.submit([5] * 300, GREEDY)
        for _ in range(20):
            engine.step(ahead=ahead)
        began = time.perf_counter()
        records = [engine.step(ahead=ahead) for _ in range(150)]
        wall = (time.perf_counter() - began) * 1e3
        assert sum(record.ms.total for record in records) == pytest.approx(wall, rel=0.05)
        assert all(record.ms.device > 0 for record in records)
        found["ahead" if ahead else "one by one"] = {
            name: median([getattr(record.ms, name) for record in records])
            for name in ("total", "device", "schedule", "launch", "read")
        }
        while engine.step() is not None:
            pass
    write("h200-ahead", {"smollm2, batch 1, ms": found})


@pytest.mark.parametrize("rows", [1, 5, 33, 150])
def test_the_kernel_moves_rows_on_as_torch_does(rows):
    from engine.advance import ADDED, COLUMNS, FRESH, LENGTHS, POSITIONS, SLOTS, SOURCE, advance

    draw = torch.Generator().manual_seed(rows)
    width, block_size = 9, 16
    columns = torch.randint(0, 1000, (COLUMNS, rows), generator=draw)
    columns[POSITIONS] %= width * block_size - 3
    columns[FRESH] %= 2
    columns[ADDED] *= columns[ADDED] % 2
    columns[SOURCE] = columns[SOURCE] % (rows + 1) - 1
    columns[SLOTS, ::3] = columns[SOURCE, ::3] = -1
    tables = torch.randint(1, 500, (rows, width), dtype=torch.int32, generator=draw)
    tokens = torch.randint(-1, 300, (rows,), generator=draw)
    card = [tensor.cuda() for tensor in (columns, tables, tokens)]
    for size in (rows, random.Random(rows).randrange(1, rows + 1)):
        advance(columns, columns[LENGTHS].view(torch.int32), tables, tokens, size, block_size)
        advance(card[0], card[0][LENGTHS].view(torch.int32), card[1], card[2], size, block_size)
        assert torch.equal(columns, card[0].cpu())
        assert torch.equal(tables, card[1].cpu())
