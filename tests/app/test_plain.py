"""The line mode: prompts from a pipe or a person, answers as text, nothing that a terminal acts upon."""

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.commands import Cancel, Submit
from engine.records import Delta
from engine.request import SamplingParams
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.plain.chat import PlainChat
from tui_infer.plain.lines import Prompt
from tui_infer.sanitize import sanitize
from tui_infer.set_params import changed
from tui_infer.state import AppState

REPOSITORY = Path(__file__).resolve().parents[2]


class Conversation:
    """A line mode under way, with the other end of its input and all of its output."""

    def __init__(self, client: ScriptedClient, *, interactive: bool, whole_lines: bool = False) -> None:
        reading, self._writing = os.pipe()
        self.client = client
        self.state = AppState(client.send, params=SamplingParams(max_tokens=50))
        self.out, self.err = io.StringIO(), io.StringIO()
        self.chat = PlainChat(
            client, self.state, interactive=interactive, whole_lines=whole_lines, out=self.out, err=self.err
        )
        self.task = asyncio.get_running_loop().create_task(self.chat.run(reading))

    def type(self, text: str) -> None:
        os.write(self._writing, text.encode())

    def end_input(self) -> None:
        os.close(self._writing)

    @property
    def text(self) -> str:
        return self.out.getvalue()

    async def says(self, text: str) -> None:
        await wait_until(lambda: text in self.text, what=f"{text!r} in {self.text!r}")


@asynccontextmanager
async def talking(
    client: ScriptedClient, *, interactive: bool = True, whole_lines: bool = False
) -> AsyncIterator[Conversation]:
    conversation = Conversation(client, interactive=interactive, whole_lines=whole_lines)
    try:
        yield conversation
    finally:
        conversation.chat.leave(9)
        await conversation.task
        await client.close()


async def piped(client: ScriptedClient, text: str) -> tuple[int, str, str]:
    """Exit code and both outputs of a whole input."""
    async with talking(client, interactive=False) as conversation:
        conversation.type(text)
        conversation.end_input()
        code = await asyncio.wait_for(conversation.task, 20)
    return code, conversation.text, conversation.err.getvalue()


async def test_each_line_of_a_pipe_is_a_prompt_and_the_output_is_the_conversation() -> None:
    client = ScriptedClient("Yes, it is.", rate=400)
    code, out, err = await piped(client, "Is it?\r\n\nReally")
    assert (code, err) == (0, "")
    assert out == "you: Is it?\nai: Yes, it is.\nyou: Really\nai: Yes, it is.\n"
    first, second = [command for command in client.sent if isinstance(command, Submit)]
    assert first.history is None
    assert second.history is not None, "the second turn sends the token ids of the first"
    assert len(second.prompt) == 1


async def test_what_the_model_writes_reaches_no_terminal_as_an_escape() -> None:
    _, out, _ = await piped(ScriptedClient("a\x1b[2Jb\x9bc", rate=400), "go\n")
    assert out == "you: go\nai: a␛[2Jb\ufffdc\n"


async def test_what_a_pipe_brings_is_echoed_without_its_escapes() -> None:
    code, out, _ = await piped(ScriptedClient("yes"), "\x1b[31mred\x9b\0\n/\x1b]0;x\x07\n/theme\x1b\n")
    assert code == 0
    assert "you: ␛[31mred" in out
    assert not [character for character in out if sanitize(character) != character]


async def test_an_answer_comes_by_pieces_or_by_whole_lines() -> None:
    for whole_lines in (False, True):
        client = ScriptedClient("one two\nthree", rate=0.001)
        async with talking(client, whole_lines=whole_lines) as conversation:
            conversation.type("go\n")
            await conversation.says("ai: ")
            session = conversation.state.current
            for piece, shown in (("one", "one"), (" two\nth", "one two\nth")):
                client._emit(Delta(session.id, session.epoch, piece, [1]))
                expected = shown.rpartition("\n")[0] if whole_lines else shown
                await wait_until(
                    lambda: conversation.text.partition("ai: ")[2].rstrip("\n") == expected,  # noqa: B023
                    what=repr(expected),
                )


async def test_lines_are_joined_by_a_backslash_and_between_marks() -> None:
    client = ScriptedClient("Yes.", rate=400)
    await piped(client, 'one \\\ntwo\n"""three\n\n four\n"""\n"""five"""\n"""\nsix\\\n')
    prompts = [command.prompt[0].content for command in client.sent if isinstance(command, Submit)]  # type: ignore[union-attr]
    assert prompts == ["one \ntwo", "three\n\n four", "five", "six\\"]


