"""``tui-infer chat --plain``: one chat as lines of text, without a single escape sequence."""

import asyncio
import contextlib
import io
import signal
import sys
from pathlib import Path
from typing import IO

from engine.client import Client
from engine.errors import EngineError
from engine.records import AnyEvent
from tui_infer.headless import ProgressLine
from tui_infer.mentions import include, mentions
from tui_infer.plain.commands import COMMANDS
from tui_infer.plain.lines import Lines, Prompt
from tui_infer.sanitize import one_line
from tui_infer.session import SessionState
from tui_infer.slash import AS_TEXT, Call, Say, read
from tui_infer.state import AppState

EXIT_OK, EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 0, 1, 2, 130
YOU, MORE, AI = "you: ", "... ", "ai: "


class PlainChat:
    """Reads prompts, prints answers as they come. What is said goes to ``out``, all else to ``err``.

    With ``interactive`` a person types: prompts are asked for, Ctrl-C stops an answer first, and an answer
    that failed costs no exit code. Otherwise prompts are echoed, so that the output is the conversation.
    With ``whole_lines`` an answer is printed by lines, which screen readers read better than pieces.
    """

    def __init__(
        self,
        client: Client,
        state: AppState,
        *,
        interactive: bool,
        whole_lines: bool = False,
        out: IO[str] | None = None,
        err: IO[str] | None = None,
    ) -> None:
        self.client = client
        self.state = state
        self.leaving: int | None = None
        self._interactive = interactive
        self._whole_lines = whole_lines
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._changed = asyncio.Event()
        self._interrupted = False
        self._failed = EXIT_OK
        self._column = 0
        self._lines: Lines | None = None

    @property
    def session(self) -> SessionState:
        return self.state.current

    def say(self, text: str) -> None:
        """Print lines of the program's own."""
        self._write(f"{text}\n")

    def leave(self, code: int) -> None:
        """End as soon as the loop comes round."""
        self.leaving = code if self.leaving is None else self.leaving
        self._changed.set()
        if self._lines is not None:
            self._lines.end()

    async def run(self, stdin: int) -> int:
        """Until the input ends, ``/quit`` or Ctrl-C; returns the exit code."""
        for stream in (self._out, self._err):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a locale without the character shows a question mark
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, ValueError):
            loop.add_signal_handler(signal.SIGINT, self._interrupt)
        self.client.on_event = self._take
        try:
            await self.client.start()
            if await self._load():
                self._lines = Lines(stdin, loop)
                await self._talk(self._lines)
        finally:
            with contextlib.suppress(NotImplementedError, ValueError):
                loop.remove_signal_handler(signal.SIGINT)
        return self._failed if self.leaving is None else self.leaving

    def _take(self, event: AnyEvent) -> None:
        self.state.apply(event)
        self._changed.set()

    async def _wait(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def _load(self) -> bool:
        """Wait for the engine; where that takes long, say now and then how far it is."""
        with ProgressLine(self._err, plain=True) as line:
            while self.state.phase == "loading" and self.leaving is None:
                await self._wait()
                line.show(self.state.progress)
        if self.state.phase == "failed":
            self._stopped(EXIT_REFUSED)
        elif self.leaving is None and self._interactive:
            status = self.state.status
            name = status.model_name if status is not None else "The model"
            self.say(f"{one_line(name)} is ready. Type a prompt, /help for help, /quit to end.")
        return self.leaving is None

    def _stopped(self, code: int) -> None:
        failure = self.state.failure
        why = f"{failure.message} {failure.hint}" if failure is not None else "The engine stopped."
        print(f"error: {one_line(why, 1000)}", file=self._err, flush=True)
        self.leave(code)

    # --- talking -----------------------------------------------------------------------------------

    async def _talk(self, lines: Lines) -> None:
        prompt = Prompt()
        while self.leaving is None:
            if self._interactive:
                self._write(MORE if prompt.open else YOU)
            line = await lines.next()
            if self.leaving is not None:
                break
            self._interrupted = False
            self._column = 0  # the terminal's own echo went to a new line
            whole = prompt.take() if line is None else prompt.add(line)
            if line is None and self._interactive:
                self.say("")
            if whole is not None and whole.strip():
                await self._do(whole)
            if line is None:
                return

    async def _do(self, text: str) -> None:
        if not self._interactive:
            self.say(f"{YOU}{_indented(text)}")
        said = read(text, COMMANDS)
        if isinstance(said, Call):
            if problem := said.command.run(self, said.words):
                self.say(f"/{said.command.name} not done: {problem}")
        elif isinstance(said, Say):
            await self._answer(said.text)
        else:
            self.say(f"{said.word} is no command; /help lists them. {AS_TEXT}")
        self._say_notices()

    async def _answer(self, text: str) -> None:
        session = self.session
        typed = text
        if self._interactive and mentions(text):  # what a pipe says may come from anybody
            try:
                text = (await asyncio.to_thread(include, text, Path.cwd())).text
            except EngineError as error:
                self.say(f"Not sent: {error}")
                return
        if not self.state.submit(session.id, text, typed=typed):
            return
        turn = session.turns[-1]
        shown = 0
        self._write(AI)
        while True:
            over = not session.busy or self.leaving is not None
            end = len(turn.text) if over or not self._whole_lines else turn.text.rfind("\n") + 1
            if end > shown:
                self._write(turn.text[shown:end])
                shown = end
            if over:
                break
            self._say_notices()
            await self._wait()
        self._new_line()
        if turn.note:
            self.say(f"({turn.note})")
        if turn.status == "error" and not self._interactive:
            self._failed = EXIT_FAILED
        if self.state.phase == "failed":
            self._stopped(EXIT_FAILED)

    def _say_notices(self) -> None:
        notices, self.state.notices = self.state.notices, []
        for notice in notices:
            self._new_line()
            print(f"{notice.title}: {notice.message}", file=self._err, flush=True)

    # --- the terminal ------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        """Ctrl-C: stop the answer; without one, or a second time, end."""
        if not self._interactive or self._interrupted or self.state.phase == "loading":
            self.leave(EXIT_INTERRUPTED)
            return
        self._interrupted = True
        if self.state.cancel(self.session.id):
            self._changed.set()
            return
        self._column = 1  # behind the ^C of the terminal
        self._new_line()
        self._write(f"Ctrl-C again, /quit or the end of the input ends.\n{YOU}")

    def _new_line(self) -> None:
        if self._column:
            self._write("\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        self._column = 0 if text.endswith("\n") else self._column + len(text)


def _indented(text: str) -> str:
    """A prompt of several lines, told apart from what follows it."""
    return text.replace("\n", f"\n{' ' * len(YOU)}")


def chat(client: Client, state: AppState, *, whole_lines: bool) -> int:
    """Run the line mode on this process's stdin and stdout; returns the exit code."""
    interactive = sys.stdin.isatty()

    async def run() -> int:
        plain = PlainChat(client, state, interactive=interactive, whole_lines=whole_lines)
        try:
            return await plain.run(sys.stdin.fileno())
        finally:
            await client.close()

    return asyncio.run(run())
