"""EngineService: commands in, engine steps, events out. One loop for the process and the in-process twin.

Importing this module loads no torch: the engine comes from the factory that the caller gives.
"""

import contextlib
import gc
import queue
import time
import traceback
from collections.abc import Callable, Iterator

from engine.answers import Answer
from engine.commands import (
    AnyCommand,
    Cancel,
    Inspect,
    Load,
    Pause,
    RunUntil,
    SetMode,
    Shutdown,
    StepOnce,
    Submit,
)
from engine.config import EngineConfig
from engine.errors import ConfigError, DeviceError, EngineError, RequestError
from engine.records import (
    WIRE_VERSION,
    Failed,
    ModeChanged,
    Paused,
    Progress,
    Ready,
    Rejected,
    Started,
    StepRecord,
)
from engine.request import FinishReason
from engine.steppable import EngineFactory, Outlet, Steppable
from engine.telemetry import Telemetry
from engine.until import StepWatch

PROGRESS_INTERVAL_S = 0.05
STALL_S = 0.005  # pause when the engine has work and yet nothing it can do


IMPORTING = Progress(stage="starting", detail="importing torch")


def import_engine() -> None:
    """Import what every model is loaded with, before it is known which one it will be: it takes a second."""
    with _no_collections():
        import engine.core  # noqa: F401


