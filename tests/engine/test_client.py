"""Clients: the engine process as an app sees it, and its in-process twin."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.client import EngineClient
from engine.commands import Cancel, Inspect, Message, RunUntil, SetMode, Submit
from engine.config import EngineConfig
from engine.inprocess import InProcessClient
from engine.process import EngineProcess
from engine.records import (
    BlockDetail,
    BlockSnapshot,
    Delta,
    Failed,
    Finished,
    ModeChanged,
    Paused,
    Progress,
    Ready,
    Started,
    Steps,
)
from engine.request import SamplingParams
from tests.engine.fakes import FakeEngine
from tests.waiting import wait_until, wait_until_sync

REPOSITORY = Path(__file__).resolve().parents[2]
FAKE_WORKER = (sys.executable, "-P", "-m", "tests.engine.fake_worker")


class Chat:
    """A client with everything it delivered."""

    def __init__(self, client):
        self.client = client
        self.events = []
        client.on_event = self.events.append

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    async def wait_for(self, kind, count=1):
        await wait_until(lambda: len(self.of(kind)) >= count, what=f"{count} {kind.__name__}")
        return self.of(kind)[count - 1]

    def submit(self, session="a", epoch=1, prompt="hello", max_tokens=20):
        self.client.send(Submit(session, epoch, prompt, SamplingParams(max_tokens=max_tokens)))


@pytest.fixture
async def process():
    """Makes clients of a fake engine process, and closes them."""
    clients = []

    def make(model="fake", **kwargs):
        clients.append(EngineClient(EngineConfig(model=model), command=FAKE_WORKER, **kwargs))
        return Chat(clients[-1])

    yield make
    for client in clients:
        await client.close()


@pytest.fixture(params=["process", "thread"])
async def chat(request):
    """A client of either kind, started and ready."""
    config = EngineConfig(model="fake?step_s=0.002")
    if request.param == "process":
        client = EngineClient(config, command=FAKE_WORKER)
    else:
        client = InProcessClient(config, make_engine=FakeEngine)
    chat = Chat(client)
    await client.start()
    await chat.wait_for(Ready)
    yield chat
    await client.close()


async def test_a_prompt_is_answered_and_the_state_follows(chat):
    assert chat.client.state == "ready"
    assert chat.client.status == chat.of(Ready)[0].status
    chat.submit()
    done = await chat.wait_for(Finished)
    assert (done.session, done.epoch, done.reason, done.output_tokens) == ("a", 1, "length", 20)
    assert "".join(d.text for d in chat.of(Delta)).split()[:3] == ["one", "two", "three"]
    await wait_until(lambda: sum(len(s.records) for s in chat.of(Steps)) == 20)


async def test_a_stop_and_a_block_are_asked_for_and_told_over_every_client(chat):
    chat.client.send(RunUntil("step", step=20))
    chat.submit(prompt="hello", max_tokens=1000)
    await wait_until(lambda: [event for event in chat.of(Paused) if event.reason])
    assert chat.of(Paused) == [Paused(False), Paused(True, "step 20 was run")]
    assert chat.of(Steps)[-1].records[-1].index == 20
    chat.client.send(Inspect(1))
    detail = await chat.wait_for(BlockDetail)
    started = chat.of(Started)[0]
    assert started.pieces == list("hello")
    assert detail.pieces[:6] == [*"hello", "one "]
    assert [end for delta in chat.of(Delta) for end in delta.ends][:3] == [4, 8, 14]
    chat.client.send(Inspect(10**6))
    assert (await chat.wait_for(Failed)).title == "command ignored"
    assert chat.client.state == "ready"


async def test_a_restart_takes_another_model_from_inside_the_running_loop(chat):
    chat.submit(max_tokens=10_000)
    await chat.wait_for(Delta)
    first_pid = chat.client.status.pid
    chat.events.clear()
    await chat.client.restart(EngineConfig(model="fake?max_model_len=99"))
    assert chat.client.state == "loading"
    ready = await chat.wait_for(Ready)
    assert ready.status.max_model_len == 99
    assert isinstance(chat.events[0], Progress)
    assert not chat.of(Delta)  # nothing of the old engine
    if isinstance(chat.client, EngineClient):
        assert not psutil.pid_exists(first_pid)
    chat.submit()
    assert (await chat.wait_for(Started)).request == 1


async def test_two_restarts_at_once_leave_one_engine(chat):
    await asyncio.gather(chat.client.restart(), chat.client.restart())
    chat.events.clear()
    await wait_until(lambda: chat.client.state == "ready")
    chat.submit()
    assert (await chat.wait_for(Finished)).output_tokens == 20
    assert len(chat.of(Started)) == 1


async def test_a_restart_that_is_cancelled_half_way_leaves_no_engine_behind(process):
    chat = process()
    await chat.client.start()
    chat.submit(prompt="!hang")
    await chat.wait_for(Delta)
    first_pid = chat.client.pid
    restart = asyncio.create_task(chat.client.restart())
    await asyncio.sleep(0.05)
    restart.cancel()
    await wait_until(lambda: not psutil.pid_exists(first_pid), timeout_s=1.0)
    await chat.client.restart()
    chat.submit()
    assert (await chat.wait_for(Finished)).output_tokens == 20


async def test_a_failed_engine_of_either_kind_is_restarted(chat):
    chat.submit(prompt="!device")
    assert (await chat.wait_for(Failed)).title == "device failed"
    assert chat.client.state == "dead"
    await chat.client.restart(EngineConfig(model="fake"))
    await wait_until(lambda: chat.client.state == "ready")
    chat.submit()
    assert (await chat.wait_for(Finished, 2)).output_tokens == 20


async def test_nothing_is_delivered_after_close(chat):
    chat.submit(max_tokens=10_000)
    await chat.wait_for(Delta)
    await chat.client.close()
    seen = len(chat.events)
    chat.submit()
    await asyncio.sleep(0.1)
    assert len(chat.events) == seen
    assert chat.client.state == "closed"


async def test_a_fault_of_the_app_in_one_event_does_not_swallow_the_next(chat):
    faults = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))

    def on_event(event):
        chat.events.append(event)
        if isinstance(event, Started):
            raise ValueError("the app's own")

    chat.client.on_event = on_event
    chat.submit()
    await chat.wait_for(Finished)
    assert [str(fault) for fault in faults] == ["the app's own"]


async def test_commands_sent_while_loading_are_served_once_it_is_ready(process):
    chat = process("fake?load_s=0.3")
    await chat.client.start()
    chat.submit()
    assert chat.client.state == "loading"
    await chat.wait_for(Finished)
    assert [type(e) for e in chat.events if isinstance(e, Ready | Started)] == [Ready, Started]


async def test_events_wait_for_a_handler_that_is_set_later(process):
    chat = process()
    chat.client.on_event = None
    await chat.client.start()
    await wait_until(lambda: chat.client.state == "ready")
    chat.client.on_event = chat.events.append
    await chat.wait_for(Ready)
    assert isinstance(chat.events[0], Progress)


def test_launching_needs_no_loop_and_does_not_wait():
    client = EngineClient(EngineConfig(model="fake?load_s=0.5"), command=FAKE_WORKER)
    began = time.monotonic()
    client.launch()
    assert time.monotonic() - began < 0.2
    assert client.state == "loading"
    wait_until_sync(lambda: psutil.Process(client.pid).status() != psutil.STATUS_ZOMBIE)
    chat = Chat(client)

    async def use():
        await client.start()
        await chat.wait_for(Ready)
        await client.close()

    asyncio.run(use())


async def test_a_command_larger_than_the_socket_arrives_whole_without_blocking_the_loop(process):
    chat = process("fake?max_model_len=4000000")
    await chat.client.start()
    await chat.wait_for(Ready)
    history = list(range(1_000_000))
    encoded = time.monotonic()
    chat.client.send(Submit("a", 1, "x", SamplingParams(max_tokens=1), history=history))
    assert time.monotonic() - encoded < 0.5
    assert (await chat.wait_for(Started)).prompt_ids == [*history, ord("x")]


async def test_the_real_engine_answers_over_the_wire(tiny_model_dir, tmp_path):
    config = EngineConfig(model=str(tiny_model_dir), device="cpu", dtype="float32", kv_memory=8 << 20)
    client = EngineClient(config, log_path=tmp_path / "engine.log")
    chat = Chat(client)
    await client.start()
    try:
        status = (await wait_until(lambda: chat.of(Ready), timeout_s=90))[0].status
        assert (status.device, status.pid) == ("cpu", client.pid)
        for session in "ab":
            prompt = [Message("user", f"hello {session}")]
            client.send(
                Submit(session, 1, prompt, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
            )
        await chat.wait_for(Finished, 2)
        for session in "ab":
            ids = [i for d in chat.of(Delta) if d.session == session for i in d.token_ids]
            assert len(ids) == 12
        await wait_until(lambda: chat.of(Steps) and chat.of(Steps)[-1].records[-1].blocks.used == 0)
        assert max(r.active for s in chat.of(Steps) for r in s.records) == 2
        client.send(SetMode("graph"))
        changed = await chat.wait_for(ModeChanged)
        assert changed.mode == "eager"
        assert changed.reason
        assert not chat.of(Failed)
    finally:
        await client.close()


# --- the end of the engine -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "prompt", "words"),
    [
        (
            "fake?step_s=0.02",
            "!die",
            "killed by signal 9 (SIGKILL). Its last words: fake: struck by lightning",
        ),
        ("fake?load=die", "", "ended with exit code 7. Its last words: fake: cannot go on"),
    ],
)
async def test_an_engine_that_dies_is_told_with_how_and_its_last_words(
    process, tmp_path, model, prompt, words
):
    chat = process(model, log_path=tmp_path / "deep" / "engine.log")
    await chat.client.start()
    if prompt:
        chat.submit(prompt=prompt)
    failed = await chat.wait_for(Failed)
    assert words in failed.message
    assert "Restart" in failed.hint
    assert str(tmp_path / "deep" / "engine.log") in failed.hint
    assert (chat.client.state, chat.client.pid) == ("dead", None)
    if prompt:
        assert chat.of(Delta)[0].text == "one "  # what was written stays
    chat.submit()  # dropped, not raised
    await asyncio.sleep(0.05)
    assert len(chat.of(Failed)) == 1


@pytest.mark.parametrize(("program", "words"), [("pass", ""), ("print('this run')", "this run")])
def test_the_last_words_of_an_engine_are_those_of_its_own_run(tmp_path, program, words):
    log = tmp_path / "engine.log"
    log.write_text("the run before\n")
    process = EngineProcess(log, (sys.executable, "-c", program))
    wait_until_sync(lambda: not process.running, what="its end")
    assert process.last_log_line() == words
    process.kill()
    assert log.read_text().startswith("the run before\n--- engine started ")


async def test_a_dead_engine_is_restarted_and_answers(process):
    chat = process()
    await chat.client.start()
    await chat.wait_for(Ready)
    os.kill(chat.client.pid, signal.SIGTERM)
    assert "signal 15 (SIGTERM)" in (await chat.wait_for(Failed)).message
    await chat.client.restart()
    chat.submit()
    assert (await chat.wait_for(Finished)).reason == "length"


@pytest.mark.parametrize(
    ("model", "prompt", "title"),
    [("fake?load=error", "", "model not loaded"), ("fake", "!device", "device failed")],
)
async def test_a_failure_that_the_engine_explained_is_told_once(process, model, prompt, title):
    chat = process(model)
    await chat.client.start()
    pid = chat.client.pid
    if prompt:
        chat.submit(prompt=prompt)
    assert (await chat.wait_for(Failed)).title == title
    await wait_until(lambda: not psutil.pid_exists(pid))
    await asyncio.sleep(0.05)
    assert len(chat.of(Failed)) == 1
    assert chat.client.state == "dead"
    await chat.client.restart(EngineConfig(model="fake"))
    await wait_until(lambda: chat.client.state == "ready")


async def test_a_worker_that_cannot_be_started_is_told_and_not_raised():
    chat = Chat(EngineClient(EngineConfig(), command=("/does/not/exist",)))
    await chat.client.start()
    assert "/does/not/exist" in (await chat.wait_for(Failed)).message
    assert chat.client.state == "dead"


async def test_output_that_is_no_message_ends_the_engine(process):
    script = (
        "import socket, sys, time; s = socket.socket(fileno=int(sys.argv[sys.argv.index('--fd') + 1]));"
        "s.sendall(b'\\xff' * 64); time.sleep(60)"
    )
    chat = Chat(EngineClient(EngineConfig(), command=(sys.executable, "-c", script)))
    await chat.client.start()
    assert "cannot read" in (await chat.wait_for(Failed)).message
    await chat.client.close()


@pytest.mark.parametrize(("model", "prompt"), [("fake?load_s=60", ""), ("fake", "!hang"), ("fake", "")])
async def test_closing_ends_the_engine_within_three_seconds(process, model, prompt):
    chat = process(model)
    await chat.client.start()
    pid = chat.client.pid
    if prompt:
        chat.submit(prompt=prompt)
        await chat.wait_for(Delta)
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await chat.client.close()
    assert time.monotonic() - began < 3.0
    assert not psutil.pid_exists(pid)  # gone, and reaped


async def test_neither_files_nor_processes_leak_over_restarts(process):
    me = psutil.Process()
    others = set(me.children())  # of tests that this process ran before
    chat = process()
    await chat.client.start()
    await chat.client.restart()
    gc.collect()
    before = me.num_fds()
    for _ in range(3):
        await chat.client.restart()
        os.kill(chat.client.pid, signal.SIGKILL)
        chat.events.clear()
        await chat.wait_for(Failed)
    await chat.client.restart()
    assert me.num_fds() == before
    assert len(set(me.children()) - others) == 1


async def test_the_engine_has_no_terminal_and_a_session_of_its_own(process):
    chat = process()
    await chat.client.start()
    pid = chat.client.pid
    await chat.wait_for(Ready)
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    assert all(os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/tmp") for fd in (1, 2))


async def test_an_idle_engine_process_burns_nothing(process):
    chat = process()
    await chat.client.start()
    chat.submit(max_tokens=3)
    await chat.wait_for(Finished)
    await asyncio.sleep(0.1)
    engine = psutil.Process(chat.client.pid)
    before = sum(engine.cpu_times()[:2])
    await asyncio.sleep(1.0)
    assert sum(engine.cpu_times()[:2]) - before <= 0.01


async def test_a_slow_reader_loses_records_but_no_token(process):
    chat = process("fake?num_blocks=16385")
    await chat.client.start()
    await chat.wait_for(Ready)
    for number in range(24):
        chat.submit(f"s{number}", max_tokens=6000)
    time.sleep(2.5)  # noqa: ASYNC251 - the app's loop is stuck and reads nothing
    await chat.wait_for(Finished, 24)
    for number in range(24):
        ids = [i for d in chat.of(Delta) if d.session == f"s{number}" for i in d.token_ids]
        assert len(ids) == 6000
    dropped = sum(batch.dropped for batch in chat.of(Steps))
    told = sum(len(batch.records) for batch in chat.of(Steps))
    assert dropped > 0
    assert told + dropped == chat.of(BlockSnapshot)[-1].step


# --- the end of the app ----------------------------------------------------------------------------

APP = """
import asyncio, sys
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.commands import Submit
from engine.records import Delta, Ready
from engine.request import SamplingParams

