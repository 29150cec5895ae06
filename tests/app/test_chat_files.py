"""Chats as files: JSON out and back without loss, lists of messages in, Markdown for people."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from textual.widgets import Input

from engine.commands import Submit
from engine.request import SamplingParams
from tests.app.driving import ask, running, screen_text, settled
from tests.app.scripted import ScriptedClient, engine_status
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.chat_files import MOST_BYTES, NotImported, chats_as_json, chats_of, record_of
from tui_infer.chat_markdown import chats_as_markdown
from tui_infer.chat_transfer import adopt, read_chats
from tui_infer.export import ExportError, write_new
from tui_infer.sanitize import one_line, sanitize
from tui_infer.session import SessionState, Turn, TurnStats
from tui_infer.slash import Call, obey, read
from tui_infer.versions import ids_before, put_away, show
from tui_infer.workspace import Workspace

# --- chats ---------------------------------------------------------------------------------------------

WEIRD = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(
    [
        "```\nopen",
        "\x1b]52;c;AAAA\x07",
        "é" * 3 + "\u202e",
        "\ud800 alone",
        "[/red]",
        "]]>",
        "\u2028",
        "\ufeff",
    ]
)
SHARE = st.floats(0, 1, exclude_min=True)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_p=SHARE,
    min_p=st.floats(0, 1),
    seed=st.none() | st.integers(0, 2**63 - 1),
    max_tokens=st.integers(1, 2**31),
    stop=st.lists(st.text(min_size=1, max_size=40), max_size=2).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 9), max_size=2).map(tuple),
)
COUNT = st.integers(0, 10**9)
STATS = st.builds(TurnStats, COUNT, COUNT, COUNT, st.none() | st.floats(0, 9), st.none() | st.floats(0, 9))


@st.composite
def sessions(draw: st.DrawFn) -> SessionState:
    """A chat as the app makes them: texts went through ``sanitize``, histories grow at their ends."""
    session = SessionState("chat-1", "A", 0, params=draw(PARAMS), draft=sanitize(draw(WEIRD)))
    session.title = one_line(draw(WEIRD)) or "new chat"
    session.titled, session.system = draw(st.booleans()), sanitize(draw(WEIRD))
    session.model = draw(st.text("/abé", max_size=9))
    for _ in range(draw(st.integers(0, 3))):
        session.history_ids += draw(st.lists(st.integers(0, 200_000), max_size=5))
        answer = Turn("assistant", sanitize(draw(WEIRD)), draw(st.lists(st.integers(0, 200_000), max_size=5)))
        answer.status = draw(st.sampled_from(["done", "cancelled", "error"]))
        answer.note, answer.stats = one_line(draw(WEIRD)), draw(st.none() | STATS)
        if draw(st.booleans()):
            answer.asked = len(session.history_ids)
        session.history_ids += answer.token_ids
        if answer.asked is not None:
            answer.end = len(session.history_ids)
        session.turns += [Turn("user", sanitize(draw(WEIRD))), answer]
    for _ in range(draw(st.integers(0, 2)) if session.turns else 0):
        position = draw(st.sampled_from(range(len(session.turns))))
        versions = other_version(session, position, sanitize(draw(WEIRD)))
        show(session, position, draw(st.sampled_from(range(versions))))
    return session


def other_version(session: SessionState, position: int, text: str) -> int:
    """Another version of the chat from this turn on, as the app makes them; returns how many there are."""
    base = ids_before(session, position & ~1)
    versions = put_away(session, position)
    turn = Turn("assistant" if position % 2 else "user", text, seed=7)
    turn.others, turn.place = versions, len(versions)
    session.turns += [turn] if position % 2 else [turn, Turn("assistant", text)]
    session.history_ids = session.history_ids[: base or 0]
    return len(versions) + 1


@settings(max_examples=150, deadline=None)
@given(st.lists(sessions(), min_size=1, max_size=3))
def test_what_is_exported_as_json_comes_back_the_same(chats: list[SessionState]) -> None:
    records = [record_of(chat) for chat in chats]
    text = chats_as_json(records)
    back = chats_of(text.encode("utf-8"))
    assert [record_of(chat) for chat in back] == records
    assert {chat.key for chat in back}.isdisjoint(chat.key for chat in chats), "they are chats of their own"


@settings(max_examples=60, deadline=None)
@given(WEIRD)
def test_text_of_a_file_is_sanitized_whoever_wrote_it(text: str) -> None:
    chat = {"turns": [{"role": "user", "text": text}, {"role": "assistant", "text": text}], "system": text}
    data = json.dumps({"format": "tui-infer chats", "version": 1, "chats": [chat]}).encode()
    (back,) = chats_of(data)
    assert [turn.text for turn in back.turns] == [sanitize(text)] * 2
    assert back.system == sanitize(text)


def chat_with(*texts: str) -> SessionState:
    """Prompts and answers in turn."""
    session = SessionState(
        "chat-1", "A", 0, title="Capitals", model="/models/smollm2-1a2b", system="Be brief."
    )
    for prompt, answer in zip(texts[::2], texts[1::2]):
        turn = Turn("assistant", answer, [7, 8, 9], TurnStats(20, 3, 16, 0.25, 41.3))
        turn.asked, turn.end = len(session.history_ids) + 2, len(session.history_ids) + 5
        session.history_ids += [1, 2, 7, 8, 9]
        session.turns += [Turn("user", prompt), turn]
    return session


def test_an_answer_that_was_being_written_comes_back_as_a_stopped_one_with_its_tokens() -> None:
    session = chat_with("a", "b", "c", "half")
    session.history_ids, session.turns[-1].end = session.history_ids[:-3], None
    session.turns[-1].status, session.status = "open", "streaming"
    (back,) = chats_of(chats_as_json([record_of(session)]).encode())
    assert (back.turns[-1].status, back.turns[-1].text, back.busy) == ("cancelled", "half", False)
    assert "exported" in back.turns[-1].note
    assert back.history_ids == [1, 2, 7, 8, 9, 1, 2, 7, 8, 9]
    assert back.turns[-1].end == 10


def reason(data: bytes) -> str:
    with pytest.raises(NotImported) as error:
        chats_of(data)
    return str(error.value)


def ours(**chat: object) -> bytes:
    return json.dumps({"format": "tui-infer chats", "version": 1, "chats": [chat]}).encode()


def test_a_file_that_cannot_be_imported_is_refused_with_the_place_and_the_reason() -> None:
    assert "line 3, column 2" in reason(b'[\n{"role": "user",\n }]')
    assert "line 1, column 1" in reason(b"")
    assert "UTF-8" in reason(b"\xff\xfe[")
    assert "NaN" in reason(b"[NaN]")
    assert "deeply" in reason(b"[" * 100_000)
    assert "no JSON" in reason(b"[1" + b"0" * 9000 + b"]")
    assert "64 MiB" in reason(b" " * (MOST_BYTES + 1))
    assert "neither an export" in reason(b'{"chats": []}')
    assert "version is 2" in reason(b'{"format": "tui-infer chats", "version": 2}')
    assert "0 chats" in reason(b'{"format": "tui-infer chats", "version": 1, "chats": []}')
    user, answer = {"role": "user", "text": "a"}, {"role": "assistant", "text": "b"}
    assert "$.chats[0].turns[1].role" in reason(ours(turns=[user, {"role": "robot", "text": ""}]))
    assert "alternate" in reason(ours(turns=[user, user]))
    assert "no answer" in reason(ours(turns=[user]))
    assert "version 1 of turn 2: its last prompt has no answer" in reason(
        ours(turns=[user, answer | {"others": [{"turns": [answer, user]}]}])
    )
    assert "version 1 of turn 2: it has no turns" in reason(
        ours(turns=[user, answer | {"others": [{"turns": []}]}])
    )
    assert "turn 1 is version 3 of 0" in reason(ours(turns=[user | {"place": 3}, answer]))
    assert "temperature" in reason(ours(params={"temperature": -1}))
    assert "token 9 of its history, which has 2" in reason(
        ours(turns=[user, answer | {"asked": 9}], history_ids=[1, 2])
    )
    assert "history_ids[0]" in reason(ours(history_ids=[-1]))


# --- lists of messages ---------------------------------------------------------------------------------


def imported(messages: object) -> SessionState:
    (chat,) = chats_of(json.dumps(messages).encode())
    return chat


def test_a_list_of_messages_becomes_a_chat_alone_or_under_its_name() -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Capital of "}, {"type": "text", "text": "Peru?"}],
        },
        {"role": "assistant", "content": "Lima\x1b[2J.", "tool_calls": None, "refusal": None},
    ]
    for form in (messages, {"messages": messages, "model": "other"}):
        chat = imported(form)
        assert chat.system == "Be brief."
        assert [(turn.role, turn.text) for turn in chat.turns] == [
            ("user", "Capital of Peru?"),
            ("assistant", "Lima␛[2J."),
        ]
        assert chat.title == "Capital of Peru?"
        assert chat.history_ids == []


def test_neighbours_of_one_role_are_joined_and_a_last_prompt_is_the_draft() -> None:
    chat = imported(
        [
            {"role": "system", "content": "One."},
            {"role": "system", "content": "Two."},
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "c"},
            {"role": "assistant", "content": "d"},
            {"role": "user", "content": "e"},
        ]
    )
    assert chat.system == "One.\n\nTwo."
    assert [turn.text for turn in chat.turns] == ["a\n\nb", "c\n\nd"]
    assert chat.draft == "e"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "tool", "content": "42"}, "Message 2 is the result of a tool"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, "Message 2 calls a tool"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "a part that is image_url"),
        ({"role": "robot", "content": ""}, "the role 'robot'"),
        ({"role": "assistant", "content": 4}, "neither text nor a list"),
        ({"content": "a"}, 'no object with a "role"'),
        ({"role": "system", "content": "late"}, "after the first turn"),
    ],
)
def test_a_message_that_a_chat_cannot_hold_is_named_with_the_reason(message: object, why: str) -> None:
    assert why in reason(json.dumps([{"role": "user", "content": "a"}, message]).encode())


def test_a_list_that_is_no_conversation_is_refused() -> None:
    assert "nothing was asked before it" in reason(b'[{"role": "assistant", "content": "a"}]')
    assert "no conversation" in reason(b'[{"role": "system", "content": "a"}]')
    assert "no messages" in reason(b"[]")
    assert "no messages" in reason(b'{"messages": {}}')


# --- Markdown ------------------------------------------------------------------------------------------


def headings(text: str) -> list[str]:
    tokens = MarkdownIt("commonmark").parse(text)
    return [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]


def test_markdown_has_title_model_parameters_turns_and_numbers() -> None:
    session = chat_with("Capital of Peru?", "**Lima**.")
    session.turns[-1].note = "length limit reached"
    text = chats_as_markdown([record_of(session)])
    assert headings(text) == ["Capitals", "System", "You", "Answer"]
    assert "smollm2-1a2b" in text
    assert "temperature 1, max tokens 256" in text
    assert "\n**Lima**.\n" in text
    numbers = "3 tokens, 41.3 tok/s, first token after 0.25 s, 16 of 20 prompt tokens cached"
    assert f"*{numbers}, length limit reached*" in text


@pytest.mark.parametrize(
    "answer",
    [
        "```python\nprint(1)",
        "~~~\nopen",
        "<!-- open",
        "- a\n\n  ```\n  open",
        "````\n```\nshut\n````",
        "<div>\nx",
    ],
)
def test_fences_and_comments_of_a_text_survive_and_swallow_nothing_behind_them(answer: str) -> None:
    prompt = "What is\n```\nthis\n# no heading"
    text = chats_as_markdown([record_of(chat_with(prompt, answer, "and then?", "The end."))])
    assert headings(text) == ["Capitals", "System", "You", "Answer", "You", "Answer"]
    fences = [token.content for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    assert prompt + "\n" in fences
    assert answer in text
    assert text.rstrip().endswith("cached*")


@settings(max_examples=150, deadline=None)
@given(WEIRD, WEIRD)
def test_no_text_changes_the_headings_of_the_markdown_around_it(prompt: str, answer: str) -> None:
    plain = sanitize(answer).replace("#", "").replace("=", "").replace("-", "")  # its own headings aside
    session = chat_with(sanitize(prompt), plain, "and then?", "The end.")
    session.title = one_line(prompt) or "new chat"
    assert len(headings(chats_as_markdown([record_of(session)]))) == 6


# --- files ---------------------------------------------------------------------------------------------


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chat.md"
    path.write_text("mine")
    with pytest.raises(ExportError, match=r"is there already\. Give another name"):
        write_new(path, "theirs")
    assert path.read_text() == "mine"
    with pytest.raises(ExportError, match="No such file"):
        write_new(tmp_path / "none" / "chat.md", "")


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotImported, match="No such file"):
        read_chats(tmp_path / "none.json")
    with pytest.raises(NotImported, match="directory"):
        read_chats(tmp_path)
    with pytest.raises(NotImported, match="null"):
        read_chats(tmp_path / "a\0b")


def test_token_ids_of_another_model_are_left_out_and_the_conversation_is_sent_again() -> None:
    sent: list[object] = []
    for model, history in (("/models/smollm2-1a2b", [1, 2, 7, 8, 9]), ("/models/other", None)):
        state = Workspace(sent.append, phase="ready")
        data = chats_as_json([record_of(chat_with("Capital of Peru?", "Lima."))]).encode()
        (chat,) = adopt(state, chats_of(data), model)
        assert state.current is chat
        assert (chat.turns[1].asked is None) == (history is None)
        state.submit(chat.id, "And of Chile?")
        command = sent.pop()
        assert isinstance(command, Submit)
        assert command.history == history
        roles = [message.role for message in command.prompt]  # type: ignore[union-attr]
        assert roles == (["user"] if history else ["system", "user", "assistant", "user"])


# --- the app -------------------------------------------------------------------------------------------


def obeyed(app: TuiInferApp, text: str) -> bool:
    said = read(text)
    assert isinstance(said, Call)
    return obey(app, said)


async def file_of(path: Path) -> str:
    """The text of a file, once all of it is there."""
    text = ""

    def whole() -> bool:
        nonlocal text
        text = path.read_text("utf-8") if path.exists() else ""
        return text.endswith(("}\n", "*\n"))

    await wait_until(whole, what=path.name)
    return text


async def test_a_chat_is_exported_and_imported_by_slash_commands(tmp_path: Path) -> None:
    client = ScriptedClient(answer="Paris is **it**.", rate=400)
    async with running(client) as (app, pilot):
        await ask(app, pilot, "What is the capital?")
        await settled(app)
        first = app.state.current
        path = tmp_path / "my chat.json"
        assert obeyed(app, f"/export chat {path}")
        exported = json.loads(await file_of(path))
        assert exported["chats"][0]["model"] == engine_status().model_path
        assert obeyed(app, f"/import {path}")
        await wait_until(lambda: len(app.state.sessions) == 2)
        second = app.state.current
        assert second is not first
        assert (second.history_ids, second.key != first.key) == (first.history_ids, True)
        await settled(app)
        assert "What is the capital?" in screen_text(app)
        assert second.turns[1].text == "Paris is **it**."
        markdown = tmp_path / "all.md"
        assert obeyed(app, f"/export chat {markdown} all")
        assert headings(await file_of(markdown)).count("What is the capital?") == 2


async def test_the_command_that_exports_a_chat_is_no_draft_of_it_and_what_is_typed_elsewhere_is(
    tmp_path: Path,
) -> None:
    async with running(ScriptedClient("Yes."), size=(160, 48)) as (_, pilot):
        await pilot.press(*"half a thought")
        await pilot.press("ctrl+n")
        path = tmp_path / "all.json"
        await pilot.press(*f"/export chat {path} all", "enter")
        drafts = [chat["draft"] for chat in json.loads(await file_of(path))["chats"]]
        assert drafts == ["half a thought", ""]


async def test_what_cannot_be_exported_or_imported_is_said_and_changes_nothing(tmp_path: Path) -> None:
    async with running(ScriptedClient("Yes.")) as (app, pilot):

        def newest() -> str:
            return " ".join(f"{toast.title} {toast.message}" for toast in app._notifications)

        assert not obeyed(app, "/export chat notes.txt")
        assert not obeyed(app, "/export chat")
        taken = tmp_path / "taken.md"
        taken.write_text("mine")
        assert obeyed(app, f"/export chat {taken}")
        await wait_until(lambda: "is there already" in newest())
        assert taken.read_text() == "mine"
        broken = tmp_path / "broken.json"
        broken.write_text('{"format": [}')
        assert obeyed(app, f"/import {broken}")
        await wait_until(lambda: "line 1, column 13" in newest())
        assert len(app.state.sessions) == 1
        await pilot.pause()


async def test_the_palette_exports_to_a_new_name_and_asks_for_the_file_to_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running(ScriptedClient(answer="Yes.", rate=400)) as (app, pilot):
        await ask(app, pilot, "Is it?")
        await settled(app)
        await app.run_action("app.export_chat('.json', True)")
        path = await wait_until(lambda: next(tmp_path.glob("chats-*.json"), None))
        await file_of(path)
        await app.run_action("app.import_chats")
        await wait_until(lambda: isinstance(app.focused, Input))
        assert isinstance(app.focused, Input)
        app.focused.value = path.name
        await pilot.press("enter")
        await wait_until(lambda: len(app.state.sessions) == 2)
        assert app.state.current.turns[0].text == "Is it?"