def load_engine(config: EngineConfig, progress: Callable[[Progress], None]) -> Steppable:
    """The real engine; torch is imported here, so that progress shows before it."""
    progress(IMPORTING)
    with _no_collections():
        from engine.core import Engine

        return Engine(config, progress=progress)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Imports make a million objects that stay: looking for garbage among them meanwhile takes a fifth of
    the time that torch and transformers need.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class EngineService:
    """Runs one engine from ``Load`` to ``Shutdown`` on the thread that calls ``run``.

    Commands may be posted from any thread; they take effect before the next step. While there is
    nothing to compute the loop blocks on its inbox and costs nothing.
    """

    def __init__(self, outlet: Outlet, make_engine: EngineFactory = load_engine) -> None:
        self._outlet = outlet
        self._make_engine = make_engine
        self._inbox: queue.SimpleQueue[AnyCommand] = queue.SimpleQueue()
        self._engine: Steppable | None = None
        self._telemetry: Telemetry | None = None
        self._answers: dict[tuple[str, int], Answer] = {}
        self._watch = StepWatch()
        self._paused = False
        self._single_steps = 0
        self._stopping = False
        self._progress_sent: tuple[str, float] = ("", 0.0)

    @property
    def ready(self) -> bool:
        """True once the engine is loaded."""
        return self._engine is not None

    def post(self, command: AnyCommand) -> None:
        """Hand in a command, from any thread."""
        self._inbox.put(command)

    def run(self) -> bool:
        """Serve until ``Shutdown``; False when the engine could not be loaded or failed."""
        if not self._load():
            return self._stopping
        assert self._engine is not None
        try:
            while not self._stopping:
                self._take_commands(self._engine)
                if not self._stopping and self._runnable(self._engine):
                    self._step(self._engine)
        except Exception as error:
            self._fail(error)
            return False
        finally:
            with contextlib.suppress(
                Exception
            ):  # a device that failed may fail again; the process ends anyway
                self._engine.close()
        return True

    # --- loading ---------------------------------------------------------------------------------

    def _load(self) -> bool:
        command = self._inbox.get()
        if not isinstance(command, Load):
            self._stopping = isinstance(command, Shutdown)
            return False
        try:
            if command.version != WIRE_VERSION:
                raise ConfigError(
                    f"The app speaks wire version {command.version}, this engine {WIRE_VERSION}.",
                    "Restart the app; it was updated while running.",
                )
            engine = self._make_engine(command.config, self._progress)
            status = engine.status()
        except EngineError as error:
            self._outlet.send(Failed(title=error.title, message=error.message, hint=error.hint))
            return False
        except Exception as error:
            traceback.print_exc()
            self._outlet.send(
                Failed(
                    title="engine not started", message=_describe(error), hint="The log has the traceback."
                )
            )
            return False
        self._telemetry = Telemetry(self._outlet.send, lambda: self._outlet.congested, engine.block_snapshot)
        self._engine = engine
        self._outlet.send(Ready(status=status))
        return True

    def _progress(self, progress: Progress) -> None:
        # A download reports every chunk; what nobody could read is not sent.
        stage, sent_at = self._progress_sent
        now = time.monotonic()
        if progress.stage != stage or progress.fraction == 1.0 or now - sent_at >= PROGRESS_INTERVAL_S:
            self._progress_sent = (progress.stage, now)
            self._outlet.send(progress)

    # --- commands --------------------------------------------------------------------------------

    def _runnable(self, engine: Steppable) -> bool:
        return engine.has_work and (not self._paused or self._single_steps > 0)

    def _take_commands(self, engine: Steppable) -> None:
        if self._inbox.empty() and not self._runnable(engine):
            self._settle(engine)
            self._handle(engine, self._inbox.get())
        while not self._inbox.empty() and not self._stopping:
            self._handle(engine, self._inbox.get())

    def _handle(self, engine: Steppable, command: AnyCommand) -> None:
        match command:
            case Submit():
                self._submit(engine, command)
            case Cancel():
                self._cancel(engine, command)
            case SetMode():
                self._set_mode(engine, command)
            case Pause():
                if command.paused:
                    self._pause(engine)
                else:
                    self._let_run(True)
            case StepOnce():  # nothing to an engine that runs, also until a condition is met
                self._single_steps += int(self._paused and engine.has_work)
            case RunUntil():
                self._run_until(command)
            case Inspect():
                self._inspect(engine, command)
            case Shutdown():
                self._stopping = True
            case Load():
                self._ignore("The engine is loaded already.", "Restart it for another model.")

    def _ignore(self, message: str, hint: str) -> None:
        self._outlet.send(Failed("command ignored", message, hint, fatal=False))

    def _let_run(self, running: bool, reason: str = "") -> None:
        self._paused, self._single_steps = not running, 0
        self._outlet.send(Paused(paused=not running, reason=reason))

    def _submit(self, engine: Steppable, command: Submit) -> None:
        key = (command.session, command.epoch)
        if key in self._answers:
            text = f"Session {command.session!r} already has an answer of epoch {command.epoch} under way."
            self._outlet.send(Rejected(command.session, command.epoch, text))
            return
        try:
            request = engine.submit(
                command.prompt,
                command.params,
                session=command.session,
                priority=command.priority,
                history=command.history,
                answered=command.answered,
            )
        except (RequestError, ConfigError) as error:
            self._outlet.send(Rejected(command.session, command.epoch, error.message, error.hint))
            return
        except Exception as error:
            # One prompt that the tokenizer or the template chokes on must not end everybody's chats.
            traceback.print_exc()
            self._outlet.send(Rejected(command.session, command.epoch, _describe(error), "The log has more."))
            return
        self._answers[key] = Answer(command.session, command.epoch, request)
        self._watch.submitted(request.id, command.session)
        ids = list(request.prompt_ids)
        self._outlet.send(
            Started(
                command.session,
                command.epoch,
                request.id,
                ids,
                engine.pieces(ids),
                seed=request.seed,
                text=request.text,
            )
        )

    def _cancel(self, engine: Steppable, command: Cancel) -> None:
        answer = self._answers.get((command.session, command.epoch))
        if answer is None:
            return
        engine.cancel(answer.request.id)
        if self._telemetry is not None:
            self._telemetry.blocks_changed()
        self._send_answers(time.monotonic())
        self._stop_where_work_ends(engine)

    def _set_mode(self, engine: Steppable, command: SetMode) -> None:
        reason = engine.set_mode(command.mode)
        self._outlet.send(ModeChanged(mode=engine.mode, reason=reason))

    def _run_until(self, command: RunUntil) -> None:
        try:
            self._watch.start(command)
        except RequestError as error:
            self._ignore(error.message, error.hint)
        else:
            self._let_run(True)

    def _inspect(self, engine: Steppable, command: Inspect) -> None:
        try:
            self._outlet.send(engine.inspect(command.block))
        except RequestError as error:
            self._ignore(error.message, error.hint)

    # --- stepping --------------------------------------------------------------------------------

    def _step(self, engine: Steppable) -> None:
        """One step. Where someone wants to see single ones, none is under way behind it."""
        freely = not self._paused and not self._watch.waiting
        record = engine.step(ahead=freely)
        self._single_steps = max(0, self._single_steps - 1)
        self._tell(engine, record)
        if record is None and engine.has_work and self._inbox.empty():
            time.sleep(STALL_S)

    def _tell(self, engine: Steppable, record: StepRecord | None) -> None:
        """What a step made, and whether it was the one that is waited for."""
        now = time.monotonic()
        reached = "" if record is None else self._watch.observe(record)
        if record is not None and self._telemetry is not None:
            self._telemetry.add(record, now)
        self._send_answers(now)
        if reached:
            self._stop(engine, reached)
        else:
            self._stop_where_work_ends(engine)

    def _pause(self, engine: Steppable) -> None:
        """Stop where it stands: the record and the tokens of a step under way arrive before the news."""
        self._watch.cancel()
        if (record := engine.land()) is not None:
            self._tell(engine, record)
        self._settle(engine)
        self._let_run(False)

    def _stop_where_work_ends(self, engine: Steppable) -> None:
        if not engine.has_work and (reason := self._watch.out_of_work()):
            self._stop(engine, reason)

    def _stop(self, engine: Steppable, reason: str) -> None:
        """Pause behind the step that was waited for; its record and its tokens arrive before the news."""
        self._settle(engine)
        self._let_run(False, reason)

    def _send_answers(self, now: float) -> None:
        held_back = self._outlet.congested
        done = []
        for key, answer in self._answers.items():
            finished = answer.request.finished
            if (finished or (not held_back and answer.due(now))) and (delta := answer.delta(now)):
                self._outlet.send(delta)
            if finished:
                done.append(key)
                self._outlet.send(answer.finished())
        for key in done:
            self._watch.ended(self._answers.pop(key).request.id)

    def _settle(self, engine: Steppable) -> None:
        """Before the loop sleeps: send what was held back for its interval."""
        if not engine.has_work:
            engine.step()  # the idle step, in which an engine checks that no block was lost
        now = time.monotonic()
        for answer in self._answers.values():
            if delta := answer.delta(now):
                self._outlet.send(delta)
        if self._telemetry is not None:
            self._telemetry.settle()

    def _fail(self, error: Exception) -> None:
        """The engine cannot go on: end every answer with the reason, then say so."""
        traceback.print_exc()
        failure = error if isinstance(error, EngineError) else DeviceError(_describe(error))
        now = time.monotonic()
        for answer in self._answers.values():
            if delta := answer.delta(now):
                self._outlet.send(delta)
            self._outlet.send(answer.finished(reason=FinishReason.ERROR, error=str(failure)))
        self._answers.clear()
        hint = failure.hint or "Restart the engine to go on."
        self._outlet.send(Failed(title=failure.title, message=failure.message, hint=hint))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
