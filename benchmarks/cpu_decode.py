"""tui-infer beside its peers on a CPU: tokens a second, time to the first one, memory, start-up, in one run.

    python -m benchmarks.cpu_decode [--llama-server FILE] [--vllm-python FILE] [--json FILE]

In each round every engine is started, warmed up, given 1, 4 and 8 chats at once, and ended, one after the
other; so all of them meet the same machine. All get the same prompts of about 60 tokens, each with a number
of its own in front, decode greedily and go on behind end tokens. Peers that no option names are left out.

* ``tokens_per_s``: tokens behind each request's first one, over all requests, by the time from the mean first
  token to the last one of all;
* ``ttft_ms``, ``ttft_max_ms``: from handing over all prompts to a request's first token, median and slowest;
* ``peak_mib``: peaks of resident memory since the start, added up over an engine's processes; ``pss_mib``:
  what is resident afterwards, pages in common counted once;
* ``start_s``: from starting the process until it takes requests, the model's file in the page cache.

vLLM keeps its weights in bfloat16, llama.cpp reads the GGUF file that the default model is made of.
"""

import argparse
import contextlib
import itertools
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.cpu_ours import Ours
from benchmarks.cpu_peers import Chat, Measured, Peer, Transformers, memory_mib
from benchmarks.cpu_servers import llama_cpp, vllm
from benchmarks.peers import markdown
from engine.bench.report import document, write_json
from engine.config import DEFAULT_MODEL, EngineConfig
from engine.errors import EngineError
from engine.models.source import resolve

OURS = "tui-infer"
TOPICS = (
    "how paper is made from wood",
    "why ships of steel float",
    "what bees do in a hive",
    "how glass is blown by hand",
    "why the moon has phases",
    "how a bicycle stays upright",
    "what makes a good soup",
    "how mountains come to be",
)
FIGURES = ("tokens_per_s", "ttft_ms", "ttft_max_ms", "peak_mib", "pss_mib", "start_s")
RATIOS = ("tokens_per_s", "ttft_ms", "start_s")
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8")

Row = dict[str, Any]


def chats(numbers: Iterator[int], count: int) -> list[Chat]:
    """The next prompts; the numbers differ in their first tokens, so that no prefix cache knows them."""
    return [
        (
            {"role": "system", "content": f"Number {next(numbers)}. You explain things patiently."},
            {
                "role": "user",
                "content": f"Please explain in detail {TOPICS[index % len(TOPICS)]}, "
                "with several paragraphs, at least two examples from daily life, and a short summary "
                "at the very end for readers in a hurry.",
            },
        )
        for index in range(count)
    ]


def figures(measured: Measured, new: int) -> dict[str, float]:
    """Rate and times of one run, as the module says.

    Raises:
        EngineError: not every request made ``new`` tokens.
    """
    requests = len(measured.first_s)
    if measured.tokens != requests * new:
        raise EngineError(f"{measured.tokens} tokens were made instead of {requests} times {new}.")
    return {
        "tokens_per_s": (measured.tokens - measured.first_tokens) / (measured.end_s - mean(measured.first_s)),
        "ttft_ms": 1e3 * median(measured.first_s),
        "ttft_max_ms": 1e3 * max(measured.first_s),
    }


def measure(peer: Peer, counts: Sequence[int], new: int, warm_up: int) -> Generator[Row, None, None]:
    """A round of one peer: a row for each number of requests. The peer is ended, whatever happens."""
    try:
        start_s = peer.start()
        numbers = itertools.count(1000)
        for count in counts:
            peer.run(chats(numbers, count), warm_up)
            measured = peer.run(chats(numbers, count), new)
            peak, shared = memory_mib(peer.pid)
            weighed = {"peak_mib": peak, "pss_mib": shared, "start_s": start_s}
            yield {
                "peer": peer.name,
                "requests": count,
                "prompt_tokens": measured.prompt_tokens,
                "text": measured.text[:80],
                **figures(measured, new),
                **weighed,
            }
    finally:
        peer.stop()


