"""From a model's name to a module ready to run: ``resolve`` finds the files, ``load`` reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from engine.chat import ChatRenderer
from engine.errors import ModelError, RequestError
from engine.models.gguf_weights import is_matrix
from engine.models.memory import require
from engine.models.packed import Packing
from engine.models.plain_tokenizer import facts_of
from engine.models.quiet import quiet
from engine.models.random_model import random_config, random_module, random_tokenizer
from engine.models.remembered import Facts, Remembered, recall
from engine.models.shapes import NOTE, SHAPES
from engine.models.skeleton import assembled, bones_of
from engine.models.source import ModelSource, OnProgress, no_progress, resolve
from engine.models.support import context_limit, end_token_ids, model_class
from engine.models.weights import Build, Shards, num_bytes
from engine.records import Progress

__all__ = ["Loaded", "ModelSource", "load", "resolve"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory.

    Attributes:
        model: transformers causal language model in eval mode; its attention is ``attn_implementation``.
        config: the transformers configuration.
        tokenizer: the transformers tokenizer with its chat template.
        eos_token_ids: every token that ends an answer.
        max_model_len: longest sequence in tokens that the positions allow.
        weight_bytes: parameters and buffers, tied ones once.
        stop: strings that end a chat's answer where the model has no end-of-turn token.
        notes: what the user should know, one sentence each.
        stored: names of the weights that the files have; empty where there are none, or none was asked.
    """

    model: nn.Module
    config: Any
    tokenizer: Any
    eos_token_ids: frozenset[int]
    max_model_len: int
    weight_bytes: int
    stop: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stored: Mapping[str, Any] = field(default_factory=dict)


def load(
    source: ModelSource,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    trust_remote_code: bool = False,
    progress: OnProgress = no_progress,
    attn_implementation: str = "sdpa",
    packing: Packing | None = None,
    known: Remembered | None = None,
) -> Loaded:
    """Read a model's configuration, tokenizer and weights.

    Args:
        dtype: of the floating-point weights.
        attn_implementation: name registered with transformers' ``AttentionInterface``.
        packing: what the matrices of the layers will be packed from; they are left as they are stored.
        known: what transformers said of this model before; the module is for the fused decoder only then.

    Raises:
        ModelError: unsupported architecture, missing or broken files, or remote code that is not allowed.
        OutOfMemory: before anything is read, with the numbers.
    """
    device = torch.device(device)
    progress(Progress("loading", source.name))
    as_stored = is_matrix if packing is not None else _none
    if known is not None:
        return _recalled(source, known, dtype, device, progress, packing, as_stored)
    quiet()
    config = transformers_config(source, trust_remote_code)
    stored: Mapping[str, Any] = {}
    tokenizer: Any
    if source.shape is not None:
        tokenizer, model = _random(source, source.shape, config, dtype, device, progress, attn_implementation)
    else:
        build = Build(
            kind=model_class(config, source.name, source.path if trust_remote_code else None),
            config=config,
            folder=source.path,
            shards=Shards(source.path),
            dtype=dtype,
            device=device,
            attention=attn_implementation,
            trust_remote_code=trust_remote_code,
            as_stored=as_stored,
        )
        need = build.shards.num_bytes(dtype) if packing is None else packing.num_bytes()
        _require(need, source, dtype, device)
        tokenizer = read_tokenizer(source, trust_remote_code)
        model = build.run(progress)
        stored = build.shards.shapes
    limit, limit_note = context_limit(config)
    chat = ChatRenderer(tokenizer)
    ends = end_token_ids(tokenizer, config, getattr(model, "generation_config", None))
    return Loaded(
        model=model,
        config=config,
        tokenizer=tokenizer,
        eos_token_ids=frozenset(ends | _end_of_turn(chat)),
        max_model_len=limit,
        weight_bytes=num_bytes(model),
        stop=chat.stop,
        notes=tuple(note for note in (NOTE if source.shape else "", limit_note, chat.note) if note),
        stored=stored,
    )


def _recalled(
    source: ModelSource,
    known: Remembered,
    dtype: torch.dtype,
    device: torch.device,
    progress: OnProgress,
    packing: Packing | None,
    as_stored: Callable[[str], bool],
) -> Loaded:
    """The same of what is known already, and the weights."""
    shards = Shards(source.path)
    _require(shards.num_bytes(dtype) if packing is None else packing.num_bytes(), source, dtype, device)
    facts = known.facts
    model = assembled(facts.bones, shards.read(dtype, device, progress, as_stored), device)
    return Loaded(
        model=model,
        config=model.config,
        tokenizer=known.tokenizer(source),
        eos_token_ids=frozenset(facts.eos_token_ids),
        max_model_len=facts.max_model_len,
        weight_bytes=num_bytes(model),
        stop=tuple(facts.stop),
        notes=tuple(facts.notes),
    )


