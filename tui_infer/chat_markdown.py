"""Chats as Markdown, to be read by people. What comes back in is the JSON form."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from markdown_it import MarkdownIt

from engine.request import SamplingParams
from tui_infer.chat_files import ChatRecord, StatsRecord, TurnRecord, chats_as_json
from tui_infer.session import TurnStats

_MARK = "a line behind the answer"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#|~&$])")
_PARSER = MarkdownIt("commonmark")
_LIKE = SamplingParams()


def chats_as_markdown(records: Sequence[ChatRecord]) -> str:
    """All chats, one after the other, each under its title."""
    return "\n\n".join(_chat(record) for record in records) + "\n"


def _chat(record: ChatRecord) -> str:
    parts = [f"# {_escaped(record.title)}"]
    facts = [f"- Model: {_escaped(Path(record.model).name)}"] if record.model else []
    facts.append(f"- Parameters: {_escaped(params_words(record.params))}")
    parts.append("\n".join(facts))
    if record.system:
        parts += ["## System", _literal(record.system)]
    for turn in record.turns:
        if turn.role == "user":
            parts += ["## You", _literal(turn.text)]
        else:
            parts += ["## Answer", *_answer(turn)]
    return "\n\n".join(parts)


def _answer(turn: TurnRecord) -> list[str]:
    """An answer is Markdown already, and stays as it is where it ends with itself; one that would swallow
    what follows (an open fence, a comment) is put into a fence.
    """
    text = turn.text.strip("\n")
    shown = text if _ends_with_itself(text) else _literal(text, "markdown")
    said = ", ".join(part for part in (stats_words(turn.stats) if turn.stats else "", turn.note) if part)
    return [part for part in (shown, f"*{_escaped(said)}*" if said else "") if part]


def _ends_with_itself(text: str) -> bool:
    tokens = _PARSER.parse(f"{text}\n\n{_MARK}\n")
    last = tokens[-3:]
    kinds = [token.type for token in last]
    return kinds == ["paragraph_open", "inline", "paragraph_close"] and (
        last[0].level == 0 and last[1].content == _MARK
    )


def _literal(text: str, language: str = "text") -> str:
    """A fence that is longer than any run of backticks in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def params_words(params: SamplingParams) -> str:
    """Temperature, longest answer, and what else is not as usual: ``temperature 0.7, max tokens 1,024``."""
    words = [f"temperature {params.temperature:g}", f"max tokens {params.max_tokens:,}"]
    for name in params.__struct_fields__:
        value = getattr(params, name)
        if name not in ("temperature", "max_tokens") and value != getattr(_LIKE, name):
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            if isinstance(value, tuple):
                shown = " ".join(repr(item) for item in value)
            words.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(words)


def stats_words(stats: StatsRecord | TurnStats) -> str:
    """``31 tokens, 52.1 tok/s, first token after 0.12 s, 12 of 40 prompt tokens cached``."""
    words = [f"{stats.output_tokens:,} token{'s' if stats.output_tokens != 1 else ''}"]
    if stats.decode_tokens_per_s is not None:
        words.append(f"{stats.decode_tokens_per_s:.1f} tok/s")
    if stats.ttft_s is not None:
        words.append(f"first token after {stats.ttft_s:.2f} s")
    words.append(f"{stats.cached_tokens:,} of {stats.prompt_tokens:,} prompt tokens cached")
    return ", ".join(words)


# The forms of an export, by the ending of the file's name.
FORMS: dict[str, Callable[[Sequence[ChatRecord]], str]] = {
    ".json": chats_as_json,
    ".md": chats_as_markdown,
    ".markdown": chats_as_markdown,
}
