"""The load generator against a server with known delays, in virtual time: every figure is exact."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest

from utils.serving.load_generator import LoadGenerator, chat_body, poisson_arrivals
from utils.serving.load_report import SLO, LoadReport, Timing, percentile


class VirtualTime(asyncio.SelectorEventLoop):
    """An event loop in which sleeping takes no time: the clock jumps to the next thing to do."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.now


class _Jump(selectors.SelectSelector):
    def __init__(self, loop: VirtualTime) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list:
        if timeout:
            self.loop.now += timeout
        return super().select(0)


class FakeServer(httpx.AsyncBaseTransport):
    """Answers one request at a time, in the order in which they come.

    Args:
        delays: seconds until the first token of request 0, 1, ..., from when its turn comes.
        gap: seconds between two tokens.
        slots: how many requests can have their turn at a time.
    """

    def __init__(self, delays: list[float], gap: float = 0.0, slots: int = 1000) -> None:
        self.delays, self.gap = delays, gap
        self.turn = asyncio.Semaphore(slots)
        self.arrived: list[float] = []
        self.most = self.active = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        number, _ = len(self.arrived), self.arrived.append(asyncio.get_running_loop().time())
        self.active += 1
        self.most = max(self.most, self.active)
        if body["messages"] == "fail":
            self.active -= 1
            return httpx.Response(503, text="busy")
        return httpx.Response(200, stream=_Stream(self._events(number, body)))

    async def _events(self, number: int, body: dict[str, Any]) -> AsyncIterator[bytes]:
        async with self.turn:
            for i in range(body["max_tokens"]):
                await asyncio.sleep(self.gap if i else self.delays[number])
                yield _event({"choices": [{"delta": {"content": "x"}, "finish_reason": None}]})
        if body["messages"] == "break":
            yield _event({"error": {"message": "it broke"}})
        usage = {
            "prompt_tokens": 9,
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        if body["messages"] == "secretive":
            del usage["prompt_tokens_details"]
        yield _event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"
        self.active -= 1


class _Stream(httpx.AsyncByteStream):
    def __init__(self, events: AsyncIterator[bytes]) -> None:
        self.events = events

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.events


def _event(data: dict) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def run(
    server: Callable[[], FakeServer],
    test: Callable[[LoadGenerator, FakeServer], Coroutine[Any, Any, LoadReport]],
) -> tuple[LoadReport, FakeServer]:
    async def main() -> tuple[LoadReport, FakeServer]:
        fake = server()
        async with LoadGenerator("http://fake", transport=fake) as generator:
            return await test(generator, fake), fake

    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(main())


def bodies(num: int, max_tokens: int = 1, messages: Any = "ok") -> list[dict]:
    return [chat_body("m", messages, max_tokens) for _ in range(num)]


def test_percentiles_are_exactly_those_of_the_delays() -> None:
    delays = [i / 100 for i in range(100, 0, -1)]
    times = [10.0 * i for i in range(100)]
    report, _ = run(
        lambda: FakeServer(delays, gap=0.02), lambda g, _: g.open_loop(bodies(100, 5), times)
    )
    for percent in (1, 50, 90, 99, 100):
        assert report.percentile("ttft", percent) == pytest.approx(percent / 100)
        assert report.percentile("tpot", percent) == pytest.approx(0.02)
        assert report.percentile("e2e", percent) == pytest.approx(percent / 100 + 0.08)
    assert report.lateness == 0 and report.errors == []
    assert report.seconds == pytest.approx(990 + 0.01 + 0.08)
    assert report.tokens_per_second == pytest.approx(500 / report.seconds)
    assert {t.num_prompt_tokens for t in report.timings} == {9}
    assert {t.num_cached_tokens for t in report.timings} == {4}


def test_a_server_need_not_tell_what_it_found_in_its_cache() -> None:
    report, _ = run(
        lambda: FakeServer([0.1, 0.1]),
        lambda g, _: g.open_loop(bodies(2, 1, "secretive"), [0.0, 1.0]),
    )
    assert [t.num_cached_tokens for t in report.timings] == [None, None]


def test_an_open_loop_does_not_wait_for_answers() -> None:
    times = [0.1 * i for i in range(20)]
    report, fake = run(lambda: FakeServer([5.0] * 20), lambda g, _: g.open_loop(bodies(20), times))
    assert fake.arrived == pytest.approx(times)
    assert fake.most == 20 and report.percentile("ttft", 100) == pytest.approx(5.0)


def test_a_closed_loop_has_as_many_requests_as_users() -> None:
    report, fake = run(lambda: FakeServer([0.5] * 12), lambda g, _: g.closed_loop(bodies(12), 3))
    assert fake.most == 3 and len(report.timings) == 12
    assert fake.arrived == pytest.approx([0.5 * (i // 3) for i in range(12)])
    assert report.requests_per_second == pytest.approx(12 / 2.0)


def test_coordinated_omission_is_not_committed() -> None:
    """One answer takes ten seconds. Nine requests were to be sent meanwhile, and could not be."""
    delays, times = [10.0] + [0.1] * 19, [float(i) for i in range(20)]
    report, _ = run(
        lambda: FakeServer(delays), lambda g, _: g.open_loop(bodies(20), times, connections=1)
    )
    waits = [10.0, *(9.1 - 0.9 * i for i in range(10)), *[0.1] * 9]
    assert report.values("ttft") == pytest.approx(waits)
    # What a careless tool would say: nearly all is well.
    assert report.values("ttft_from_sent") == pytest.approx([10.0] + [0.1] * 19)
    assert report.percentile("ttft", 50) == pytest.approx(1.0)
    assert report.percentile("ttft_from_sent", 50) == pytest.approx(0.1)
    assert report.lateness == pytest.approx(9.0)


def test_a_queue_in_the_server_is_seen_too() -> None:
    report, _ = run(
        lambda: FakeServer([1.0] * 5, slots=1), lambda g, _: g.open_loop(bodies(5), [0.0] * 5)
    )
    assert report.values("ttft") == pytest.approx([1, 2, 3, 4, 5])


def test_slo_attainment_and_goodput() -> None:
    delays = [0.1, 0.2, 0.3, 0.4]
    report, _ = run(
        lambda: FakeServer(delays, gap=0.05), lambda g, _: g.open_loop(bodies(4, 3), [0.0] * 4)
    )
    assert report.attainment(SLO(ttft=0.3, tpot=0.06)) == 0.75
    assert report.attainment(SLO(ttft=0.3, tpot=0.04)) == 0
    assert report.goodput(SLO(ttft=0.3, tpot=0.06)) == pytest.approx(3 / 0.5)


def test_failed_requests_break_the_promise() -> None:
    mixed = bodies(1) + bodies(1, messages="fail") + bodies(1, messages="break")
    report, _ = run(lambda: FakeServer([0.1] * 3), lambda g, _: g.open_loop(mixed, [0, 1, 2]))
    assert report.errors == ["status 503: busy", "it broke"]
    assert report.attainment(SLO(9, 9)) == pytest.approx(1 / 3)
    assert len(report.values("ttft")) == 1


def test_a_server_that_is_not_there() -> None:
    async def main() -> LoadReport:
        async with LoadGenerator("http://127.0.0.1:9") as generator:
            return await generator.open_loop(bodies(2), [0, 0])

    report = asyncio.run(main())
    assert all("ConnectError" in error for error in report.errors)
    with pytest.raises(ValueError, match="Did every request fail"):
        report.percentile("ttft", 50)


def test_warm_up_is_not_counted_and_must_work() -> None:
    async def test(generator: LoadGenerator, fake: FakeServer) -> LoadReport:
        await generator.warm_up(bodies(2))
        return await generator.open_loop(bodies(3), [0, 1, 2])

    report, fake = run(lambda: FakeServer([9, 9, 0.1, 0.1, 0.1]), test)
    assert len(report.timings) == 3 and len(fake.arrived) == 5
    assert report.percentile("ttft", 100) == pytest.approx(0.1)
    with pytest.raises(RuntimeError, match="cannot be warmed up: status 503"):
        run(lambda: FakeServer([1]), lambda g, _: g.warm_up(bodies(1, messages="fail")))  # type: ignore[arg-type,return-value]


def test_the_generator_tells_when_it_was_late() -> None:
    timings = [Timing(0.0, 0.0, [1.0]), Timing(1.0, 1.25, [2.0])]
    assert LoadReport(timings, 2.0).lateness == 0.25


def test_arrivals_are_poisson_and_repeatable() -> None:
    times = poisson_arrivals(4.0, 20_000, seed=1)
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.25, rel=0.03)
    # Exponential: the part of the gaps longer than the mean is 1/e.
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.01)
    assert poisson_arrivals(4.0, 5, seed=1) == times[:5]
    assert poisson_arrivals(8.0, 5, seed=1) == pytest.approx([t / 2 for t in times[:5]])
    with pytest.raises(ValueError, match="rate must be positive"):
        poisson_arrivals(0, 1)


def test_percentile_is_a_value_that_was_measured() -> None:
    assert [percentile([4, 1, 3, 2], p) for p in (1, 25, 26, 50, 75, 100)] == [1, 1, 2, 2, 3, 4]
    with pytest.raises(ValueError, match=r"in \(0, 100\]"):
        percentile([1], 0)


def test_bodies_and_times_must_fit() -> None:
    with pytest.raises(ValueError, match="2 bodies but 1 times"):
        run(lambda: FakeServer([1]), lambda g, _: g.open_loop(bodies(2), [0]))
