"""What lab 14 calls right, held against something independent; and what its plays refuse."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import math
import re

import nbformat
import numpy as np
import pytest
from openai._streaming import SSEDecoder
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as PrometheusHistogram

from tests.checks.mutants import bare
from utils.checks import lab_14
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_14 import admissions, answers, kinds
from utils.checks.lab_14.kinds import Attempt
from utils.checks.lab_14.simulated_server import Job, Server, StepSeconds

# What OpenAI's client understands and the lab leaves out: other fields, and lone ends `\r`.
LEFT_OUT = re.compile(rb"(?m)^(event|id|retry)|^data\r?$|\r(?!\n)|\xef\xbb\xbf")


def test_streams_are_read_as_openais_client_reads_them() -> None:
    num_streams = 0
    for pieces in itertools.chain(*(s.pieces for s in sample(lab_14.draw_streams, 300))):
        if LEFT_OUT.search(b"".join(pieces)):
            continue
        num_streams += 1
        # Its decoder takes an end of the stream for an empty line; the lab's reader doesn't.
        whole = b"".join(pieces).rpartition(b"\n")
        theirs = [event.data for event in SSEDecoder().iter_bytes(iter(whole[:2]))]
        ends = theirs.index("[DONE]") if "[DONE]" in theirs else len(theirs)
        reader = answers.EventReader()
        assert [text for piece in pieces for text in reader.feed(piece)] == theirs[:ends]
        assert reader.done == ("[DONE]" in theirs)
    assert num_streams > 40


def test_buckets_are_those_of_prometheus_own_client() -> None:
    dice = np.random.default_rng(0)
    bounds = [0.1, 0.25, 1.0, 4.0]
    theirs = PrometheusHistogram("x", "x", buckets=bounds, registry=CollectorRegistry())
    ours = answers.Histogram(bounds)
    for value in [*bounds, *dice.lognormal(-1, 1.5, 300)]:
        theirs.observe(value)
        ours.observe(value)
    samples = {s.labels["le"]: s.value for s in theirs.collect()[0].samples if "le" in s.labels}
    assert {float(bound): count for bound, count in samples.items()} == ours.buckets()


def test_a_quantile_of_evenly_spread_values_is_exact() -> None:
    ours = answers.Histogram([10.0, 20.0, 50.0, 100.0])
    for value in range(1, 101):
        ours.observe(value)
    assert [ours.quantile(q) for q in (0.05, 0.3, 0.99, 1.0)] == pytest.approx([5, 30, 99, 100])


def test_goodput_is_what_one_counts_by_hand() -> None:
    attempts = [
        Attempt("early", 0.0, 0.0, 200, (1.0,), 1, True),  # due before the time that counts
        Attempt("fine", 1.0, 1.0, 200, (1.5, 2.5), 3, True),
        Attempt("slow", 1.0, 1.0, 200, (1.5, 4.0), 3, True),  # 1.25 s per token
        Attempt("late", 1.0, 1.75, 200, (2.25,), 1, True),  # in time since it was sent only
        Attempt("again", 2.0, 2.0, 503),
        Attempt("again", 2.5, 2.5, 200, (2.75,), 1, True),
        Attempt("cut", 2.0, 2.0, 200, (2.5, 2.75), 3, False),
    ]
    assert answers.slo_report(attempts, 1.0, 5.0, 1.0, 1.0) == (2 / 5, 2 / 4)
    assert math.isnan(answers.slo_report([], 0.0, 1.0, 1.0, 1.0)[0])


def test_attainment_is_what_comes_of_looking_for_each_request_among_all_attempts() -> None:
    for given in sample(lab_14.draw_attempts, 200):
        attempts, begin, end, ttft, tpot = given.args
        dues = {
            name: min(a.due for a in attempts if a.request_id == name)
            for name in {a.request_id for a in attempts}
        }
        counted = [name for name, due in dues.items() if begin <= due < end]
        kept = {
            a.request_id
            for a in attempts
            if a.status == 200
            and a.finished
            and a.token_times[0] <= dues[a.request_id] + ttft
            and a.token_times[-1] <= a.token_times[0] + tpot * (a.num_tokens - 1)
        }
        num_kept = len(kept & set(counted))
        attainment, goodput = answers.slo_report(iter(attempts), begin, end, ttft, tpot)
        assert goodput == pytest.approx(num_kept / (end - begin))
        assert math.isnan(attainment) if not counted else attainment == num_kept / len(counted)


def test_who_is_surely_in_time_is_so_whatever_comes_later() -> None:
    """The worst case by formula, against a server that others fill up."""
    steps, num_tried = StepSeconds(1.0, 1 / 64), 0
    for budget, before, num_tokens in itertools.product((8, 16), (0, 1, 3, 5), (1, 7, 8, 20)):
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


def test_the_mailbox_of_the_lab_is_the_one_of_the_right_answer() -> None:
    lab = nbformat.read("solutions/14_serving/14_serving.ipynb", as_version=4)
    [cell] = [c.source for c in lab.cells if c.source.startswith("class Mailbox")]
    [ours] = bare(ast.parse(inspect.getsource(kinds.Mailbox))).body
    assert ast.unparse(bare(ast.parse(cell))) == ast.unparse(ours)


class Stub:
    """As it is handed out."""

    def __init__(self, engine: object) -> None:
        pass

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def generate(self, request_id: str, prompt: object, params: object) -> None:
        raise NotImplementedError


async def stub(outputs: object) -> None:
    raise NotImplementedError


def test_a_stub_without_a_yield_is_not_written_yet() -> None:
    assert lab_14.async_llm(Stub).status == "not written yet"
    assert lab_14.write_events(stub).status == "not written yet"
    feedback = lab_14.engine(answers.AsyncLLM, stub, answers.EventReader)
    assert feedback.status == "not written yet"


def test_the_last_exercise_names_the_part_that_is_wrong() -> None:
    class Deaf:
        done = False

        def feed(self, piece: bytes) -> list[str]:
            return []

    feedback = lab_14.engine(answers.AsyncLLM, answers.write_events, Deaf)
    assert feedback.headline.startswith("Exercise 1 is not right yet.")