def facts_to_keep(loaded: Loaded, dtype: torch.dtype) -> tuple[Facts, str] | None:
    """What later starts need of a model as ``load`` gave it, and the text of the tokenizer's file.

    None where they need transformers.
    """
    if not loaded.stored:
        return None
    bones, spoken = bones_of(loaded.model, loaded.stored), facts_of(loaded.tokenizer)
    if bones is None or spoken is None:
        return None
    facts = Facts(
        dtype=str(dtype),
        bones=bones,
        tokenizer=spoken[0],
        eos_token_ids=sorted(loaded.eos_token_ids),
        max_model_len=loaded.max_model_len,
        stop=list(loaded.stop),
        notes=list(loaded.notes),
    )
    return facts, spoken[1]


def _none(_: str) -> bool:
    return False


def _random(
    source: ModelSource,
    shape: str,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    progress: OnProgress,
    attention: str,
) -> tuple[Any, nn.Module]:
    """Tokenizer and module of a shape, without a file."""
    _require(SHAPES[shape].parameters * dtype.itemsize, source, dtype, device)
    progress(Progress("loading weights", f"drawing {shape}"))
    module = random_module(
        model_class(config, source.name), config, dtype=dtype, device=device, attention=attention
    )
    return random_tokenizer(SHAPES[shape]), module


def _require(need: int, source: ModelSource, dtype: torch.dtype, device: torch.device) -> None:
    """See that the weights fit.

    Raises:
        OutOfMemory: with the numbers.
    """
    half = "use --dtype bfloat16 for half of it, " if dtype.itemsize == 4 else ""
    require(
        need,
        device,
        f"{source.name} in {str(dtype).removeprefix('torch.')}",
        f"Close other programs, {half}or take a smaller model.",
    )


def _end_of_turn(chat: ChatRenderer) -> set[int]:
    """What the chat template writes after an answer: base tokenizers often name another end token."""
    try:
        token = chat.end_of_turn
    except RequestError:
        return set()
    return set() if token is None else {token}


def read_config(source: ModelSource, trust_remote_code: bool) -> Any:
    """The configuration of a folder or a shape: transformers' own, or the values that it gave before.

    Raises:
        ModelError: see ``transformers_config``.
    """
    known = None if trust_remote_code else recall(source)
    return transformers_config(source, trust_remote_code) if known is None else known.config()


def transformers_config(source: ModelSource, trust_remote_code: bool) -> Any:
    """The transformers configuration of a folder or a shape.

    Raises:
        ModelError: unreadable, unknown architecture, or code of the repository's own.
    """
    from transformers import AutoConfig

    if source.shape is not None:
        return random_config(SHAPES[source.shape])
    try:
        return AutoConfig.from_pretrained(
            str(source.path), trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # transformers raises many kinds here, and whatever remote code raises
        raise _explain(error, source, "config.json", trust_remote_code) from error


def read_tokenizer(source: ModelSource, trust_remote_code: bool) -> Any:
    """The transformers tokenizer of a folder.

    Raises:
        ModelError: missing or unreadable.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(source.path), trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:
        raise _explain(error, source, "the tokenizer", trust_remote_code) from error


def _explain(error: Exception, source: ModelSource, part: str, trust_remote_code: bool) -> ModelError:
    text = str(error)
    if "trust_remote_code" in text and not trust_remote_code:
        return ModelError(
            f"{source.name} ships Python code of its own, which is not run unless you say so.",
            "Read that code, then start with --trust-remote-code.",
        )
    if "does not recognize this architecture" in text or "model type" in text or "model_type" in text:
        return ModelError(
            f"{source.name} has an architecture that transformers does not know: {_model_type(source)}.",
            "Upgrade transformers, or choose another model.",
        )
    line = (text.strip().splitlines() or [type(error).__name__])[0]
    return ModelError(
        f"{source.name}: {part} in {source.path} cannot be read: {line}", "Fetch the file again."
    )


def _model_type(source: ModelSource) -> str:
    import json

    try:
        return repr(json.loads((source.path / "config.json").read_text("utf-8"))["model_type"])
    except (OSError, ValueError, KeyError, TypeError):
        return "config.json names no model_type"
