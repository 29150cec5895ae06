"""llama.cpp, vLLM and whatever else serves the OpenAI interface, as the CPU benchmark drives them."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu_peers import RUN_S, START_S, Chat, Child, Measured, Peer
from engine.errors import EngineError

POLL_S, VERSION_S = 0.02, 60.0
SLOT_TOKENS = 2048  # room for a chat

Command = Callable[[int], list[str]]  # of a port


class Server(Peer):
    """A server with the OpenAI interface, started on a free port of this machine."""

    def __init__(
        self, name: str, settings: str, command: Command, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name, settings)
        self._command, self._log, self._env = command, log, env or {}
        self._child: Child | None = None
        self._port = 0
        self._model = ""

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.popen.pid

    def start(self) -> float:
        self._port = free_port()
        begin = time.perf_counter()
        self._child = Child(self._command(self._port), self._env, self._log)
        while not self._healthy():
            self._child.check()
            if time.perf_counter() - begin > START_S:
                raise EngineError(f"{self.name} was not ready after {START_S:.0f} s.")
            time.sleep(POLL_S)
        seconds = time.perf_counter() - begin
        self._model = json.loads(self._get("/v1/models")[1])["data"][0]["id"]
        return seconds

    def _healthy(self) -> bool:
        try:
            return self._get("/health")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _get(self, path: str) -> tuple[int, bytes]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)) as link:
            link.request("GET", path)
            response = link.getresponse()
            return response.status, response.read()

    def run(self, chats: Sequence[Chat], new: int) -> Measured:
        streams = [Stream(self._port, self._body(chat, new)) for chat in chats]
        threads = [threading.Thread(target=stream.read) for stream in streams]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for stream in streams:
            if stream.failure:
                raise EngineError(f"{self.name}: {stream.failure}")
        return Measured(
            first_s=tuple(stream.times[0] - begin for stream in streams),
            first_tokens=len(streams),  # llama.cpp and vLLM send each token as it comes
            end_s=max(stream.times[-1] for stream in streams) - begin,
            tokens=sum(stream.usage["completion_tokens"] for stream in streams),
            prompt_tokens=max(stream.usage["prompt_tokens"] for stream in streams),
            text=streams[0].text,
        )

    def _body(self, chat: Chat, new: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": list(chat),
            "max_tokens": new,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def stop(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            child.stop()


class Stream:
    """One streamed answer: when its pieces came, what it said, how many tokens the server counted."""

    def __init__(self, port: int, body: Mapping[str, Any]) -> None:
        self._port, self._body = port, json.dumps(body)
        self.times: list[float] = []
        self.text = ""
        self.usage: dict[str, int] = {}
        self.failure = ""

    def read(self) -> None:
        """Runs on a thread of its own; what goes wrong is in ``failure``."""
        try:
            with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", self._port, timeout=RUN_S)
            ) as link:
                headers = {"Content-Type": "application/json"}
                link.request("POST", "/v1/chat/completions", self._body, headers)
                response = link.getresponse()
                if response.status != 200:
                    self.failure = f"status {response.status}: {response.read(200)!r}"
                    return
                for line in response:
                    self._take(line)
            if not self.times or "completion_tokens" not in self.usage:
                self.failure = "the answer has no text or no count of its tokens"
        except (OSError, ValueError, LookupError, http.client.HTTPException) as error:
            self.failure = f"{type(error).__name__}: {error}"

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            return
        now = time.perf_counter()
        said = json.loads(line[6:])
        self.usage = said.get("usage") or self.usage
        for choice in said["choices"]:
            if piece := choice["delta"].get("content"):
                self.times.append(now)
                self.text += piece


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def llama_cpp(server: str, gguf: Path, slots: int, logs: Path) -> Server:
    """llama.cpp's server on all cores, with room for ``slots`` chats."""
    flags = ["--parallel", str(slots), "--ctx-size", str(slots * SLOT_TOKENS), "--threads", str(_cores())]

    def command(port: int) -> list[str]:
        return [server, "--model", str(gguf), "--host", "127.0.0.1", "--port", str(port), *flags]

    peer = Server("llama.cpp", f"{gguf.name} {' '.join(flags)}", command, logs / "llama.log")
    peer.versions = {"llama.cpp": _said([server, "--version"], "version:")}
    return peer


def vllm(python: str, folder: Path, logs: Path) -> Server:
    """vLLM's server on all cores, in bfloat16."""
    flags = ["--dtype", "bfloat16", "--max-model-len", str(SLOT_TOKENS)]
    env = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{_cores() - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }

    def command(port: int) -> list[str]:
        serve = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)]
        return [*serve, "--host", "127.0.0.1", "--port", str(port), *flags]

    settings = " ".join([*(f"{key}={value}" for key, value in env.items()), *flags])
    peer = Server("vLLM", settings, command, logs / "vllm.log", env)
    peer.versions = {
        name: _said(
            [python, "-c", f"from importlib.metadata import version as v; print('is', v({name!r}))"], "is"
        )
        for name in ("vllm", "torch")
    }
    return peer


def _cores() -> int:
    return os.cpu_count() or 1


def _said(command: Sequence[str], word: str) -> str:
    """What a command says behind a word at the beginning of a line.

    Raises:
        EngineError: it does not run, or says no such thing.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{command[0]} does not run: {error}") from error
    for line in (done.stdout + done.stderr).splitlines():
        if line.startswith(word):
            return line.removeprefix(word).strip()
    raise EngineError(f"{command[0]} does not say its version: {(done.stdout + done.stderr)[-200:]}")
