"""Requests as people send them: mixed lengths, arriving at random. Torch-free."""

import math
import random
from dataclasses import dataclass
from typing import Literal, get_args

from engine.errors import ConfigError

Lengths = Literal["lognormal", "uniform"]
SIGMA = 0.8  # spread of the lognormal: one in twenty is about 2.7 times the mean or longer


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: seconds after the start, and its lengths in tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load to draw.

    Attributes:
        requests: how many.
        rate: mean arrivals a second, as a Poisson process; 0 lets all arrive at the start.
        lengths: distribution of prompt and output lengths.
        prompt_mean, output_mean: mean lengths in tokens, before they are cut to what fits.
        seed: of lengths, arrivals and tokens.
    """

    requests: int
    rate: float = 0.0
    lengths: Lengths = "lognormal"
    prompt_mean: int = 512
    output_mean: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("requests", "prompt_mean", "output_mean"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} must be at least 1; it is {getattr(self, name)}.")
        if not 0 <= self.rate < math.inf:
            raise ConfigError(f"--rate must be 0 or more requests a second; it is {self.rate}.")
        if self.lengths not in get_args(Lengths):
            raise ConfigError(
                f"--lengths {self.lengths!r} is unknown.", f"Choose one of {', '.join(get_args(Lengths))}."
            )

    def draw(self, most_tokens: int) -> list[Arrival]:
        """All requests in order of arrival; prompt and output of each fit into ``most_tokens`` together."""
        numbers = random.Random(f"load {self.seed}")
        arrivals, now = [], 0.0
        for _ in range(self.requests):
            if self.rate:
                now += numbers.expovariate(self.rate)
            prompt = min(self._length(numbers, self.prompt_mean), most_tokens - 1)
            output = min(self._length(numbers, self.output_mean), most_tokens - prompt)
            arrivals.append(Arrival(now, prompt, output))
        return arrivals

    def _length(self, numbers: random.Random, mean: int) -> int:
        if self.lengths == "uniform":
            return numbers.randint(1, 2 * mean - 1)
        # The mean of a lognormal is exp(mu + sigma^2 / 2).
        return max(1, round(numbers.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA)))
