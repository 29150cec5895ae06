"""What can be done with turns, on plain data: the chat and its token ids fit together whatever was done."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.commands import AnyCommand, Cancel, Message, Submit
from engine.records import Delta, Finished, Ready, Rejected, Started
from engine.request import SamplingParams
from tests.app.scripted import engine_status
from tui_infer.parameters import set_system
from tui_infer.session import SessionState, Turn
from tui_infer.state import AppState
from tui_infer.turns import (
    abandon_edit,
    branch,
    go_on,
    regenerate,
    resend,
    show_version,
    start_edit,
    why_not,
)
from tui_infer.versions import count

OPEN, CLOSE = 7_000_001, 7_000_002  # what a template writes round a message


class Engine:
    """Answers by hand. Its prompts are what the model would read: each message as its characters."""

    def __init__(self) -> None:
        self.sent: list[AnyCommand] = []
        self.state = AppState(self.take)
        self.state.apply(Ready(engine_status()))
        self.requests = 0
        self.asked: Submit | None = None

    def take(self, command: AnyCommand) -> None:
        self.sent.append(command)
        if isinstance(command, Submit):
            self.asked = command

    def start(self, session: SessionState, seed: int = 5) -> None:
        command = self.asked
        assert command is not None
        assert (command.session, command.epoch) == (session.id, session.epoch)
        self.requests += 1
        prompt = list(command.history or [])
        for message in command.prompt:
            assert isinstance(message, Message)
            prompt += [OPEN, *map(ord, message.content), CLOSE]
        if command.answered:
            del prompt[len(prompt) - command.answered :]
        seed = command.params.seed if command.params.seed is not None else seed
        self.state.apply(Started(session.id, session.epoch, self.requests, prompt, seed=seed))

    def say(self, session: SessionState, text: str) -> None:
        self.state.apply(Delta(session.id, session.epoch, text, [ord(letter) for letter in text]))

    def finish(self, session: SessionState, reason: str = "stop", rate: float = 50.0) -> None:
        answer = session.last_answer
        assert answer is not None
        tokens = len(answer.token_ids)
        self.state.apply(Finished(session.id, session.epoch, reason, 9, tokens, 3, 0.1, rate))

    def exchange(self, text: str, answer: str = "yes", reason: str = "stop") -> SessionState:
        session = self.state.current
        assert self.state.submit(session.id, text)
        self.start(session)
        self.say(session, answer)
        self.finish(session, reason)
        return session


def said(session: SessionState) -> list[str]:
    return [turn.text for turn in session.turns]


def check(session: SessionState, *, known: bool = True) -> None:
    """Turns alternate, and the token ids are those of what is shown."""
    assert [turn.role for turn in session.turns] == ["user", "assistant"] * (len(session.turns) // 2)
    before = 0
    for asked, answer in zip(session.turns[::2], session.turns[1::2]):
        if answer.asked is None:
            continue
        assert before <= answer.asked <= len(session.history_ids)
        prompt = session.history_ids[before : answer.asked]
        if known:
            assert prompt[-len(asked.text) - 1 : -1] == [ord(letter) for letter in asked.text]
        if answer is session.answer:
            assert len(session.history_ids) == answer.asked
            return
        assert answer.end is not None
        assert session.history_ids[answer.asked : answer.end] == answer.token_ids
        assert [chr(token) for token in answer.token_ids] == list(answer.text)
        before = answer.end
    if session.turns and session.turns[-1].end is not None:
        assert session.turns[-1].end == len(session.history_ids)
    for turn in session.turns:
        assert 0 <= turn.place <= len(turn.others)


def test_an_answer_made_again_goes_behind_the_ids_of_its_prompt_with_its_seed_and_the_old_one_stays() -> None:
    engine = Engine()
    engine.exchange("one")
    session = engine.exchange("two", "old")
    old = session.turns[3]
    prompt = session.history_ids[: old.asked]
    assert regenerate(engine.state, session, 3) == ""
    command = engine.asked
    assert command is not None
    assert (command.prompt, command.history, command.params.seed) == ([], prompt, 5)
    assert session.busy
    assert old.trace is not session.turns[3].trace
    engine.start(session)
    engine.say(session, "new one")
    engine.finish(session)
    check(session)
    assert said(session) == ["one", "yes", "two", "new one"]
    assert show_version(engine.state, session, 3, 0) == ""
    assert said(session) == ["one", "yes", "two", "old"]
    assert session.turns[3] is old
    check(session)
    assert "first of 2" in show_version(engine.state, session, 3, -1)


def test_a_new_seed_is_another_and_is_kept_for_the_next_time() -> None:
    engine = Engine()
    session = engine.exchange("one")
    assert regenerate(engine.state, session, 1, "new") == ""
    assert engine.asked is not None
    seed = engine.asked.params.seed
    assert seed not in (None, 5)
    assert session.params.seed is None, "the chat's own parameters stay"
    engine.start(session)
    engine.finish(session)
    regenerate(engine.state, session, 1)
    assert engine.asked.params.seed == seed


def test_without_a_known_seed_the_same_is_not_promised() -> None:
    engine = Engine()
    session = engine.exchange("one")
    session.turns[1].seed = None
    assert "seed of this answer is not known" in regenerate(engine.state, session, 1)
    assert not session.busy
    session.params = SamplingParams(temperature=0.0)
    assert regenerate(engine.state, session, 1) == "", "greedy needs none"


def test_an_answer_in_the_middle_is_made_again_without_what_followed_which_comes_back_with_it() -> None:
    engine = Engine()
    for text in ("one", "two", "three"):
        session = engine.exchange(text, text.upper())
    whole, ids = said(session), list(session.history_ids)
    assert regenerate(engine.state, session, 3) == ""
    engine.start(session)
    engine.say(session, "second")
    engine.finish(session)
    check(session)
    assert said(session) == ["one", "ONE", "two", "second"]
    engine.exchange("four")
    assert show_version(engine.state, session, 3, 0) == ""
    assert (said(session), session.history_ids) == (whole, ids)
    assert show_version(engine.state, session, 3, 1) == ""
    assert said(session) == ["one", "ONE", "two", "second", "four", "yes"]
    check(session)


def test_an_edited_prompt_takes_the_place_of_the_old_and_the_draft_from_before_comes_back() -> None:
    engine = Engine()
    engine.exchange("one")
    session = engine.exchange("two")
    engine.exchange("three")
    session.draft = "half a thought"
    assert start_edit(engine.state, session, 2) == ""
    assert (session.draft, session.editing) == ("two", 2)
    assert "being edited" in regenerate(engine.state, session, 1)
    assert resend(engine.state, session, "  \n ") != ""
    assert resend(engine.state, session, "2!") == ""
    assert (session.draft, session.editing) == ("half a thought", None)
    engine.start(session)
    engine.say(session, "better")
    engine.finish(session)
    check(session)
    assert said(session) == ["one", "yes", "2!", "better"]
    assert count(session.turns[2]) == 2
    show_version(engine.state, session, 2, 0)
    assert said(session) == ["one", "yes", "two", "yes", "three", "yes"]
    check(session)


def test_an_edit_given_up_changes_nothing() -> None:
    engine = Engine()
    session = engine.exchange("one")
    session.draft = "draft"
    start_edit(engine.state, session, 1)
    session.draft = "one, but"
    assert abandon_edit(engine.state, session)
    assert (session.draft, session.editing, said(session)) == ("draft", None, ["one", "yes"])
    assert not abandon_edit(engine.state, session)


def test_the_first_prompt_is_rendered_with_the_system_prompt_again() -> None:
    engine = Engine()
    session = engine.state.current
    session.system = "Be brief."
    engine.exchange("one")
    start_edit(engine.state, session, 0)
    resend(engine.state, session, "uno")
    assert engine.asked is not None
    assert engine.asked.history is None
    assert engine.asked.prompt == [Message("system", "Be brief."), Message("user", "uno")]


def test_another_model_reads_the_texts_instead_of_the_ids() -> None:
    engine = Engine()
    engine.exchange("one", "ONE")
    session = engine.exchange("two", "TWO")
    engine.exchange("three", "THREE")
    regenerate(engine.state, session, 5)
    engine.start(session)
    engine.finish(session)
    engine.state.apply(Ready(engine_status(model_path="/models/other")))
    assert session.history_ids == []
    assert regenerate(engine.state, session, 3, 9) == ""
    command = engine.asked
    assert command is not None
    assert command.history is None
    assert command.params.seed == 9
    texts = [message.content for message in command.prompt if isinstance(message, Message)]
    assert texts == ["one", "ONE", "two"]
    engine.start(session)
    engine.say(session, "zwei")
    engine.finish(session)
    check(session, known=False)
    assert show_version(engine.state, session, 3, 0) == ""
    assert said(session) == ["one", "ONE", "two", "TWO", "three", ""]
    assert session.history_ids == [], "the ids of a text that was not read by this model are not known"
    assert (
        "not those of the model" in why_not(engine.state, session, 5, "go_on")
        or not session.turns[5].token_ids
    )


def test_an_answer_that_was_cut_goes_on_as_the_same_turn_and_its_numbers_add_up() -> None:
    engine = Engine()
    session = engine.exchange("count", "one two", "length")
    turn, ids = session.turns[1], list(session.history_ids)
    assert turn.note == "length limit reached"
    assert go_on(engine.state, session) == ""
    command = engine.asked
    assert command is not None
    assert (command.prompt, command.history, command.answered) == ([], ids, 7)
    assert command.params.seed == 5
    engine.start(session)
    engine.say(session, " three")
    engine.finish(session, rate=25.0)
    assert session.turns[1] is turn
    assert (turn.text, turn.status, turn.note) == ("one two three", "done", "")
    assert session.history_ids == ids + [ord(letter) for letter in " three"]
    check(session)
    stats = turn.stats
    assert stats is not None
    assert (stats.prompt_tokens, stats.output_tokens, stats.cached_tokens, stats.ttft_s) == (9, 13, 3, 0.1)
    assert stats.decode_tokens_per_s == 11 / (6 / 50 + 5 / 25)
    assert "complete" in go_on(engine.state, session)


def test_a_stopped_answer_goes_on_and_a_refused_attempt_loses_nothing() -> None:
    engine = Engine()
    session = engine.state.current
    engine.state.submit(session.id, "count")
    engine.start(session)
    engine.say(session, "one")
    assert engine.state.cancel(session.id)
    ids = list(session.history_ids)
    assert go_on(engine.state, session) == ""
    assert session.history_ids == ids[:-3]
    engine.state.apply(Rejected(session.id, session.epoch, "The context is full."))
    assert (session.turns[1].text, session.turns[1].status) == ("one", "error")
    assert session.history_ids == ids
    check(session)
    assert go_on(engine.state, session) == ""
    assert engine.state.cancel(session.id), "before the engine has begun"
    assert session.history_ids == ids
    check(session)


def test_a_character_that_was_cut_in_its_middle_is_made_anew() -> None:
    engine = Engine()
    session = engine.state.current
    engine.state.submit(session.id, "count")
    engine.start(session)
    engine.state.apply(Delta(session.id, 1, "a caf", [1, 2]))
    engine.state.apply(Delta(session.id, 1, "\ufffd", [3]))
    engine.state.cancel(session.id)
    prompt = session.history_ids[: session.turns[1].asked]
    go_on(engine.state, session)
    engine.state.apply(Started(session.id, session.epoch, 2, prompt, seed=5, text="a caf"))
    engine.state.apply(Delta(session.id, session.epoch, "é", [4], [6]))
    engine.finish(session)
    assert session.turns[1].text == "a café"
    assert session.turns[1].token_ids == [1, 2, 3, 4]
    trace = session.turns[1].trace
    assert trace is not None
    assert list(trace.ends) == [0, 5, 5, 6]


def test_a_late_token_of_a_cancelled_turn_does_not_appear_in_the_next() -> None:
    engine = Engine()
    session = engine.state.current
    engine.state.submit(session.id, "one")
    engine.start(session)
    engine.say(session, "o")
    engine.state.cancel(session.id)
    late: list[Delta | Finished] = [
        Delta(session.id, session.epoch, "LATE", [1, 2]),
        Finished(session.id, session.epoch, "cancelled", 3, 9, 0, 0.1, 50.0),
    ]
    acts = [
        lambda: regenerate(engine.state, session, 1),
        lambda: go_on(engine.state, session),
        lambda: engine.state.submit(session.id, "next"),
    ]
    for act in acts:
        act()
        for event in late:
            engine.state.apply(event)
        engine.start(session)
        for event in late:
            engine.state.apply(event)
        engine.say(session, "x")
        assert session.answer is not None
        assert session.answer.stats is None or session.answer.stats.output_tokens != 9
        engine.state.cancel(session.id)
        assert not any("LATE" in turn.text for turn in session.turns)
        check(session)


def test_a_branch_has_the_turns_and_ids_up_to_the_message_and_a_life_of_its_own() -> None:
    engine = Engine()
    engine.exchange("one", "ONE")
    session = engine.exchange("two", "TWO")
    session.params = SamplingParams(temperature=0.3)
    new = branch(engine.state, session, 1)
    assert isinstance(new, SessionState)
    assert engine.state.current is new
    assert said(new) == ["one", "ONE"]
    assert new.history_ids == session.history_ids[: session.turns[1].end]
    assert (new.params.temperature, new.model, new.key != session.key) == (0.3, "/models/smollm2", True)
    check(new)
    engine.exchange("other", "OTHER")
    assert engine.asked is not None
    assert engine.asked.history is not None
    assert engine.asked.history == new.history_ids[: len(engine.asked.history)]
    assert said(session) == ["one", "ONE", "two", "TWO"]
    check(session)
    check(new)


def test_a_branch_at_a_prompt_ends_before_it_and_has_it_as_its_draft() -> None:
    engine = Engine()
    engine.exchange("one", "ONE")
    session = engine.exchange("two", "TWO")
    new = branch(engine.state, session, 2)
    assert isinstance(new, SessionState)
    assert (said(new), new.draft) == (["one", "ONE"], "two")
    first = branch(engine.state, session, 0)
    assert isinstance(first, SessionState)
    assert (said(first), first.draft, first.history_ids) == ([], "one", [])


def test_what_is_under_way_is_neither_edited_nor_branched_but_what_came_before_it_is() -> None:
    engine = Engine()
    session = engine.exchange("one")
    engine.state.submit(session.id, "two")
    for act in ("edit", "again", "new", "branch", "go_on", "earlier", "later"):
        assert "still answering" in why_not(engine.state, session, 3, act)
    assert why_not(engine.state, session, 1, "branch") == ""
    assert "still answering" in why_not(engine.state, session, 1, "again")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(5, 40))
def test_any_sequence_of_acts_leaves_turns_and_token_ids_that_fit_together(seed: int, length: int) -> None:
    rng = random.Random(seed)
    engine = Engine()
    state = engine.state
    for _ in range(length):
        session = state.sessions[rng.choice(list(state.sessions))]
        before, busy = said(session), session.busy
        at = rng.randrange(len(session.turns)) if session.turns else 0
        match rng.randrange(9):
            case 0 | 1:
                state.submit(session.id, rng.choice(["hi", "what now?", "x"]))
            case 2:
                regenerate(state, session, at, rng.choice(["same", "new", 4]))
            case 3:
                if start_edit(state, session, at) == "":
                    if rng.random() < 0.5:
                        abandon_edit(state, session)
                    else:
                        resend(state, session, "edited")
            case 4:
                go_on(state, session)
            case 5 if session.turns:
                show_version(state, session, at, rng.randrange(count(session.turns[at]) + 1))
            case 6 if len(state.sessions) < 5:
                branch(state, session, at)
            case 7:
                state.cancel(session.id)
        if busy and said(session) != before:
            raise AssertionError("an answer under way was changed")
        if session.busy and not busy:  # the engine takes it, refuses it, or is too late
            outcome = rng.randrange(6)
            if outcome == 0:
                state.apply(Rejected(session.id, session.epoch, "no"))
            elif outcome > 1:
                engine.start(session)
                engine.say(session, rng.choice(["", "a", "some words"]))
            if outcome > 3:
                engine.finish(session, rng.choice(["stop", "length", "cancelled"]))
        for each in state.sessions.values():
            check(each)
            assert_ids_are_what_the_model_read(each)


def assert_ids_are_what_the_model_read(session: SessionState) -> None:
    """The history is the answered exchanges one behind the other, each prompt between its marks."""
    expected: list[int] = []
    for asked, answer in zip(session.turns[::2], session.turns[1::2]):
        if answer.asked is None:
            continue
        expected += [OPEN, *map(ord, asked.text), CLOSE]
        if answer is not session.answer:
            expected += answer.token_ids
    assert session.history_ids == expected


def test_a_branch_of_a_chat_that_is_to_be_read_with_another_system_prompt_is_read_with_it_too() -> None:
    engine = Engine()
    session = engine.exchange("one")
    assert engine.state.submit(session.id, "two")
    engine.start(session)
    set_system(session, "Be brief.")
    new = branch(engine.state, session, 1)
    assert isinstance(new, SessionState)
    assert (new.system, new.history_ids, new.turns[1].end) == ("Be brief.", [], None)


def test_turns_of_a_branch_are_copies() -> None:
    engine = Engine()
    session = engine.exchange("one", "ONE", "length")
    new = branch(engine.state, session, 1)
    assert isinstance(new, SessionState)
    go_on(engine.state, new)
    engine.start(new)
    engine.say(new, " more")
    assert isinstance(session.turns[1], Turn)
    assert session.turns[1].text == "ONE"
    assert not any(isinstance(command, Cancel) for command in engine.sent)
    old, fresh = session.turns[1].trace, new.turns[1].trace
    assert old is not None
    assert fresh is not None
    assert (old.request, fresh.request) == (1, 2)


def test_a_prompt_that_waited_for_another_model_is_sent_as_text() -> None:
    engine = Engine()
    session = engine.exchange("one", "ONE")
    cut = engine.exchange("two", "TWO", "length")
    assert cut is session
    engine.state.restarting()
    assert regenerate(engine.state, session, 3) == ""
    count_before = len(engine.sent)
    engine.state.apply(Ready(engine_status(model_path="/models/other")))
    assert len(engine.sent) == count_before + 1
    assert engine.asked is not None
    assert engine.asked.history is None
    texts = [message.content for message in engine.asked.prompt if isinstance(message, Message)]
    assert texts == ["one", "ONE", "two"]


def test_an_answer_that_waited_to_go_on_stays_as_it_is_when_another_model_comes() -> None:
    engine = Engine()
    session = engine.exchange("one", "ONE", "length")
    engine.state.restarting()
    assert go_on(engine.state, session) == ""
    sent = len(engine.sent)
    engine.state.apply(Ready(engine_status(model_path="/models/other")))
    assert len(engine.sent) == sent
    assert (session.busy, session.turns[1].text, session.history_ids) == (False, "ONE", [])
