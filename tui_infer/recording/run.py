"""``tui-infer run --record``: the same file as the app's, written around an engine in this process."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.answers import Answer
from engine.commands import Message, Submit
from engine.errors import RequestError
from engine.records import Ready, Rejected, Started, StepRecord, Steps
from engine.request import Request, SamplingParams
from tui_infer.recording.format import ChatLook, Chats, End, Heard, Sent
from tui_infer.recording.recorder import public_status
from tui_infer.recording.writer import RecordingWriter
from tui_infer.sanitize import one_line
from tui_infer.session import NEW_TITLE, PALETTE_SIZE, letter_of
from tui_infer.workspace import TITLE_LENGTH

if TYPE_CHECKING:
    from engine.core import Engine

EPOCH = 1  # each prompt is the first of its own chat


class RunRecorder:
    """Writes a run as if each prompt were a chat of the app."""

    def __init__(self, writer: RecordingWriter, engine: "Engine", prompts: Sequence[str]) -> None:
        self._writer = writer
        self._engine = engine
        self._answers: list[Answer] = []
        looks = [
            ChatLook(
                _session(number),
                letter_of(number),
                number % PALETTE_SIZE,
                one_line(prompt, TITLE_LENGTH) or NEW_TITLE,
                False,
            )
            for number, prompt in enumerate(prompts)
        ]
        writer.put(Chats(writer.now, looks, looks[0].session if looks else ""))
        writer.put(Heard(writer.now, Ready(public_status(engine.status()))))

    def submitted(
        self, number: int, prompt: str, params: SamplingParams, answer: Request | RequestError
    ) -> None:
        """Prompt ``number``, from 0, was handed to the engine, which took it or refused it."""
        writer, session = self._writer, _session(number)
        message = Message(role="user", content=prompt)
        writer.put(Sent(writer.now, Submit(session=session, epoch=EPOCH, prompt=[message], params=params)))
        if isinstance(answer, RequestError):
            writer.put(Heard(writer.now, Rejected(session, EPOCH, answer.message, answer.hint)))
            return
        self._answers.append(Answer(session, EPOCH, answer))
        ids = list(answer.prompt_ids)
        writer.put(Heard(writer.now, Started(session, EPOCH, answer.id, ids, self._engine.pieces(ids))))

    def stepped(self, record: StepRecord | None) -> None:
        """A step was made."""
        writer, now = self._writer, time.monotonic()
        if record is not None:
            writer.put(Heard(writer.now, Steps([record])))
        for answer in list(self._answers):
            finished = answer.request.finished
            if (finished or answer.due(now)) and (delta := answer.delta(now)):
                writer.put(Heard(writer.now, delta))
            if finished:
                writer.put(Heard(writer.now, answer.finished()))
                self._answers.remove(answer)

    def close(self) -> str:
        """End the file; what went wrong with it, or an empty string."""
        self._writer.put(End(self._writer.now))
        self._writer.close()
        return self._writer.error


def _session(number: int) -> str:
    return f"chat-{number + 1}"