async def test_files_that_a_person_names_go_with_the_prompt_and_a_pipe_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("1\n")
    (tmp_path / "image").write_bytes(b"\0")
    client = ScriptedClient("Yes.", rate=400)
    async with talking(client) as conversation:
        conversation.type("see @image\n")
        await conversation.says("Not sent: image is no text")
        conversation.type("see @a.py\n")
        await conversation.says("ai: Yes.")
    await piped(client, "see @a.py\n")
    prompts = [command.prompt[0].content for command in client.sent if isinstance(command, Submit)]  # type: ignore[union-attr]
    assert prompts == ["see a.py\n\na.py:\n\n```py\n1\n```", "see @a.py"]


def test_a_prompt_is_open_until_its_last_line() -> None:
    prompt = Prompt()
    assert prompt.add("a\\") is None
    assert prompt.open
    assert prompt.add("b") == "a\nb"
    assert not prompt.open


async def test_a_person_is_asked_for_prompts_and_the_end_of_the_input_ends() -> None:
    async with talking(ScriptedClient("Yes.", rate=400)) as conversation:
        await conversation.says("SmolLM2-135M is ready. Type a prompt, /help for help, /quit to end.\nyou: ")
        conversation.type("one\\\n")
        await conversation.says("you: ... ")
        conversation.type("two\n")
        await conversation.says("ai: Yes.\nyou: ")
        conversation.end_input()
        assert await asyncio.wait_for(conversation.task, 20) == 0
        assert conversation.text.endswith("you: \n")


async def test_ctrl_c_stops_the_answer_and_a_second_one_ends() -> None:
    client = ScriptedClient("word " * 400, rate=100)
    async with talking(client) as conversation:
        conversation.type("go\n")
        await conversation.says("ai: word")
        conversation.chat._interrupt()
        await conversation.says("(stopped)\nyou: ")
        assert isinstance(client.sent[-1], Cancel)
        conversation.type("again\n")
        await wait_until(lambda: conversation.text.count("ai: word") == 2)
        conversation.chat._interrupt()
        conversation.chat._interrupt()
        assert await asyncio.wait_for(conversation.task, 20) == 130


async def test_ctrl_c_at_the_prompt_says_how_to_end() -> None:
    async with talking(ScriptedClient("Yes.")) as conversation:
        await conversation.says("you: ")
        conversation.chat._interrupt()
        await conversation.says("Ctrl-C again, /quit or the end of the input ends.\nyou: ")
        conversation.chat._interrupt()
        assert await asyncio.wait_for(conversation.task, 20) == 130


async def test_commands_change_the_chat_and_say_so(tmp_path: Path) -> None:
    client = ScriptedClient("Yes.", rate=400)
    path = tmp_path / "my chat.json"
    lines = [
        "/set temperature=0 top-p 0.5 stop=a,b",
        "/set",
        "/system Be brief.",
        "Is it?",
        "/stats",
        f"/save {path}",
        f"/save {path}",
        "/system none",
        "And now?",
        "/new",
        "Who?",
        "/stats",
        "/quit",
        "never",
    ]
    code, out, _ = await piped(client, "\n".join(lines))
    assert code == 0
    words = "Parameters: temperature 0, max tokens 50, top p 0.5, stop 'a' 'b'."
    assert out.count(words) == 2
    assert "System prompt: Be brief." in out
    assert "There is no system prompt." in out
    assert "\nLast answer: " in out
    assert f"Saved to {path}." in out
    assert "/save not done: " in out
    assert "is there already" in out
    assert "never" not in out
    saved = json.loads(path.read_text())["chats"][0]
    assert (saved["system"], saved["turns"][0]["text"]) == ("Be brief.", "Is it?")
    first, second, third = [command for command in client.sent if isinstance(command, Submit)]
    assert first.params == SamplingParams(temperature=0, top_p=0.5, max_tokens=50, stop=("a", "b"))
    assert [message.role for message in first.prompt] == ["system", "user"]  # type: ignore[union-attr]
    assert [message.role for message in second.prompt] == ["user", "assistant", "user"]  # type: ignore[union-attr]
    assert second.history is None, "the system prompt is gone from the start of the conversation"
    assert len(third.prompt) == 1
    assert third.params == first.params


