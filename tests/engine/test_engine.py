"""The engine from submit to the last token, on the real default model."""

import json

import msgspec
import pytest

from engine import Engine, EngineConfig, FinishReason, SamplingParams
from engine.commands import Message
from engine.errors import ConfigError, DeviceError, RequestError
from engine.records import StepRecord

CAPITAL = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def engine(default_model_dir):
    with Engine(EngineConfig(model=str(default_model_dir), device="cpu", dtype="float32")) as engine:
        yield engine
        engine.check()
        assert engine.pool.counts().used == 0


def run(engine: Engine) -> list[StepRecord]:
    """Step until idle, checking conservation after every step."""
    records = []
    while engine.has_work:
        record = engine.step()
        engine.check()
        if record is not None:
            counts = record.blocks
            assert counts.used + counts.cached + counts.free == engine.status().num_blocks - 1
            records.append(record)
    return records


def test_the_default_model_answers_in_one_sentence(engine):
    request = engine.submit(CAPITAL, GREEDY)
    run(engine)
    assert request.text == "The capital of France is Paris."
    assert request.finish_reason == FinishReason.STOP
    assert engine.pool.counts().used == 0


def test_messages_may_be_dicts_or_wire_messages(engine):
    assert (
        engine.submit([Message("user", "hi")], GREEDY).prompt_ids
        == engine.submit([{"role": "user", "content": "hi"}], GREEDY).prompt_ids
    )
    run(engine)


