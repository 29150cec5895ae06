"""Synthetic load: endless requests beside the chats, and never among them."""

import pytest

from engine.commands import AnyCommand, Cancel, Submit
from engine.records import Finished, Rejected, Started
from tests.app.driving import ask, pane_of, running
from tests.app.scripted import ScriptedClient, engine_status
from tests.waiting import wait_until
from tui_infer.load import LoadShape, SyntheticLoad, parse
from tui_infer.widgets.inspector.view import SessionTag


class Desk:
    """A load with what it sends and says."""

    def __init__(self) -> None:
        self.sent: list[AnyCommand] = []
        self.tags: dict[int, SessionTag] = {}
        self.problems: list[str] = []
        self.load = SyntheticLoad(self.sent.append, self.tags.__setitem__, self.problems.append)

    @property
    def submitted(self) -> list[Submit]:
        return [command for command in self.sent if isinstance(command, Submit)]


def finished(session: str, epoch: int) -> Finished:
    return Finished(session, epoch, "length", 1, 1, 0, None, None)


def test_requests_are_made_again_when_they_finish_until_it_is_stopped() -> None:
    desk = Desk()
    desk.load.start(LoadShape(2, prompt=8, tokens=16), engine_status(), 0.0)
    assert [(c.session, c.epoch) for c in desk.submitted] == [("load-1", 1), ("load-2", 1)]
    assert all(len(c.prompt) == 8 and c.params.max_tokens == 16 for c in desk.submitted)
    desk.load.apply(finished("load-1", 1), 1.0)
    assert (desk.submitted[-1].session, desk.submitted[-1].epoch) == ("load-1", 2)
    desk.load.apply(finished("load-1", 1), 1.0)  # of before: nothing
    assert len(desk.submitted) == 3
    desk.load.stop()
    assert desk.sent[-2:] == [Cancel("load-1", 2), Cancel("load-2", 1)]
    desk.load.apply(finished("load-1", 2), 2.0)
    assert len(desk.submitted) == 3


def test_a_rate_spreads_the_starts() -> None:
    desk = Desk()
    desk.load.start(LoadShape(4, rate=2.0), engine_status(), 10.0)
    assert len(desk.submitted) == 1
    desk.load.tick(10.4)
    assert len(desk.submitted) == 1
    desk.load.tick(10.5)
    assert len(desk.submitted) == 2
    desk.load.tick(11.5)
    assert len(desk.submitted) == 4


def test_tags_name_them_as_synthetic_in_a_colour_of_their_own() -> None:
    desk = Desk()
    desk.load.start(LoadShape(1), engine_status(), 0.0)
    desk.load.apply(Started("load-1", 1, 7, [1, 2]), 0.0)
    assert (desk.tags[7].letter, desk.tags[7].color) == ("s1", -1)


def test_prompt_and_answer_are_cut_to_the_models_length() -> None:
    desk = Desk()
    desk.load.start(LoadShape(1, prompt=5000, tokens=5000), engine_status(max_model_len=128), 0.0)
    command = desk.submitted[0]
    assert len(command.prompt) + command.params.max_tokens < 128


def test_a_refused_request_stops_it_and_says_why() -> None:
    desk = Desk()
    desk.load.start(LoadShape(2), engine_status(), 0.0)
    desk.load.apply(Rejected("load-2", 1, "It can never fit.", "Ask less."), 0.0)
    assert desk.load.active == 0
    assert desk.problems == ["It can never fit. Ask less."]


@pytest.mark.parametrize(
    "words", [[], ["x"], ["-1"], ["4", "prompt"], ["4", "tokens=0"], ["4", "size=3"], ["999"]]
)
def test_what_is_not_understood_is_refused(words: list[str]) -> None:
    assert isinstance(parse(words), str)


def test_all_options_are_read() -> None:
    assert parse(["8", "rate=2.5", "tokens=32", "prompt=9"]) == LoadShape(8, 9, 32, 2.5)


async def test_it_runs_beside_the_chats_and_leaves_no_trace_among_them() -> None:
    client = ScriptedClient("some words " * 40, rate=300)
    async with running(client, size=(120, 40)) as (app, pilot):
        await ask(app, pilot, "/load 3 prompt=5 tokens=20")
        await wait_until(lambda: len(app.state.tags) >= 3, what="their requests")
        assert {tag.letter for tag in app.state.tags.values()} == {"s1", "s2", "s3"}
        assert list(app.state.sessions) == ["chat-1"]
        assert app.state.unknown_events == 0
        await ask(app, pilot, "hello")
        await wait_until(lambda: app.state.current.turns and not app.state.active, what="the answer")
        assert app.state.current.turns[-1].text == client.answer
        await ask(app, pilot, "/load 0")
        await wait_until(lambda: app.state.load.active == 0, what="the end")
        cancelled = {command.session for command in client.sent if isinstance(command, Cancel)}
        assert cancelled == {"load-1", "load-2", "load-3"}


async def test_the_toast_says_what_was_started_and_how_to_stop_it_and_what_came_of_it() -> None:
    client = ScriptedClient("some words " * 4, rate=300)
    async with running(client, size=(120, 40)) as (app, pilot):

        def said(text: str) -> bool:
            return any(text in toast.message for toast in app._notifications)

        await ask(app, pilot, "/load 0")
        await wait_until(lambda: said("No synthetic load is running."), what="that there is none")
        (await pane_of(app)).prompt.clear()
        await ask(app, pilot, "/load 3 prompt=5 tokens=9999")
        await wait_until(
            lambda: said(
                "3 background sessions run beside the chats, s1 to s3 in the panels: a random prompt of 5 "
                "and an answer of 2,042 tokens each, again and again. /load 0 stops them."
            ),
            what="the toast",
        )
        await wait_until(lambda: app.state.load.finished >= 3, what="answers")
        await ask(app, pilot, "/load 0")
        await wait_until(lambda: said("Its sessions made "), what="the end")


def test_one_session_and_a_rate_are_put_into_words() -> None:
    assert LoadShape(1, 64, 256, 2.5).words() == (
        "1 background session runs beside the chats, s1 in the panels: a random prompt of 64 and an answer "
        "of 256 tokens, again and again. At most 2.5 a second start. /load 0 stops it."
    )


async def test_it_is_stopped_when_the_app_ends() -> None:
    client = ScriptedClient("some words " * 400, rate=60)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "/load 2")
        await wait_until(lambda: app.state.load.live == 2, what="the load")
        await app.action_quit()
        await pilot.pause()
    assert {c.session for c in client.sent if isinstance(c, Cancel)} == {"load-1", "load-2"}
