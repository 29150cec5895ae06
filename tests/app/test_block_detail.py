"""The card of a block in the app: what it says equals the records and the transcript, now and in the past."""

import pytest
from textual.pilot import Pilot

from engine.commands import AnyCommand, Inspect, Submit
from engine.records import BlockChange, BlockDetail, Delta, Finished, Started, StepRecord, StepRow, Steps
from tests.app.driving import ask, focused_pane, running, screen_text
from tests.app.scripted import ScriptedClient, step
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.widgets.inspector.block_detail import BlockCard, token_lines
from tui_infer.widgets.inspector.block_past import BlockPast
from tui_infer.widgets.inspector.ink import Ink

SIZE = 16
SYSTEM = ["<|im_start|>", "system\n", "Be ", "brief", ".", "<|im_end|>", "\n", "<|im_start|>", "user\n"]
CLOSING = ["<|im_end|>", "\n", "<|im_start|>", "assistant\n"]
ANSWER = [f"word{number:02} " for number in range(48)]


class FedClient(ScriptedClient):
    """Sends nothing by itself but the answers to ``Inspect``: tests say what happens, step by step."""

    def __init__(self) -> None:
        super().__init__("")
        self.submits: list[Submit] = []
        self.asked: list[int] = []
        self.index = 0

    def send(self, command: AnyCommand) -> None:
        if isinstance(command, Submit):
            self.submits.append(command)
        elif isinstance(command, Inspect):
            self.asked.append(command.block)
            self._emit(BlockDetail(command.block, self.index, 1, hash="5eed" * 4, last_used=self.index))
        else:
            super().send(command)

    def start_answer(self, request: int, question: list[str]) -> list[str]:
        """The newest prompt is taken as ``question``, inside a chat template; its pieces."""
        pieces = [*SYSTEM, *question, *CLOSING]
        command = self.submits[-1]
        self._emit(Started(command.session, command.epoch, request, list(range(len(pieces))), pieces))
        return pieces

    def say(self, words: list[str], already: int = 0) -> None:
        command = self.submits[-1]
        ends, total = [], already
        for word in words:
            total += len(word)
            ends.append(total)
        self._emit(Delta(command.session, command.epoch, "".join(words), list(range(len(words))), ends))

    def finish(self) -> None:
        command = self.submits[-1]
        self._emit(Finished(command.session, command.epoch, "stop", 20, 48, 0, 0.1, 50.0))

    def make_step(self, rows: list[StepRow], *changes: BlockChange) -> StepRecord:
        record = step(self.index, rows, changes)
        self.index += 1
        self._emit(Steps([record]))
        return record


