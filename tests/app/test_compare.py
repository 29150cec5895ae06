"""Comparing without a screen: what a command asks for, where texts differ, and who goes ahead of whom."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.commands import AnyCommand, Cancel, Submit
from engine.records import Delta, Failed, Finished, Ready, Rejected, Started
from engine.request import SamplingParams
from tests.app.scripted import engine_status
from tui_infer.compare import Plan, read_plan, start, systems_of, why_not_with
from tui_infer.compare_words import difference_words, numbers_of
from tui_infer.session import SessionState
from tui_infer.state import AppState
from tui_infer.word_diff import Difference, difference, tokens

BASE = SamplingParams(temperature=0.5, top_p=0.9, max_tokens=99)


def plan(said: str) -> Plan:
    made = read_plan(said, BASE, "be brief")
    assert isinstance(made, Plan), made
    return made


# --- where texts differ ----------------------------------------------------------------------------


def only(text: str, spans: tuple[tuple[int, int], ...]) -> list[str]:
    return [text[low:high] for low, high in spans]


@pytest.mark.parametrize(
    ("left", "right", "in_left", "in_right", "equal"),
    [
        ("The cat sat on the mat.", "The dog sat on a mat.", ["cat ", "the "], ["dog ", "a "], 4),
        ("one two", "one two three", ["two"], ["two ", "three"], 7),
        ("one\ntwo", "one\n\ntwo", ["\n"], ["\n\n"], 4),
        ("今日は天気がいい。", "今日は雨がいい。", ["天気"], ["雨"], 3),
        ("ผมชอบแมว", "ผมชอบหมา", ["แ", "ว"], ["ห", "า"], 5),
        ("👍🏽 e\u0301!", "👍🏿 e!", ["👍🏽 ", "e\u0301"], ["👍🏿 ", "e"], 1),
        ("a 🎉 party", "a 🎂 party", ["🎉 "], ["🎂 "], 2),
        ("same", "same", [], [], 4),
        ("", "new", [], ["new"], 0),
    ],
)
def test_the_words_that_only_one_text_has_are_marked(
    left: str, right: str, in_left: list[str], in_right: list[str], equal: int
) -> None:
    found = difference(left, right)
    marked = "".join(only(right, found.right))
    assert marked == "".join(in_right)
    assert "".join(only(left, found.left)) == "".join(in_left)
    assert found.equal == equal
    assert found.same == (left == right)


TEXTS = st.text(alphabet="ab \n.日本é👍🏽ก", max_size=60)


def less(text: str, spans: tuple[tuple[int, int], ...]) -> str:
    """The text without the spans, which are in order and within it."""
    rest, place = "", 0
    for low, high in spans:
        assert place <= low < high <= len(text)
        rest, place = rest + text[place:low], high
    return rest + text[place:]


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS)
def test_without_what_is_marked_both_texts_are_the_same(left: str, right: str) -> None:
    found = difference(left, right)
    assert less(left, found.left) == less(right, found.right)
    assert found.same == (left == right)
    assert (found.left == found.right == ()) == (left == right)
    assert left[: found.equal] == right[: found.equal]
    assert "".join(tokens(left)) == left


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.data())
def test_a_text_on_its_way_to_be_the_same_has_no_mark_at_any_moment(text: str, data: st.DataObject) -> None:
    here = text[: data.draw(st.integers(0, len(text)))]
    there = text[: data.draw(st.integers(0, len(text)))]
    found = difference(here, there, left_open=True, right_open=True)
    assert (found.left, found.right, found.same) == ((), (), True)
    found = difference(text, there, right_open=True)
    assert (found.left, found.right, found.same) == ((), (), True)


def test_behind_the_end_of_an_open_text_no_more_is_marked_than_it_has_itself() -> None:
    found = difference("The cat sleeps and", "The dog runs over the hill and far away.", left_open=True)
    assert only("The cat sleeps and", found.left) == ["cat sleeps "]
    assert only("The dog runs over the hill and far away.", found.right) == ["dog runs "]


@pytest.mark.parametrize(
    "texts",
    [
        ("a b " * 4000, "b a " * 4000 + "c"),
        ("word\n" * 6000, "word\n" * 5000 + "other\n" * 900),
        ("今日は天気" * 2000, "今日は雨" * 2000),
    ],
)
def test_long_texts_that_repeat_themselves_are_compared_in_bounded_time(texts: tuple[str, str]) -> None:
    began = time.process_time()
    found = difference(*texts)
    assert time.process_time() - began < 3.0
    assert less(texts[0], found.left) == less(texts[1], found.right)
    assert not found.same


# --- what to run -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "labels", "prompt"),
    [
        ("What is it?", ["temperature 0", "temperature 0.7", "temperature 1.2"], "What is it?"),
        ("temperature=0,1.5 Go", ["temperature 0", "temperature 1.5"], "Go"),
        ("seed=7,8,9 Go", ["seed 7", "seed 8", "seed 9"], "Go"),
        ("n=2 Go", ["seed 1", "seed 2"], "Go"),
        ("seed=5 n=3 Go", ["seed 5", "seed 6", "seed 7"], "Go"),
        (
            "temp=0,1 seed=3,4 Go on\n  and on",
            [f"temperature {t} · seed {s}" for t in (0, 1) for s in (3, 4)],
            "Go on\n  and on",
        ),
        ('system="You are a poet."|"" Sing', ["“You are a poet.”", "no system prompt"], "Sing"),
        ("system=short|long Sing a=b", ["“short”", "“long”"], "Sing a=b"),
    ],
)
def test_a_command_says_what_the_columns_are(said: str, labels: list[str], prompt: str) -> None:
    made = plan(said)
    assert [variant.label for variant in made.variants] == labels
    assert made.prompt == prompt
    assert all(variant.params.top_p == 0.9 for variant in made.variants)
    if "system" not in said:
        assert {variant.system for variant in made.variants} == {"be brief"}
    if "temp" not in said and said != "What is it?":
        assert {variant.params.temperature for variant in made.variants} == {0.5}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "There is no prompt"),
        ("temperature=0,1", "There is no prompt"),
        ("with=B Go", "with=B is nothing to go on with"),
        ("temperature=0,x Go", "“x” is no number"),
        ("temperature=0, 1 Go", "“” is no number"),
        ("temperature=0,-1 Go", "temperature=-1.0 is out of range"),
        ("temperature=0,nan Go", "temperature=nan is out of range"),
        ("seed=1,1.5 Go", "“1.5” is no number"),
        ("seed=-1,2 Go", "seed=-1 is out of range"),
        ("n=9 Go", "n=9 is no number of columns; it must be from 2 to 8"),
        ("n=1 Go", "n=1 is no number of columns"),
        ("temperature=1 Go", "That makes 1 column; it must be from 2 to 8"),
        ("seed=1,2,3,4,5,6,7,8,9 Go", "That makes 9 columns; it must"),
        ("temperature=0,1,2 seed=1,2,3 Go", "3 × 3 = 9 columns; it must be from 2 to 8"),
        ("temperature=0,1 n=3 Go", "what is listed makes 2 columns"),
        (f"seed={'9' * 5000},2 Go", "is no number"),
        ("n=² Go", "is no number"),
    ],
)
def test_what_cannot_be_compared_is_named(said: str, words: str) -> None:
    problem = read_plan(said, BASE, "")
    assert isinstance(problem, str)
    assert words in problem


def test_systems_are_told_apart_by_bars_outside_of_quotes() -> None:
    assert systems_of('"a|b"|c | "d e"') == ["a|b", "c", "d e"]
    assert systems_of("") == [""]


# --- the run ---------------------------------------------------------------------------------------


@pytest.fixture
def sent() -> list[AnyCommand]:
    return []


@pytest.fixture
def state(sent: list[AnyCommand]) -> AppState:
    state = AppState(sent.append)
    state.apply(Ready(engine_status()))
    return state


def asked(sent: list[AnyCommand]) -> list[str]:
    return [command.session for command in sent if isinstance(command, Submit)]


def reply(state: AppState, session: SessionState, text: str, *, end: str = "") -> None:
    """Text of an answer, and its end where there is one."""
    if session.request is None:
        state.apply(Started(session.id, session.epoch, len(session.id), [1, 2]))
    state.apply(Delta(session.id, session.epoch, text, [3] * len(text.split())))
    if end:
        state.apply(Finished(session.id, session.epoch, end, 40, 12, 32, 0.052, 58.14))


def test_the_first_goes_ahead_and_the_others_follow_when_its_prompt_is_computed(
    state: AppState, sent: list[AnyCommand]
) -> None:
    was = state.focused
    comparison = start(state, plan("seed=1,2,3 Go"))
    first, second, third = comparison.columns(state)
    assert asked(sent) == [first.id]
    assert state.focused == was
    assert numbers_of(comparison, third)[0] == "waits for the shared prompt"
    comparison.advance(state)
    assert asked(sent) == [first.id]
    reply(state, first, "one")
    comparison.advance(state)
    comparison.advance(state)
    assert asked(sent) == [first.id, second.id, third.id]
    submits = [command for command in sent if isinstance(command, Submit)]
    assert [command.params.seed for command in submits] == [1, 2, 3]
    assert len({str(command.prompt) for command in submits}) == 1
    assert state.prompts == []  # what was typed is for whoever took it to remember


@pytest.fixture
def said(state: AppState, sent: list[AnyCommand]) -> SessionState:
    """The focused chat after an exchange."""
    session = state.current
    session.system = "be brief"
    state.submit(session.id, "q")
    reply(state, session, "an answer", end="stop")
    sent.clear()
    return session


def test_columns_that_go_on_with_a_chat_send_its_tokens_and_show_only_what_is_new(
    state: AppState, sent: list[AnyCommand], said: SessionState
) -> None:
    comparison = start(state, plan("with=chat seed=1,2 Go"), origin=said)
    first, second = comparison.columns(state)
    assert comparison.origin == said.letter
    assert state.current is said
    assert [turn.text for turn in second.turns] == ["q", "an answer"]
    assert numbers_of(comparison, second)[0] == "waits for the shared prompt"
    reply(state, first, "one", end="stop")
    comparison.advance(state)
    comparison.advance(state)
    submits = [command for command in sent if isinstance(command, Submit)]
    assert [command.session for command in submits] == [first.id, second.id]
    assert [command.history for command in submits] == [said.history_ids] * 2
    assert [len(command.prompt) for command in submits] == [1, 1]
    reply(state, second, "one", end="stop")
    jobs = comparison.stale(state)
    comparison.take_in(jobs, [job.run() for job in jobs])
    assert difference_words(comparison, state, second) == f"equal to {first.letter}"
    assert [turn.text for turn in first.turns] == ["q", "an answer", "Go", "one"]
    assert len(said.turns) == 2


def test_a_column_with_another_system_prompt_reads_the_conversation_again(
    state: AppState, sent: list[AnyCommand], said: SessionState
) -> None:
    start(state, plan('with=chat system="be brief"|"be loud" Go'), origin=said)
    first, second = [command for command in sent if isinstance(command, Submit)]
    assert (first.history, len(first.prompt)) == (said.history_ids, 1)
    assert (second.history, len(second.prompt)) == (None, 4)
    assert second.prompt[0].content == "be loud"  # type: ignore[union-attr]


def test_columns_without_the_chat_begin_empty_and_an_empty_chat_is_nothing_to_go_on_with(
    state: AppState, sent: list[AnyCommand], said: SessionState
) -> None:
    for text, origin in (("n=2 Go", said), ("with=chat n=2 Go", state.new_session())):
        comparison = start(state, plan(text), origin=origin)
        assert comparison.origin == ""
        assert [len(session.turns) for session in comparison.columns(state)] == [2, 0]


def test_a_chat_that_answers_or_can_only_be_read_is_nothing_to_go_on_with(
    state: AppState, said: SessionState
) -> None:
    assert why_not_with(state, said) == ""
    said.read_only = "Its model is gone."
    assert why_not_with(state, said) == "Its model is gone."
    said.read_only = ""
    state.submit(said.id, "more")
    assert "still answering" in why_not_with(state, said)


def test_columns_with_other_system_prompts_wait_for_nobody(state: AppState, sent: list[AnyCommand]) -> None:
    comparison = start(state, plan('temperature=0,1 system="a"|"b" Go'))
    columns = comparison.columns(state)
    assert asked(sent) == [columns[0].id, columns[1].id]
    assert [session.system for session in columns] == ["a", "b", "a", "b"]


def test_without_a_prefix_cache_all_go_at_once(state: AppState, sent: list[AnyCommand]) -> None:
    comparison = start(state, plan("n=8 Go"), share=False)
    assert asked(sent) == list(comparison.labels)
    assert len(asked(sent)) == 8


def test_a_refused_first_lets_the_others_tell_their_own_reason(
    state: AppState, sent: list[AnyCommand]
) -> None:
    comparison = start(state, plan("n=2 Go"))
    first, second = comparison.columns(state)
    state.apply(Rejected(first.id, first.epoch, "too long", "Send less."))
    comparison.advance(state)
    assert asked(sent) == [first.id, second.id]
    assert numbers_of(comparison, first)[1] == "error: too long Send less."


def test_stopping_sends_none_of_those_that_wait(state: AppState, sent: list[AnyCommand]) -> None:
    comparison = start(state, plan("n=3 Go"))
    comparison.stop(state)
    comparison.advance(state)
    assert len(asked(sent)) == 1
    assert [command for command in sent if isinstance(command, Cancel)]
    assert not comparison.busy(state)
    assert numbers_of(comparison, comparison.columns(state)[2]) == ("not sent", "")


def test_a_stopped_first_or_a_dead_engine_sends_none_of_those_that_wait(
    state: AppState, sent: list[AnyCommand]
) -> None:
    comparison = start(state, plan("n=2 Go"))
    state.cancel(comparison.columns(state)[0].id)
    comparison.advance(state)
    assert len(asked(sent)) == 1
    comparison = start(state, plan("n=2 Go"))
    state.apply(Failed("engine stopped", "killed", ""))
    comparison.advance(state)
    assert len(asked(sent)) == 2
    assert not state.pending
    assert not comparison.busy(state)


def compared(state: AppState, texts: tuple[str, str], ends: tuple[str, str]) -> tuple[str, Difference]:
    comparison = start(state, plan("n=2 Go"), share=False)
    columns = comparison.columns(state)
    for session, text, end in zip(columns, texts, ends):
        reply(state, session, text, end=end)
    jobs = comparison.stale(state)
    comparison.take_in(jobs, [job.run() for job in jobs])
    assert not comparison.stale(state)
    words = difference_words(comparison, state, columns[1])
    return words, comparison.found[columns[1].id]


@pytest.mark.parametrize(
    ("texts", "ends", "words"),
    [
        (("It is red.", "It is blue."), ("stop", "stop"), "equal for 6 characters, then…"),
        (("It is red.", "It is red."), ("stop", "stop"), "equal to B"),
        (("It is red.", "It is"), ("stop", ""), "equal so far, 5 characters"),
        (("It is", "It is"), ("stop", ""), "equal so far, 5 characters"),
        (("It is red.", "It is"), ("stop", "length"), "equal for 5 characters, then…"),
        (("It is", "No"), ("", ""), "differs from B from the start"),
    ],
)
def test_a_column_says_where_it_leaves_the_first(
    state: AppState, texts: tuple[str, str], ends: tuple[str, str], words: str
) -> None:
    assert compared(state, texts, ends)[0] == words


def test_the_head_of_a_column_has_its_numbers_and_how_it_ended(state: AppState) -> None:
    comparison = start(state, plan("n=2 Go"), share=False)
    first, second = comparison.columns(state)
    reply(state, first, "one two", end="length")
    assert numbers_of(comparison, first) == (
        "first 52 ms · 58.1 tok/s · 12 tok",
        "finish: length · 32/40 cached",
    )
    reply(state, second, "one two")
    assert numbers_of(comparison, second)[0].startswith("2 tok")
    state.close_session(first.id)
    assert comparison.columns(state) == [second]
