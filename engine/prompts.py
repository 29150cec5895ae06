"""What a caller gives as a prompt, as token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.chat import ChatRenderer
from engine.commands import Message
from engine.errors import RequestError

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]] | Sequence[Message]


class PromptReader:
    """Turns text, token ids and chat messages into the ids that are computed.

    Args:
        tokenizer: the model's transformers tokenizer.
        vocab_size: width of the logits; ids beyond it do not exist for the model.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._renderer = ChatRenderer(tokenizer)

    def token_ids(self, prompt: Prompt, history: Sequence[int] | None = None) -> list[int]:
        """The whole prompt; ``history`` stays as it is in front of it, and is all of it without messages.

        Raises:
            RequestError: no tokens, ids that the model does not know, text that is no Unicode, or
                items that are no messages.
        """
        before = list(history or ())
        if isinstance(prompt, str):
            ids = before + list(self._tokenizer.encode(_unicode(prompt)))
        elif is_chat(prompt):
            messages = [_message(item) for item in prompt]
            if before and not messages:
                ids = before
            else:
                ids = self._renderer.extend(before, messages) if before else self._renderer.render(messages)
        else:
            ids = before + [int(token) for token in prompt]  # type: ignore[arg-type]
        if not ids:
            raise RequestError("The prompt is empty: it has no tokens.", "Give it some text.")
        bad = next((token for token in ids if not 0 <= token < self._vocab_size), None)
        if bad is not None:
            raise RequestError(f"Token id {bad} is outside the model's vocabulary of {self._vocab_size}.")
        return ids


def is_chat(prompt: Prompt) -> bool:
    """True for messages, False for plain text and token ids."""
    return not isinstance(prompt, str) and not (len(prompt) > 0 and isinstance(prompt[0], int))


def _message(item: Any) -> Message:
    """A chat message from a dict or a Message."""
    if isinstance(item, Message):
        return Message(item.role, _unicode(item.content))
    try:
        return Message(role=str(item["role"]), content=_unicode(str(item["content"])))
    except (TypeError, KeyError) as error:
        raise RequestError(
            f"A prompt item is {item!r}.", "Give text, token ids, or messages with role and content."
        ) from error


def _unicode(text: str) -> str:
    """The text, which must not hold half of a surrogate pair: no tokenizer takes one."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = text[error.start]
        raise RequestError(
            f"The prompt holds {bad!r} at character {error.start}, which is no Unicode character.",
            "It was probably bytes in another encoding; decode them first.",
        ) from error
    return text
