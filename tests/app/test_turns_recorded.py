"""What was done with turns, in a recording: a replay shows the same chats, and looks back to the same."""

from pathlib import Path

import pytest

from tests.app.driving import settled
from tests.app.recorded import recording_app, replaying
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.past_turns import turns_at
from tui_infer.session import SessionState
from tui_infer.turns import branch, go_on, regenerate, resend, show_version, start_edit

Shown = list[tuple[str, str, str, int, int, tuple[int, ...]]]


def shown(session: SessionState) -> Shown:
    return [
        (turn.role, turn.text, turn.status, turn.place, len(turn.others), tuple(turn.token_ids))
        for turn in session.turns
    ]


def chats(app: TuiInferApp) -> dict[str, tuple[Shown, list[int]]]:
    return {session.id: (shown(session), session.history_ids) for session in app.state.sessions.values()}


def past(app: TuiInferApp) -> dict[int, list[list[str]]]:
    """The texts of all chats as they stood after every fifth step."""
    return {
        step: [[turn.text for turn in turns_at(session, step)] for session in app.state.sessions.values()]
        for step in range(0, app.state.newest_step + 1, 5)
    }


async def done(app: TuiInferApp) -> None:
    """No answer is under way, and every token's step has arrived."""
    await settled(app)

    def told() -> bool:
        answers = [turn for session in app.state.sessions.values() for turn in session.turns[1::2]]
        return all(turn.trace and len(turn.trace.steps) >= len(turn.token_ids) for turn in answers)

    await wait_until(told, what="the steps of all tokens")


@pytest.mark.parametrize("texts", [True, False], ids=["with texts", "without"])
async def test_a_replay_shows_what_was_made_again_edited_branched_and_continued(
    tiny_model_dir: Path, tmp_path: Path, texts: bool
) -> None:
    path = tmp_path / "turns.tirec"
    async with recording_app(tiny_model_dir, path, texts=texts) as (app, _pilot):
        state = app.state
        assert state.submit(state.focused, "hello world")
        await done(app)
        first = state.current
        assert state.submit(state.focused, "what cat")
        await done(app)
        assert regenerate(state, first, 3, "new") == ""
        await done(app)
        assert go_on(state, first) == "", "the limit is 60 tokens and the model never ends"
        await done(app)
        assert start_edit(state, first, 2) == ""
        assert resend(state, first, "red dog") == ""
        await done(app)
        second = branch(state, first, 1)
        assert isinstance(second, SessionState)
        assert state.submit(state.focused, "green token")
        await done(app)
        assert show_version(state, first, 2, 0) == ""
        await done(app)
        expected, expected_past = chats(app), past(app)
    async with replaying(path) as (app, _pilot, client):
        for end in (client.recording.duration, 0.0, client.recording.duration):
            await client.seek_time(end)
        played = chats(app)
        assert list(played) == list(expected)
        for name, (turns, ids) in expected.items():
            if texts:
                assert played[name] == (turns, ids)
            else:
                roles = [(turn[0], turn[2], len(turn[5])) for turn in turns]
                assert [(turn[0], turn[2], len(turn[5])) for turn in played[name][0]] == roles
                assert "hello" not in str(played)
        if texts:
            assert past(app) == expected_past
