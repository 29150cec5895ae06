"""The text of single tokens, for readers who want to see what a block holds. Torch-free."""

from collections.abc import Iterable, Sequence
from typing import Any

from engine.text import REPLACEMENT

SPACE_MARK = "\u2581"  # how SentencePiece writes a space; its decoders drop the one that begins a text


class TokenPieces:
    """Token ids to their texts, each decoded once and then remembered.

    Special tokens show as they are written; a token that is a part of a character shows as U+FFFD.

    Args:
        tokenizer: a transformers tokenizer; the Rust tokenizer behind it is used where there is one.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self._piece_of: dict[int, str] = {}

    def of(self, token_ids: Sequence[int]) -> list[str]:
        """One text a token, in the order of ``token_ids``."""
        known = self._piece_of
        unknown = [token for token in set(token_ids) if token not in known]
        if unknown:
            known.update(zip(unknown, self._decode(unknown)))
        return [known[token] for token in token_ids]

    def _decode(self, token_ids: list[int]) -> Iterable[str]:
        if self._backend is None:
            return [self._decode_slowly(token) for token in token_ids]
        texts = self._backend.decode_batch([[token] for token in token_ids], skip_special_tokens=False)
        return [_spaced(self._backend.id_to_token(token), text) for token, text in zip(token_ids, texts)]

    def _decode_slowly(self, token: int) -> str:
        """By a tokenizer in Python; some raise for ids between their vocabulary and the model's."""
        try:
            text = self._tokenizer.decode(
                [token], skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            return _spaced(self._tokenizer.convert_ids_to_tokens(token), text)
        except Exception:
            return REPLACEMENT


def _spaced(token: str | None, text: str) -> str:
    """The text with the spaces that its token begins with."""
    if token is None or not token.startswith(SPACE_MARK):
        return text
    wanted = len(token) - len(token.lstrip(SPACE_MARK))
    return " " * wanted + text.lstrip(" ")
