"""One parse of a GGUF file for a whole conversion; transformers by itself makes four, each in full."""

import contextlib
import functools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SPECIAL_TOKENS = (
    ("bos_token", "bos"),
    ("eos_token", "eos"),
    ("unk_token", "unknown"),
    ("pad_token", "padding"),
)
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# From the tokenizer.json of Llama 3 and Qwen2: digits in threes, and one by one.
SPLITS = {"llama-bpe": _WORDS + r"\p{N}{1,3}" + _REST, "qwen2": _WORDS + r"\p{N}" + _REST}


class GGUFFile:
    """A parsed GGUF file, in the shape of the gguf library's reader.

    Args:
        lists: read the lists of the header; without them its vocabulary is skipped, which saves most of the
            time.

    Attributes:
        tensors: the reader's tensors.
        with_tokenizer: whether ``fields`` has the vocabulary; those lists cost seconds to walk, and only
            building the tokenizer needs them.

    Raises:
        ValueError, KeyError, IndexError, TypeError: whatever the gguf library trips over in a broken file.
    """

    def __init__(self, path: Path, *, lists: bool = True) -> None:
        import gguf

        class Reader(gguf.GGUFReader):
            """Reads through a plain array: slicing a memory map object by object takes most of the time."""

            def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
                plain = self.__dict__.setdefault("_plain", np.asarray(self.data))
                order = self.byte_order if override_order is None else override_order
                kind = np.dtype(dtype).newbyteorder(order)
                return plain[offset : offset + kind.itemsize * int(count)].view(kind)

            def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
                plain = self.__dict__["_plain"]
                if lists or raw_type != gguf.GGUFValueType.ARRAY or self.byte_order != "I":
                    return super()._get_field_parts(orig_offs, raw_type)
                item, count = struct.unpack_from("=IQ", plain, orig_offs)
                types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(item)]
                size = 12
                if item == gguf.GGUFValueType.STRING:
                    for _ in range(count):
                        size += 8 + struct.unpack_from("=Q", plain, orig_offs + size)[0]
                elif item in self.gguf_scalar_to_np:
                    size += count * np.dtype(self.gguf_scalar_to_np[item]).itemsize
                else:
                    return super()._get_field_parts(orig_offs, raw_type)
                return size, [], [], types

        self._reader = Reader(str(path))
        self.tensors = self._reader.tensors
        self.with_tokenizer = True
        self.architecture = str(self._value("general.architecture") or "unknown")
        self.split_count = int(self._value("split.count") or 1)
        self.parameters = sum(int(tensor.n_elements) for tensor in self.tensors)

    @property
    def fields(self) -> dict[str, Any]:
        """The header's fields by name."""
        fields: dict[str, Any] = self._reader.fields
        if self.with_tokenizer:
            return fields
        counted = f"{self.architecture}.vocab_size" not in fields  # the list's length stands in for it
        lists = {"tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"}
        lists |= set() if counted else {"tokenizer.ggml.tokens"}
        return {name: field for name, field in fields.items() if name not in lists}

    def get_field(self, key: str) -> Any:
        """One field, or None."""
        return self._reader.get_field(key)

    def correct(self, tokenizer: Any) -> None:
        """Put right what versions of transformers leave out or mix up: special tokens, splitting, spaces."""
        for kind, key in SPECIAL_TOKENS:
            token = self._value(f"tokenizer.ggml.{key}_token_id")
            if token is not None:
                setattr(tokenizer, kind, tokenizer.convert_ids_to_tokens(int(token)))
        tokenizer.clean_up_tokenization_spaces = False
        split = splitting(str(self._value("tokenizer.ggml.pre") or ""))
        if split is not None:
            tokenizer.backend_tokenizer.pre_tokenizer = split

    def _value(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()


def splitting(pre: str) -> Any | None:
    """How a byte-level vocabulary's text is cut before merging, as the models' own tokenizers do it."""
    from tokenizers import Regex, pre_tokenizers

    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if pre in SPLITS:
        words = pre_tokenizers.Split(Regex(SPLITS[pre]), behavior="isolated")
        return pre_tokenizers.Sequence(
            [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    return None


@contextlib.contextmanager
def shared(file: GGUFFile, path: Path) -> Iterator[None]:
    """While this lasts, whoever asks the gguf library for ``path`` gets ``file``.

    The table of tensor names is kept as well: transformers asks for it once for every module of a model.
    """
    import gguf

    reader = gguf.GGUFReader

    def give(name: Any, *args: Any, **kwargs: Any) -> Any:
        return file if Path(name) == path else reader(name, *args, **kwargs)

    names = functools.cache(gguf.get_tensor_name_map)
    with replaced(gguf, "GGUFReader", give), replaced(gguf, "get_tensor_name_map", names):
        yield


@contextlib.contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of a module for a while."""
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)
