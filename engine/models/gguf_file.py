"""Reading a GGUF file with transformers: its configuration, tokenizer and dequantised weights."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.errors import ModelError
from engine.models.memory import require
from engine.models.quiet import quiet
from engine.records import Progress

OnProgress = Callable[[Progress], None]

# Products of a 16-bit scale and a small integer are exact in float32 only. Above this size the disk
# matters more, and the weights are kept in bfloat16.
FLOAT32_PARAMETERS = 500_000_000

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


def convert_file(gguf: Path, target: Path, progress: OnProgress) -> dict[str, str]:
    """Write ``config.json``, ``model.safetensors`` and the tokenizer of ``gguf`` into ``target``.

    Returns:
        Facts for the manifest: dtype and the versions used.

    Raises:
        ModelError: the file is broken, or its architecture is not known.
        OutOfMemory: the dequantised weights do not fit.
    """
    check_magic(gguf)
    quiet()
    import gguf as gguf_package
    import transformers

    with _one_reader(gguf) as names, _broken_means(gguf):
        progress(Progress("converting", "reading the header", 0.02))
        if names.split_count > 1:
            raise ModelError(
                f"{gguf.name} is one of {names.split_count} parts.",
                "Merge the parts with `llama-gguf-split --merge`.",
            )
        config = _config(gguf, names.architecture)
        progress(Progress("converting", "tokenizer", 0.10))
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        names.correct(tokenizer)
        dtype = torch.float32 if names.parameters <= FLOAT32_PARAMETERS else torch.bfloat16
        require(
            names.parameters * dtype.itemsize,
            torch.device("cpu"),
            f"Converting {gguf.name} ({names.parameters / 1e9:.2f} billion parameters)",
            "Close other programs, or take a smaller model.",
        )
        model = _model(gguf, config, dtype, progress)
    progress(Progress("converting", "writing to disk", 0.90))
    model.save_pretrained(target)  # type: ignore[operator]
    tokenizer.save_pretrained(target)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "transformers": transformers.__version__,
        "gguf": getattr(gguf_package, "__version__", "") or _version("gguf"),
    }


def check_magic(gguf: Path) -> None:
    """Refuse at once what is no GGUF file.

    Raises:
        ModelError: wrong first bytes, or too short for a header.
    """
    with gguf.open("rb") as file:
        head = file.read(24)
    if head[:4] != b"GGUF" or len(head) < 24:
        raise _broken(gguf, "it does not start with a GGUF header")


def _splitting(pre: str) -> Any | None:
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


class _Header:
    """What is needed of the header beyond what transformers reads."""

    def __init__(self, reader: Any) -> None:
        field = reader.get_field("general.architecture")
        split = reader.get_field("split.count")
        self.architecture = str(field.contents()) if field else "unknown"
        self.split_count = int(split.contents()) if split else 1
        pre = reader.get_field("tokenizer.ggml.pre")
        self._pre = str(pre.contents()) if pre else ""
        self._tokens = {
            kind: reader.get_field(f"tokenizer.ggml.{key}_token_id") for kind, key in SPECIAL_TOKENS
        }
        self.parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)

    def correct(self, tokenizer: Any) -> None:
        """Put right what versions of transformers leave out or mix up: special tokens, splitting, spaces."""
        for kind, field in self._tokens.items():
            if field is not None:
                setattr(tokenizer, kind, tokenizer.convert_ids_to_tokens(int(field.contents())))
        tokenizer.clean_up_tokenization_spaces = False
        split = _splitting(self._pre)
        if split is not None:
            tokenizer.backend_tokenizer.pre_tokenizer = split


@contextlib.contextmanager
def _one_reader(path: Path) -> Iterator[_Header]:
    """Parse the file once: transformers builds a reader for each of configuration, tokenizer and weights."""
    import gguf

    original = gguf.GGUFReader
    with _broken_means(path):
        reader = original(str(path))
        header = _Header(reader)

    def shared(name: Any, *args: Any, **kwargs: Any) -> Any:
        return reader if Path(name) == path else original(name, *args, **kwargs)

    gguf.GGUFReader = shared
    try:
        yield header
    finally:
        gguf.GGUFReader = original


def _config(gguf: Path, architecture: str) -> Any:
    from transformers import AutoConfig

    try:
        loaded = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    except ValueError as error:
        if "not supported" not in str(error) and "model type" not in str(error):
            raise
        raise ModelError(
            f"{gguf.name} has the architecture {architecture!r}, which transformers cannot read from GGUF.",
            "Use the model's safetensors version.",
        ) from error
    # A model that says it is quantised cannot be saved; after dequantising it no longer is.
    values = {key: value for key, value in loaded.to_dict().items() if key != "quantization_config"}
    return type(loaded).from_dict(values)


def _model(gguf: Path, config: Any, dtype: torch.dtype, progress: OnProgress) -> nn.Module:
    from transformers import AutoModelForCausalLM, modeling_gguf_pytorch_utils

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    # Per-tensor progress: transformers walks the tensors in a tqdm loop, and offers no other hook.
    with _replaced(modeling_gguf_pytorch_utils, "tqdm", lambda tensors, **_: _counted(tensors, progress)):
        loaded = modeling_gguf_pytorch_utils.load_gguf_checkpoint(
            str(gguf), return_tensors=True, model_to_load=model, torch_dtype=dtype
        )
    weights = loaded["tensors"]
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    absent = [name for name, value in model.named_parameters() if value.is_meta]
    if absent:
        raise _broken(
            gguf, f"{len(absent)} of {len(absent) + len(weights)} tensors are missing, such as {absent[0]}"
        )
    return model


def _counted(tensors: Iterable[Any], progress: OnProgress) -> Iterator[Any]:
    items = list(tensors)
    total = sum(int(tensor.n_elements) for tensor in items) or 1
    done = 0
    for tensor in items:
        yield tensor
        done += int(tensor.n_elements)
        progress(Progress("converting", tensor.name, 0.20 + 0.70 * done / total))


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(module, name, None)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


@contextlib.contextmanager
def _broken_means(gguf: Path) -> Iterator[None]:
    """Whatever the readers trip over in a damaged file is one error with a way out."""
    try:
        yield
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        OverflowError,
        UnicodeError,
    ) as error:
        raise _broken(gguf, f"{type(error).__name__}: {error}") from error


def _broken(gguf: Path, why: str) -> ModelError:
    return ModelError(f"{gguf} cannot be read as GGUF: {why}.", "The file may be cut short; fetch it again.")


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)
