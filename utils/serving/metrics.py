"""The server's metrics in Prometheus' format, under vLLM's names.

All of them are counted where the engine runs, except the rejections. See `v1/metrics/loggers.py`
in vLLM, and https://prometheus.io/docs/concepts/metric_types/ for what a histogram is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from utils.engine import LLMEngine, StepRecord
from utils.engine.output_processor import RequestState
from utils.engine.outputs import RequestMetrics

disable_created_metrics()  # halves the text; nobody here asks when a counter began

# vLLM's bounds, as far as a small server needs them. In seconds.
TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
BETWEEN_TOKENS = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # per step

# name -> (kind, what it says, extra labels, bounds of a histogram)
Definition = tuple[type, str, tuple[str, ...], tuple[float, ...]]
DEFINITIONS: dict[str, Definition] = {
    "vllm:num_requests_running": (Gauge, "Requests in the batch of each step.", (), ()),
    "vllm:num_requests_waiting": (Gauge, "Requests that wait to be processed.", (), ()),
    "vllm:kv_cache_usage_perc": (Gauge, "Part of the blocks in use. 1 is all of them.", (), ()),
    "vllm:prefix_cache_queries": (Counter, "Tokens looked up in the prefix cache.", (), ()),
    "vllm:prefix_cache_hits": (Counter, "Tokens found in the prefix cache.", (), ()),
    "vllm:num_preemptions": (Counter, "Times that a request had to give up blocks.", (), ()),
    "vllm:prompt_tokens": (Counter, "Tokens of prompts that were read.", (), ()),
    "vllm:generation_tokens": (Counter, "Tokens of answers.", (), ()),
    "vllm:request_success": (Counter, "Finished answers.", ("finished_reason",), ()),
    "vllm:admission_rejections": (Counter, "Requests refused by a limit.", ("reason",), ()),
    "vllm:iteration_tokens_total": (Histogram, "Tokens computed per step.", (), TOKENS),
    "vllm:time_to_first_token_seconds": (Histogram, "Time to first token.", (), TTFT),
    "vllm:inter_token_latency_seconds": (Histogram, "Between two tokens.", (), BETWEEN_TOKENS),
    "vllm:request_time_per_output_token_seconds": (
        Histogram,
        "Time per token after the first.",
        (),
        BETWEEN_TOKENS,
    ),
    "vllm:e2e_request_latency_seconds": (Histogram, "From arrival to the end.", (), LATENCY),
    "vllm:request_queue_time_seconds": (Histogram, "From arrival to being let in.", (), LATENCY),
    # vLLM has no such thing. Where the engine's time goes: schedule, execute, process, deliver.
    "course:engine_seconds": (Counter, "Seconds of the engine's thread.", ("part",), ()),
    "course:http_cpu_seconds": (Counter, "CPU seconds of the thread that speaks HTTP.", (), ()),
}


class ServerMetrics:
    """What a server counts. Each one has a registry of its own, so that several can be in a test.

    Args:
        model_name: goes into the label that all metrics have.
    """

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        self._metrics = {
            name: kind(
                name,
                text,
                (*self._labels, *labels),
                registry=self.registry,
                **({"buckets": bounds} if bounds else {}),
            )
            for name, (kind, text, labels, bounds) in DEFINITIONS.items()
        }
        for name, (_, _, labels, _) in DEFINITIONS.items():
            if not labels:
                self._get(name)  # so that it is there, as 0, before anything happens
        self._prefix_cache = (0, 0)  # queries and hits that are already counted
        self._http_cpu = 0.0  # seconds that are already counted

    def text(self) -> str:
        """All metrics as `/metrics` shows them."""
        return generate_latest(self.registry).decode()

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Raise a counter."""
        self._get(name, **labels).inc(amount)

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        self._get(name).set(value)

    def observe_http_cpu(self, seconds: float) -> None:
        """The CPU seconds that the thread that speaks HTTP has used since it began."""
        self.count("course:http_cpu_seconds", seconds - self._http_cpu)
        self._http_cpu = seconds

    def observe(self, name: str, value: float | None) -> None:
        """Put a value into a histogram. None: there is no value, so nothing is counted."""
        if value is not None:
            self._get(name).observe(value)

    def observe_engine(self, engine: LLMEngine) -> None:
        """The state of the engine, now."""
        self.set("vllm:num_requests_running", len(engine.scheduler.running))
        self.set("vllm:num_requests_waiting", len(engine.scheduler.waiting))
        self.set("vllm:kv_cache_usage_perc", engine.kv_cache_manager.usage)
        stats, (queries, hits) = engine.kv_cache_manager.prefix_cache_stats, self._prefix_cache
        self.count("vllm:prefix_cache_queries", stats.queries - queries)
        self.count("vllm:prefix_cache_hits", stats.hits - hits)
        self._prefix_cache = (stats.queries, stats.hits)

    def observe_step(self, step: StepRecord) -> None:
        """What one step did, and how long its parts took."""
        num_tokens = sum(tokens.num_new for tokens in step.tokens.values())
        self.observe("vllm:iteration_tokens_total", num_tokens)
        self.count("vllm:num_preemptions", len(step.preempted_req_ids))
        self.count("course:engine_seconds", step.scheduled - step.start, part="schedule")
        self.count("course:engine_seconds", step.executed - step.started, part="execute")
        self.count("course:engine_seconds", step.end - step.collected, part="process")

    def observe_tokens(self, request: RequestState, num_seen: int) -> None:
        """The tokens that one answer got in a step.

        Args:
            request: the prompt's request for this answer.
            num_seen: of its tokens, those that were counted before.
        """
        metrics, is_first = request.metrics, request is request.family[0]
        self.count("vllm:generation_tokens", len(metrics.token_ts) - num_seen)
        if num_seen == 0 and is_first:
            self.count("vllm:prompt_tokens", len(request.prompt_token_ids))
            self.observe("vllm:time_to_first_token_seconds", metrics.ttft)
        for latency in _latencies(metrics, num_seen):
            self.observe("vllm:inter_token_latency_seconds", latency)
        if request.is_finished:
            self.observe("vllm:request_time_per_output_token_seconds", metrics.tpot)

    def observe_end(self, request: RequestState) -> None:
        """A prompt with all its answers is done, or was aborted."""
        first = request.family[0].metrics
        ends = [t for t in (member.metrics.last_token_ts for member in request.family) if t]
        for answer in request.output().outputs:
            reason = answer.finish_reason or "abort"
            self.count("vllm:request_success", finished_reason=reason)
        self.observe("vllm:request_queue_time_seconds", first.queue_time)
        if ends:
            self.observe("vllm:e2e_request_latency_seconds", max(ends) - first.arrival_time)

    def _get(self, name: str, **labels: str) -> Any:
        return self._metrics[name].labels(**self._labels, **labels)


def _latencies(metrics: RequestMetrics, num_seen: int) -> Iterable[float]:
    """Seconds before each new token but the first one of the answer."""
    times = metrics.token_ts
    return [times[i] - times[i - 1] for i in range(max(1, num_seen), len(times))]