def spread(values: Sequence[float]) -> Row:
    """The values of all rounds, and their median and ends."""
    rounded = [round(value, 3 if value < 100 else 1) for value in values]
    return {"values": rounded, "median": round(median(rounded), 3), "min": min(rounded), "max": max(rounded)}


def summed(runs: Sequence[Row]) -> list[Row]:
    """One row for each peer and number of requests, with the spread of each figure over the rounds."""
    return [
        {
            **{key: own[-1][key] for key in ("peer", "requests", "prompt_tokens", "text")},
            **{figure: spread([run[figure] for run in own]) for figure in FIGURES},
        }
        for own in _grouped(runs).values()
    ]


def ratios(runs: Sequence[Row]) -> list[Row]:
    """Ours over each peer's, round by round: rates above 1 and times below 1 are in our favour."""
    groups = _grouped(runs)
    rows = []
    for (peer, requests), theirs in groups.items():
        ours = {run["round"]: run for run in groups.get((OURS, requests), ())}
        pairs = [(ours[run["round"]], run) for run in theirs if run["round"] in ours]
        if peer != OURS and pairs:
            over = {key: spread([mine[key] / its[key] for mine, its in pairs]) for key in RATIOS}
            rows.append({"peer": peer, "requests": requests, **over})
    return rows


