"""The messages of a chat under the keys: marked, copied, quoted, asked again, branched; and by commands."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from engine.commands import Submit
from tests.app.driving import ask, pane_of, running, screen_text, settled
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.turn_text import CodeBlock, code_blocks, quoted, with_quote
from tui_infer.widgets.chat.messages import BAR, Messages

ANSWER = """Two ways:

```python
def one():
    return 1
```

or

```
plain
```

The end."""


@asynccontextmanager
async def answered(
    *prompts: str, answer: str = ANSWER, size: tuple[int, int] = (100, 30), rate: float = 4000
) -> AsyncIterator[tuple[TuiInferApp, Pilot[int], ScriptedClient]]:
    """A chat in which these were asked and answered."""
    client = ScriptedClient(answer, rate=rate)
    async with running(client, size=size, settings=Settings(inspector="hidden")) as (app, pilot):
        for prompt in prompts:
            await ask(app, pilot, prompt)
            await settled(app)
        yield app, pilot, client


def shown(app: TuiInferApp) -> Messages:
    assert isinstance(app.focused, Messages)
    return app.focused


def copied(app: TuiInferApp) -> str:
    return app.clipboard


def said(app: TuiInferApp) -> list[str]:
    return [turn.text for turn in app.state.current.turns]


def marked_rows(app: TuiInferApp) -> list[str]:
    return [line for line in screen_text(app).split("\n") if BAR in line]


async def test_a_key_marks_the_last_message_and_arrows_go_through_all_of_them() -> None:
    async with answered("first", "second") as (app, pilot, _):
        await pilot.press("ctrl+l")
        assert shown(app).cursor == 3
        assert any("The end." in row for row in marked_rows(app))
        await pilot.press("up")
        assert any("second" in row for row in marked_rows(app))
        await pilot.press("k", "home")
        assert (shown(app).cursor, any("first" in row for row in marked_rows(app))) == (0, True)
        await pilot.press("up", "j")
        assert shown(app).cursor == 1
        await pilot.press("end")
        assert shown(app).cursor == 3
        await pilot.press("escape")
        assert (await pane_of(app)).prompt.has_focus
        assert not marked_rows(app)


async def test_a_message_out_of_view_is_brought_into_it_with_its_beginning() -> None:
    long = "\n\n".join(f"paragraph {number}" for number in range(60))
    async with answered("first", answer=long) as (app, pilot, _):
        await pilot.press("ctrl+l", "up")
        assert "first" in screen_text(app)
        await pilot.press("down")
        assert "paragraph 59" in screen_text(app)


async def test_the_key_bar_tells_the_letters_and_dims_what_cannot_be_done() -> None:
    async with answered("first", size=(140, 30)) as (app, pilot, _):
        await pilot.press("ctrl+l")
        await pilot.pause()
        bar = screen_text(app).split("\n")[-1]
        for words in (
            "c copy",
            "b code",
            "v lines",
            "q quote",
            "e edit",
            "r again",
            "n new seed",
            "f branch",
        ):
            assert words in bar
        assert "o go on" in bar
        possible = {what: able for _, _, what, able in shown(app).hints()}
        assert (possible["go_on"], possible["earlier"], possible["code"]) == (False, False, True)
        await pilot.press("up")
        possible = {what: able for _, _, what, able in shown(app).hints()}
        assert not possible["code"]


async def test_c_copies_the_message_as_it_was_written() -> None:
    async with answered("first") as (app, pilot, _):
        await pilot.press("ctrl+l", "c")
        await wait_until(lambda: copied(app) == ANSWER)
        await told(app, f"Sent to the terminal (OSC 52) {len(ANSWER)} characters sent through the terminal")


async def told(app: TuiInferApp, words: str) -> None:
    await wait_until(lambda: words in toasts(app), what=words)


def toasts(app: TuiInferApp) -> str:
    return " ".join(f"{toast.title} {toast.message}" for toast in app._notifications)


async def test_b_copies_one_block_of_code_after_the_other_and_a_digit_the_one_of_that_number() -> None:
    async with answered("first") as (app, pilot, _):
        await pilot.press("ctrl+l", "b")
        await wait_until(lambda: copied(app) == "def one():\n    return 1")
        await wait_until(lambda: "Code 1 of 2 python" in toasts(app))
        await pilot.press("b")
        await wait_until(lambda: copied(app) == "plain")
        await pilot.press("b")
        await wait_until(lambda: copied(app).startswith("def"))
        await pilot.press("2")
        await wait_until(lambda: copied(app) == "plain")
        await pilot.press("7")
        await wait_until(lambda: "There is no block 7: the message has 2" in toasts(app))
        await pilot.press("up", "b")
        await wait_until(lambda: "no block of code" in toasts(app))


async def test_lines_of_a_message_are_chosen_with_shift_and_arrows_and_c_copies_only_them() -> None:
    async with answered("first") as (app, pilot, _):
        await pilot.press("ctrl+l", "v")
        assert shown(app).chosen_text == "Two ways:"
        await pilot.press("down", "down", "down", "shift+down", "c")
        await wait_until(lambda: copied(app) == "def one():\n    return 1")
        await pilot.press("escape")
        assert shown(app).lines is None
        await pilot.press("shift+down", "shift+down", "shift+up", "ctrl+c")
        await wait_until(lambda: copied(app) == "Two ways:")


async def test_q_quotes_the_message_behind_the_draft_and_goes_to_the_prompt() -> None:
    async with answered("first", answer="One.\n\nTwo.") as (app, pilot, _):
        (await pane_of(app)).prompt.insert("My words")
        await pilot.press("ctrl+l", "q")
        pane = await pane_of(app)
        assert pane.prompt.text == "My words\n\n> One.\n>\n> Two.\n\n"
        await pilot.press("w")
        assert pane.prompt.text.endswith("\n\nw")


async def test_r_answers_again_with_the_same_seed_and_the_arrows_go_back_to_the_version_before() -> None:
    async with answered("first") as (app, pilot, client):
        old = app.state.current.turns[1]
        old.seed = 77
        client.answer = "Another answer."
        await pilot.press("ctrl+l", "r")
        await wait_until(lambda: not app.state.active and said(app)[1] == "Another answer.")
        command = next(c for c in reversed(client.sent) if isinstance(c, Submit))
        assert command.params.seed == 77
        assert command.prompt == []
        await settled(app)
        assert "version 2 of 2" in screen_text(app)
        await pilot.press("left")
        await wait_until(lambda: app.state.current.turns[1] is old)
        await settled(app)
        assert "The end." in screen_text(app)
        assert "Another answer." not in screen_text(app)
        await pilot.press("left")
        await wait_until(lambda: "first of 2 versions" in toasts(app))
        await pilot.press("right")
        await wait_until(lambda: said(app)[1] == "Another answer.")


async def test_n_answers_again_with_another_seed_and_says_where_that_changes_nothing() -> None:
    async with answered("first") as (app, pilot, client):
        await pilot.press("ctrl+l", "n")
        await wait_until(lambda: len([c for c in client.sent if isinstance(c, Submit)]) == 2)
        command = client.sent[-1]
        assert isinstance(command, Submit)
        assert command.params.seed is not None
        await settled(app)


async def test_e_edits_the_prompt_with_a_mark_and_enter_asks_it_in_place_of_the_old() -> None:
    async with answered("first", "second") as (app, pilot, client):
        (await pane_of(app)).prompt.insert("half a thought")
        client.answer = "Edited answer."
        await pilot.press("ctrl+l", "up", "up", "up", "e")
        pane = await pane_of(app)
        assert pane.prompt.text == "first"
        await wait_until(lambda: "editing prompt 1 of 2" in screen_text(app))
        await pilot.press("!", "enter")
        await wait_until(lambda: said(app) == ["first!", "Edited answer."])
        await settled(app)
        assert (pane.prompt.text, app.state.current.editing) == ("half a thought", None)
        assert "editing prompt" not in screen_text(app)
        assert "version 2 of 2" in screen_text(app)


async def test_escape_leaves_an_edit_and_the_chat_and_the_draft_are_as_they_were() -> None:
    async with answered("first") as (app, pilot, client):
        pane = await pane_of(app)
        pane.prompt.insert("half a thought")
        await pilot.press("ctrl+l", "e")
        await pilot.press("x", "escape")
        await wait_until(lambda: pane.prompt.text == "half a thought")
        assert said(app)[0] == "first"
        assert len([c for c in client.sent if isinstance(c, Submit)]) == 1


async def test_f_branches_the_chat_at_the_message_into_a_new_pane() -> None:
    async with answered("first", "second", size=(120, 30)) as (app, pilot, client):
        await pilot.press("ctrl+l", "home", "down", "f")
        await wait_until(lambda: app.state.current.letter == "B")
        pane = await pane_of(app)
        assert said(app) == ["first", ANSWER]
        assert len(app.main.visible_panes) == 2
        pane.prompt.insert("third")
        await pilot.press("enter")
        command = await wait_until(lambda: isinstance(client.sent[-1], Submit) and client.sent[-1])
        assert command.history == app.state.current.history_ids[: len(command.history)]
        assert command.history
        await settled(app)


async def test_o_lets_a_stopped_answer_go_on_and_says_why_a_complete_one_cannot() -> None:
    async with answered("first", rate=60) as (app, pilot, client):
        await pilot.press("ctrl+l", "o")
        await wait_until(lambda: "The answer is complete" in toasts(app))
        await pilot.press("escape")
        client.answer = "word " * 400
        await ask(app, pilot, "second")
        await wait_until(lambda: len(said(app)[-1]) > 20)
        await pilot.press("escape")
        await wait_until(lambda: not app.state.active)
        before = said(app)[-1]
        client.answer = " more"
        await pilot.press("ctrl+l", "o")
        await wait_until(lambda: not app.state.active and said(app)[-1] == before + " more")
        command = next(c for c in reversed(client.sent) if isinstance(c, Submit))
        assert command.answered > 0
        await settled(app)


async def test_while_an_answer_streams_it_can_be_copied_and_the_rest_says_why_not() -> None:
    async with answered(answer="word " * 2000, rate=60) as (app, pilot, _):
        await ask(app, pilot, "first")
        await wait_until(lambda: len(said(app)[-1]) > 20)
        await pilot.press("ctrl+l", "c")
        await wait_until(lambda: copied(app).startswith("word"))
        await pilot.press("r")
        await wait_until(lambda: "still answering" in toasts(app))
        assert isinstance(app.focused, Messages), "frames of the stream take the keys from nobody"
        await asyncio.sleep(0.2)
        assert isinstance(app.focused, Messages)


async def test_an_empty_chat_has_no_message_to_go_to() -> None:
    async with answered() as (app, pilot, _):
        await pilot.press("ctrl+l")
        await wait_until(lambda: "Nothing was said here yet" in toasts(app))
        assert (await pane_of(app)).prompt.has_focus


async def test_slash_commands_do_the_same_with_the_last_message() -> None:
    async with answered("first", "second", size=(120, 30)) as (app, pilot, client):
        await ask(app, pilot, "/copy")
        await wait_until(lambda: copied(app) == ANSWER)
        await ask(app, pilot, "/copy code 2")
        await wait_until(lambda: copied(app) == "plain")
        await ask(app, pilot, "/quote")
        pane = await pane_of(app)
        await wait_until(lambda: pane.prompt.text.startswith("> Two ways:"))
        pane.prompt.load_text("")
        client.answer = "New."
        await ask(app, pilot, "/retry seed 9")
        await wait_until(lambda: not app.state.active and said(app)[3] == "New.")
        await settled(app)
        await ask(app, pilot, "/version 1")
        await wait_until(lambda: said(app)[3] == ANSWER)
        await ask(app, pilot, "/edit 1")
        await wait_until(lambda: pane.prompt.text == "first")
        await pilot.press("escape")
        await wait_until(lambda: pane.prompt.text == "")
        await ask(app, pilot, "/fork 1")
        await wait_until(lambda: app.state.current.letter == "B")
        assert said(app) == ["first", ANSWER]
        refused = [
            ("/edit 9", "1 to 1"),
            ("/retry 1 2", "It takes nothing for the same seed"),
            ("/continue", "complete"),
            ("/version 2", "No message of this chat has other versions"),
            ("/copy code 9", "There is no block 9"),
        ]
        for command, why in refused:
            pane = await pane_of(app)
            pane.prompt.load_text(command)
            await pilot.press("enter")
            await told(app, why)
            assert pane.prompt.text == command, "a command that was not done can be mended"


async def test_the_palette_has_an_entry_for_each_and_means_the_last_message() -> None:
    async with answered("first") as (app, _pilot, _):
        entries = {command.title: command.action for command in app.turns.commands}
        assert len(entries) == 10
        await app.run_action(entries["Message: copy a block of code"])
        await wait_until(lambda: copied(app).startswith("def one"))
        await app.run_action(entries["Message: branch the chat here"])
        assert app.state.current.letter == "B"


async def test_the_mouse_selects_text_of_the_transcript_and_ctrl_c_copies_it() -> None:
    async with answered("first question") as (app, pilot, _):
        pane = await pane_of(app)
        rows = screen_text(app).split("\n")
        top = next(number for number, row in enumerate(rows) if "Two ways:" in row)
        x = rows[top].index("Two")
        area = pane.transcript.region
        await pilot.mouse_down(pane.transcript, offset=(x - area.x, top - area.y))
        await pilot.hover(pane.transcript, offset=(x - area.x + 2, top - area.y + 2))
        await pilot.hover(pane.transcript, offset=(x - area.x + 12, top - area.y + 3))
        await pilot.mouse_up(pane.transcript, offset=(x - area.x + 12, top - area.y + 3))
        await pilot.press("ctrl+c")
        assert copied(app).split("\n")[0] == "Two ways:"
        assert "def one():" in copied(app)
        await pilot.press("ctrl+c")
        await wait_until(lambda: "again to quit" in toasts(app))


def test_code_blocks_are_found_wherever_they_stand() -> None:
    text = "- item\n\n  ```sh\n  ls\n  ```\n\n> ~~~\n> quoted\n> ~~~\n\n    indented\n"
    assert code_blocks(text) == [CodeBlock("sh", "ls"), CodeBlock("", "quoted"), CodeBlock("", "indented")]
    assert code_blocks("```c\nint x;") == [CodeBlock("c", "int x;")], "one that is still written"


def test_a_quote_has_a_mark_before_every_line() -> None:
    assert quoted("a\n\nb\n") == "> a\n>\n> b"
    assert with_quote("", "a") == "> a\n\n"
    assert with_quote("said\n", "a") == "said\n\n> a\n\n"
