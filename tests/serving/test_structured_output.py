"""`response_format` over HTTP: for OpenAI's client, for LangChain, whole and in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from typing import Any, Literal

import jsonschema
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field

from tests.serving.conftest import Served, eventually, serve
from utils.engine import LLM
from utils.engine.structured_output import grammar


class Animal(BaseModel):
    """An animal of the zoo."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    legs: int = Field(ge=0, le=8)
    kind: Literal["bird", "fish", "mammal"]


SCHEMA = Animal.model_json_schema()
SHORT = {"structured_outputs": {"disable_any_whitespace": True}}  # merged with the format
FORMAT = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
QUESTION = [{"role": "user", "content": "Describe an eagle as JSON, without spaces."}]


@pytest.fixture(scope="module")
def real(llm: LLM) -> Iterator[Served]:
    with serve(llm.new_engine(changes={"max_model_len": 512, "num_gpu_blocks": 256})) as server:
        yield server


def ask(server: Served, **body: Any) -> Any:
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 150, **body}
    return server.post("/v1/chat/completions", **body)


def test_openai_client_gets_an_object_of_its_class(real: Served) -> None:
    client = openai.OpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.parse(
        model="tiny",
        messages=QUESTION,
        temperature=0,
        max_completion_tokens=150,
        response_format=Animal,
        extra_body=SHORT,
    )
    assert isinstance(answer.choices[0].message.parsed, Animal)


def test_langchain_with_structured_output(real: Served) -> None:
    chat = ChatOpenAI(
        base_url=f"{real.url}/v1",
        api_key="none",
        model="tiny",
        temperature=0,
        max_tokens=150,
        max_retries=0,
        extra_body=SHORT,
    )
    animal = chat.with_structured_output(Animal, method="json_schema").invoke("Describe an eagle.")
    assert isinstance(animal, Animal)


def test_a_stream_is_the_whole_answer_in_pieces(real: Served) -> None:
    whole = ask(real, response_format=FORMAT, **SHORT).json()["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(whole), SCHEMA)
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 150, "stream": True}
    pieces = []
    with real.http.stream(
        "POST", "/v1/chat/completions", json={**body, **SHORT, "response_format": FORMAT}
    ) as lines:
        for line in lines.iter_lines():
            if line.startswith("data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"]
                pieces.append(delta.get("content") or "")
    assert "".join(pieces) == whole


def test_text_asks_for_nothing(real: Served) -> None:
    expected = ask(real, max_tokens=8).json()["choices"][0]["message"]
    for form in ({"type": "text"}, None):
        assert (
            ask(real, max_tokens=8, response_format=form).json()["choices"][0]["message"]
            == expected
        )


def test_vllms_own_field_and_logprobs(real: Served) -> None:
    """Numbers of forbidden tokens are finite: JSON knows no infinity."""
    answer = real.complete(
        prompt="Is the sky blue?",
        temperature=0,
        max_tokens=8,
        logprobs=5,
        structured_outputs={"choice": ["yes", "no"]},
    ).json()
    choice = answer["choices"][0]
    assert choice["text"] in ("yes", "no")
    numbers = [n for top in choice["logprobs"]["top_logprobs"] for n in top.values()]
    assert min(numbers) == -9999.0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "json_schema must be there"),
        ({"response_format": {"type": "text", "json_schema": FORMAT["json_schema"]}}, "only then"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "strin"}},
                }
            },
            "json cannot be used",
        ),
        ({"structured_outputs": {"regex": "("}}, "regex cannot be used"),
        ({"structured_outputs": {"regexp": "a"}}, "regexp: this server knows no such field"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "exactly one of",
        ),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_bad_forms_are_400(real: Served, body: dict[str, Any], words: str) -> None:
    answer = ask(real, **body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_a_form_that_cannot_be_followed_is_the_clients_fault(real: Served) -> None:
    """It compiles, and is too large at its first token. Clients repeat what is answered by 500."""
    form = {"choice": [f"label {i}" for i in range(3000)]}
    answer = ask(real, structured_outputs=form)
    assert answer.status_code == 400
    assert "Ask for a simpler one, or for fewer choices" in answer.json()["error"]["message"]
    error, done = ask(real, structured_outputs=form, stream=True).text.strip().split("\n\n")[-2:]
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 400
    assert done == "data: [DONE]"


def test_any_object(real: Served) -> None:
    answer = ask(real, response_format={"type": "json_object"}, max_tokens=100).json()["choices"][0]
    assert answer["message"]["content"].lstrip().startswith("{")
    if answer["finish_reason"] == "stop":
        assert isinstance(json.loads(answer["message"]["content"]), dict)


def test_a_costly_schema_keeps_nobody_waiting(
    real: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, compile_it = Event(), grammar.compile_grammar

    def costly_until_answered(tokenizer: Any, text: str) -> Any:
        answered.wait(120)
        return compile_it(tokenizer, text)

    monkeypatch.setattr(grammar, "compile_grammar", costly_until_answered)
    with ThreadPoolExecutor() as people:
        costly = [
            people.submit(ask, real, max_tokens=4, structured_outputs={"regex": f"a{{{i + 3}}}"})
            for i in range(3)  # one more than there are threads for them
        ]
        assert ask(real, max_tokens=2).status_code == 200
        assert not any(request.done() for request in costly)
        answered.set()
    assert {request.result().status_code for request in costly} == {200}


def test_who_waits_for_a_compiler_counts_and_can_leave(
    speaking_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two forms are compiled, a third one waits, and there is no room for a fourth request."""
    tried, may_go_on, compile_it = [], Event(), grammar.compile_grammar

    def slowly(tokenizer: Any, text: str) -> Any:
        tried.append(text)
        may_go_on.wait(120)
        return compile_it(tokenizer, text)

    monkeypatch.setattr(grammar, "compile_grammar", slowly)

    def ask_for(pattern: str) -> HTTPConnection:
        return server.ask(prompt="w3", max_tokens=2, structured_outputs={"regex": pattern})

    engine = LLM(speaking_folder, max_num_seqs=4, block_size=4).llm_engine
    with serve(engine, max_num_queued_reqs=3) as server:
        try:
            two = [ask_for(pattern) for pattern in ("w3", "w4")]
            eventually(lambda: len(tried) == 2, "both are compiled")
            leaving = ask_for("w5")
            eventually(lambda: server.engine.num_requests == 3, "the third one waits")
            assert server.complete(prompt="w3", max_tokens=2).status_code == 503
            leaving.close()
            eventually(lambda: server.engine.num_requests == 2, "it is not counted any more")
            assert server.complete(prompt="w3", max_tokens=2).status_code == 200
        finally:
            may_go_on.set()
        assert {connection.getresponse().status for connection in two} <= {200, 400}
        eventually(lambda: server.engine.num_requests == 0, "nobody is counted")
        assert len(tried) == 2
