"""A service on a thread of its own, with everything it said, for tests of the step loop."""

import threading
import time

from engine.commands import Load, Message, Pause, Submit
from engine.config import EngineConfig
from engine.records import Delta, Paused, Steps
from engine.request import SamplingParams
from engine.service import EngineService
from tests.engine.fakes import FakeEngine
from tests.waiting import wait_until_sync


class Bench:
    """A service on a thread, with everything it said and when."""

    def __init__(self, model="fake", make_engine=FakeEngine, **config):
        self.events = []
        self.times = []
        self.congested = False
        self.engine = None
        self._make_engine = make_engine
        self.service = EngineService(self, self._make)
        self.healthy = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.post(Load(EngineConfig(model=model, **config)))
        self.thread.start()

    def _make(self, config, progress):
        self.engine = self._make_engine(config, progress)
        return self.engine

    def _run(self):
        self.healthy = self.service.run()

    def send(self, event):
        self.times.append(time.monotonic())
        self.events.append(event)

    def post(self, *commands):
        for command in commands:
            self.service.post(command)

    def submit(self, session="a", epoch=1, prompt="hello", max_tokens=20, **params):
        sampling = SamplingParams(max_tokens=max_tokens, **params)
        self.post(Submit(session, epoch, [Message("user", prompt)], sampling))

    def of(self, kind, session=None):
        return [e for e in self.events if isinstance(e, kind) and (session is None or e.session == session)]

    def wait_for(self, kind, count=1, session=None):
        wait_until_sync(lambda: len(self.of(kind, session)) >= count, what=f"{count} {kind.__name__}")
        return self.of(kind, session)[count - 1]

    def records(self):
        return [record for batch in self.of(Steps) for record in batch.records]

    def pause(self):
        """Stop the loop, so that what is posted next is taken up together."""
        count = len(self.of(Paused))
        self.post(Pause(True))
        self.wait_for(Paused, count + 1)

    def text(self, session="a"):
        return "".join(delta.text for delta in self.of(Delta, session))
