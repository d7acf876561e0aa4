"""Nothing that one request brings hurts another: a bystander in mid-answer finishes, rightly."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scale import sized
from tests.serving.conftest import Served, Steps, serve
from tests.serving.waiting import PATIENCE, eventually
from utils.engine import LLM, SamplingParams, StructuredOutputsParams
from utils.serving.http.neutral_fields import IGNORED, NEUTRAL
from utils.serving.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    JsonSchemaResponseFormat,
    ResponseFormat,
    StreamOptions,
)

WORST: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    1.5,
    -0.0,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    -(2**63) - 1,
    10**400,
    1e308,
    -1e308,
    1e-320,
    "",
    "a",
    "\ud800",
    "\0",
    [],
    [[]],
    [""],
    [None],
    [True],
    [-1],
    [2**63],
    ["\udfff"],
    {},
    {"a": 1},
    [{}],
    "x" * 100_000,
    ["w3"] * 1000,
]
FIELDS = sorted(
    {
        *CompletionRequest.model_fields,
        *ChatCompletionRequest.model_fields,
        *NEUTRAL,
        *IGNORED,
        "unknown",
    }
)
FORMS = [field.name for field in dataclasses.fields(StructuredOutputsParams)]
GOOD = {
    "/v1/completions": {"prompt": "w3 w4 w5", "max_tokens": 4, "temperature": 1.0},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "w3"}], "max_tokens": 4},
}


def in_fields(value: Any) -> Iterator[dict[str, Any]]:
    """Bodies with this value in a field of a field."""
    for name in FORMS:
        yield {"structured_outputs": {name: value}}
        yield {"structured_outputs": {"choice": ["w3", "w4"], name: value}}
    schema = {"name": "a", "schema": {"type": "object"}}
    for name in JsonSchemaResponseFormat.model_fields:
        name = "schema" if name == "json_schema" else name
        form = {"type": "json_schema", "json_schema": schema | {name: value}}
        yield {"response_format": form}
    for name in ResponseFormat.model_fields:
        yield {"response_format": {"type": "json_schema", "json_schema": schema} | {name: value}}
    for name in StreamOptions.model_fields:
        yield {"stream": True, "stream_options": {name: value}}


def send(server: Served, path: str, body: Any) -> httpx.Response:
    """As strange as it is: also what no JSON library of a client would write."""
    data = json.dumps(body).encode()  # NaN, lone surrogates as escapes
    return server.http.post(path, content=data, headers={"Content-Type": "application/json"})


class Bystander:
    """Asks for a long answer again and again, and compares."""

    def __init__(self, server: Served, right: str) -> None:
        self.server, self.right = server, right
        self.answers: list[Any] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._done.is_set():
            response = send(
                self.server,
                "/v1/completions",
                {"prompt": "w3 w4 w5 w6", "max_tokens": 60, "temperature": 0, "ignore_eos": True},
            )
            found = response.json()
            self.answers.append(found["choices"][0]["text"] if "choices" in found else found)

    def check(self) -> None:
        assert self.answers and all(answer == self.right for answer in self.answers), [
            answer for answer in self.answers if answer != self.right
        ][:1]


@pytest.fixture
def tiny(speaking_folder: Path) -> LLM:
    return LLM(speaking_folder, max_num_seqs=4, block_size=4)


@pytest.fixture
def right(tiny: LLM) -> str:
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    return tiny.generate("w3 w4 w5 w6", params, use_tqdm=False)[0].outputs[0].text


def assert_answered(response: httpx.Response, body: Any) -> None:
    """An answer, or an error in OpenAI's format that is the client's."""
    assert response.status_code in (200, 400, 404, 413, 422, 503), (body, response.text)
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["message"] and error["code"] == response.status_code


@pytest.mark.parametrize("path", GOOD)
def test_the_worst_of_each_field(right: str, served: Served, path: str) -> None:
    bodies = [GOOD[path] | {name: value} for name in FIELDS for value in WORST]
    bodies += [GOOD[path] | fields for value in WORST for fields in in_fields(value)]
    bodies += [{name: value} for name in ("prompt", "messages") for value in WORST]
    # At the small scale every field meets a third of the values, and every value of the fields.
    bodies = [body for i, body in enumerate(bodies) if i % 3 < sized(1, 3)]
    num_in_form = 0
    with Bystander(served, right) as bystander, ThreadPoolExecutor(2) as pool:
        for body, response in zip(
            bodies, pool.map(lambda b: send(served, path, b), bodies), strict=True
        ):
            assert_answered(response, body)
            num_in_form += response.status_code == 200 and bool(body.get("structured_outputs"))
    bystander.check()
    assert num_in_form >= sized(5, 10)


def test_the_worst_messages(right: str, served: Served) -> None:
    contents: list[Any] = [
        *WORST,
        [{"type": "text"}],
        [{"type": "text", "text": None}],
        [{"type": "text", "text": 3}],
        [{"type": "image_url"}],
        [{"type": "text", "text": "\ud800"}],
    ]
    with Bystander(served, right) as bystander:
        for content in contents:
            for message in (
                {"role": "user", "content": content},
                {"role": content, "content": "a"},
                content,
            ):
                body = {"messages": [message], "max_tokens": 2}
                assert_answered(send(served, "/v1/chat/completions", body), body)
    bystander.check()


def test_an_ambiguous_grammar_stalls_nobody(
    right: str, tiny: LLM, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a limit, each of these masks takes some hundred steps' time. With it, the search for
    a mask ends after so many items: the request fails in the middle of a bystander's answer."""
    body = {"prompt": "w3 w4 w5 w6", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    grammar = 'start: "0" e\ne: e e | e e e | /[a-z ]/'
    ambiguous = {
        "prompt": "w3",
        "max_tokens": 100,
        "min_tokens": 90,
        "temperature": 1.0,
        "structured_outputs": {"grammar": grammar},
    }
    steps = Steps(tiny.llm_engine)

    def num_in_engine() -> int:
        return len(served.engine._running) + served.engine._inbox.qsize()

    with ThreadPoolExecutor(4) as pool:
        try:
            others = [pool.submit(send, served, "/v1/completions", ambiguous) for _ in range(3)]
            eventually(lambda: num_in_engine() == 3, "their forms are compiled")
            bystander = pool.submit(send, served, "/v1/completions", body)
            eventually(lambda: num_in_engine() == 4, "all are there, and no step has been made")
            steps.allow(40)  # of 60 that the bystander needs
            eventually(lambda: all(other.done() for other in others), "they have failed")
            assert not bystander.done()
        finally:
            steps.allow_all()
        assert bystander.result().json()["choices"][0]["text"] == right
    for other in others:
        assert other.result().status_code == 400 and "too complex" in other.result().text


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(WORST[:25]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(
    max_examples=sized(50, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4), st.sampled_from(list(GOOD)))
def test_any_body(served: Served, changes: dict[str, Any], path: str) -> None:
    body = GOOD[path] | changes
    assert_answered(send(served, path, body), body)
    assert served.http.get("/health").status_code == 200


def test_a_foreign_name_is_refused(served: Served) -> None:
    refused = ("evil.example", "127.0.0.1.evil.example:80", "")
    for host in (*refused, "localhost:8000", "127.0.0.1"):
        status = 400 if host in refused else 200
        response = served.http.get("/health", headers={"Host": host})
        assert response.status_code == status, host


def test_a_server_answers_to_the_address_that_it_listens_on(tiny: LLM, served: Served) -> None:
    other = {"Host": "127.0.0.2:8000"}
    assert served.http.get("/health", headers=other).status_code == 400
    with serve(tiny.new_engine(), host="127.0.0.2") as there:
        assert there.http.get("/health", headers=other).status_code == 200


def test_no_page_loads_anything_from_elsewhere(served: Served) -> None:
    assert served.http.get("/docs").status_code == served.http.get("/redoc").status_code == 404
    assert "/v1/completions" in served.http.get("/openapi.json").json()["paths"]


def test_who_sends_the_rest_late_can_go_on(served: Served) -> None:
    """A body that comes after the answer is read and thrown away; then comes the next request."""
    address = served.http.base_url
    connection = HTTPConnection(address.host, address.port, timeout=PATIENCE)
    for _ in range(2):
        connection.putrequest("POST", "/nothing")
        connection.putheader("Content-Length", "4")
        connection.endheaders()
        socket_before = connection.sock
        response = connection.getresponse()
        assert response.status == 404 and response.read()
        connection.sock.sendall(b"body")
    assert connection.sock is socket_before
    connection.close()


def test_what_nobody_foresaw_comes_in_openais_format(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("utils.serving.api_server.Formatter", fail)
    response = served.complete(prompt="w3 w4")
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "The server failed: RuntimeError."
    # uvicorn closes the connection. A client that isn't told sends its next question into it.
    assert response.headers["connection"] == "close"
    monkeypatch.undo()
    assert served.complete(prompt="w3 w4").status_code == 200