async def test_what_is_no_command_is_said_and_two_slashes_make_text_of_one() -> None:
    client = ScriptedClient("Yes.", rate=400)
    code, out, _ = await piped(client, "/hlep\n//help\n/help\n")
    assert code == 0
    assert "/hlep is no command; /help lists them." in out
    (command,) = [command for command in client.sent if isinstance(command, Submit)]
    assert command.prompt[0].content == "/help"  # type: ignore[union-attr]
    for name in ("/set", "/system", "/new", "/save", "/stats", "/help", "/quit"):
        assert f"\n{name} " in out


async def test_an_engine_that_dies_ends_the_line_mode_with_the_reason() -> None:
    client = ScriptedClient("word " * 400, rate=100)
    async with talking(client) as conversation:
        conversation.type("go\n")
        await conversation.says("ai: word")
        client.fail()
        assert await asyncio.wait_for(conversation.task, 20) == 1
        assert "error: The process was killed by signal 9" in conversation.err.getvalue()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["temprature=1"], "Did you mean temperature?"),
        (["temp=1"], "Did you mean temperature?"),
        (["colour=1"], "There are temperature, top_p"),
        (["temperature"], "temperature has no value"),
        (["top_k=many"], "top_k=many is not understood"),
        (["top_p=2"], "top_p=2.0 is out of range"),
        (["stop_token_ids=1,x"], "is not understood"),
    ],
)
def test_a_parameter_that_cannot_be_is_named_with_the_way_out(words: list[str], problem: str) -> None:
    message = changed(SamplingParams(), words)
    assert isinstance(message, str)
    assert problem in message


def test_parameters_are_set_by_name_and_go_back_to_their_defaults() -> None:
    params = changed(
        SamplingParams(), ["Top-P=0.5", "seed", "7", "stop=\\n,END", "stop_token_ids=1,2", "ignore-eos=true"]
    )
    assert params == SamplingParams(
        top_p=0.5, seed=7, stop=("\n", "END"), stop_token_ids=(1, 2), ignore_eos=True
    )
    assert isinstance(params, SamplingParams)
    assert changed(
        params, ["seed=none", "stop", "off", "top_p=none", "stop_token_ids=none", "ignore_eos=off"]
    ) == (SamplingParams())


# --- the command ---------------------------------------------------------------------------------------


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "tui_infer", *arguments],
        input=stdin.encode(), capture_output=True, cwd=REPOSITORY, timeout=240,
    )  # fmt: skip


def test_the_real_model_talks_through_pipes_over_several_turns_with_a_warm_cache(
    own_folders: Path, default_model_dir: Path
) -> None:
    lines = ["What is the capital of France? Answer in one sentence.", "And of Italy?", "/stats"]
    done = run("chat", "--plain", "--temperature", "0", "--max-tokens", "24", stdin="\n".join(lines))
    assert done.returncode == 0, done.stderr
    said = done.stdout.decode().splitlines()
    assert said[:2] == [f"you: {lines[0]}", "ai: The capital of France is Paris."]
    assert said[2] == f"you: {lines[1]}"
    assert "Rome" in said[3]
    cached = int(said[5].rpartition("s, ")[2].partition(" of ")[0])
    assert cached >= 16, "the first turn's blocks are there for the second"
    assert b"\x1b" not in done.stdout + done.stderr


def test_a_model_that_is_not_there_is_one_line_and_exit_code_2(own_folders: Path) -> None:
    done = run("chat", "--plain", "--model", "/none/such", stdin="hello\n")
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode().splitlines() == [
        "error: There is no file or folder '/none/such'. Check the path given as --model."
    ]


def test_options_that_do_not_go_together_are_refused_before_a_model_loads(own_folders: Path) -> None:
    for arguments, words in (
        (["chat", "--whole-lines"], "--whole-lines goes with --plain."),
        (["--record", "x.tirec", "chat", "--plain"], "--record is for the app"),
        (["chat", "--plain", "--theme", "dark"], "--theme is for the app"),
        (["chat", "--plain", "--top-p", "3"], "top_p=3.0 is out of range"),
        (["chat"], "needs a terminal"),
    ):
        done = run(*arguments, stdin="hello\n")
        assert done.returncode == 2
        assert words in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1


def test_the_line_mode_imports_neither_textual_nor_torch() -> None:
    script = (
        "import sys, tui_infer.plain.chat, tui_infer.chat_cli\n"
        "print({'torch', 'textual', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stdout == "set()\n", done.stderr
