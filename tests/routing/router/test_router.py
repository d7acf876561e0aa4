"""Our router in front of pretended replicas: what is retried, lost, refused, and counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from utils.routing.policies import ConsistentHash, LeastLoaded, RoundRobin, RoutingRequest, Session
from utils.routing.prefix_index import KVIndex
from utils.routing.prefix_policies import LongestPrefix
from utils.routing.router.router import Router
from utils.routing.router.server import build_router_app, prompt_tokens
from utils.serving.api_server import MAX_BODY_BYTES

URLS = ["http://one", "http://two"]
BODY = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 1}
Behave = Callable[[httpx.Request], httpx.Response]


class BrokenStream(httpx.AsyncByteStream):
    """Some pieces, and then the connection breaks off (or not)."""

    def __init__(self, pieces: Sequence[bytes], breaks: bool) -> None:
        self.pieces, self.breaks = pieces, breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.breaks:
            raise httpx.ReadError("the connection is gone")


class Fleet:
    """Two replicas without a network. `behave[host]` answers; by default with the host's name."""

    def __init__(self) -> None:
        self.behave: dict[str, Behave] = {}
        self.got: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if request.url.path == "/health":
            return httpx.Response(200)
        self.got.append(host)
        return self.behave.get(host, lambda r: httpx.Response(200, json={"by": host}))(request)

    def die(self, host: str) -> None:
        def refuse(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused")

        self.behave[host] = refuse

    def stream(self, host: str, pieces: Sequence[bytes], breaks: bool = False) -> None:
        self.behave[host] = lambda request: httpx.Response(
            200, headers={"content-type": "text/event-stream"}, stream=BrokenStream(pieces, breaks)
        )


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    yield Fleet()


@asynccontextmanager
async def served(
    fleet: Fleet, policy: Any = None, **options: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Router]]:
    router = Router(policy or RoundRobin(), URLS, transport=httpx.MockTransport(fleet), **options)
    transport = httpx.ASGITransport(build_router_app(router))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client, router
    await router.aclose()


def counts(router: Router) -> dict[str, float]:
    lines = router.metrics.text(router.replicas).splitlines()
    values = (line.rsplit(" ", 1) for line in lines if line.startswith("course:router_"))
    return {name.removeprefix("course:router_"): float(value) for name, value in values}


def test_the_policy_chooses_and_bodies_pass_unchanged(fleet: Fleet) -> None:
    async def story() -> None:
        seen: list[bytes] = []
        fleet.behave["two"] = lambda r: (seen.append(r.content), httpx.Response(400, text="no"))[1]
        async with served(fleet) as (client, router):
            first = await client.post("/v1/completions", json=BODY)
            assert first.json() == {"by": "one"}
            odd = b'{"prompt":  "x", "unknown": [1]}'
            second = await client.post("/v1/chat/completions", content=odd)
            # A client's mistake is the replica's to judge; nobody else is asked.
            assert (second.status_code, second.text, seen) == (400, "no", [odd])
            assert fleet.got == ["one", "two"]
            assert counts(router)['requests_total{replica="http://one"}'] == 1
            assert router.num_unfinished == 0

    asyncio.run(story())


def test_nobody_hurts_it_from_outside(fleet: Fleet) -> None:
    """What `guard` puts around every server of the course is around the router, too."""

    async def story() -> None:
        async with served(fleet) as (client, _):
            elsewhere = await client.get("/health", headers={"Host": "evil.example"})
            assert elsewhere.status_code == 400
            assert (await client.get("/docs")).status_code == 404  # loads foreign scripts
            large = b"x" * (MAX_BODY_BYTES + 1)
            assert (await client.post("/v1/completions", content=large)).status_code == 413
        assert fleet.got == []

    asyncio.run(story())


def test_before_the_first_byte_another_replica_is_asked(fleet: Fleet) -> None:
    async def story() -> None:
        fleet.die("one")
        async with served(fleet) as (client, router):
            for _ in range(3):
                answer = await client.post("/v1/completions", json=BODY)
                assert answer.json() == {"by": "two"}
            assert fleet.got == ["one", "two", "two", "two"]  # a dead one is not asked again
            assert counts(router)["retries_total"] == 1 and not router.replicas[0].alive
            fleet.die("two")
            refused = await client.post("/v1/completions", json=BODY)
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            error = refused.json()["error"]
            assert error["type"] == "ServiceUnavailableError" and "No replica" in error["message"]
            assert (await client.get("/health")).status_code == 503
            assert counts(router)["rejected_total"] == 1 and router.num_unfinished == 0

    asyncio.run(story())


