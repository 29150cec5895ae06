"""What ``--no-text`` leaves out: every word of prompts and answers, and the token ids that stand for them."""

from dataclasses import replace

from msgspec.structs import replace as changed

from engine.commands import Message, Submit
from engine.records import AnyEvent, BlockDetail, Delta, Finished, Rejected, Started
from engine.request import SamplingParams
from tui_infer.recording.format import AnyEntry, Chats, Content, Heard, Sent, Tags

LEFT_OUT = "left out"


def without_text(entry: AnyEntry) -> AnyEntry:
    """The entry with no text of any chat; counts of tokens stay, as that many zeros."""
    match entry:
        case Heard():
            return changed(entry, event=_event(entry.event))
        case Sent(command=Submit() as command):
            return changed(entry, command=_submit(command))
        case Chats():
            chats = [
                changed(chat, title=_title(chat.letter), titled=True)  # else a title would be made of nothing
                for chat in entry.chats
            ]
            return changed(entry, chats=chats)
        case Content():
            turns = [
                changed(turn, text="", token_ids=_zeros(turn.token_ids), note="") for turn in entry.turns
            ]
            return changed(entry, turns=turns, history_ids=_zeros(entry.history_ids))
        case Tags():
            tags = {request: replace(tag, title=_title(tag.letter)) for request, tag in entry.tags.items()}
            return changed(entry, tags=tags)
    return entry


def _event(event: AnyEvent) -> AnyEvent:
    match event:
        case Started():
            return changed(event, prompt_ids=_zeros(event.prompt_ids), pieces=[], text="")
        case Delta():
            return changed(event, text="", token_ids=_zeros(event.token_ids), ends=[])
        case BlockDetail():
            return changed(event, token_ids=_zeros(event.token_ids), pieces=[], hash="")
        case Finished() if event.error:
            return changed(event, error=LEFT_OUT)  # it may quote the text that it is about
        case Rejected():
            return changed(event, message=LEFT_OUT, hint="")
    return event


def _submit(command: Submit) -> Submit:
    prompt: str | list[int | Message] = ""
    history = None if command.history is None else _zeros(command.history)
    return changed(command, prompt=prompt, history=history, params=SamplingParams())


def _zeros(ids: list[int]) -> list[int]:
    return [0] * len(ids)


def _title(letter: str) -> str:
    return f"chat {letter}"