def test_two_requests_decode_in_one_batch(engine):
    for word in ("Rome", "Oslo"):
        engine.submit(f"The city of {word} is", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    records = run(engine)
    assert max(record.decode_tokens for record in records) == 2
    assert sum(record.decode_tokens for record in records) == 2 * 7
    assert [record.index for record in records] == list(
        range(records[0].index, records[0].index + len(records))
    )


def test_a_step_record_survives_the_wire(engine):
    engine.submit("One two three", SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    record = run(engine)[0]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=StepRecord) == record
    json.loads(msgspec.json.encode(record))


def test_the_record_says_why_a_cpu_step_is_eager(engine):
    engine.submit("One two three", SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    records = run(engine)
    assert records[0].kind == "prefill"
    assert records[0].reason == "prefill is always eager"
    assert records[-1].mode == "eager"
    assert "cpu" in records[-1].reason
    assert records[-1].ms.device is None
    assert records[-1].ms.total >= records[-1].ms.launch > 0


def test_cancel_stops_generation_and_gives_blocks_back(engine):
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    stays, goes = engine.submit("A long story about a fox:", params), engine.submit("The sea is", params)
    for _ in range(10):
        engine.step()
    written = len(goes.output_ids)
    assert written > 3
    engine.cancel(goes.id)
    assert goes.finish_reason == FinishReason.CANCELLED
    for _ in range(3):
        engine.step()
        engine.check()
    assert len(goes.output_ids) == written
    assert len(stays.output_ids) > written
    engine.cancel(stays.id)
    engine.cancel(stays.id)
    engine.cancel(123456)
    run(engine)
    assert engine.pool.counts().used == 0


def test_a_queued_request_that_is_cancelled_never_runs(engine):
    request = engine.submit("Never", GREEDY)
    engine.cancel(request.id)
    assert request.finish_reason == FinishReason.CANCELLED
    assert run(engine) == []


def test_max_tokens_is_exact_and_says_length(engine):
    request = engine.submit("Count: one two", SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    run(engine)
    assert len(request.output_ids) == 5
    assert request.finish_reason == FinishReason.LENGTH


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(engine):
    params = SamplingParams(temperature=0.9, top_p=0.95, seed=11, max_tokens=16, ignore_eos=True)
    alone = engine.submit("Once upon a time", params)
    run(engine)
    others = [engine.submit(f"Story {n}", SamplingParams(max_tokens=16, seed=n)) for n in range(5)]
    again = engine.submit("Once upon a time", params)
    run(engine)
    assert again.output_ids == alone.output_ids
    assert all(other.finished for other in others)


def test_the_next_turn_keeps_the_token_ids_of_the_history(engine):
    first = engine.submit(CAPITAL, GREEDY)
    run(engine)
    history = first.token_ids()
    second = engine.submit([{"role": "user", "content": "And of Italy?"}], GREEDY, history=history)
    assert second.prompt_ids[: len(history)] == history
    run(engine)
    assert "Rome" in second.text


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ("", "empty"),
        ([], "no messages"),
        ([10**9], "1000000000"),
        ([{"content": "x"}], "role"),
        ("a \udcff", r"udcff.* at character 2"),
        ([{"role": "user", "content": "\ud83d"}], "no Unicode"),
        ([1] * 9000, "9000"),
    ],
)
def test_a_bad_prompt_is_one_error_that_names_it(engine, prompt, word):
    with pytest.raises(RequestError, match=word):
        engine.submit(prompt, GREEDY)
    assert not engine.has_work


def test_generate_yields_completions_in_order(engine):
    done = list(engine.generate(["One two three four", CAPITAL], SamplingParams(temperature=0, max_tokens=6)))
    assert [c.prompt_tokens for c in done] == [4, 42]
    assert done[1].text.startswith("The capital of France")
    assert all(c.ttft_s and c.ttft_s > 0 for c in done)
    assert all(c.decode_tokens_per_s and c.decode_tokens_per_s > 0 for c in done)


def test_an_exception_in_one_requests_text_ends_that_request_only(engine, monkeypatch):
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    bad, good = engine.submit("Bad one", params), engine.submit("Good one", params)

    def broken(_):
        raise UnicodeError("no such character")

    monkeypatch.setattr(engine._texts[bad.id], "push", broken, raising=False)
    run(engine)
    assert bad.finish_reason == FinishReason.ERROR
    assert "no such character" in bad.error
    assert good.finish_reason == FinishReason.LENGTH
    assert len(good.output_ids) == 6


def test_a_device_failure_ends_every_request_with_its_reason(tiny_model_dir, monkeypatch):
    with Engine(EngineConfig(model=str(tiny_model_dir), device="cpu", dtype="float32")) as engine:
        requests = [
            engine.submit([1, 2, 3], SamplingParams(max_tokens=50, ignore_eos=True)) for _ in range(2)
        ]
        engine.step()

        def broken(*_):
            raise RuntimeError("the card fell off the bus")

        monkeypatch.setattr(engine.runner, "launch", broken)
        with pytest.raises(DeviceError, match="fell off the bus"):
            engine.step()
        assert all(r.finish_reason == FinishReason.ERROR and "fell off" in r.error for r in requests)
        with pytest.raises(DeviceError, match="Restart"):
            engine.submit([1], SamplingParams())
        engine.check()


def test_logits_that_are_not_numbers_end_their_request_only(tiny_model_dir, monkeypatch):
    with Engine(EngineConfig(model=str(tiny_model_dir), device="cpu", dtype="float32")) as engine:
        bad, good = (engine.submit([n, 5, 6], SamplingParams(max_tokens=4, ignore_eos=True)) for n in (3, 4))
        forward = engine.runner.model.forward

        def poisoned(*arguments):
            logits = forward(*arguments)
            logits[0] = float("nan")
            return logits

        monkeypatch.setattr(engine.runner.model, "forward", poisoned)
        engine.step()
        monkeypatch.undo()
        run(engine)
        assert bad.finish_reason == FinishReason.ERROR
        assert "NaN" in bad.error
        assert len(good.output_ids) == 4


def test_a_bug_in_a_launch_ends_its_requests_and_keeps_the_blocks_whole(tiny_model_dir, monkeypatch):
    with Engine(EngineConfig(model=str(tiny_model_dir), device="cpu", dtype="float32")) as engine:
        request = engine.submit([1, 2, 3], SamplingParams(max_tokens=4))

        def outside(*_):
            raise IndexError("position 3 is outside a table of 0 blocks")

        monkeypatch.setattr(engine.runner, "_prefill", outside)
        with pytest.raises(DeviceError, match="outside a table"):
            engine.step()
        assert request.finish_reason == FinishReason.ERROR
        engine.check()
        assert engine.pool.counts().free == engine.status().num_blocks - 1


def test_graph_mode_asked_for_on_a_cpu_is_refused_with_the_way_out(tiny_model_dir):
    with pytest.raises(ConfigError, match="eager"):
        Engine(EngineConfig(model=str(tiny_model_dir), device="cpu", mode="graph"))


def test_set_mode_graph_on_a_cpu_says_why_it_stays_eager(engine):
    assert "cpu" in engine.set_mode("graph")
    assert engine.mode == "eager"
    assert engine.set_mode("eager") == ""


def test_a_pool_too_small_for_the_asked_length_is_refused_with_the_numbers(tiny_model_dir):
    with pytest.raises(ConfigError, match="64 tokens"):
        Engine(
            EngineConfig(
                model=str(tiny_model_dir), device="cpu", num_blocks=5, block_size=16, max_model_len=128
            )
        )


def test_a_fork_goes_on_as_its_parent_would(engine):
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=24, ignore_eos=True)
    parent = engine.submit("The old lighthouse", params)
    while len(parent.output_ids) < 9:
        engine.step()
    same = engine.fork(parent.id)
    other = engine.fork(parent.id, SamplingParams(temperature=0.8, seed=6, max_tokens=24, ignore_eos=True))
    text = parent.text
    run(engine)
    assert same.output_ids == parent.output_ids
    assert same.text == parent.text
    assert other.output_ids[:9] == parent.output_ids[:9]
    assert other.output_ids != parent.output_ids
    assert other.text.startswith(text)
