"""Which tokens of an answer existed after which step, and so how much of its text did."""

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field

from tui_infer.sanitize import sanitize


@dataclass(slots=True)
class AnswerTrace:
    """The way of one answer through the steps.

    Attributes:
        asked: the newest step when its prompt was sent, -1 before the first.
        request: the engine's number of it; None until it was taken.
        prompt_tokens: length of its whole prompt.
        first: the first step that computed something for it.
        steps: for each token of the answer, the step that made it.
        ends: for each token of the answer, how many characters of the answer's text stood after it.
        received: characters that the engine sent, before they were cleaned.
        before: for each time that it went on, the newest step then, and its request until then.
    """

    asked: int = -1
    request: int | None = None
    prompt_tokens: int = 0
    first: int | None = None
    steps: "array[int]" = field(default_factory=lambda: array("q"))
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    received: int = 0
    before: list[tuple[int, int]] = field(default_factory=list)

    def resume(self, step: int, tokens: int, chars: int) -> None:
        """The answer goes on after ``step`` behind this many tokens and characters, which are the first of
        the next request's output too. Tokens that nobody has taken in were made for nothing.
        """
        if self.request is not None:
            self.before.append((step, self.request))
        elif not self.steps and tokens:  # made by an engine before this one
            self.first = step = -1
        self.request = None
        del self.steps[tokens:], self.ends[tokens:]
        self.steps.extend([step] * (tokens - len(self.steps)))
        self.ends.extend([chars] * (tokens - len(self.ends)))

    def restart(self, sent: int, chars: int) -> None:
        """The next request sends text from its character ``sent`` on, behind the answer's first ``chars``."""
        self.received = sent
        self.ends = array("q", (min(end, chars) for end in self.ends))

    def request_at(self, step: int) -> int | None:
        """The engine's number of it after ``step``."""
        return next((request for until, request in self.before if step <= until), self.request)

    def compute(self, step: int, context: int) -> None:
        """``context`` of its tokens were in the cache after a step: the token behind them exists.

        What is computed again after a preemption makes no new token; tokens of steps that never arrived
        count from the next step that did.
        """
        if self.first is None:
            self.first = step
        made = context - self.prompt_tokens + 1
        for _ in range(made - len(self.steps)):
            self.steps.append(step)

    def receive(self, text: str, tokens: int, ends: list[int], start: int) -> None:
        """``text`` came with so many tokens, and stands in the answer from ``start`` on when it is clean.

        ``ends`` count characters of the whole answer as the engine made it; without them all of the text
        came with the last token.
        """
        begin, self.received = self.received, self.received + len(text)
        if len(ends) != tokens:
            ends = [begin] * (tokens - 1) + [self.received] * (tokens > 0)
        same = len(sanitize(text)) == len(text)
        for end in ends:
            part = min(max(end - begin, 0), len(text))
            self.ends.append(start + (part if same else len(sanitize(text[:part]))))

    def was_there(self, step: int) -> bool:
        """Whether the exchange had begun after ``step``."""
        return self.first <= step if self.first is not None else self.asked < step

    def tokens_at(self, step: int) -> int:
        """Tokens of the answer that existed after ``step``."""
        return bisect_right(self.steps, step)

    def chars_at(self, step: int, length: int) -> int:
        """Characters of a text of ``length`` that existed after ``step``."""
        made = self.tokens_at(step)
        if made >= max(len(self.steps), len(self.ends)):
            return length
        return min(length, self.ends[min(made, len(self.ends)) - 1]) if made and self.ends else 0
