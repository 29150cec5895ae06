"""How long work takes on a card when launching it costs nothing: a CUDA graph of it, replayed."""

from collections.abc import Callable

import torch

from engine.bench.measure import median

ROUNDS = 10


def replay_ms(step: Callable[[], None]) -> float:
    """Median milliseconds of a replay of ``step``, captured after one run outside."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    graph.replay()
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times)