def test_requests_leave_a_replica_that_is_stopped(fleet: Fleet) -> None:
    """It is not dead: its connections stay open, and nothing comes."""

    async def story() -> None:
        router = Router(RoundRobin(), URLS, transport=httpx.MockTransport(fleet))
        asked: list[str] = []

        async def stopped(request: httpx.Request) -> httpx.Response:
            asked.append(request.url.host)
            if request.url.host == "one":
                await asyncio.Event().wait()
            return httpx.Response(200, json={"by": request.url.host})

        router._client = httpx.AsyncClient(transport=httpx.MockTransport(stopped))
        content = json.dumps(BODY).encode()
        waiting = asyncio.create_task(router.forward("/v1/completions", content, {}))
        while asked != ["one"]:
            await asyncio.sleep(0.01)
        router._bury(router.replicas[0])  # as after some health checks without an answer
        answer = await waiting
        assert json.loads(answer.body) == {"by": "two"} and asked == ["one", "two"]
        assert router.num_unfinished == 0
        # Alive again, it is waited for again.
        router.replicas[0].revive()
        waiting = asyncio.create_task(router.forward("/v1/completions", content, {}))
        while asked != ["one", "two", "one"]:
            await asyncio.sleep(0.01)
        assert not (await asyncio.wait([waiting], timeout=0.05))[0]
        waiting.cancel()
        await asyncio.wait([waiting])
        assert router.num_unfinished == 0
        await router.aclose()

    asyncio.run(story())


def test_the_models_are_those_of_a_replica_that_answers(fleet: Fleet) -> None:
    async def story() -> None:
        fleet.die("one")
        fleet.behave["two"] = lambda r: httpx.Response(200, json={"object": "list", "data": []})
        async with served(fleet) as (client, _):
            assert (await client.get("/v1/models")).json() == {"object": "list", "data": []}
            fleet.die("two")
            assert (await client.get("/v1/models")).status_code == 503

    asyncio.run(story())


@pytest.mark.parametrize("policy", [Session(), ConsistentHash(2)], ids=["session", "hash"])
@pytest.mark.parametrize("content", [b'{"user": "\\ud800"}', b'{"user": [1]}', b"[" * 20_000])
def test_odd_bodies_are_the_replicas_to_judge(fleet: Fleet, policy: Any, content: bytes) -> None:
    async def story() -> None:
        async with served(fleet, policy) as (client, _):
            answer = await client.post("/v1/completions", content=content)
            assert answer.status_code == 200, answer.text

    asyncio.run(story())


def test_a_whole_answer_that_breaks_off_is_asked_for_again(fleet: Fleet) -> None:
    async def story() -> None:
        fleet.behave["one"] = lambda request: httpx.Response(
            200, headers={"content-type": "application/json"}, stream=BrokenStream([b'{"by"'], True)
        )
        async with served(fleet) as (client, router):
            assert (await client.post("/v1/completions", json=BODY)).json() == {"by": "two"}
            assert counts(router)["lost_total"] == 0

    asyncio.run(story())


def test_a_stream_is_retried_before_its_first_byte_and_lost_after_it(fleet: Fleet) -> None:
    async def story() -> None:
        fleet.stream("one", [], breaks=True)
        fleet.stream("two", [b"data: 1\n\n", b"data: \xc3", b"\xa9\n\n"])
        async with served(fleet) as (client, router):
            answer = await client.post("/v1/completions", json=BODY | {"stream": True})
            assert answer.text == "data: 1\n\ndata: \u00e9\n\n"
            fleet.stream("two", [b"data: 1\n\n"], breaks=True)
            answer = await client.post("/v1/completions", json=BODY | {"stream": True})
            good, bad = answer.text.split("\n\n")[:2]
            assert good == "data: 1"
            error = json.loads(bad.removeprefix("data: "))["error"]
            assert "failed in the middle" in error["message"]
            found = counts(router)
            assert (found["retries_total"], found["lost_total"]) == (1, 1)
            assert router.num_unfinished == 0

    asyncio.run(story())


def test_a_busy_replica_is_not_dead(fleet: Fleet) -> None:
    async def story() -> None:
        busy = httpx.Response(503, headers={"retry-after": "7"}, json={"error": "busy"})
        fleet.behave["one"] = lambda request: busy
        async with served(fleet) as (client, router):
            assert (await client.post("/v1/completions", json=BODY)).json() == {"by": "two"}
            assert router.replicas[0].alive
            fleet.behave["two"] = fleet.behave["one"]
            refused = await client.post("/v1/completions", json=BODY)
            assert refused.status_code == 503 and refused.headers["retry-after"] == "7"

    asyncio.run(story())


