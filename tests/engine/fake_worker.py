"""The engine process around a FakeEngine: ``python -m tests.engine.fake_worker --fd N``."""

from engine.worker import main
from tests.engine.fakes import FakeEngine

if __name__ == "__main__":
    main(make_engine=FakeEngine)
