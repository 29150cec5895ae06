"""What a batch of requests asks of the sampler, as tensors with one row a request.

Everything that decides which work a batch needs at all is settled here, on the host.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.request import Request, SamplingParams

GREEDY_BELOW = 1e-5  # temperatures below differ from greedy by less than float32 logits can tell
SORTED_TOP_K = 255  # up to here top-k sorts; beyond, and for top-p alone, selecting by digits is faster
SPARE_CANDIDATES = 16  # 16-bit logits tie often; equals of the last of top-k beyond these are cut


@dataclass(frozen=True, slots=True)
class Penalties:
    """The tokens that each row has seen, once each, and how it penalises them.

    Rows are padded to the same width with repetitions of an entry, which write the same value again.
    """

    ids: Tensor  # int64 [n, m]: in prompt or output
    counts: Tensor  # float32 [n, m]: times in the output
    repetition: Tensor  # float32 [n, 1]
    presence: Tensor  # float32 [n, 1]
    frequency: Tensor  # float32 [n, 1]


@dataclass(frozen=True, slots=True)
class SamplingKind:
    """Which work a batch needs at all; equal kinds of equal size launch the same kernels.

    Attributes:
        candidates: columns for rows that are drawn from sorted candidates; 0 without such rows.
        whole: rows are drawn from the whole vocabulary.
        select_k: some of those have a top-k.
        select_p: some of those have a top-p.
        logprobs: most alternatives that any row wants.
        penalised: some row has a penalty.
    """

    candidates: int = 0
    whole: bool = False
    select_k: bool = False
    select_p: bool = False
    logprobs: int = 0
    penalised: bool = False

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int) -> "SamplingKind":
        """The kind of a batch with one entry of ``params`` a row."""
        drawn = [p for p in params if not is_greedy(p)]
        whole = [p for p in drawn if not 0 < p.top_k <= SORTED_TOP_K]
        top_k = max((p.top_k for p in drawn if p.top_k <= SORTED_TOP_K), default=0)
        return cls(
            # Some more than top_k, so that tokens as likely as the last one are candidates too.
            candidates=min(vocab_size, 1 << (top_k + SPARE_CANDIDATES - 1).bit_length()) if top_k else 0,
            whole=bool(whole),
            select_k=any(p.top_k > 0 for p in whole),
            select_p=any(p.top_p < 1.0 for p in whole),
            logprobs=max((p.logprobs for p in params), default=0),
            penalised=any(map(_penalised, params)),
        )

    @property
    def greedy(self) -> bool:
        """Every token is the most likely one and nothing else is asked for."""
        return not (self.candidates or self.whole or self.logprobs or self.penalised)

    @property
    def static(self) -> bool:
        """The parameters are plain columns, without lists of tokens that grow."""
        return not self.penalised and not self.logprobs


@dataclass(frozen=True, slots=True)
class DrawingWays:
    """The rows that are drawn from the whole vocabulary, by what bounds them; int64 [any], rising."""

    free: Tensor  # nothing
    bounded: Tensor  # top-p or min-p
    cut: Tensor  # top-k, with or without the others

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> "DrawingWays":
        """One entry of ``params`` a row."""
        free: list[int] = []
        bounded: list[int] = []
        cut: list[int] = []
        for row, p in enumerate(params):
            if is_greedy(p) or 0 < p.top_k <= SORTED_TOP_K:
                continue
            way = cut if p.top_k else bounded if p.top_p < 1.0 or p.min_p > 0.0 else free
            way.append(row)
        return cls(*(torch.tensor(rows, dtype=torch.int64) for rows in (free, bounded, cut)))


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Parameters of a batch as columns; row i belongs to request i.

    Attributes:
        ways: set where drawing may look at values, on a CPU and outside of graphs.
    """

    greedy: Tensor  # bool [n, 1]
    temperature: Tensor  # float32 [n, 1], 1 in greedy rows
    top_k: Tensor  # int64 [n, 1], 0 is off
    top_p: Tensor  # float64 [n, 1]
    min_p: Tensor  # float32 [n, 1]
    seed: Tensor  # int64 [n]
    position: Tensor  # int64 [n]
    penalties: Penalties | None
    kind: SamplingKind
    ways: DrawingWays | None = None

    @classmethod
    def of(cls, requests: Sequence[Request], device: torch.device, vocab_size: int) -> "SamplingBatch":
        """Columns for the next token of each request; two copies to the device, more with penalties."""
        params = [request.params for request in requests]
        greedy = [is_greedy(p) for p in params]
        kind = SamplingKind.of(params, vocab_size)
        device = _sampling_device(device)
        reals = _columns(
            [
                [1.0 if still else p.temperature for p, still in zip(params, greedy)],
                [p.top_p for p in params],
                [p.min_p for p in params],
            ],
            torch.float64,
            device,
        )
        ids = _columns(
            [
                greedy,
                [p.top_k for p in params],
                [request.seed for request in requests],
                [request.num_tokens for request in requests],
            ],
            torch.int64,
            device,
        )
        return cls(
            greedy=ids[0].bool()[:, None],
            temperature=reals[0].float()[:, None],
            top_k=ids[1][:, None],
            top_p=reals[1][:, None],
            min_p=reals[2].float()[:, None],
            seed=ids[2],
            position=ids[3],
            penalties=_penalties(requests, device) if kind.penalised else None,
            kind=kind,
            ways=DrawingWays.of(params) if device.type == "cpu" and kind.whole else None,
        )

    def rows(self, index: Tensor) -> "SamplingBatch":
        """Some of the rows, int64 [m], as they are behind the penalties and outside of ``ways``."""
        return SamplingBatch(
            self.greedy[index],
            self.temperature[index],
            self.top_k[index],
            self.top_p[index],
            self.min_p[index],
            self.seed[index],
            self.position[index],
            None,
            self.kind,
        )


