"""What fewer bits cost on a CPU: perplexity of each form of the weights, and greedy answers beside float32.

    python -m benchmarks.cpu_quality [--json FILE]

The text is the beginning of "A Scandal in Bohemia" by Arthur Conan Doyle (1891, public domain; after Project
Gutenberg's text 1661): 4,000 tokens in windows of 1,000, each of which begins without a past. The reference
is float32 throughout, with the weights dequantised from the model's file; the goal is a perplexity within
1 % of it. A window is one prefill. Torch's packed kernel has its copies for many rows taken away, so that it
computes them too. Forms that this machine cannot run are left out.

* ``ratio``: perplexity over that of float32; ``ratio_error``: its standard error, from the differences token
  by token;
* ``same_choice``: share of tokens for which both think the same one likeliest;
* ``greedy``: how many answers are equal to those of float32 and after how many tokens the others part; see
  ``benchmarks.cpu_answers``.
"""

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cpu_answers import PROMPTS, answers, parting, side_by_side, summed
from benchmarks.cpu_decode import processor
from benchmarks.peers import markdown
from engine import Engine, EngineConfig
from engine.attention.base import PagedBatch
from engine.bench.measure import rounded
from engine.bench.report import document, write_json
from engine.config import DEFAULT_MODEL, DType, Quant
from engine.errors import EngineError
from engine.models.decoder import FusedDecoder
from engine.models.packed import PackedWeight
from engine.native import library
from engine.native.library import native_missing

PROSE = Path(__file__).with_name("prose.txt")
SWITCH = "TUI_INFER_NATIVE"
GOAL = 0.01
LINEARS = ("qkv", "out", "gate_up", "down")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """In which numbers a model's weights are, and what computes with them.

    Attributes:
        native: the C decoder may run.
    """

    name: str
    dtype: DType = "bfloat16"
    quant: Quant = "auto"
    native: bool = True


REFERENCE = Form("float32", dtype="float32")
OWN_BITS = Form("own bits, in C")
FORMS = (
    REFERENCE,
    Form("bfloat16", quant="none"),
    OWN_BITS,
    Form("own bits, by torch's packed kernel", native=False),
    Form("int4", quant="int4"),
    Form("int8", quant="int8"),
)


@contextmanager
def opened(form: Form, model: str = DEFAULT_MODEL) -> Iterator[Engine]:
    """An engine with weights in that form."""
    before = os.environ.get(SWITCH)
    if not form.native:
        os.environ[SWITCH] = "0"
    library._loaded.cache_clear()
    try:
        with Engine(
            EngineConfig(
                model=model, device="cpu", dtype=form.dtype, quant=form.quant, max_batch=len(PROMPTS)
            )
        ) as engine:
            yield engine
    finally:
        if not form.native:
            os.environ.pop(SWITCH)
            os.environ.update({} if before is None else {SWITCH: before})
        library._loaded.cache_clear()


def fused(engine: Engine) -> FusedDecoder:
    """The model.

    Raises:
        EngineError: it is another.
    """
    if not isinstance(engine.runner.model, FusedDecoder):
        raise EngineError("Only the fused decoder has weights in several forms.")
    return engine.runner.model


def leave_to_kernel(decoder: FusedDecoder) -> None:
    """Take the copies for many rows away, where there are any."""
    for layer in decoder.layers:
        for name in LINEARS:
            weight = getattr(layer, name)
            if isinstance(weight, PackedWeight):
                setattr(layer, name, replace(weight, wide=None))
    if decoder.packed_head is not None:
        decoder.packed_head = replace(decoder.packed_head, wide=None)