def _grouped(runs: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    groups: dict[tuple[str, int], list[Row]] = {}
    for run in runs:
        groups.setdefault((run["peer"], run["requests"]), []).append(run)
    return groups


def table(rows: Sequence[Row]) -> str:
    """Medians, and the ends of the rates, a line for each peer."""
    counts = sorted({row["requests"] for row in rows})
    heads = [f"{what}, {count}" for what in ("tokens/s", "first token, ms") for count in counts]
    lines = [["engine", *heads, "peak MiB", "start, s"]]
    for peer in dict.fromkeys(row["peer"] for row in rows):
        own = {row["requests"]: row for row in rows if row["peer"] == peer}
        rates = [_rate(own[count]["tokens_per_s"]) if count in own else "" for count in counts]
        firsts = [f"{own[count]['ttft_ms']['median']:.0f}" if count in own else "" for count in counts]
        last = own[max(own)]
        weighed = [f"{last['peak_mib']['median']:,.0f}", f"{last['start_s']['median']:.1f}"]
        lines.append([peer, *rates, *firsts, *weighed])
    return markdown(lines)


def _rate(figure: Row) -> str:
    return f"{figure['median']:.1f} ({figure['min']:.1f} to {figure['max']:.1f})"


def processor() -> Row:
    """What of the processor decides which kernels run; memory in GiB."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        words = set()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"flags": [flag for flag in FLAGS if flag in words], "memory_gib": round(memory, 1)}


def peers(chosen: argparse.Namespace, logs: Path) -> tuple[list[Peer], list[Row]]:
    """The engines of a round in their order, and those left out, each with the reason."""
    source = resolve(chosen.model)
    folder, gguf = chosen.folder or source.path, chosen.gguf or source.gguf
    python = chosen.transformers_python
    found: list[Peer] = [
        Ours(OURS, EngineConfig(model=chosen.model, device="cpu"), logs / "ours.log"),
        Ours(
            f"{OURS} --quant none",
            EngineConfig(model=chosen.model, device="cpu", quant="none"),
            logs / "ours-none.log",
        ),
    ]
    for way, dtype in itertools.product(("generate", "continuous"), ("float32", "bfloat16")):
        log = logs / f"{way}-{dtype}.log"
        found.append(Transformers(f"transformers {way} {dtype}", way, dtype, folder, python, log))
    skipped = []
    if chosen.llama_server and gguf:
        found.append(llama_cpp(chosen.llama_server, gguf, max(chosen.n), logs))
    else:
        skipped.append({"peer": "llama.cpp", "reason": "needs --llama-server and a GGUF file"})
    if chosen.vllm_python:
        found.append(vllm(chosen.vllm_python, folder, logs))
    else:
        skipped.append({"peer": "vLLM", "reason": "needs --vllm-python"})
    wanted = [peer for peer in found if not chosen.only or any(word in peer.name for word in chosen.only)]
    return wanted, skipped


def run_rounds(wanted: list[Peer], chosen: argparse.Namespace, value: Row) -> None:
    """All rounds; what failed once is left out of the others. The document is kept up to date."""
    runs: list[Row] = []
    for number in range(1, chosen.rounds + 1):
        for peer in [peer for peer in wanted if peer.name not in {row["peer"] for row in value["failed"]}]:
            load = os.getloadavg()[0]
            try:
                with contextlib.closing(measure(peer, chosen.n, chosen.new, chosen.warm_up)) as rows:
                    for row in rows:
                        runs.append({"round": number, **row})
                        print(line(number, row), flush=True)
            except Exception as error:  # costs its own figures only
                traceback.print_exc()
                reason = str(error) or type(error).__name__
                value["failed"].append({"peer": peer.name, "round": number, "reason": reason})
            value["loads"].append({"peer": peer.name, "round": number, "load_before": round(load, 2)})
            value["peers"][peer.name] = {"settings": peer.settings, "versions": peer.versions}
            value["rows"], value["ratios"] = summed(runs), ratios(runs)
            if chosen.json:
                write_json(chosen.json, value)


def line(number: int, row: Row) -> str:
    """A run for people who watch."""
    return (
        f"round {number}, {row['peer']}, {row['requests']} at once: {row['tokens_per_s']:.1f} tokens/s, "
        f"first token {row['ttft_ms']:.0f} ms (slowest {row['ttft_max_ms']:.0f}), "
        f"{row['peak_mib']:,.0f} MiB, started in {row['start_s']:.1f} s"
    )


def without_folders(command: str) -> str:
    """A command line that names files, not where they are on this machine."""
    return " ".join(Path(word).name if word.startswith("/") else word for word in command.split())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 8])
    parser.add_argument("--new", type=int, default=128, help="tokens a request")
    parser.add_argument("--warm-up", type=int, default=16, help="tokens a request, not measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", type=lambda text: text.split(","), help="engines whose names have these words"
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="ours; the peers take --folder and --gguf")
    parser.add_argument("--folder", type=Path, help="safetensors for transformers and vLLM")
    parser.add_argument("--gguf", type=Path, help="for llama.cpp")
    parser.add_argument("--transformers-python", default=sys.executable, metavar="FILE")
    parser.add_argument("--llama-server", metavar="FILE", help="llama.cpp's server")
    parser.add_argument("--vllm-python", metavar="FILE", help="Python of an environment with vLLM for CPUs")
    parser.add_argument("--logs", type=Path, help="folder for what the engines print")
    parser.add_argument("--json", type=Path, help="written after each engine")
    chosen = parser.parse_args()
    if chosen.new < 2 or min(chosen.n) < 1:
        parser.error("--new must be at least 2 and --n at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that what was started is ended too
    logs = chosen.logs or Path(tempfile.mkdtemp(prefix="cpu-decode-"))
    logs.mkdir(parents=True, exist_ok=True)
    wanted, skipped = peers(chosen, logs)
    for row in skipped:
        print(f"left out: {row['peer']}, {row['reason']}")
    settings = {key: getattr(chosen, key) for key in ("n", "new", "warm_up", "rounds", "model", "only")}
    found: Row = {"processor": processor(), "peers": {}, "rows": [], "ratios": [], "loads": []}
    value = document("cpu-decode", settings, {**found, "skipped": skipped, "failed": []})
    value["header"]["command"] = without_folders(value["header"]["command"])
    run_rounds(wanted, chosen, value)
    print(table(value["rows"]) if value["rows"] else "nothing was measured")
    if value["failed"]:
        sys.exit(
            "".join(f"\nfailed: {row['peer']}: {row['reason']} (logs: {logs})" for row in value["failed"])
        )


if __name__ == "__main__":
    main()
