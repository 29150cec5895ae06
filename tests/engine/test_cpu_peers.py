"""Peers of the CPU benchmark as it drives them: servers that stream, a library in a process, their ends."""

import http.server
import sys

import psutil
import pytest

from benchmarks import cpu_servers
from benchmarks.cpu_peers import Child, Transformers
from benchmarks.cpu_servers import Server, free_port, llama_cpp, vllm
from engine.errors import EngineError
from tests.waiting import wait_until_sync

SERVER = """
import http.server, json, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, code, *lines):
        self.send_response(code)
        self.end_headers()
        for line in lines:
            self.wfile.write(line)
            time.sleep(0.01)

    def do_GET(self):
        ready = time.monotonic() > begin + 0.2
        if self.path == "/health":
            self.answer(200 if ready else 503)
        else:
            self.answer(200, b'{"data": [{"id": "toy"}]}')

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wanted = asked["model"], asked["stream"], asked["ignore_eos"], asked["temperature"]
        if wanted != ("toy", True, True, 0):
            return self.answer(400, b"bad request")
        prompt = asked["messages"][-1]["content"]
        if prompt == "refuse":
            return self.answer(422, b"not that")
        deltas = [{"role": "assistant", "content": ""}] + [{"content": f"{prompt}{i} "} for i in range(3)]
        events = [{"choices": [{"delta": delta}]} for delta in deltas]
        if prompt != "uncounted":
            usage = {"prompt_tokens": len(prompt), "completion_tokens": asked["max_tokens"]}
            events.append({"choices": [], "usage": usage})
        lines = [json.dumps(event) for event in events] + ["[DONE]"]
        self.answer(200, *(f"data: {line}\\n\\n".encode() for line in lines))

begin = time.monotonic()
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def chat(text):
    return [{"role": "user", "content": text}]


@pytest.fixture
def server(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    made = Server("toy", "none", lambda port: [sys.executable, str(script), str(port)], tmp_path / "log")
    yield made
    made.stop()


def test_a_server_is_waited_for_timed_and_ended(server):
    assert server.start() >= 0.2
    process = psutil.Process(server.pid)
    found = server.run([chat("a"), chat("bcd")], 7)
    assert (found.tokens, found.prompt_tokens, found.text) == (14, 3, "a0 a1 a2 ")
    assert 0 < max(found.first_s) < found.end_s
    server.stop()
    assert not process.is_running()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [("refuse", "status 422: b'not that'"), ("uncounted", "no count of its tokens")],
)
def test_an_answer_without_figures_is_an_error(server, prompt, message):
    server.start()
    with pytest.raises(EngineError, match=message):
        server.run([chat("fine"), chat(prompt)], 7)


def test_a_server_that_dies_while_starting_says_its_last_words(tmp_path):
    code = "import sys; sys.exit('no such processor')"
    server = Server("toy", "none", lambda port: [sys.executable, "-c", code], tmp_path / "log")
    with pytest.raises(EngineError, match="ended with 1: no such processor"):
        server.start()
    server.stop()


def test_a_program_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EngineError, match="/no/such/server cannot be started"):
        Child(["/no/such/server"], {}, tmp_path / "log")
    with pytest.raises(EngineError, match="/no/such/server does not run"):
        llama_cpp("/no/such/server", tmp_path / "x.gguf", 8, tmp_path)


def test_ending_a_process_ends_those_below_it_even_if_it_will_not(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.cpu_peers.STOP_S", 0.3)
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "time.sleep(60)\n"
    )
    child = Child([sys.executable, "-c", code], {}, tmp_path / "log")
    below = wait_until_sync(lambda: psutil.Process(child.popen.pid).children())
    child.stop()
    assert child.popen.returncode == -9
    wait_until_sync(lambda: not below[0].is_running() or below[0].status() == psutil.STATUS_ZOMBIE)


def test_settings_of_peers_name_cores_and_no_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_servers, "_said", lambda command, word: "1.2.3")
    monkeypatch.setattr(cpu_servers.os, "cpu_count", lambda: 6)
    peer = llama_cpp("/opt/llama-server", tmp_path / "model.gguf", 8, tmp_path)
    assert peer.settings == "model.gguf --parallel 8 --ctx-size 16384 --threads 6"
    assert peer.versions == {"llama.cpp": "1.2.3"}
    peer = vllm("/opt/python", tmp_path, tmp_path)
    assert peer.settings.startswith("VLLM_CPU_OMP_THREADS_BIND=0-5 VLLM_CPU_KVCACHE_SPACE=2")
    assert str(tmp_path) not in peer.settings


@pytest.mark.parametrize("way", ["generate", "continuous"])
def test_transformers_makes_all_tokens_in_both_ways(tiny_model_dir, tmp_path, way):
    peer = Transformers(way, way, "float32", tiny_model_dir, sys.executable, tmp_path / "log")
    try:
        peer.start()
        assert peer.versions.keys() == {"torch", "transformers"}
        texts = []
        for count in (1, 3):
            found = peer.run([chat(f"Number {i}") for i in range(count)], 5)
            assert found.tokens == 5 * count
            assert len(found.first_s) == count
            assert 0 < max(found.first_s) < found.end_s
            texts.append(found.text)
        assert texts[0] == texts[1] != ""
    finally:
        peer.stop()


def test_a_library_that_cannot_load_its_model_is_an_error(tmp_path):
    peer = Transformers("broken", "generate", "float32", tmp_path, sys.executable, tmp_path / "log")
    with pytest.raises(EngineError, match="ended with 1"):
        peer.start()
    peer.stop()


def test_a_free_port_can_be_taken():
    with http.server.HTTPServer(("127.0.0.1", free_port()), http.server.BaseHTTPRequestHandler) as server:
        assert server.server_port > 0
