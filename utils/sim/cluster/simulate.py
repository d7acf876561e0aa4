"""A trace through a router and its replicas, event by event; the same every time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from utils.routing.policies import Replica, ReplicaLoad, RoutingPolicy, RoutingRequest
from utils.routing.prefix_index import KVIndex
from utils.routing.prefix_policies import PrefixPolicy
from utils.sim.cluster.replica import NEVER, SimReplica
from utils.sim.cluster.replica_config import ReplicaConfig
from utils.sim.cluster.trace import ClusterTrace

# (request number, chosen index, tokens found in its cache, all replicas as they are now)
Watch = Callable[[int, int, int, Sequence[SimReplica]], None]


@dataclass(frozen=True)
class ClusterResult:
    """What happened to each request; arrays are `[num_requests]`.

    Attributes:
        arrivals: seconds.
        num_tokens: prompt tokens.
        chosen: index of the replica; -1 where the router turned the request away.
        num_cached_tokens: prompt tokens that the replica's cache held (vLLM's name).
        first_token: time of the first token, seconds; NaN where there is none.
        finished: time of the last token, seconds; NaN where there is none.
        busy: seconds in which each replica computed, `[num_replicas]`.
        samples: prompts waiting at each replica, `[num_samples, num_replicas]`.
        sample_seconds: seconds between two samples.
    """

    arrivals: np.ndarray
    num_tokens: np.ndarray
    chosen: np.ndarray
    num_cached_tokens: np.ndarray
    first_token: np.ndarray
    finished: np.ndarray
    busy: np.ndarray
    samples: np.ndarray
    sample_seconds: float

    @property
    def hit_rate(self) -> float:
        """Cached prompt tokens / all prompt tokens that were served."""
        served = self.chosen >= 0
        return float(self.num_cached_tokens[served].sum() / self.num_tokens[served].sum())

    @cached_property
    def ttft(self) -> np.ndarray:
        """Seconds to the first token of each request that got one."""
        waited = self.first_token - self.arrivals
        return waited[~np.isnan(waited)]

    def ttft_percentile(self, percent: float) -> float:
        return float(np.percentile(self.ttft, percent))

    def goodput(self, slo: float) -> float:
        """Requests per second whose first token came within `slo` seconds."""
        return float((self.ttft <= slo).sum() / (self.arrivals[-1] - self.arrivals[0]))

    @property
    def imbalance(self) -> float:
        """Busy seconds of the busiest replica over their mean; 1 is perfect."""
        return float(self.busy.max() / self.busy.mean())


def simulate(
    trace: ClusterTrace,
    policy: RoutingPolicy,
    num_replicas: int,
    config: ReplicaConfig,
    *,
    report_seconds: float = 0.0,
    whole_prompts: bool = False,
    max_waiting: int | None = None,
    sample_seconds: float = 10.0,
    watch: Watch | None = None,
) -> ClusterResult:
    """Send a trace through `policy` to replicas whose caches are empty, and let all finish.

    Args:
        trace: the requests.
        policy: a new one; it keeps what it learned. A `KVIndex` in it is told at once what
            each replica stores and evicts, or, with `config.blocks_after_prefill`, when the
            prefill ends.
        num_replicas: how many, all alike.
        config: of each replica.
        report_seconds: the router sees the replicas' load as it was at the last report, plus what
            it sent there since. 0: it sees the truth. vLLM's coordinator reports every 0.1 s.
        whole_prompts: the router counts a waiting prompt at its full length until its first token
            comes, as a router does that sees only what it sent. False: it knows what is left to
            compute, without what the cache held.
        max_waiting: turn a request away where so many already wait at the chosen replica.
        sample_seconds: how often to note how many wait.
        watch: called after each request was given to a replica.

    Raises:
        ValueError: an argument is out of its range, or trace and replicas differ in block size.
    """
    if num_replicas < 1 or report_seconds < 0 or not sample_seconds > 0:
        raise ValueError(
            "num_replicas must be at least 1, report_seconds 0 or more and sample_seconds above 0, "
            f"not {num_replicas}, {report_seconds} and {sample_seconds}"
        )
    if report_seconds and whole_prompts:
        raise ValueError("report_seconds and whole_prompts cannot be combined")
    if trace.block_size != config.block_size:
        raise ValueError(
            f"the trace names blocks of {trace.block_size} tokens and the replicas have blocks of "
            f"{config.block_size}; give ReplicaConfig(block_size={trace.block_size})"
        )
    count = len(trace)
    first, last = [float("nan")] * count, [float("nan")] * count
    chosen, cached_tokens, samples = [-1] * count, [0] * count, []
    index = policy.index if isinstance(policy, PrefixPolicy) else None
    truth = index if isinstance(index, KVIndex) else None
    replicas = [
        SimReplica(i, config, first, last, cached_tokens, truth) for i in range(num_replicas)
    ]
    views: Sequence[Replica] = replicas
    reports = [ReplicaLoad(i) for i in range(num_replicas)]
    if report_seconds or whole_prompts:
        views = reports
    next_sample, next_report = 0.0, 0.0
    choose, request = policy.choose, RoutingRequest(0)
    with _no_garbage_collection():
        for number, now, session, num_tokens, output_len, names in trace.rows():
            while now >= next_sample:
                for replica in replicas:
                    replica.advance(next_sample)
                samples.append([replica.num_waiting for replica in replicas])
                next_sample += sample_seconds
            if report_seconds and now >= next_report:
                next_report = now - now % report_seconds
                _report(replicas, reports, next_report)
                next_report += report_seconds
            for replica in replicas:
                if replica.end <= now:
                    replica.advance(now)
            if whole_prompts and not report_seconds:
                _report(replicas, reports, now)
                for replica, seen in zip(replicas, reports, strict=True):
                    seen.waiting_tokens = replica.whole_waiting_tokens()
            request.request_id, request.session_id = number, session
            request.num_tokens, request.block_hashes = num_tokens, names
            best = choose(request, views)
            replica = replicas[best]
            if max_waiting is not None and replica.num_waiting >= max_waiting:
                continue
            cached, evicted = replica.submit(now, number, names, num_tokens, output_len)
            chosen[number], cached_tokens[number] = best, cached
            if report_seconds:
                reports[best].num_waiting += 1
                reports[best].waiting_tokens += num_tokens - cached
            if truth is not None and not config.blocks_after_prefill:
                truth.stored(best, names[cached // config.block_size :])
                truth.removed(best, evicted)
            if watch is not None:
                watch(number, best, cached, replicas)
    for replica in replicas:
        while replica.end != NEVER:
            replica.advance(replica.end)
    return ClusterResult(
        trace.arrivals,
        trace.num_tokens,
        np.array(chosen),
        np.array(cached_tokens),
        np.array(first),
        np.array(last),
        np.array([replica.busy for replica in replicas]),
        np.array(samples),
        sample_seconds,
    )


def _report(replicas: Sequence[SimReplica], reports: Sequence[ReplicaLoad], when: float) -> None:
    for replica, seen in zip(replicas, reports, strict=True):
        replica.advance(when)
        seen.num_running, seen.num_waiting = replica.num_running, replica.num_waiting
        seen.waiting_tokens = replica.waiting_tokens


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A million small lists, none of them garbage: looking for some costs a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
