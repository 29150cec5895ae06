"""Token ids to text while they arrive: whole characters only, nothing of a stop string. Torch-free."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

REPLACEMENT = "\ufffd"  # what decoders put for bytes that are no character, or not yet
WINDOW_TOKENS = 8
MAX_HELD_TOKENS = 8  # a character has at most 4 bytes; more held tokens are plainly not text


class Piece(NamedTuple):
    """New text; ``stopped`` once a stop string was met, of which nothing is in any text."""

    text: str
    stopped: bool


class Detokenizer:
    """The text of one answer, token by token.

    All pieces and the final ``flush`` together are ``tokenizer.decode(ids, skip_special_tokens=True,
    clean_up_tokenization_spaces=False)``, cut before the first stop string. A token costs one decode of a
    window of 8 to 16 tokens. The window overlaps what was shown, because a decoder may treat the
    first token of a text differently (sentencepiece drops its leading space). Tokens of a byte-level
    tokenizer are the bytes of the text in order: behind a whole character a token that is whole itself has
    one text wherever it stands, which is decoded once for all answers.

    Args:
        tokenizer: a transformers tokenizer; the Rust tokenizer behind it is used where there is one.
        stop: strings that end the answer.
        hidden: ids that are never shown beside the special ones, such as end tokens.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...] = (), hidden: Iterable[int] = ()) -> None:
        self._decode = _decoder_of(tokenizer)
        self._silent = _special_ids(tokenizer) | frozenset(hidden)
        self._pieces = _pieces_of(tokenizer)
        self._whole = (
            None if stop else self._pieces
        )  # what stands for itself, with no stop string to look for
        self._stops = _StopStrings(stop)
        self._window: list[int] = []
        self._shown = 0  # characters of the decoded window that were handed out
        self._mark = 0  # a place inside the window where no character was cut
        self._complete = 0  # tokens of the window up to the last such place

    def push(self, token_ids: Sequence[int]) -> Piece:
        """Text that these tokens make certain."""
        if len(token_ids) == 1 and self._whole is not None and not self._window:
            piece = self._whole.get(token_ids[0])
            if piece is not None and token_ids[0] not in self._silent:
                return piece  # as most tokens of most answers
        text = "".join([self._push(token) for token in token_ids])
        return Piece(self._stops.feed(text), self._stops.met)

    def flush(self) -> str:
        """The rest, once no more tokens come: held characters and what did not become a stop string."""
        rest = self._decode(self._window)[self._shown :] if self._window else ""
        self._shown += len(rest)
        return self._stops.feed(rest) + self._stops.release()

    def _push(self, token: int) -> str:
        if token in self._silent:
            return ""
        window, pieces = self._window, self._pieces
        if pieces is not None and not window:
            if token in pieces:
                return pieces[token].text
            text = self._decode([token])
            if not text.endswith(REPLACEMENT):
                pieces[token] = Piece(text, False)
                return text
        window.append(token)
        text = self._decode(window)
        certain = len(text)
        if not text.endswith(REPLACEMENT):
            self._complete = len(window)
        elif len(window) - self._complete > MAX_HELD_TOKENS:
            return self._give_up(text)
        else:
            certain = len(text.rstrip(REPLACEMENT))
        new = text[self._shown : certain]
        self._shown = max(self._shown, certain)
        if pieces is not None and self._complete == len(window):
            window.clear()
            self._shown = self._mark = self._complete = 0
        elif self._complete == len(window) and len(window) - self._mark >= WINDOW_TOKENS:
            if self._mark:
                del window[: self._mark]
                self._shown = len(self._decode(window))
            self._mark = self._complete = len(window)
        return new

    def _give_up(self, text: str) -> str:
        """Show held tokens as they are, but for a last few that may begin a character after all."""
        window = self._window
        for keep in (3, 2, 1):
            rest = self._decode(window[-keep:])
            if self._decode(window[:-keep]) + rest == text:  # no character is cut between the two
                cut, shown = len(text) - len(rest), self._shown
                self._shown = max(0, shown - cut)
                break
        else:
            cut, shown = len(text), self._shown
            self._shown = len(rest)
        del window[:-keep]
        self._mark = self._complete = 0
        return text[shown:cut]


class _StopStrings:
    """Passes text on, but for a tail that can still become a stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.met = False

    def feed(self, text: str) -> str:
        if self.met or not text:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.met, self._held = True, ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def release(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


_pieces_of_tokens: WeakKeyDictionary[Any, dict[int, Piece] | None] = WeakKeyDictionary()


def _pieces_of(tokenizer: Any) -> dict[int, Piece] | None:
    """Whole characters of single tokens, as met so far, by byte-level tokenizer; None for others."""
    if tokenizer not in _pieces_of_tokens:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        byte_level = type(getattr(backend, "decoder", None)).__name__ == "ByteLevel"
        _pieces_of_tokens[tokenizer] = {} if byte_level else None
    return _pieces_of_tokens[tokenizer]


_special_ids_of: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()


def _special_ids(tokenizer: Any) -> frozenset[int]:
    """Ids that ``skip_special_tokens`` drops; found once per tokenizer."""
    ids = _special_ids_of.get(tokenizer)
    if ids is None:
        added = getattr(tokenizer, "added_tokens_decoder", {})
        ids = frozenset(id for id, token in added.items() if token.special)
        ids |= frozenset(getattr(tokenizer, "all_special_ids", ()))
        _special_ids_of[tokenizer] = ids
    return ids


def _decoder_of(tokenizer: Any) -> Callable[[list[int]], str]:
    """Ids to text with nothing cleaned up; special ids were taken out before."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return lambda ids: backend.decode(ids, skip_special_tokens=False)
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
