"""Every token knows how much of the text was there after it, however the answer ends."""

import pytest

from engine import Engine, EngineConfig, SamplingParams


@pytest.fixture(scope="module")
def engine(tiny_model_dir):
    config = EngineConfig(
        model=str(tiny_model_dir), device="cpu", dtype="float32", num_blocks=200, block_size=16
    )
    with Engine(config) as engine:
        yield engine


def run(engine, prompt, cancel_after=None, **params):
    """A finished request, and the length of its text after each step."""
    values = {"temperature": 1.0, "seed": 5, "max_tokens": 60, "ignore_eos": True, **params}
    request = engine.submit(prompt, SamplingParams(**values))
    lengths = []
    while not request.finished:
        engine.step()
        if not request.finished:
            assert len(request.text_ends) == len(request.output_ids)
            lengths.append(len(request.text))
        if len(request.output_ids) == cancel_after:
            engine.cancel(request.id)
    return request, lengths


def check(request, lengths):
    ends = request.text_ends
    assert len(ends) == len(request.output_ids)
    assert ends == sorted(ends)
    fixed = lengths[:-1]
    assert ends[: len(fixed)] == fixed  # never changed afterwards, but for the last
    assert ends[-1] == len(request.text)


def test_ends_follow_the_text_while_characters_are_split_over_tokens(engine):
    request, lengths = run(engine, "hello")
    check(request, lengths)
    assert len(set(request.text_ends)) < len(request.text_ends)  # some token only began a character


def test_a_token_ends_where_decoding_up_to_it_does(engine):
    request, _ = run(engine, "hello", temperature=0)
    for count in range(1, len(request.output_ids)):
        decoded = engine.tokenizer.decode(request.output_ids[:count], skip_special_tokens=True)
        shown = request.text[: request.text_ends[count - 1]]
        assert decoded.startswith(shown)
        if not decoded.endswith("\ufffd"):
            assert decoded == shown


def test_a_stop_string_that_cuts_the_text_leaves_no_end_beyond_it(engine):
    whole, _ = run(engine, "hello")
    stop = whole.text[20:24]
    assert whole.text.index(stop) == 20
    request, lengths = run(engine, "hello", stop=(stop,))
    assert request.text == whole.text[:20]
    check(request, lengths)


def test_text_held_for_a_stop_string_that_never_came_belongs_to_the_last_token(engine):
    whole, _ = run(engine, "hello", max_tokens=30)
    request, lengths = run(engine, "hello", max_tokens=30, stop=(whole.text[-6:] + "never",))
    assert request.text == whole.text
    assert request.text_ends[-2] <= len(whole.text) - 6 + 1
    check(request, lengths)


@pytest.mark.parametrize("count", [1, 7, 8, 23])
def test_a_cancelled_answer_ends_with_its_text(engine, count):
    request, lengths = run(engine, "hello", cancel_after=count)
    check(request, lengths)
    assert len(request.output_ids) == count


def test_a_fork_has_the_ends_of_its_own_text(engine):
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    parent = engine.submit("hello", params)
    while len(parent.output_ids) < 20:
        engine.step()
    child = engine.fork(parent.id)
    assert child.text_ends == parent.text_ends
    while engine.has_work:
        engine.step()
    check(child, [])
    assert child.text == parent.text
