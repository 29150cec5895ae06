"""Slash commands: what a prompt that starts with ``/`` may say to the app instead of to the model.

A first word that is a command is one, with all that follows as its arguments. A single word that looks like a
command and is none is refused, because sending ``/mdoe`` to a model helps nobody; so is a first word that is
nearly a command, as ``/exprt chat a.md``, or one of the app's where it has no place. Everything else is text:
paths (``/etc/passwd is what?``), fractions, comments. ``//`` or a space in front makes text of a command.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from engine.records import StepMode
from tui_infer.recording import commands as recording

if TYPE_CHECKING:
    from tui_infer.app import TuiInferApp

MODES: tuple[StepMode, ...] = get_args(StepMode)
AS_TEXT = "A space or a second / in front sends it as text."

_WORD = re.compile(r"/([A-Za-z][\w-]*)(?=\s|$)")


class SlashCommand(NamedTuple):
    """One command. ``run`` gets the app, or what stands in its place, and the words after the name; it
    returns why it cannot, or an empty string.
    """

    name: str
    arguments: str
    help: str
    run: Callable[[Any, Sequence[str]], str]

    @property
    def description(self) -> str:
        """Arguments and help, for a list of commands."""
        return f"{self.arguments} {self.help}".lstrip()


class Say(NamedTuple):
    """Text for the model, without the mark that made it text."""

    text: str


class Words(tuple[str, ...]):
    """What follows a command, as words; ``raw`` is the same as it was typed."""

    raw: str = ""


def raw_of(words: Sequence[str]) -> str:
    """The words of a command as they were typed, with their spaces and line feeds."""
    return words.raw if isinstance(words, Words) else " ".join(words)


class Call(NamedTuple):
    """A command with its words."""

    command: SlashCommand
    words: tuple[str, ...]


class Unknown(NamedTuple):
    """A first word that looks like a command, alone or nearly one."""

    word: str


def read(text: str, commands: Mapping[str, SlashCommand] | None = None) -> Say | Call | Unknown:
    """What a prompt means, where there are these commands; the app's, unless told otherwise."""
    text = text.strip("\n")
    if found := _command(text, commands):
        return found
    bare = text.lstrip(" ") if text.startswith(" ") else text[1:]
    if text[:1] in (" ", "/") and _command(bare, commands):
        return Say(bare)
    return Say(text)


def as_typed(text: str) -> str:
    """What has to be typed so that ``text`` goes to the model."""
    return text if read(text) == Say(text.strip("\n")) else f" {text}"


def obey(app: "TuiInferApp", said: Call | Unknown) -> bool:
    """Do what a command says; False, with the reason as a notice, where that cannot be done."""
    if isinstance(said, Unknown):
        near = " or ".join(f"/{name}" for name in _near(said.word, 0.7))
        every = ", ".join(f"/{name}" for name in COMMANDS)
        known = f"Did you mean {near}?" if near else f"There are {every}."
        app.state.notice(f"{said.word} is no command", f"{known} {AS_TEXT}", "warning")
        return False
    if problem := said.command.run(app, said.words):
        app.state.notice(f"/{said.command.name} not done", problem, "warning")
    return not problem


def _command(text: str, commands: Mapping[str, SlashCommand] | None = None) -> Call | Unknown | None:
    match = _WORD.match(text)
    if match is None:
        return None
    command = (COMMANDS if commands is None else commands).get(match[1].lower())
    if command is not None:
        words = Words(text[match.end() :].split())
        words.raw = text[match.end() :].strip()
        return Call(command, words)
    return Unknown(match[0]) if not text[match.end() :].strip() or _near(match[0]) else None


def _near(word: str, alike: float = 0.8) -> list[str]:
    """The app's commands that ``word`` is, or that may have been meant."""
    return get_close_matches(word[1:].lower(), COMMANDS, 3, alike)


# --- what they do ----------------------------------------------------------------------------------


def _mode(app: "TuiInferApp", words: Sequence[str]) -> str:
    """Switch graph and eager; without a word, tell what runs and why."""
    state = app.state
    if len(words) > 1 or (words and words[0].lower() not in MODES):
        return f"It takes {' or '.join(MODES)}, or nothing. {AS_TEXT}"
    if state.phase != "ready":
        return "The engine is not ready yet."
    if not words:
        state.notice(f"Mode: {state.mode}", state.mode_words())
        return ""
    state.set_mode(next(mode for mode in MODES if mode == words[0].lower()))
    return ""


def _past(app: "TuiInferApp", words: Sequence[str]) -> str:
    """Look at a past step; without a number at the newest one."""
    step = words[0].replace(",", "") if words else str(app.state.newest_step)
    if len(words) > 1 or not re.fullmatch(r"-?[0-9]{1,18}", step):
        return f"It takes the number of a step, or nothing. {AS_TEXT}"
    app.time.go(int(step), focus=True)
    return ""


def _help(app: "TuiInferApp", words: Sequence[str]) -> str:
    problem = app.show_help(raw_of(words))
    return f"{problem} {AS_TEXT}" if problem else ""


def _until(app: "TuiInferApp", words: Sequence[str]) -> str:
    return app.tools.until(words)