async def answered(app: TuiInferApp, pilot: Pilot[int], client: FedClient) -> list[str]:
    """One chat with a prompt and an answer, in blocks 1, 2, ...; the pieces of all its tokens."""
    question = ["Tell ", "me ", "forty ", "eight ", "words"]
    await ask(app, pilot, "".join(question))
    await wait_until(lambda: bool(client.submits))
    pieces = client.start_answer(7, question)
    allocated = [BlockChange("allocate", 1 + n, 7, n) for n in range(-(-len(pieces) // SIZE))]
    client.make_step([StepRow(7, len(pieces), len(pieces), True)], *allocated)
    client.say(ANSWER)
    held = len(allocated)
    for number in range(len(ANSWER) - 1):  # the last token is not in the cache yet
        context = len(pieces) + number + 1
        grown = [BlockChange("allocate", held + 1, 7, held)] if context > held * SIZE else []
        held += len(grown)
        client.make_step([StepRow(7, context, 1, False)], *grown)
    client.finish()
    await wait_until(lambda: app.state.active == 0)
    return pieces + ANSWER


async def open_block(app: TuiInferApp, pilot: Pilot[int], block: int) -> BlockCard:
    app.main.inspector.focus_panel("kv")
    await pilot.pause()
    await pilot.press(*str(block), "enter", "enter")
    await pilot.pause(0.25)
    return app.main.inspector.card


def card_lines(app: TuiInferApp) -> list[str]:
    region = app.main.inspector.card.region
    lines = screen_text(app).split("\n")
    return [line[region.x + 2 : region.right - 2].rstrip() for line in lines[region.y : region.bottom]]


async def test_the_text_of_a_block_is_the_text_of_its_tokens_in_the_transcript() -> None:
    client = FedClient()
    async with running(client, size=(160, 48)) as (app, pilot):
        pieces = await answered(app, pilot, client)
        await open_block(app, pilot, 3)
        lines = card_lines(app)
        assert "used · 1 reference · 16/16 tokens" in lines[1]
        assert lines[2] == "held by A[2] Tell me forty eight words"
        text = "".join(pieces[2 * SIZE : 3 * SIZE])
        shown = "".join(line.ljust(1) for line in lines[lines.index("Text") + 1 :])
        assert text.replace(" ", "") in shown.replace(" ", "")
        answer = app.state.current.last_answer
        assert answer is not None
        assert text in answer.text


async def test_the_last_block_holds_what_is_in_the_cache_and_no_more() -> None:
    client = FedClient()
    async with running(client, size=(160, 48)) as (app, pilot):
        pieces = await answered(app, pilot, client)
        context = len(pieces) - 1
        last = (context - 1) // SIZE
        await open_block(app, pilot, 1 + last)
        text = "\n".join(card_lines(app))
        assert f"{context - last * SIZE}/16 tokens" in text
        assert ANSWER[-2].strip() in text
        assert ANSWER[-1].strip() not in text


async def test_what_only_the_engine_knows_is_asked_for_once_a_change() -> None:
    client = FedClient()
    async with running(client, size=(160, 48)) as (app, pilot):
        await answered(app, pilot, client)
        await open_block(app, pilot, 3)
        assert client.asked == [3]
        assert "hash 5eed5eed5eed5eed" in "\n".join(card_lines(app))
        client.make_step([])
        await pilot.pause(0.25)
        assert client.asked == [3]
        client.make_step([], BlockChange("publish", 3, 7, 2))
        await wait_until(lambda: client.asked == [3, 3])
        await wait_until(lambda: "published" in "\n".join(card_lines(app)))


async def test_the_card_follows_the_cursor_and_escape_closes_it_first() -> None:
    client = FedClient()
    async with running(client, size=(160, 48)) as (app, pilot):
        await answered(app, pilot, client)
        card = await open_block(app, pilot, 3)
        await pilot.press("left")
        await pilot.pause(0.2)
        assert card.block == 2
        assert "held by A[1]" in "\n".join(card_lines(app))
        await pilot.press("escape")
        await pilot.pause()
        assert card.block is None
        assert card.size.height == 0
        assert app.main.inspector.map.has_focus
        await pilot.press("escape")
        assert focused_pane(app) is not None


async def test_the_history_of_a_block_names_every_owner_newest_first() -> None:
    client = FedClient()
    async with running(client, size=(160, 48)) as (app, pilot):
        await answered(app, pilot, client)
        now = client.index
        client.make_step([], BlockChange("publish", 2, 7, 1), BlockChange("share", 2, 8, 1))
        client.make_step([], BlockChange("release", 2, 7, 1), BlockChange("release", 2, 8, 1))
        client.make_step([], BlockChange("evict", 2))
        await open_block(app, pilot, 2)
        lines = card_lines(app)
        entries = [" ".join(line.split()) for line in lines[lines.index("History, newest first") + 1 : -1]]
        title = "Tell me forty eight words"
        assert entries[:6] == [
            f"{now + 2} evicted from the cache",
            f"{now + 1} released by request 8 [1]",
            f"{now + 1} released by A[1] {title}",
            f"{now} shared with request 8 [1]",
            f"{now} published by A[1] {title}",
            f"0 allocated to A[1] {title}",
        ]
        assert lines[1] == f"free · since step {now + 2}"


@pytest.mark.parametrize("block", [2, 3, 4])
async def test_g_goes_to_the_chat_of_a_block_and_marks_its_text(block: int) -> None:
    client = FedClient()
    async with running(client, size=(160, 48)) as (app, pilot):
        pieces = await answered(app, pilot, client)
        await pilot.press("ctrl+n")
        await open_block(app, pilot, block)
        await pilot.press("g")
        await wait_until(lambda: app.state.current.letter == "A")
        pane = next(pane for pane in app.main.visible_panes if pane.session is app.state.current)
        await wait_until(lambda: bool(pane.transcript.marked_text))
        marked = pane.transcript.marked_text.split()
        held = "".join(pieces[(block - 1) * SIZE : block * SIZE]).split()
        assert marked == [word for word in held if word.startswith("word")]
        assert focused_pane(app) is pane


async def test_a_block_of_the_prompt_leads_to_the_prompt() -> None:
    client = FedClient()
    async with running(client, size=(160, 48)) as (app, pilot):
        await answered(app, pilot, client)
        await open_block(app, pilot, 1)
        await pilot.press("g")
        pane = app.main.visible_panes[0]
        await wait_until(lambda: bool(pane.transcript.marked_text))
        assert pane.transcript.marked_text == "Tell me forty eight words"


async def test_at_80x24_the_map_stays_in_sight_above_the_card() -> None:
    client = FedClient()
    async with running(client, size=(80, 24)) as (app, pilot):
        await answered(app, pilot, client)
        await pilot.press("f6", "f6")
        await open_block(app, pilot, 3)
        card, kv = app.main.inspector.card, app.main.inspector.map
        assert card.size.height >= 9
        assert kv.size.height >= 4
        assert kv.region.bottom <= card.region.y
        text = screen_text(app)
        assert "held by A[2]" in text
        assert "word20" in text
        assert "allocated to A[2]" in text
        await pilot.press("escape")
        await pilot.pause()
        assert card.size.height == 0


async def test_of_a_past_moment_the_card_shows_that_moment_and_asks_nothing() -> None:
    client = FedClient()
    async with running(client, size=(160, 48)) as (app, pilot):
        pieces = await answered(app, pilot, client)
        await open_block(app, pilot, 3)
        assert client.asked == [3]
        # Block 3 is allocated when the context outgrows two blocks; two steps later it holds three tokens.
        first = 2 * SIZE - len(SYSTEM) - 5 - len(CLOSING) + 1
        assert app.state.look_at(first + 2)
        app.main.show_moment(focus=False)
        await pilot.pause(0.2)
        text = "\n".join(card_lines(app))
        assert "3/16 tokens" in text
        assert f"at step {first + 2}" in text
        shown = [piece.strip() for piece in pieces[2 * SIZE : 2 * SIZE + 4]]
        assert all(word in text for word in shown[:3])
        assert shown[3] not in text
        assert app.state.look_at(first - 1)
        app.main.show_moment(focus=False)
        await pilot.pause(0.2)
        assert card_lines(app)[1] == "free · never used"
        assert client.asked == [3]


async def test_hovering_a_tab_lets_the_blocks_of_its_chat_stand_out() -> None:
    client = FedClient()
    async with running(client, size=(160, 48)) as (app, pilot):
        await answered(app, pilot, client)
        tab = screen_text(app).split("\n")[1].index("A ")
        await pilot.hover(app.main.session_bar, (tab, 0))
        assert app.main.inspector.highlighted == app.state.current.id
        await pilot.hover(app.main.session_bar, (150, 0))
        assert app.main.inspector.highlighted == ""


# --- parts -----------------------------------------------------------------------------------------


def test_the_past_of_a_block_read_bit_by_bit_equals_the_past_read_at_once() -> None:
    from tests.app.simulation import Simulation

    simulation = Simulation(num_blocks=80, chats=3)
    past = BlockPast()
    for _ in range(60):
        simulation.run(7)
        past.update(simulation.history, 12)
        fresh = BlockPast()
        fresh.update(simulation.history, 12)
        assert past.events == fresh.events
    expected = [
        (record.index, change.kind, change.request)
        for record in simulation.history
        for change in record.block_changes
        if change.block == 12
    ]
    assert [(event.step, event.kind, event.request) for event in past.events] == expected
    assert len(expected) > 3


def test_neighbouring_tokens_stand_on_different_grounds_and_no_character_is_lost() -> None:
    from tui_infer.themes import load_themes

    ink = Ink(load_themes()[0][0])
    pieces = ["Hello", ",", " wide 日本語", "\n", "\x1b[31m", "a" * 50, ""]
    lines = token_lines(pieces, 20, (ink.token, ink.token_odd))
    text = "".join(part for line in lines for part, _ in line)
    assert text == "Hello, wide 日本語↵␛[31m" + "a" * 50 + "∅"
    assert ink.token != ink.token_odd
    assert [style for _, style in lines[0]][:3] == [ink.token, ink.token_odd, ink.token]