client = EngineClient(EngineConfig(model=sys.argv[1]), command=(sys.executable, "-P", "-m", sys.argv[2]))

def on_event(event):
    if isinstance(event, Ready):
        client.send(Submit("a", 1, "hi", SamplingParams(max_tokens=10**6)))
    if isinstance(event, Delta):
        print("streaming", flush=True)

async def main():
    client.on_event = on_event
    await client.start()
    print(client.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize(
    ("model", "worker", "when"),
    [
        ("fake?load_s=60", "tests.engine.fake_worker", "loading"),
        ("fake?step_s=0.01", "tests.engine.fake_worker", "streaming"),
        ("smollm2", "engine.worker", "loading"),
    ],
)
def test_the_engine_is_gone_within_three_seconds_of_a_killed_app(model, worker, when, number):
    app = subprocess.Popen(
        [sys.executable, "-c", APP, model, worker], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    try:
        engine = psutil.Process(int(app.stdout.readline()))
        if when == "streaming":
            assert app.stdout.readline() == "streaming\n"
        else:
            time.sleep(0.7)
        assert engine.is_running()
        app.send_signal(number)
        app.wait(5)
        began = time.monotonic()
        wait_until_sync(
            lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE, timeout_s=3.0
        )
        assert time.monotonic() - began < 3.0
    finally:
        app.kill()
        app.wait()
        app.stdout.close()


def test_without_the_signal_of_its_parent_the_engine_still_ends_with_its_socket():
    """Other systems than Linux have the socket only; so does a client that was launched on a thread."""
    ours, theirs = socket.socketpair()
    worker = subprocess.Popen(
        [*FAKE_WORKER, "--fd", str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd=REPOSITORY,
        env=dict(os.environ, PYTHONPATH=f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"),
    )  # fmt: skip
    theirs.close()
    from engine.commands import Load
    from engine.wire import frame

    ours.sendall(frame(Load(EngineConfig(model="fake?load_s=60"))))
    time.sleep(0.5)
    assert worker.poll() is None
    ours.close()
    assert worker.wait(3.0) == 0


async def test_a_cancel_stops_the_stream_and_the_next_epoch_runs(process):
    chat = process("fake?step_s=0.002")
    await chat.client.start()
    chat.submit(max_tokens=10_000)
    await chat.wait_for(Delta, 2)
    chat.client.send(Cancel("a", 1))
    chat.submit(epoch=2, max_tokens=5)
    await chat.wait_for(Finished, 2)
    assert [(f.epoch, f.reason) for f in chat.of(Finished)] == [(1, "cancelled"), (2, "length")]


async def test_a_process_that_was_prepared_loads_what_is_known_when_it_is_launched():
    client = EngineClient(EngineConfig(model="unknown yet"), command=FAKE_WORKER)
    chat = Chat(client)
    client.prepare()
    assert (client.state, client.pid) == ("idle", None)
    client.config = EngineConfig(model="fake")
    client.launch()
    process = client.pid
    client.launch()
    await client.start()
    try:
        ready = await chat.wait_for(Ready)
        assert ready.status.model == "fake"
        assert (client.state, client.pid) == ("ready", process)
    finally:
        await client.close()


def test_a_process_that_was_prepared_and_is_not_needed_ends_at_once():
    client, others = EngineClient(EngineConfig(), command=FAKE_WORKER), psutil.Process().children()
    client.prepare()
    (process,) = (child for child in psutil.Process().children() if child not in others)
    client.kill()
    assert not process.is_running()
    assert client.state == "closed"


def test_a_prepared_process_imports_torch_before_it_is_told_what_to_load():
    client, others = EngineClient(EngineConfig()), psutil.Process().children()
    client.prepare()
    try:
        wait_until_sync(lambda: client.poll() is not None, 30, "its first words")
        assert client.poll() == Progress("starting", "importing torch")
        (process,) = (child for child in psutil.Process().children() if child not in others)
        wait_until_sync(
            lambda: any("libtorch_cpu" in file.path for file in process.memory_maps()), 60, "torch in memory"
        )
    finally:
        client.kill()


def test_what_cannot_be_prepared_is_reported_when_it_is_launched():
    client = EngineClient(EngineConfig(), command=("/no/such/program",))
    chat = Chat(client)
    client.prepare()
    client.launch()
    client._loop = asyncio.new_event_loop()
    client._hand_over()
    client._loop.close()
    assert chat.of(Failed)[0].title == "engine not started"
