"""Commands of the line mode; each returns why it cannot, or an empty string."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.paths import user_path
from tui_infer.chat_files import record_of
from tui_infer.chat_markdown import FORMS, params_words, stats_words
from tui_infer.engine_words import about_weights
from tui_infer.export import write_new
from tui_infer.sanitize import sanitize
from tui_infer.set_params import changed
from tui_infer.slash import SlashCommand, raw_of

if TYPE_CHECKING:
    from tui_infer.plain.chat import PlainChat

NONE = "none"
SEVERAL_LINES = (
    '''A line that ends with \\ goes on in the next one. """ begins a text of several lines and ends it.'''
)
FILES = 'Where a person types, @name or @"a name" puts the text of a file into the prompt.'
KEYS = "Ctrl-C stops an answer; a second one, /quit or the end of the input ends."


def _help(chat: "PlainChat", words: Sequence[str]) -> str:
    for command in COMMANDS.values():
        chat.say(f"/{command.name} {command.description}")
    chat.say(SEVERAL_LINES)
    chat.say(FILES)
    chat.say(KEYS)
    return ""


def _quit(chat: "PlainChat", words: Sequence[str]) -> str:
    chat.leave(0)
    return ""


def _new(chat: "PlainChat", words: Sequence[str]) -> str:
    """A chat with the parameters and the system prompt of the one before, which is gone."""
    before = chat.session
    session = chat.state.new_session()
    session.params, session.system = before.params, before.system
    chat.state.close_session(before.id)
    chat.say("A new chat begins.")
    return ""


def _set(chat: "PlainChat", words: Sequence[str]) -> str:
    session = chat.session
    if words:
        params = changed(session.params, words)
        if isinstance(params, str):
            return params
        session.params = params
    chat.say(f"Parameters: {params_words(session.params)}.")
    return ""


def _system(chat: "PlainChat", words: Sequence[str]) -> str:
    session = chat.session
    if words:
        session.system = "" if words == (NONE,) else sanitize(raw_of(words))
        session.forget_tokens()  # they begin with the system prompt before
    chat.say(f"System prompt: {session.system}" if session.system else "There is no system prompt.")
    return ""


def _save(chat: "PlainChat", words: Sequence[str]) -> str:
    name = raw_of(words)
    form = FORMS.get(Path(name).suffix.lower())
    if form is None:
        return "It takes FILE.md or FILE.json."
    try:
        write_new(user_path(name), form([record_of(chat.session)]))
    except EngineError as error:
        return str(error)
    chat.say(f"Saved to {sanitize(name)}.")
    return ""


def _stats(chat: "PlainChat", words: Sequence[str]) -> str:
    session, status = chat.session, chat.state.status
    answer = session.last_answer
    if answer is None or answer.stats is None:
        chat.say("There is no answer yet.")
    else:
        chat.say(f"Last answer: {stats_words(answer.stats)}.")
    if status is not None:
        chat.say(f"Context: {session.context_tokens:,} of {status.max_model_len:,} tokens.")
        numbers = status.weights or status.dtype
        chat.say(f"Model: {sanitize(status.model_name)}, {numbers}, on {status.device}.")
        if weights := about_weights(status):
            chat.say(sanitize(weights))
    return ""


COMMANDS: dict[str, SlashCommand] = {
    command.name: command
    for command in (
        SlashCommand("set", "[NAME=VALUE …]", "change parameters; alone it tells them", _set),
        SlashCommand("system", "[TEXT]", f"the system prompt; {NONE} takes it away", _system),
        SlashCommand("new", "", "a new chat; this one is gone unless it was saved", _new),
        SlashCommand("save", "FILE", "the chat as .md or .json", _save),
        SlashCommand("stats", "", "numbers of the last answer and of the context", _stats),
        SlashCommand("help", "", "these commands", _help),
        SlashCommand("quit", "", "end", _quit),
    )
}
