"""The server's answers are the engine's, whole and in pieces; bad requests are refused clearly."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest
import torch
from langchain_openai import ChatOpenAI

from tests.engine.tiny_engines import nothing_is_held
from tests.serving.conftest import Served, serve
from utils.engine import LLM, SamplingParams

PROMPTS = [[3, 4, 5], [3, 4, 5, 6, 7, 8], [9], [1, 10, 11, 12, 7], [3, 4, 5, 6, 7, 9, 9]]
QUESTIONS = ["Name a prime number.", "What is the capital of France?"]


def events(lines: Iterator[str]) -> list[dict[str, Any]]:
    """The events of a stream, which must end in [DONE]."""
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data.pop() == "[DONE]"
    return [json.loads(text) for text in data]


@pytest.fixture(scope="module")
def real(llm: LLM) -> Iterator[Served]:
    """A server with the bundled model."""
    with serve(llm.new_engine(changes={"max_model_len": 512, "num_gpu_blocks": 256})) as server:
        yield server


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[str]:
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
    outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    return [output.outputs[0].text for output in outputs]


def test_openai_client_gets_the_text_of_llm_chat(real: Served, expected: list[str]) -> None:
    client = openai.OpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"]
    for question, text in zip(QUESTIONS, expected, strict=True):
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_completion_tokens=12,
        )
        assert answer.choices[0].message.content == text
        assert answer.usage is not None and answer.usage.completion_tokens <= 12


def test_langchain_gets_the_text_of_llm_chat_whole_and_in_pieces(
    real: Served, expected: list[str]
) -> None:
    chat = ChatOpenAI(
        base_url=f"{real.url}/v1",
        api_key="none",
        model="tiny",
        temperature=0,
        max_tokens=12,
        max_retries=0,
    )
    assert [chat.invoke(question).content for question in QUESTIONS] == expected
    pieces = [piece.content for piece in chat.stream(QUESTIONS[0])]
    assert "".join(pieces) == expected[0] and sum(map(bool, pieces)) > 3


def test_pieces_of_a_chat_join_to_the_whole(real: Served, expected: list[str]) -> None:
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTIONS[1]}]}],
        "max_tokens": 12,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with real.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *pieces, last = events(response.iter_lines())
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in pieces) == expected[1]
    assert [piece["choices"][0]["delta"].get("role") for piece in pieces][:2] == ["assistant", None]
    assert {piece["object"] for piece in pieces} == {"chat.completion.chunk"}
    reasons = [piece["choices"][0]["finish_reason"] for piece in pieces]
    assert reasons[-1] in ("stop", "length") and set(reasons[:-1]) == {None}
    assert last["choices"] == [] and last["usage"]["completion_tokens"] <= 12
    assert len({piece["id"] for piece in [*pieces, last]}) == 1


def test_many_at_once_get_the_answers_of_generate(tiny: LLM, tiny_folder) -> None:
    expected = {}
    params = SamplingParams(temperature=0, max_tokens=9)
    for prompt, output in zip(PROMPTS, tiny.generate(PROMPTS, params, False), strict=True):
        expected[tuple(prompt)] = output.outputs[0]

    async def ask(client: httpx.AsyncClient, prompt: list[int], stream: bool) -> tuple:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 9, "stream": stream}
        response = await client.post("/v1/completions", json=body)
        parts = events(iter(response.text.split("\n"))) if stream else [response.json()]
        text = "".join(part["choices"][0]["text"] for part in parts)
        return text, parts[-1]["choices"][0]["finish_reason"]

    async def ask_all(url: str) -> list[tuple]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            return await asyncio.gather(*(ask(client, p, i % 2 == 0) for i, p in jobs))

    jobs = list(enumerate(PROMPTS * 4))
    with serve(tiny.new_engine()) as served:
        answers = asyncio.run(ask_all(served.url))
    for (_, prompt), answer in zip(jobs, answers, strict=True):
        wanted = expected[tuple(prompt)]
        assert answer == (wanted.text, wanted.finish_reason)


def test_all_sampling_parameters_reach_the_engine(tiny: LLM) -> None:
    fields: dict[str, Any] = dict(
        n=3,
        seed=7,
        temperature=1.3,
        top_p=0.9,
        top_k=9,
        min_p=0.01,
        max_tokens=12,
        min_tokens=2,
        stop=["w5"],
        stop_token_ids=[6],
        ignore_eos=True,
        logprobs=2,
    )
    outputs = tiny.generate(PROMPTS[:2], SamplingParams(**fields), use_tqdm=False)
    wanted = [answer for output in outputs for answer in output.outputs]
    with serve(tiny.new_engine()) as served:
        whole = served.complete(prompt=PROMPTS[:2], **fields).json()
        text = served.complete(prompt=PROMPTS[:2], stream=True, **fields).text
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    joined = [{"text": "", "tokens": [], "token_logprobs": [], "text_offset": []} for _ in wanted]
    for piece in events(iter(text.split("\n"))):
        [choice] = piece["choices"]
        join = joined[choice["index"]]
        join["text"] += choice["text"]
        for name in ("tokens", "token_logprobs", "text_offset"):
            join[name] += choice["logprobs"][name]
        join["finish_reason"], join["stop_reason"] = choice["finish_reason"], choice["stop_reason"]
    for choice, join, answer in zip(whole["choices"], joined, wanted, strict=True):
        assert choice["text"] == join["text"] == answer.text
        assert choice["finish_reason"] == join["finish_reason"] == answer.finish_reason
        assert choice["stop_reason"] == join["stop_reason"] == answer.stop_reason
        logprobs = [at[t].logprob for at, t in zip(answer.logprobs, answer.token_ids, strict=True)]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(logprobs, abs=1e-4)
        assert join["token_logprobs"] == pytest.approx(logprobs, abs=1e-4)
        assert join["tokens"] == choice["logprobs"]["tokens"]
        assert all(len(top) >= 2 for top in choice["logprobs"]["top_logprobs"])
    assert whole["usage"]["completion_tokens"] == sum(len(a.token_ids) for a in wanted)
    assert whole["usage"]["prompt_tokens"] == len(PROMPTS[0]) + len(PROMPTS[1])


def test_log_probabilities_of_a_chat(real: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
    answer = real.post("/v1/chat/completions", **body, logprobs=True, top_logprobs=2).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"]
    for token in content:
        assert token["top_logprobs"][0]["token"] == token["token"]  # greedy: the most likely
        assert len(token["top_logprobs"]) == 2 and bytes(token["bytes"]).decode() == token["token"]


def test_a_salt_keeps_prefixes_apart(served: Served) -> None:
    def cached(**fields: Any) -> int:
        usage = served.complete(prompt=[3, 4, 5, 6] * 4, max_tokens=1, **fields).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert [cached(), cached(), cached(cache_salt="a"), cached(cache_salt="a")] == [0, 12, 0, 12]


BAD = [
    (dict(prompt=[3] * 200), "This model's maximum context length is 128 tokens"),
    (dict(prompt=[3] * 100, max_tokens=60), "maximum context length is 128 tokens. The prompt has"),
    (dict(prompt=[99]), "token id 99 is not in the vocabulary"),
    (dict(prompt=[]), "prompt is empty"),
    (dict(prompt=""), "prompt is empty"),
    (dict(prompt=[[3], []]), "Prompt 1 is empty"),
    (dict(), "prompt: Field required"),
    (dict(prompt=[3], temperature=3), "temperature must be in [0, 2]"),
    (dict(prompt=[3], temperature="hot"), "temperature: Input should be a valid number"),
    (dict(prompt=[3], n=9, temperature=1), "max_num_seqs is 4"),
    (dict(prompt=[3], max_tokens=0), "max_tokens must be an integer of at least 1"),
    (dict(prompt=[3], stop=[""]), "stop must be a non-empty string"),
    (dict(prompt=[3], temprature=1), "temprature: this server knows no such field"),
    (dict(prompt=[3], presence_penalty=0.5), "presence_penalty=0.5 is not supported"),
    (dict(prompt=[3], tools=[{"type": "function"}]), "tools=[{'type': 'function'}] is not supp"),
    (dict(prompt=[3], logprobs=99), "logprobs: Input should be less than or equal to 20"),
    (dict(prompt=[3], cache_salt=""), "cache_salt: String should have at least 1"),
]


@pytest.fixture(scope="module")
def shared(tiny_folder) -> Iterator[tuple[Served, LLM]]:
    llm = LLM(tiny_folder, max_num_seqs=4, block_size=4)
    with serve(llm.llm_engine, max_body_bytes=20_000) as server:
        yield server, llm


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("body", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_requests_are_refused_in_openais_format(
    shared: tuple[Served, LLM], body: dict, message: str, stream: bool
) -> None:
    served, llm = shared
    response = served.complete(**body, **({"stream": True} if stream else {}))
    error = response.json()["error"]
    assert response.status_code == error["code"] == 400
    assert message in error["message"] and error["type"] == "BadRequestError"
    assert nothing_is_held(llm)


def test_the_published_schema_says_what_is_accepted(shared: tuple[Served, LLM]) -> None:
    """Of bodies, media types and errors. Client generators and fuzzers read it."""
    served, _ = shared
    published = served.http.get("/openapi.json").json()
    for path, methods in published["paths"].items():
        for operation in methods.values():
            assert "422" not in operation["responses"], path
    paths = published["paths"]
    media = {
        p: set(paths[p]["get"]["responses"]["200"].get("content", ()))
        for p in paths
        if "get" in paths[p]
    }
    assert media == {
        "/health": set(),
        "/metrics": {"text/plain"},
        "/v1/models": {"application/json"},
    }
    answers = paths["/v1/completions"]["post"]["responses"]
    assert {"application/json", "text/event-stream"} == set(answers["200"]["content"])

    def is_valid(name: str, body: Any) -> bool:
        schema = {"$ref": f"#/components/schemas/{name}", "components": published["components"]}
        return jsonschema.Draft202012Validator(schema).is_valid(body)

    error = served.complete(prompt=[]).json()
    assert is_valid("ErrorResponse", error) and set(answers) == {"200", "4XX", "5XX"}
    accepted = (
        {},
        dict(seed=None, temperature=None),
        dict(user="me", request_id=7),
        dict(echo=True),
        dict(presence_penalty=0, logit_bias={}, tools=None),
        dict(stop=["w1"], logprobs=2),
    )
    refused = (
        dict(prompt=[]),
        dict(prompt=""),
        dict(temprature=1),
        dict(presence_penalty=0.5),
        dict(logprobs=99),
        dict(stream_options=3),
        dict(cache_salt=""),
    )
    for bodies, status in ((accepted, 200), (refused, 400)):
        for fields in bodies:
            body = {"prompt": [3], "max_tokens": 2} | fields
            assert served.complete(**body).status_code == status, body
            assert is_valid("CompletionRequest", body) == (status == 200), body


def test_an_echo_begins_with_the_prompt_and_its_log_probabilities(
    shared: tuple[Served, LLM],
) -> None:
    """lm-eval compares answers by likelihood so: the last tokens of an echo are an answer."""
    served, llm = shared
    prompts = [[3, 4, 5, 6, 7, 8], [9, 3]]
    body: dict[str, Any] = dict(prompt=prompts, max_tokens=2, ignore_eos=True, temperature=0)
    plain = served.complete(**body, logprobs=1).json()["choices"]
    text = served.complete(**body, logprobs=1, echo=True, stream=True).text
    pieces = [piece["choices"][0] for piece in events(iter(text.split("\n")))]
    for index, (prompt, usual) in enumerate(zip(prompts, plain, strict=True)):
        whole = served.complete(**body, logprobs=1, echo=True).json()["choices"][index]
        ids = torch.tensor(prompt)
        logits = llm.model.compute_logits(llm.model(ids, torch.arange(len(ids))))
        expected = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0].tolist()
        found, told = whole["logprobs"], usual["logprobs"]
        assert whole["text"] == llm.get_tokenizer().decode(prompt) + usual["text"]
        first, *others = found["token_logprobs"]
        assert first is None and found["top_logprobs"][0] is None
        assert others == pytest.approx([*expected, *told["token_logprobs"]], abs=1e-4)
        assert found["tokens"][len(prompt) :] == told["tokens"]
        assert all(
            t in top for t, top in zip(found["tokens"][1:], found["top_logprobs"][1:], strict=True)
        )
        own = [piece for piece in pieces if piece["index"] == index]
        assert "".join(piece["text"] for piece in own) == whole["text"]
        joined = {name: [v for piece in own for v in piece["logprobs"][name]] for name in found}
        assert joined["tokens"] == found["tokens"]
        assert joined["text_offset"][len(prompt)] == len(whole["text"]) - len(usual["text"])
    assert served.complete(**body, echo=True).json()["choices"][1]["logprobs"] is None


def test_stream_options_are_for_streams(served: Served) -> None:
    response = served.complete(prompt=[3], stream_options={"include_usage": True})
    assert response.status_code == 400 and "only for stream=true" in response.text


def test_what_asks_for_nothing_is_accepted(served: Served) -> None:
    response = served.complete(
        prompt=[3],
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        user="me",
        seed=None,
        echo=False,
        temperature=None,
        max_tokens=2,
    )
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("kind", ["completion", "chat_completion"])
def test_all_of_vllms_fields_may_be_written_out(real: Served, kind: str) -> None:
    """With the values that they have by default: tools write them into each request."""
    protocol = importlib.import_module(f"vllm.entrypoints.openai.{kind}.protocol")
    chat = kind == "chat_completion"
    model = protocol.ChatCompletionRequest if chat else protocol.CompletionRequest
    fields = {
        name: field.get_default(call_default_factory=True)
        for name, field in model.model_fields.items()
        if not field.is_required()
    }
    assert len(fields) > 50 and "length_penalty" in fields
    fields |= {"max_tokens": 2, "model": "tiny"}
    fields |= {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi"}
    response = real.post("/v1/chat/completions" if chat else "/v1/completions", **fields)
    assert response.status_code == 200, response.text


def test_numbers_may_come_as_other_kinds_of_numbers(served: Served) -> None:
    """As in vLLM: clients in other languages know no integers, or send all as text."""
    usual = served.complete(prompt=[3, 4], max_tokens=3, temperature=0).json()["choices"]
    for fields in (dict(max_tokens=3.0, temperature="0"), dict(max_tokens="3", temperature=0)):
        response = served.complete(prompt=[3, 4], **fields)
        assert response.status_code == 200 and response.json()["choices"] == usual
    assert served.complete(prompt=[3], max_tokens=2.5).status_code == 400


def test_a_stream_may_count_its_tokens_all_the_time(tiny: LLM) -> None:
    """guidellm asks for it, in each request."""
    prompts = [[3, 4, 5], [9]]
    body: dict[str, Any] = dict(prompt=prompts, max_tokens=5, ignore_eos=True, stream=True)
    with serve(tiny.new_engine()) as served:
        for total, each in ((False, True), (True, False), (True, True)):
            options = {"include_usage": total, "continuous_usage_stats": each}
            has_counts = total and each
            text = served.complete(**body, stream_options=options).text
            pieces = events(iter(text.split("\n")))
            last = pieces.pop()["usage"] if total else None
            assert last is None or (last["prompt_tokens"], last["completion_tokens"]) == (4, 10)
            assert {"usage" in piece for piece in pieces} == {has_counts}
            for index, prompt in enumerate(prompts if has_counts else ()):
                counts = [p["usage"] for p in pieces if p["choices"][0]["index"] == index]
                written = [count["completion_tokens"] for count in counts]
                assert written == sorted(set(written)) and written[-1] == 5
                assert {count["prompt_tokens"] for count in counts} == {len(prompt)}


def test_what_routers_add_is_accepted_as_long_as_it_asks_for_nothing(served: Served) -> None:
    added = dict(no_stop_trim=False, skip_special_tokens=True, return_hidden_states=False)
    assert served.complete(prompt=[3], max_tokens=2, **added).status_code == 200
    response = served.complete(prompt=[3], no_stop_trim=True)
    assert response.status_code == 400 and "no_stop_trim=True is not sup" in response.text


def test_prompts_are_rendered_for_routers_as_by_vllm(tiny_folder, llm: LLM) -> None:
    """A router asks how a prompt is tokenized; only where that is switched on."""
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest

    tiny = LLM(tiny_folder, max_num_seqs=4, block_size=4)
    with serve(tiny.llm_engine, enable_scale_out=True) as served:
        body = dict(prompt=["w3", "w5"], max_tokens=2, temperature=0, stop_token_ids=[1])
        rendered = served.post("/v1/completions/render", **body).json()
        first, second = (GenerateRequest.model_validate(one) for one in rendered)
        assert (first.token_ids, second.token_ids) == ([3], [5])
        assert second.sampling_params.max_tokens == 2
        assert second.sampling_params.stop_token_ids == [1]
        assert nothing_is_held(tiny)
        refused = served.post("/v1/completions/render", prompt=[99])
        assert refused.status_code == 400 and "not in the vocabulary" in refused.text
    chat = [{"role": "user", "content": "Hi"}]
    with serve(llm.new_engine(), enable_scale_out=True) as served:
        rendered = served.post("/v1/chat/completions/render", messages=chat).json()
        expected = llm.tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        assert rendered["token_ids"] == list(getattr(expected, "input_ids", expected))


def test_without_the_switch_nothing_is_rendered(served: Served) -> None:
    assert served.post("/v1/completions/render", prompt=[3]).status_code == 404


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: List should have at least 1 item"),
        ([{"role": "user"}], "messages.0.content: Field required"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "of type text"),
        ([{"role": "user", "content": "Hi"}], "This model has no chat template"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "tool calls are not supported"),
        ([{"role": "tool", "tool_call_id": "1", "content": "4"}], "tool calls are not supported"),
    ],
)
def test_bad_conversations_are_refused(served: Served, messages: list, message: str) -> None:
    response = served.post("/v1/chat/completions", messages=messages)
    assert response.status_code == 400 and message in response.json()["error"]["message"]


def test_unknown_models_and_paths_are_not_found(served: Served) -> None:
    response = served.complete(prompt=[3], model="gpt-5")
    assert response.status_code == 404
    assert "This server has 'tiny'" in response.json()["error"]["message"]
    assert served.http.get("/v2/nothing").json()["error"]["code"] == 404
    not_allowed = served.http.get("/v1/completions")
    assert not_allowed.json()["error"]["code"] == 405 and not_allowed.headers["allow"] == "POST"


@pytest.mark.parametrize("content", [b"{", b'"text"', b"\xff"])
def test_a_body_that_is_no_json_object(served: Served, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    response = served.http.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 400 and "body" in response.json()["error"]["message"]


def test_half_a_surrogate_pair_is_a_bad_request(served: Served) -> None:
    """It is valid JSON and no text; an error message that quotes it must be sent all the same."""
    headers = {"Content-Type": "application/json"}
    for content, words in (
        (b'{"prompt": "a", "structured_outputs": {"\\ud800": 1}}', "\\ud800: this server knows no"),
        (b'{"\\ud800": 1}', "Input should be a valid string"),
    ):
        response = served.http.post("/v1/completions", content=content, headers=headers)
        assert response.status_code == 400 and words in response.json()["error"]["message"]


def test_large_bodies_are_refused_with_and_without_their_length(shared: tuple[Served, LLM]) -> None:
    served, _ = shared
    body = json.dumps({"prompt": "w3 " * 10_000}).encode()
    pieces = (body[i : i + 1000] for i in range(0, len(body), 1000))
    for content in (body, pieces):
        headers = {"Content-Type": "application/json"}
        response = served.http.post("/v1/completions", content=content, headers=headers)
        assert response.status_code == 413
        assert "larger than 20,000 bytes" in response.json()["error"]["message"]


def test_the_server_needs_no_plots_and_no_notebook() -> None:
    code = "import sys, utils.serving.__main__; print({'matplotlib', 'IPython'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
