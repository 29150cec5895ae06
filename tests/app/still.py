"""A scripted engine without a clock: every answer is there at once, with the same numbers on any machine."""

import itertools

from msgspec.structs import replace

from engine.commands import Submit
from engine.records import BlockChange, Delta, Finished, Started, Steps, StepTimes
from engine.records import StepRow as Row
from tests.app.scripted import BLOCK_SIZE, NUM_BLOCKS, PROMPT_TOKENS, ScriptedClient, step

NOON = 1_780_000_000.0  # Unix time of the first step
TOKEN_CHARS = 4
MS = (3.9, 4.4, 4.1, 4.0, 7.2, 4.2)  # of the steps, in turn


class StillClient(ScriptedClient):
    """Answers with ``answer`` within the call; steps come with it, one a token."""

    def __init__(self, answer: str, *, graphs: bool = False) -> None:
        super().__init__(answer, graphs=graphs)
        self._ids = itertools.count(1)
        self._next_step = 0
        self._free = itertools.count(1)

    def send(self, command: object) -> None:
        if not isinstance(command, Submit):
            super().send(command)  # type: ignore[arg-type]
            return
        self.sent.append(command)
        request = next(self._ids)
        prompt = [*(command.history or []), *range(PROMPT_TOKENS)]
        pieces = [f"t{token} " for token in prompt]
        self._emit(Started(command.session, command.epoch, request, prompt, pieces))
        count = -(-len(self.answer) // TOKEN_CHARS)
        ends = [min((token + 1) * TOKEN_CHARS, len(self.answer)) for token in range(count)]
        self._emit(Delta(command.session, command.epoch, self.answer, list(range(count)), ends))
        self._emit(Steps(self._steps_of(request, len(prompt), count)))
        cached = len(command.history or ())
        self._emit(Finished(command.session, command.epoch, "stop", len(prompt), count, cached, 0.052, 58.1))

    def _steps_of(self, request: int, prompt: int, count: int) -> list[object]:  # type: ignore[override]
        records: list[object] = []
        blocks = 0
        for token in range(count):
            context, first = prompt + token, token == 0
            changes = []
            while blocks * BLOCK_SIZE < context:
                changes.append(
                    BlockChange("allocate", next(self._free) % (NUM_BLOCKS - 1) + 1, request, blocks)
                )
                blocks += 1
            row = Row(request, context, prompt if first else 1, first)
            record = step(self._next_step, [row], changes, used=self._used + len(changes), card=self.card)
            self._used += len(changes)
            total = MS[self._next_step % len(MS)]
            times = StepTimes(total, 0.1, total - 0.3, record.ms.device, 0.2)
            records.append(replace(record, t=NOON + self._next_step * 0.02, ms=times))
            self._next_step += 1
        return records

    _used = 0
