"""How many tokens a text has, without the engine: by the model's own tokenizer file, else by a guess.

Only the ``tokenizers`` library is used, which loads no torch. Everything here reads the disk or computes for
a while, so it is called on a thread; the library lets other threads run meanwhile.
"""

from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

BYTES_PER_TOKEN = 4  # of ordinary text; a guess where no tokenizer is at hand
FILE = "tokenizer.json"


class Count(NamedTuple):
    """Tokens; not ``exact`` where they are a guess."""

    tokens: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{'' if self.exact else '~'}{self.tokens:,}"


class TokenCounter:
    """Counts for one model after the other; the tokenizer of the last one is kept."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._path = ""
        self._tokenizer: Any = None

    def count(self, text: str, model_path: str) -> Count:
        """Tokens of ``text`` alone, without what a chat template writes around it."""
        if not text:
            return Count(0)
        tokenizer = self._of(model_path)
        if tokenizer is None:
            return _guess(text)
        try:  # in a batch of one, because that leaves the interpreter to other threads
            (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except Exception:  # a text that this tokenizer has no tokens for, as the library says in many ways
            return _guess(text)
        return Count(len(encoding))

    def _of(self, model_path: str) -> Any:
        with self._lock:
            if model_path != self._path:
                self._path, self._tokenizer = model_path, _load(model_path)
            return self._tokenizer


def _guess(text: str) -> Count:
    return Count(-(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN), exact=False)


def _load(model_path: str) -> Any:
    """The tokenizer in a model's folder; None where there is none that can be read."""
    file = Path(model_path) / FILE
    try:
        if not model_path or not file.is_file():
            return None
        from tokenizers import Tokenizer  # 25 ms that nobody waits for at the start

        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.encode_special_tokens = True  # "<|im_end|>" in a prompt is text, as the engine takes it
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except Exception:  # whatever the library raises for a file of another version: a guess does as well
        return None
    return tokenizer
