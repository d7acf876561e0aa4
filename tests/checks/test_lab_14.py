"""What lab 14 calls right, held against something independent."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as PrometheusHistogram

from utils.checks import lab_14
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_14 import admissions, event_streams, histograms, promises
from utils.checks.lab_14.simulated_server import Job, Server, StepSeconds
from utils.serving.http.tools import EventStream


def test_streams_are_read_as_the_courses_client_reads_them():
    """The course's client knows whole lines of `data: `; on these streams both must agree."""
    num_streams = 0
    for stream in sample(event_streams.draw_stream, 200):
        data = b"".join(piece for which, piece in stream.pieces if which == 0)
        text = re.sub(rb"\r\n", b"\n", data).decode()
        blocks = text.split("\n\n")[:-1]
        if not blocks or not all(re.fullmatch(r"data: [^\n]+", block) for block in blocks):
            continue
        num_streams += 1
        texts = [block.removeprefix("data: ") for block in blocks]
        ends = texts.index("[DONE]") if "[DONE]" in texts else len(texts)
        reader = event_streams.PlainReader()
        assert reader.feed(data) == texts[:ends]
        assert reader.done == ("[DONE]" in texts)
    assert num_streams > 10
    assert EventStream  # the last exercise's server speaks to its reader


def test_buckets_are_those_of_prometheus_own_client():
    dice = np.random.default_rng(0)
    bounds = [0.1, 0.25, 1.0, 4.0]
    theirs = PrometheusHistogram("x", "x", buckets=bounds, registry=CollectorRegistry())
    ours = histograms.PlainHistogram(bounds)
    for value in [*bounds, *dice.lognormal(-1, 1.5, 300)]:
        theirs.observe(value)
        ours.observe(value)
    samples = {s.labels["le"]: s.value for s in theirs.collect()[0].samples if "le" in s.labels}
    assert {float(bound): count for bound, count in samples.items()} == ours.buckets()
    for q in (0.1, 0.5, 0.9):
        exact = np.quantile([*bounds], q)
        assert 0 < ours.quantile(q) <= bounds[-1] and exact > 0


def test_a_quantile_of_evenly_spread_values_is_exact():
    bounds = [10.0, 20.0, 50.0, 100.0]
    ours = histograms.PlainHistogram(bounds)
    for value in range(1, 101):
        ours.observe(value)
    assert [ours.quantile(q) for q in (0.05, 0.3, 0.99, 1.0)] == pytest.approx([5, 30, 99, 100])


def test_goodput_is_what_one_counts_by_hand():
    attempt = promises.Attempt
    attempts = [
        attempt("early", 0.0, 0.0, 200, (1.0,), 1, True),  # due before the time that counts
        attempt("fine", 1.0, 1.0, 200, (1.5, 2.5), 3, True),
        attempt("slow", 1.0, 1.0, 200, (1.5, 4.0), 3, True),  # 1.25 s per token
        attempt("late", 1.0, 1.75, 200, (2.25,), 1, True),  # in time since it was sent only
        attempt("again", 2.0, 2.0, 503),
        attempt("again", 2.5, 2.5, 200, (2.75,), 1, True),
        attempt("cut", 2.0, 2.0, 200, (2.5, 2.75), 3, False),
    ]
    assert promises.count(attempts, 1.0, 5.0, 1.0, 1.0) == (2 / 5, 2 / 4)
    assert math.isnan(promises.count([], 0.0, 1.0, 1.0, 1.0)[0])


def test_who_is_surely_in_time_is_so_whatever_comes_later():
    """The worst case by formula, against a server that others fill up."""
    steps, num_tried = StepSeconds(1.0, 1 / 64), 0
    for budget in (8, 16):
        for before in (0, 1, 3, 5):
            for num_tokens in (1, 7, 8, 20):
                server = Server(budget, steps)
                for number in range(before):
                    server.admit(Job(number, 0.0, 3 + number, 1000))
                server.advance(0.5)
                surely = admissions.surely(server.load(), num_tokens)
                if math.isinf(surely):
                    continue
                job = Job(99, server.now, num_tokens, 1)
                server.admit(job)
                for number in range(40):
                    server.admit(Job(100 + number, server.now, 5, 1000))
                server.advance(server.now + surely)
                assert job.first_token is not None
                num_tried += 1
    assert num_tried > 15


def test_the_last_exercise_names_the_part_that_is_wrong():
    class Deaf:
        done = False

        def feed(self, piece):
            return []

    feedback = lab_14.engine(object, None, Deaf)
    assert feedback.headline.startswith("Exercise 1 is not right yet.")
