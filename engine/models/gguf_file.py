"""Reading a GGUF file with transformers: its configuration, tokenizer and dequantised weights."""

import contextlib
import textwrap
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.errors import ModelError
from engine.models.gguf_reader import GGUFFile, replaced, shared
from engine.models.memory import require
from engine.models.quiet import quiet
from engine.records import Progress

OnProgress = Callable[[Progress], None]

# Products of a 16-bit scale and a small integer are exact in float32 only. Above this size the disk
# matters more, and the weights are kept in bfloat16.
FLOAT32_PARAMETERS = 500_000_000


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
    from transformers import AutoTokenizer

    progress(Progress("converting", "reading the header", 0.02))
    with _broken_means(gguf):
        file = GGUFFile(gguf)
        if file.split_count > 1:
            raise ModelError(
                f"{gguf.name} is one of {file.split_count} parts.",
                "Merge the parts with `llama-gguf-split --merge`.",
            )
        dtype = torch.float32 if file.parameters <= FLOAT32_PARAMETERS else torch.bfloat16
        require(
            file.parameters * dtype.itemsize,
            torch.device("cpu"),
            f"Converting {gguf.name} ({file.parameters / 1e9:.2f} billion parameters)",
            "Close other programs, or take a smaller model.",
        )
        with shared(file, gguf):
            progress(Progress("converting", "tokenizer", 0.15))
            tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
            file.correct(tokenizer)
            file.with_tokenizer = False
            progress(Progress("converting", "configuration", 0.30))
            config = _config(gguf, file.architecture)
            model = _model(gguf, config, dtype, progress)
    progress(Progress("converting", "writing to disk", 0.90))
    model.save_pretrained(target)  # type: ignore[operator]
    tokenizer.save_pretrained(target)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "transformers": version("transformers"),
        "gguf": version("gguf"),
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


def _config(gguf: Path, architecture: str) -> Any:
    from transformers import AutoConfig

    loaded = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    # A model that says it is quantised cannot be saved; after dequantising it no longer is.
    values = {key: value for key, value in loaded.to_dict().items() if key != "quantization_config"}
    return type(loaded).from_dict(values)


def _model(gguf: Path, config: Any, dtype: torch.dtype, progress: OnProgress) -> nn.Module:
    from transformers import AutoModelForCausalLM, modeling_gguf_pytorch_utils

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    # Per-tensor progress: transformers walks the tensors in a tqdm loop, and offers no other hook.
    with replaced(modeling_gguf_pytorch_utils, "tqdm", lambda tensors, **_: _counted(tensors, progress)):
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
        progress(Progress("converting", tensor.name, 0.40 + 0.50 * done / total))


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
        RuntimeError,  # torch's: tensors of other sizes than the header's counts
        ZeroDivisionError,  # a count of 0
    ) as error:
        if "allocate memory" in str(error):  # torch's as well, and no fault of the file
            raise
        if "is not supported yet" in str(error) or "model type" in str(error):
            raise ModelError(
                f"{gguf.name} has an architecture that transformers cannot read from GGUF: {error}",
                "Use the model's safetensors version.",
            ) from error
        said = textwrap.shorten(str(error), 240, placeholder=" …")  # torch lists every tensor on a line
        raise _broken(gguf, f"{type(error).__name__}: {said}") from error


def _broken(gguf: Path, why: str) -> ModelError:
    return ModelError(f"{gguf} cannot be read as GGUF: {why}.", "The file may be cut short; fetch it again.")