class SamplingColumns:
    """Batches of one step after the other on a CPU, where building one anew takes as long as drawing from it.

    While parameters and seeds are those of the step before, row by row, only positions are new.
    """

    def __init__(self, device: torch.device, vocab_size: int) -> None:
        self._device = device
        self._vocab_size = vocab_size
        self._params: list[SamplingParams] = []
        self._seeds: list[int] = []
        self._batch: SamplingBatch | None = None

    def of(self, requests: Sequence[Request]) -> SamplingBatch:
        """As ``SamplingBatch.of``."""
        params = [request.params for request in requests]
        seeds = [request.seed for request in requests]
        batch = self._batch
        if batch is None or params != self._params or seeds != self._seeds:
            batch = SamplingBatch.of(requests, self._device, self._vocab_size)
            # What penalties look at grows with every step; other devices get all columns in two copies.
            keeps = batch.penalties is None and batch.greedy.device.type == "cpu"
            self._params, self._seeds, self._batch = params, seeds, batch if keeps else None
            return batch
        positions = np.array([request.num_tokens for request in requests], dtype=np.int64)
        return replace(batch, position=torch.from_numpy(positions))


def is_greedy(params: SamplingParams) -> bool:
    """True where the token is the most likely one, whatever the noise."""
    return params.temperature < GREEDY_BELOW or params.top_k == 1 or params.min_p == 1.0


def _penalised(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    )


def _penalties(requests: Sequence[Request], device: torch.device) -> Penalties:
    """Columns of what each penalised row has seen; prompt and output stay apart."""
    params = [request.params for request in requests]
    reals = _columns(
        [
            [p.repetition_penalty for p in params],
            [p.presence_penalty for p in params],
            [p.frequency_penalty for p in params],
        ],
        torch.float32,
        device,
    )
    seen = [_seen(request) if _penalised(request.params) else {0: 0} for request in requests]
    longest = max(map(len, seen))
    width = 1 << (longest - 1).bit_length()
    ids = [_padded(list(row), width) for row in seen]
    counts = [_padded(list(row.values()), width) for row in seen]
    repetition, presence, frequency = (column[:, None] for column in reals)
    return Penalties(
        _columns(ids, torch.int64, device),
        _columns(counts, torch.float32, device),
        repetition,
        presence,
        frequency,
    )


def _padded(values: list[int], width: int) -> list[int]:
    return values + values[:1] * (width - len(values))


def _seen(request: Request) -> dict[int, int]:
    """Every token of prompt and output with its count in the output."""
    return dict.fromkeys(request.prompt_ids, 0) | Counter(request.output_ids)


def _columns(columns: list[list], dtype: torch.dtype, device: torch.device) -> Tensor:
    """One copy for several columns; pinned, so that the host does not wait for it."""
    host = torch.tensor(columns, dtype=dtype, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)


def _sampling_device(device: torch.device) -> torch.device:
    """Metal has neither float64 nor 64-bit scatter; there the logits come to the CPU."""
    return torch.device("cpu") if device.type == "mps" else device
