"""llama.cpp's server on the bundled file: it answers, counts as we do, and stops."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from utils.hub import load_tokenizer
from utils.serving.load_generator import LoadGenerator, chat_body
from utils.serving.others.contenders import bundled_gguf, llama_cpp_server
from utils.serving.others.llama_cpp import parser

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


def test_options_have_llama_servers_names() -> None:
    options = parser().parse_args(["m.gguf", "--parallel", "3", "--ctx-size", "99"])
    assert (options.model, options.parallel, options.ctx_size) == ("m.gguf", 3, 99)
    assert options.host == "127.0.0.1"


async def ask(url: str, model: str) -> tuple[int, int, list[str]]:
    async with LoadGenerator(url) as load:
        report = await load.closed_loop([chat_body(model, MESSAGES, 6)], 1)
    [timing] = report.timings
    return timing.num_prompt_tokens, timing.num_tokens, report.errors


def test_it_answers_with_the_tokens_that_were_asked_for() -> None:
    with llama_cpp_server(parallel=2) as server:
        read, written, errors = asyncio.run(ask(server.url, server.model))
        body = {"prompt": "The capital of France is", "max_tokens": 3, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["text"].startswith(" Paris")
        url = server.url
    text = load_tokenizer().apply_chat_template(
        MESSAGES, tokenize=False, add_generation_prompt=True
    )
    expected = len(load_tokenizer().encode(text, add_special_tokens=False))
    assert (read, written, errors) == (expected, 6, [])
    assert bundled_gguf().is_file()
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health", timeout=2)
