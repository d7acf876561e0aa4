"""Read a server's `/metrics`: values, what happened between two readings, and quantiles."""

from __future__ import annotations

import math
import time
import urllib.request
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Reading:
    """All metrics at one moment.

    Args:
        time: seconds of `time.perf_counter`.
        samples: by name and labels, as the text says them: counters end in `_total`.
    """

    time: float
    samples: dict[tuple[str, Labels], float] = field(repr=False)

    def value(self, name: str, **labels: str) -> float:
        """A gauge or counter, summed over the labels that are not given. 0 if nothing fits."""
        return sum(
            value
            for (sample, found), value in self.samples.items()
            if sample == name and labels.items() <= dict(found).items()
        )

    def since(self, earlier: Reading) -> Reading:
        """What counters and histograms gained. (A difference of gauges means nothing.)"""
        samples = {
            key: value - earlier.samples.get(key, 0.0) for key, value in self.samples.items()
        }
        return Reading(self.time - earlier.time, samples)

    def mean(self, name: str) -> float:
        """The mean of a histogram; NaN if it is empty."""
        count = self.value(f"{name}_count")
        return self.value(f"{name}_sum") / count if count else math.nan

    def quantile(self, name: str, q: float) -> float:
        """A quantile of a histogram, estimated as Prometheus' `histogram_quantile` does.

        The histogram knows how many values are in each bucket, not where. So the estimate lies on
        a straight line between the bucket's bounds. NaN if the histogram is empty.
        """
        buckets: dict[float, float] = {}
        for (sample, labels), value in self.samples.items():
            if sample == f"{name}_bucket":
                bound = float(dict(labels)["le"])
                buckets[bound] = buckets.get(bound, 0.0) + value
        bounds = sorted(buckets)
        if not bounds or not buckets[bounds[-1]]:
            return math.nan
        rank = q * buckets[bounds[-1]]
        lower, below = 0.0, 0.0
        for bound in bounds:
            if buckets[bound] >= rank and buckets[bound] > below:
                if math.isinf(bound):
                    return lower  # nobody knows how far beyond the last bound
                return lower + (bound - lower) * (rank - below) / (buckets[bound] - below)
            lower, below = bound, buckets[bound]
        return lower


def parse(text: str) -> Reading:
    """A reading from text in Prometheus' format."""
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return Reading(time.perf_counter(), samples)


def scrape(url: str, timeout: float = 10.0) -> Reading:
    """Read the metrics of the server at `url`, such as http://127.0.0.1:8000.

    Raises:
        OSError: the server does not answer.
    """
    with urllib.request.urlopen(f"{url}/metrics", timeout=timeout) as response:
        return parse(response.read().decode())