def test_load_is_counted_until_the_answer_is_complete(fleet: Fleet) -> None:
    async def story() -> None:
        router = Router(
            LeastLoaded(),
            URLS,
            tokenize=lambda body: body["prompt"],
            max_concurrent_requests=2,
            transport=httpx.MockTransport(fleet),
        )
        go, seen = asyncio.Event(), []

        async def wait(request: httpx.Request) -> httpx.Response:
            seen.append([(r.num_waiting, r.waiting_tokens) for r in router.replicas])
            await go.wait()
            return httpx.Response(200, json={})

        router._client = httpx.AsyncClient(transport=httpx.MockTransport(wait))
        content = json.dumps(BODY).encode()
        jobs = [asyncio.create_task(router.forward("/v1/completions", content, {})) for _ in "ab"]
        while len(seen) < 2:
            await asyncio.sleep(0.01)
        assert seen[-1] == [(1, 5), (1, 5)]
        refused = await router.forward("/v1/completions", content, {})
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        go.set()
        assert [(await job).status_code for job in jobs] == [200, 200]
        assert [(r.num_waiting, r.waiting_tokens, r.num_running) for r in router.replicas] == [
            (0, 0, 0),
            (0, 0, 0),
        ]

    asyncio.run(story())


def test_the_policy_sees_blocks_session_and_length(fleet: Fleet) -> None:
    seen: list[RoutingRequest] = []

    class Watcher(RoundRobin):
        def choose(self, request: RoutingRequest, replicas: Any) -> int:
            seen.append(request)
            return super().choose(request, replicas)

    async def story() -> None:
        async with served(fleet, Watcher(), tokenize=lambda body: body["prompt"], block_size=2) as (
            client,
            _,
        ):
            await client.post("/v1/completions", json=BODY, headers={"X-Session-Id": "me"})
            await client.post("/v1/completions", json={"prompt": "no tokens", "user": "you"})
            await client.post("/v1/completions", content=b"no json")
        with_blocks, _, broken = seen
        assert (with_blocks.num_tokens, len(with_blocks.block_hashes)) == (5, 2)
        assert [request.session_id for request in seen] == ["me", "you", None]
        assert broken.block_hashes == ()

    asyncio.run(story())


def test_a_policy_that_fails_is_named(fleet: Fleet) -> None:
    class Wrong:
        def choose(self, request: RoutingRequest, replicas: Any) -> int:
            return 7

    async def story() -> None:
        async with served(fleet, Wrong()) as (client, router):
            answer = await client.post("/v1/completions", json=BODY)
            assert answer.status_code == 500
            assert "The policy failed: ValueError: it chose 7" in answer.json()["error"]["message"]
            assert counts(router)["policy_errors_total"] == 1

    asyncio.run(story())


def test_a_replica_that_died_is_forgotten_and_can_come_back(fleet: Fleet) -> None:
    async def story() -> None:
        index = KVIndex(2)
        index.stored(0, [1, 2])
        async with served(fleet, LongestPrefix(index), health_check_interval=0.01) as (
            client,
            router,
        ):
            fleet.die("one")
            await client.post("/v1/completions", json=BODY)
            assert len(index) == 0 and not router.replicas[0].alive
            checking = asyncio.create_task(router.check_health())
            while not router.replicas[0].alive:
                await asyncio.sleep(0.01)
            checking.cancel()

    asyncio.run(story())


@pytest.mark.parametrize("urls", [[], ["http://one", "http://one"]])
def test_a_router_needs_replicas(urls: list[str]) -> None:
    with pytest.raises(ValueError, match="one replica or more, all different"):
        Router(RoundRobin(), urls)


def test_prompts_are_tokenized_as_the_engine_does(llm: Any) -> None:
    tokens = prompt_tokens(llm.tokenizer)
    inputs = llm.llm_engine.inputs
    chat = [{"role": "user", "content": "How are you?"}]
    [conversation] = inputs.from_conversations([chat], None)
    assert tokens({"messages": chat}) == conversation.prompt_token_ids
    [text] = inputs.from_prompts(["How are you?"], None)
    for prompt in ("How are you?", ["How are you?", "x"], text.prompt_token_ids):
        assert tokens({"prompt": prompt}) == text.prompt_token_ids