def _compare(app: "TuiInferApp", words: Sequence[str]) -> str:
    return app.tools.compare(words)


def _load(app: "TuiInferApp", words: Sequence[str]) -> str:
    return app.tools.load(words)


def _model(app: "TuiInferApp", words: Sequence[str]) -> str:
    return app.models.command(words)


def _import(app: "TuiInferApp", words: Sequence[str]) -> str:
    return app.transfer.bring(words)


def _all(app: "TuiInferApp", words: Sequence[str]) -> str:
    return app.several.all(words)


def _to(app: "TuiInferApp", words: Sequence[str]) -> str:
    return app.several.to(words)


def _queue(app: "TuiInferApp", words: Sequence[str]) -> str:
    return app.several.queue(words)


def _side_by_side(app: "TuiInferApp", words: Sequence[str]) -> str:
    return app.several.compare(words)


def _chats(name: str) -> Callable[["TuiInferApp", Sequence[str]], str]:
    """A method of the app's ``ChatCommands``."""

    def run(app: "TuiInferApp", words: Sequence[str]) -> str:
        return str(getattr(app.chats, name)(words))

    return run


def _list(app: "TuiInferApp", words: Sequence[str]) -> str:
    return app.archive.show(words)


def _delete(app: "TuiInferApp", words: Sequence[str]) -> str:
    return f"It takes nothing. {AS_TEXT}" if words else app.archive.delete_current()


def _adopt(app: "TuiInferApp", words: Sequence[str]) -> str:
    return f"It takes nothing. {AS_TEXT}" if words else app.archive.adopt()


def _turn(name: str) -> Callable[["TuiInferApp", Sequence[str]], str]:
    """A command of the focused chat's messages."""
    return lambda app, words: str(getattr(app.turns, name)(words))


COMMANDS: dict[str, SlashCommand] = {
    command.name: command
    for command in (
        SlashCommand("new", "[TITLE]", "another chat", _chats("new")),
        SlashCommand("system", "[TEXT|none]", "the chat's system prompt; alone tells it", _chats("system")),
        SlashCommand("set", "[NAME VALUE …]", "temperature, top_p, seed, …; alone lists", _chats("set")),
        SlashCommand("preset", "[NAME]", "parameters from the config; alone lists", _chats("preset")),
        SlashCommand("mode", "[graph|eager]", "switch; alone it tells the mode and why", _mode),
        SlashCommand("record", "[FILE]", "record to a file; again, stop", recording.record),
        SlashCommand("seek", "STEP|TIME", "in a recording, go there", recording.seek),
        SlashCommand("speed", "N", "of a recording, 1 is as it was", recording.speed),
        SlashCommand("export", "chat|steps|screenshot FILE", "as MD, JSON, CSV or SVG", recording.export),
        SlashCommand("import", "FILE", "chats from JSON, as new ones", _import),
        SlashCommand("past", "[step]", "look back at the newest step, or that one", _past),
        SlashCommand("until", "[WHAT] [chat]", "run until an eviction, step N …", _until),
        SlashCommand("ab", "[steps]", "graph against eager; again, stop", _compare),
        SlashCommand("load", "N [prompt= tokens= rate=]", "synthetic load; 0 stops it", _load),
        SlashCommand("all", "TEXT", "once to all open chats", _all),
        SlashCommand("to", "A,C TEXT", "once to these chats", _to),
        SlashCommand("queue", "[next|clear|drop N]", "prompts that wait", _queue),
        SlashCommand("compare", "[temperature=0,1 …] TEXT", "answers side by side", _side_by_side),
        SlashCommand("chat", "LETTER", "go to a chat", _chats("chat")),
        SlashCommand("chats", "[WORDS]", "all chats, found by what was said", _list),
        SlashCommand("delete", "", "the chat, for good", _delete),
        SlashCommand("adopt", "", "go on with the model that runs", _adopt),
        SlashCommand("rename", "[TITLE]", "the chat's title", _chats("rename")),
        SlashCommand("clear", "", "an empty chat in place of this one", _chats("clear")),
        SlashCommand("theme", "[NAME]", "the looks; alone lists", _chats("theme")),
        SlashCommand("layout", "1|2|4", "how many chats are shown", _chats("layout")),
        SlashCommand("bench", "[ab]", "how to measure; ab does it here", _chats("bench")),
        SlashCommand("model", "[NAME]", "load another; alone, choose one", _model),
        SlashCommand("retry", "[new|seed N]", "the answer again", _turn("retry")),
        SlashCommand("edit", "[n]", "a prompt, to ask it again", _turn("edit")),
        SlashCommand("continue", "", "an answer that was cut", _turn("go_on")),
        SlashCommand("fork", "[n]", "a branch of the chat", _turn("fork")),
        SlashCommand("copy", "[code [n]]", "the last answer", _turn("copy")),
        SlashCommand("quote", "", "the last answer, in the prompt", _turn("quote")),
        SlashCommand("version", "n", "of the last message that has some", _turn("version")),
        SlashCommand("help", "[TOPIC]", "keys and commands", _help),
        SlashCommand("quit", "", "end the app", _chats("quit")),
    )
}
