"""Names for the content of full KV blocks, and which block holds what. Torch-free.

The name of a block is a hash over its tokens and the name of the block before it, so that equal
names mean equal prefixes. The idea is vLLM's automatic prefix caching; here a hit is believed only
after the tokens were compared, and a name that clashes ends the chain of the request it clashed for,
so that a weak hash costs hits and never another chat's KV.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from engine.request import Request

Key = bytes
KEY_BYTES = 16


def root_key(parts: Mapping[str, str]) -> Key:
    """The name that all chains start from; every part is tagged with its name and its length.

    Args:
        parts: what KV depends on beside the tokens, such as ``{"model": ..., "dtype": ..., "salt": ...}``.
    """
    digest = blake2b(digest_size=KEY_BYTES)
    for name in sorted(parts):
        for text in (name.encode(), parts[name].encode()):
            digest.update(len(text).to_bytes(8, "little") + text)
    return digest.digest()


def block_key(parent: Key, tokens: Sequence[int]) -> Key:
    """The name of a full block with these tokens behind ``parent``."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=KEY_BYTES).digest()


def token_slice(request: Request, start: int, end: int) -> list[int]:
    """Tokens ``[start, end)`` of prompt and output without joining the two."""
    prompt = len(request.prompt_ids)
    if end <= prompt:
        return request.prompt_ids[start:end]
    if start >= prompt:
        return request.output_ids[start - prompt : end - prompt]
    return request.prompt_ids[start:] + request.output_ids[: end - prompt]


@dataclass(slots=True)
class Chain:
    """The names of one request's full blocks, computed once; tokens of a request never change.

    ``published`` counts the leading blocks that need no more publishing; ``None`` after a clash.
    """

    keys: list[Key] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    published: int | None = 0

    def extend(self, request: Request, count: int, block_size: int, root: Key) -> None:
        """Name the blocks up to ``count``, all of which must be full."""
        for index in range(len(self.keys), count):
            tokens = tuple(token_slice(request, index * block_size, (index + 1) * block_size))
            self.tokens.append(tokens)
            self.keys.append(block_key(self.keys[-1] if self.keys else root, tokens))


class PrefixIndex:
    """Published blocks by name. A block has one name, a name has one block."""

    def __init__(self) -> None:
        self._block_of: dict[Key, int] = {}
        self._content: dict[int, tuple[Key, tuple[int, ...]]] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._content

    def __len__(self) -> int:
        return len(self._content)

    def find(self, key: Key, tokens: tuple[int, ...]) -> int | None:
        """The block of this name that really holds these tokens."""
        block = self._block_of.get(key)
        return block if block is not None and self._content[block][1] == tokens else None

    def add(self, key: Key, tokens: tuple[int, ...], block: int) -> bool:
        """Publish; False when the name is taken, by an equal block or by a clash."""
        if key in self._block_of:
            return False
        self._block_of[key] = block
        self._content[block] = (key, tokens)
        return True

    def drop(self, block: int) -> None:
        """Forget a block that is about to be reused."""
        key, _ = self._content.pop(block)
        del self._block_of[key]

    def content(self, block: int) -> tuple[Key, tuple[int, ...]] | None:
        """Name and tokens of a block; None when it is not published."""
        return self._content.get(block)

    def blocks(self) -> list[int]:
        """All published blocks, ascending."""
        return sorted(self._content)

    def check(self) -> bool:
        """True when both directions of the index agree."""
        forward = {block: key for key, block in self._block_of.items()}
        return forward == {block: key for block, (key, _) in self._content.items()}