@torch.inference_mode()
def predicted(engine: Engine, ids: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Of each token behind the first its loss in nats and the token that was likeliest: [n - 1] each.

    Args:
        ids: [n] int64.
        window: tokens that are predicted in one prefill. The next one begins with the last of them.

    Raises:
        EngineError: the model does not run in the fused decoder.
    """
    decoder, cache = fused(engine), engine.runner.cache
    losses, best = [], []
    for begin in range(0, len(ids) - 1, window):
        part = ids[begin : begin + window + 1]
        count, size = len(part) - 1, cache.block_size
        batch = PagedBatch(
            slot_mapping=torch.arange(size, size + count),
            block_tables=torch.arange(1, 2 + count // size, dtype=torch.int32)[None],
            context_lens=torch.tensor([count], dtype=torch.int32),
            cu_seqlens_q=torch.tensor([0, count], dtype=torch.int32),
            query_lens=(count,),
            contexts=(count,),
            decode=False,
        )
        logits = decoder.forward(part[:-1], torch.arange(count), batch, cache, None)
        losses.append(F.cross_entropy(logits, part[1:], reduction="none").double())
        best.append(logits.argmax(dim=-1))
    return torch.cat(losses), torch.cat(best)


def against(losses: Tensor, best: Tensor, exact_losses: Tensor, exact_best: Tensor) -> Row:
    """Perplexity of one form beside the reference's, as the module says."""
    more = losses - exact_losses
    ratio = more.mean().exp().item()
    return {
        "perplexity": rounded(losses.mean().exp().item()),
        "ratio": rounded(ratio, 6),
        "ratio_error": rounded(ratio * more.std().item() / math.sqrt(len(more)), 2),
        "within_goal": abs(ratio - 1) <= GOAL,
        "same_choice": rounded((best == exact_best).double().mean().item(), 4),
    }


def table(rows: Sequence[Row]) -> str:
    """A line a form."""
    lines = [["weights", "perplexity", "over float32", "same likeliest token", "equal answers"]]
    for row in rows:
        ratio = f"{row['ratio']:.4f} ± {row['ratio_error']:.4f}"
        equal = f"{row['greedy']['equal']} of {row['greedy']['answers']}"
        lines.append([row["form"], f"{row['perplexity']:.3f}", ratio, f"{row['same_choice']:.1%}", equal])
    return markdown(lines)


def prose() -> str:
    """The text, a paragraph a line."""
    return "\n\n".join(part.replace("\n", " ") for part in PROSE.read_text("utf-8").strip().split("\n\n"))


def measure(model: str, tokens: int, window: int, prompts: Sequence[str], new: int) -> Row:
    """All forms one after the other: ``rows``, ``answers`` and ``skipped``.

    Raises:
        EngineError: the text has fewer tokens; the reference cannot run.
    """
    rows: list[Row] = []
    skipped: list[Row] = []
    said: dict[str, list[Row]] = {}
    exact: tuple[Tensor, Tensor] | None = None
    for form in FORMS:
        try:
            reason = native_missing() if form == OWN_BITS else ""
            if reason:
                raise EngineError(reason)
            with opened(form, model) as engine:
                ids = torch.tensor(engine.tokenizer.encode(prose())[: tokens + 1])
                if len(ids) <= tokens:
                    raise EngineError(f"The text has {len(ids) - 1} tokens to predict, not {tokens}.")
                leave_to_kernel(fused(engine))
                own = answers(engine, prompts, new)
                found = predicted(engine, ids, window)
                notes = list(engine.status().notes)
        except EngineError as error:
            if exact is None:
                raise
            skipped.append({"form": form.name, "reason": str(error)})
            continue
        exact, said[form.name] = exact or found, own
        partings = [parting(*pair) for pair in zip(said[REFERENCE.name], own)]
        figures = {**against(*found, *exact), "greedy": summed(partings)}
        rows.append({"form": form.name, **figures, "notes": notes})
        print(f"{form.name}: {figures['perplexity']}, {figures['ratio']} of float32", flush=True)
    return {"rows": rows, "answers": side_by_side(prompts, said, REFERENCE.name), "skipped": skipped}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=4000, help="that are predicted")
    parser.add_argument("--window", type=int, default=1000, help="tokens of a prefill")
    parser.add_argument("--new", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if min(chosen.tokens, chosen.window, chosen.new) < 1:
        parser.error("--tokens, --window and --new must be at least 1")
    settings = {key: getattr(chosen, key) for key in ("model", "tokens", "window", "new")}
    found = measure(chosen.model, chosen.tokens, chosen.window, PROMPTS, chosen.new)
    if chosen.json:
        about = {"processor": processor(), "text": PROSE.name, "goal": GOAL}
        write_json(chosen.json, document("cpu-quality", settings, {**about, **found}))
    print(table(found["rows"]))
    for row in found["skipped"]:
        print(f"left out: {row['form']}, {row['reason']}")


if __name__ == "__main__":
    main()
