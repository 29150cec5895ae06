"""Chat messages to token ids by the model's own template, and turns appended to ids that are there."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from engine.commands import Message
from engine.errors import RequestError

AnyMessage = Message | Mapping[str, str]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})

# For models without a template, as base models are.
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}{{ 'User: ' + message.content + '\\n' }}"
    "{% elif message.role == 'assistant' %}{{ 'Assistant: ' + message.content + '\\n' }}"
    "{% else %}{{ message.content + '\\n\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
PLAIN_STOP = ("\nUser:",)
PLAIN_NOTE = "The model has no chat template: turns are written as 'User:' and 'Assistant:'."

# Stand-ins while a template runs. Letters only, so that trimming and case rules of templates leave them be.
ANSWER = "qzanswerzq"
CONTROL = "qzcontrol{}zq"
CONTROL_PATTERN = re.compile(r"qzcontrol(\d+)zq")


class ChatRenderer:
    """Renders conversations for one tokenizer.

    Text that a user wrote never turns into control tokens: ``<|im_end|>`` in a message is encoded as the
    characters it is made of.

    Attributes:
        note: what to tell the user about the format; empty where the model has its own.
        stop: stop strings that the format needs; empty where end tokens do it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._template = None if getattr(tokenizer, "chat_template", None) else PLAIN_TEMPLATE
        self.note = PLAIN_NOTE if self._template else ""
        self.stop = PLAIN_STOP if self._template else ()
        self._control = sorted(
            (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special),
            key=len,
            reverse=True,
        )

    def render(self, messages: Sequence[AnyMessage]) -> list[int]:
        """Token ids of a whole conversation, up to where the answer begins.

        Raises:
            RequestError: no messages, an unknown role, or messages that the template refuses.
        """
        checked = _checked(messages)
        text, found = self._text(checked)
        # Templates write their own start token; the plain format leaves that to the tokenizer.
        start = self._tokenizer.encode("") if self._template else []
        eos = self._tokenizer.eos_token_id
        return [*(token for token in start if token != eos), *self._encode(text, found, anchored=False)]

    def extend(self, history_ids: Sequence[int], messages: Sequence[AnyMessage]) -> list[int]:
        """``history_ids``, which end with an answer, and behind them only what the new messages add.

        The history stays an exact prefix, so that its blocks are found again. The end of the answer's turn
        is written unless the history ends with it, as it does not where an answer was cut.

        Raises:
            RequestError: as ``render``.
        """
        checked = _checked(messages)
        if not history_ids:
            return self.render(checked)
        suffix = self._after_answer(checked)
        at = self._end_of_turn_index(suffix)
        if at is not None and history_ids[-1] == suffix[at]:
            suffix = suffix[at + 1 :]
        return [*history_ids, *suffix]

    @cached_property
    def end_of_turn(self) -> int | None:
        """The token that the template writes after an answer; None where it writes text only."""
        suffix = self._after_answer(())
        at = self._end_of_turn_index(suffix)
        return None if at is None else suffix[at]

    def _after_answer(self, messages: Sequence[Message]) -> list[int]:
        """Ids of what stands behind an answer: its end of turn, the messages, the next answer's start."""
        before = (Message("user", "x"), Message("assistant", ANSWER))
        text, found = self._text([*before, *messages], add_generation_prompt=bool(messages))
        _, seen, rest = text.partition(ANSWER)
        if not seen:
            raise RequestError("The model's chat template leaves answers out, so a chat cannot go on.")
        if not messages and not rest:
            return []
        return self._encode(rest, found, anchored=True)

    def _end_of_turn_index(self, suffix: Sequence[int]) -> int | None:
        """Where the end of the turn stands: an added token with nothing but white space before it."""
        added = self._tokenizer.added_tokens_decoder
        for index, token in enumerate(suffix[:4]):
            if token in added:
                return index
            if self._tokenizer.decode([token]).strip():
                return None
        return None

    def _text(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> tuple[str, list[str]]:
        """The template's text with the messages' control strings held out, and these by number."""
        found: list[str] = []
        plain = [{"role": item.role, "content": self._hide_control(item.content, found)} for item in messages]
        try:
            text = self._apply(plain, add_generation_prompt)
        except Exception as error:  # jinja2's own, and whatever expressions in a template raise
            raise self._refusal(plain, add_generation_prompt, error) from error
        return text, found

    def _apply(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
        )

    def _refusal(self, messages: list[dict[str, str]], prompt: bool, error: Exception) -> RequestError:
        others = [message for message in messages if message["role"] not in ("system", "developer")]
        if others and len(others) < len(messages):
            try:
                self._apply(others, prompt)
            except Exception:
                pass
            else:
                return RequestError(
                    "The model's chat template takes no system prompt.",
                    "Clear the system prompt of this chat.",
                )
        return RequestError(f"The model's chat template refuses these messages: {error}.")

    def _hide_control(self, content: str, found: list[str]) -> str:
        """Replace strings that would be read as control tokens by their number in ``found``."""
        hidden: list[str] = []
        start = 0
        while True:
            hits = [(content.find(token, start), token) for token in self._control if token]
            at, token = min((hit for hit in hits if hit[0] >= 0), default=(-1, ""), key=lambda hit: hit[0])
            if at < 0:
                return "".join(hidden) + content[start:]
            hidden += [content[start:at], CONTROL.format(len(found))]
            found.append(token)
            start = at + len(token)

    def _encode(self, text: str, found: Sequence[str], anchored: bool) -> list[int]:
        """Ids of template text; ``anchored`` where other text stands before it."""
        ids: list[int] = []
        for index, piece in enumerate(CONTROL_PATTERN.split(text) if found else [text]):
            if index % 2:  # the numbers between the pieces
                ids += self._ids(found[int(piece)], anchored=True, as_text=True)
            else:
                ids += self._ids(piece, anchored=anchored or index > 0)
        return ids

    def _ids(self, text: str, *, anchored: bool, as_text: bool = False) -> list[int]:
        """Encode without start and end tokens.

        Tokenizers of the SentencePiece kind put a space before what they take for the start of a text. An
        anchored piece is encoded behind a letter that is then taken off again.
        """
        if not text:
            return []
        encode = self._tokenizer.encode
        options: dict[str, Any] = {"add_special_tokens": False, "split_special_tokens": as_text}
        if anchored:
            anchor = encode("x", **options)
            joined = encode("x" + text, **options)
            if joined[: len(anchor)] == anchor:
                return list(joined[len(anchor) :])
        return list(encode(text, **options))


def _checked(messages: Iterable[AnyMessage]) -> list[Message]:
    checked = [
        item if isinstance(item, Message) else Message(item["role"], item["content"]) for item in messages
    ]
    if not checked:
        raise RequestError("The prompt has no messages.", "Give at least one message of the user.")
    for item in checked:
        if item.role not in ROLES:
            raise RequestError(
                f"A message has the role {item.role!r}.", f"Roles are {', '.join(sorted(ROLES))}."
            )
    return checked
