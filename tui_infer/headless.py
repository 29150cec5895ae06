"""``tui-infer run``: prompts in, answers out, no terminal needed. The engine runs in this process."""

import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import msgspec

from engine.config import EngineConfig
from engine.errors import EngineError, RequestError
from engine.records import Progress
from engine.request import Completion, Request, SamplingParams, completion_of
from tui_infer.recording.run import RunRecorder
from tui_infer.recording.writer import RecordingWriter
from tui_infer.sanitize import one_line, sanitize

if TYPE_CHECKING:
    from engine.core import Engine

EXIT_OK, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Job:
    """What to run and how to print it.

    With ``raw`` the prompts go to the model as they are; otherwise each is a chat's first message,
    after ``system`` where that is not None.
    """

    prompts: tuple[str, ...]
    params: SamplingParams
    system: str | None = None
    raw: bool = False
    json: bool = False


def run(config: EngineConfig, job: Job, record: RecordingWriter | None = None) -> int:
    """Answer all prompts in one batch and print them in their order; returns the exit code.

    A prompt that is refused is reported in its place, and the others are answered. With ``record`` all that
    happens is written there too; a disk that is full costs the recording and the exit code, not the answers.

    Raises:
        EngineError: the engine could not be loaded or the device failed.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale without the character shows a question mark
    try:
        with ProgressLine(sys.stderr) as line:
            from engine.core import Engine

            engine = Engine(config, progress=line.show)
    except BaseException:
        if record is not None:
            record.discard()
        raise
    printer = JsonPrinter(sys.stdout) if job.json else TextPrinter(sys.stdout, len(job.prompts))
    broken = ""
    with engine:
        recorder = None if record is None else RunRecorder(record, engine, job.prompts)
        try:
            answers = [_submit(engine, job, prompt) for prompt in job.prompts]
            if recorder is not None:
                for number, (prompt, answer) in enumerate(zip(job.prompts, answers)):
                    recorder.submitted(number, prompt, job.params, answer)
            for prompt, answer in zip(job.prompts, answers):
                _print_one(engine, printer, prompt, answer, recorder)
        finally:
            if recorder is not None and (broken := recorder.close()):
                print(f"error: {one_line(broken, 1000)} It ends early.", file=sys.stderr)
    refused = [answer for answer in answers if isinstance(answer, RequestError)]
    failed = any(isinstance(answer, Request) and answer.error for answer in answers)
    return EXIT_REFUSED if refused else EXIT_FAILED if failed or broken else EXIT_OK


def _submit(engine: "Engine", job: Job, prompt: str) -> Request | RequestError:
    messages = [{"role": "system", "content": job.system}] if job.system is not None else []
    messages.append({"role": "user", "content": prompt})
    try:
        return engine.submit(prompt if job.raw else messages, job.params)
    except RequestError as error:
        return error


def _print_one(
    engine: "Engine",
    printer: "JsonPrinter | TextPrinter",
    prompt: str,
    answer: Request | RequestError,
    recorder: RunRecorder | None,
) -> None:
    """Step the whole batch until this answer is complete, showing its text as it grows."""
    printer.begin(prompt)
    if isinstance(answer, RequestError):
        printer.refused(answer)
        return
    printer.text(answer.text)
    while not answer.finished:
        record = engine.step()
        if recorder is not None:
            recorder.stepped(record)
        if record is None and not answer.finished:
            raise EngineError("The engine has nothing to do, yet an answer is unfinished.")
        printer.text(answer.text)
    printer.end(completion_of(answer))


class TextPrinter:
    """Plain answers; each under its prompt's first line where there are several."""

    def __init__(self, out: IO[str], count: int) -> None:
        self._out = out
        # Foreign text must not command the terminal; in a file or a pipe it is kept to the letter.
        self._clean: Callable[[str], str] = sanitize if out.isatty() else str
        self._headed = count > 1
        self._number = 0
        self._shown = 0

    def begin(self, prompt: str) -> None:
        self._shown = 0
        self._number += 1
        if self._headed:
            gap = "\n" if self._number > 1 else ""
            self._write(f"{gap}[{self._number}] {one_line(prompt, 76)}\n")

    def text(self, text: str) -> None:
        if len(text) > self._shown:
            self._write(self._clean(text[self._shown :]))
            self._shown = len(text)

    def end(self, completion: Completion) -> None:
        self.text(completion.text)
        if not completion.text.endswith("\n"):
            self._write("\n")
        if completion.error:
            print(f"error: prompt {self._number}: {one_line(completion.error)}", file=sys.stderr)

    def refused(self, error: RequestError) -> None:
        print(f"error: prompt {self._number}: {one_line(str(error), 1000)}", file=sys.stderr)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class JsonPrinter:
    """One JSON object a line and prompt, with the prompt's number from 0 as ``index``."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._index = -1

    def begin(self, prompt: str) -> None:
        self._index += 1

    def text(self, text: str) -> None:
        pass

    def end(self, completion: Completion) -> None:
        value = msgspec.to_builtins(completion)
        for optional in ("logprobs", "error"):
            if not value[optional]:
                del value[optional]
        for name, digits in (("ttft_s", 4), ("decode_tokens_per_s", 2)):
            if value[name] is not None:
                value[name] = round(value[name], digits)  # the clock says no more
        self._write(value)

    def refused(self, error: RequestError) -> None:
        print(f"error: {one_line(str(error), 1000)}", file=sys.stderr)
        self._write(msgspec.to_builtins(_REFUSED) | {"error": str(error)})

    def _write(self, value: dict[str, Any]) -> None:
        value = {"index": self._index, **value, "output_tokens": len(value["token_ids"])}
        # A terminal gets escapes only: JSON may hold C1 controls, which some terminals act upon. So does
        # a locale that cannot take every character.
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        utf8 = encoding.lower().replace("-", "") == "utf8"
        text = json.dumps(value, ensure_ascii=self._out.isatty() or not utf8)
        self._out.write(text + "\n")
        self._out.flush()


_REFUSED = Completion(
    text="",
    token_ids=[],
    finish_reason="error",
    prompt_tokens=0,
    cached_tokens=0,
    ttft_s=None,
    decode_tokens_per_s=None,
)


class ProgressLine:
    """Loading as one line on a terminal, rewritten in place; elsewhere, and where it has to be ``plain``, a
    line now and then of long stages.
    """

    QUIET_S = 0.3  # a load that is over sooner shows nothing on a terminal
    EVERY_S = 3.0  # between lines without a terminal, counted from the start of a stage

    def __init__(self, out: IO[str], *, plain: bool = False) -> None:
        self._out = out
        self._terminal = out.isatty() and not plain
        self._began = time.monotonic()
        self._stage = ""
        self._next = 0.0
        self._drawn = False

    def __enter__(self) -> "ProgressLine":
        self.show(Progress(stage="starting"))
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def show(self, progress: Progress) -> None:
        """Show where loading stands."""
        now = time.monotonic()
        if progress.stage != self._stage:
            self._stage, self._next = progress.stage, now + self.EVERY_S
        if self._terminal and now - self._began >= self.QUIET_S:
            self._out.write(f"\r\x1b[K{one_line(describe(progress), 78)}")
            self._out.flush()
            self._drawn = True
        elif not self._terminal and now >= self._next:
            self._next = now + self.EVERY_S
            print(one_line(describe(progress)), file=self._out, flush=True)


def describe(progress: Progress) -> str:
    """``downloading config.json 12 %``."""
    parts: Sequence[str] = [progress.stage, progress.detail]
    share = "" if progress.fraction is None else f"{progress.fraction * 100:.0f} %"
    return " ".join(part for part in (*parts, share) if part)
