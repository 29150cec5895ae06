"""More threads than the process has cores are refused before anything is loaded."""

import os
import sys

import pytest

from engine import config
from engine.config import EngineConfig
from engine.errors import ConfigError


def test_as_many_threads_as_cores_are_taken_and_one_more_is_refused(monkeypatch):
    monkeypatch.setattr(config, "_cores", lambda: 2)
    assert EngineConfig(threads=2).threads == 2
    with pytest.raises(ConfigError) as caught:
        EngineConfig(threads=3)
    assert str(caught.value) == (
        "threads=3 is too large; this process may use 2 cores. Give at most that many, or leave threads out."
    )


def test_one_core_is_spelt_so(monkeypatch):
    monkeypatch.setattr(config, "_cores", lambda: 1)
    with pytest.raises(ConfigError, match=r"may use 1 core\. "):
        EngineConfig(threads=8)


@pytest.mark.skipif(sys.platform != "linux", reason="cores are given to a process under Linux only")
def test_cores_that_the_process_may_not_use_do_not_count():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        EngineConfig(threads=1)
        with pytest.raises(ConfigError, match="threads=2 is too large"):
            EngineConfig(threads=2)
    finally:
        os.sched_setaffinity(0, allowed)
