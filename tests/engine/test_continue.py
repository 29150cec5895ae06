"""An answer that was cut goes on as if it never had been."""

import pytest

from engine import Engine, EngineConfig, FinishReason, SamplingParams
from engine.answers import Answer
from engine.errors import RequestError

PROMPT = [{"role": "user", "content": "hello world"}]
TOKENS = 40


@pytest.fixture(scope="module")
def engine(tiny_model_dir):
    config = EngineConfig(
        model=str(tiny_model_dir), device="cpu", dtype="float32", block_size=8, num_blocks=40, threads=1
    )
    with Engine(config) as engine:
        yield engine
        engine.check()


def run(engine, *args, **kwargs):
    """A request run to its end."""
    request = engine.submit(*args, **kwargs)
    while engine.has_work:
        engine.step()
        engine.check()
    return request


def cut_short(engine, request, tokens, params):
    """The same answer, but that only its first tokens are there and it goes on behind them."""
    history = request.prompt_ids + request.output_ids[:tokens]
    return run(engine, [], params, history=history, answered=tokens)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 1.0, "seed": 11},
    ],
    ids=["greedy", "penalties of the output", "repetition", "drawn"],
)
def test_a_cut_answer_goes_on_with_the_tokens_and_the_text_of_the_uncut_one(engine, options):
    whole = run(engine, PROMPT, SamplingParams(max_tokens=TOKENS, ignore_eos=True, **options))
    for tokens in (1, 7, 8, 9, 23, TOKENS - 1):
        rest = SamplingParams(max_tokens=TOKENS - tokens, ignore_eos=True, **options)
        request = engine.submit(
            [], rest, history=whole.prompt_ids + whole.output_ids[:tokens], answered=tokens
        )
        answer, shown, new = Answer("a", 1, request), request.text, []
        while engine.has_work:
            engine.step()
            if delta := answer.delta(0.0):
                shown, new = shown + delta.text, new + delta.token_ids
        assert request.prompt_ids == whole.prompt_ids
        assert new == whole.output_ids[tokens:]
        assert shown == whole.text, f"cut after {tokens} tokens"
        assert request.text_ends == whole.text_ends
        done = answer.finished()
        assert (done.reason, done.output_tokens) == ("length", TOKENS)
        assert done.cached_tokens <= done.prompt_tokens


def test_what_was_cut_inside_a_character_is_whole_again(engine):
    ids = engine.tokenizer.encode("a é b")
    split = next(at for at in range(1, len(ids)) if "\ufffd" in engine.tokenizer.decode(ids[:at]))
    prompt = engine.tokenizer.encode("hello")
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    request = engine.submit([], params, history=prompt + ids[:split], answered=split)
    assert request.text == "a "  # the half character is not shown as anything yet
    engine.cancel(request.id)


def test_the_beginning_is_found_in_the_cache(engine):
    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
    whole = run(engine, PROMPT, params)
    request = engine.submit([], params, history=whole.prompt_ids + whole.output_ids, answered=32)
    record = engine.step()
    full = (len(whole.prompt_ids) + 31) // 8 * 8
    assert record.cached_tokens == full
    assert [change.kind for change in record.block_changes].count("share") == full // 8
    engine.cancel(request.id)


def test_the_limit_counts_what_is_new_and_the_first_token_is_timed_from_now(engine):
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    first = run(engine, PROMPT, params)
    more = cut_short(engine, first, 5, params)
    assert (len(more.output_ids), more.finish_reason) == (10, FinishReason.LENGTH)
    assert more.first_token_s > more.arrival_s


def test_a_history_without_messages_is_answered_as_it_is(engine):
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    first = run(engine, PROMPT, params)
    again = run(engine, [], params, history=first.prompt_ids)
    assert (again.prompt_ids, again.output_ids) == (first.prompt_ids, first.output_ids)


def test_what_cannot_go_on_is_refused_and_nothing_of_it_is_kept(engine):
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    first = run(engine, PROMPT, params)
    ids = first.prompt_ids + first.output_ids
    with pytest.raises(RequestError, match="leaves no prompt"):
        engine.submit([], params, history=ids, answered=len(ids))
    met = next(piece for piece in engine.pieces(first.output_ids) if piece.strip().isalnum())
    with pytest.raises(RequestError, match="stop string"):
        engine.submit([], SamplingParams(stop=(met,)), history=ids, answered=len(first.output_ids))
    long = first.prompt_ids + [5] * 400
    with pytest.raises(RequestError, match="tokens"):
        engine.submit([], params, history=long, answered=400)
    assert not engine.has_work


def test_the_default_model_goes_on_as_if_it_had_never_stopped(default_model_dir):
    chat = [{"role": "user", "content": "Count from one to twenty in words."}]
    config = EngineConfig(model=str(default_model_dir), device="cpu")
    with Engine(config) as engine:
        whole = run(engine, chat, SamplingParams(temperature=0.0, max_tokens=30))
        first = run(engine, chat, SamplingParams(temperature=0.0, max_tokens=11))
        more = cut_short(engine, first, 11, SamplingParams(temperature=0.0, max_tokens=19))
    assert (more.output_ids, more.text) == (whole.output_ids, whole.text)
