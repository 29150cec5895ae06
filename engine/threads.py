"""How many threads a CPU engine computes with, chosen by measurement while it runs. Torch-free.

OpenMP's threads meet after every operator, hundreds of times a step. On a quiet machine all of them
together are the fastest; as soon as another program wants one of the cores, everybody waits for the
thread that lost its core, and a step takes many times as long as with a single thread, which waits for
nobody. Which is true changes by the minute, so the engine tries both and stays with the faster.

How they wait matters as much. GNU OpenMP looks 300,000 times whether the others have come, which is
milliseconds, before it sleeps; on a busy machine that is time in which the one who is waited for could have
run. A twentieth of it is still longer than operators differ, and costs a quiet machine nothing.
"""

from collections.abc import Callable, MutableMapping
from statistics import median

SPINS = 20_000

TRIAL_STEPS = 3
FIRST_TRIAL_AFTER = 12
FIRST_TRIAL_MS = 150.0  # or after steps that took so long together: on a busy machine twelve are seconds
TRIAL_EVERY = 96  # decode steps between trials: a trial costs a percent or two
SLOW_FACTOR = 2.0  # a step this much slower than the usual one calls for a trial at once
CLEAR_GAIN = 0.9


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Let threads that wait for each other sleep soon, in a process with this environment that loads torch
    later. Where the user said how they wait, that holds.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPINS))


class ThreadGovernor:
    """Watches decode steps of like batch and switches between all threads and one.

    Args:
        most: threads that there are; with one there is nothing to choose.
        set_threads: called with the number of threads from the next step on.
    """

    def __init__(self, most: int, set_threads: Callable[[int], None]) -> None:
        self.most = most
        self.threads = most
        self._set_threads = set_threads
        self._batch = 0
        self._usual: list[float] = []
        self._trial: list[float] | None = None
        self._until_trial = FIRST_TRIAL_AFTER
        self._ms_to_first = FIRST_TRIAL_MS

    def observe(self, batch: int, ms: float) -> None:
        """Take in a pure decode step of ``batch`` rows that took ``ms`` milliseconds."""
        if self.most == 1:
            return
        if batch != self._batch:
            self._batch = batch
            self._usual.clear()
            if self._trial is not None:
                self._end_trial(self.threads)
            return
        if self._trial is not None:
            self._trial.append(ms)
            if len(self._trial) > TRIAL_STEPS:  # the first step after a switch only wakes the threads
                self._judge(median(self._trial[1:]), median(self._usual[-TRIAL_STEPS:]))
            return
        self._usual.append(ms)
        del self._usual[: -4 * TRIAL_STEPS]
        self._until_trial -= 1
        self._ms_to_first -= ms
        if self._ms_to_first <= 0:
            self._until_trial, self._ms_to_first = 0, float("inf")
        late = self.threads > 1 and len(self._usual) >= 4 * TRIAL_STEPS and self._grew()
        if len(self._usual) >= TRIAL_STEPS and (self._until_trial <= 0 or late):
            self._trial = []
            self._set_threads(self._other)

    def release(self) -> None:
        """Give all threads back to whatever the process does next."""
        self._set_threads(self.most)

    @property
    def _other(self) -> int:
        return 1 if self.threads > 1 else self.most

    def _grew(self) -> bool:
        """Whether the newest steps are far slower than those before them."""
        return median(self._usual[-TRIAL_STEPS:]) > SLOW_FACTOR * median(self._usual[:-TRIAL_STEPS])

    def _judge(self, tried_ms: float, usual_ms: float) -> None:
        better = tried_ms < CLEAR_GAIN * usual_ms
        self._usual.clear()
        self._until_trial, self._ms_to_first = TRIAL_EVERY, float("inf")
        self._end_trial(self._other if better else self.threads)

    def _end_trial(self, threads: int) -> None:
        self._set_threads(threads)
        self.threads = threads
        self._trial = None
