"""Masks against brute force over the whole vocabulary; forms that cannot be used are named."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
import regex
import torch
from transformers import PreTrainedTokenizerBase

from tests.scale import sized
from utils.engine.sampling_params import StructuredOutputsParams
from utils.engine.structured_output import grammar as module
from utils.engine.structured_output.grammar import StructuredOutputManager, unpack_bitmask

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["cat", "dog"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
PATTERN = r"(ab|a[0-9]{2,3}) ?(c|the)?"
EOS = 2


@pytest.fixture(scope="module")
def manager(tokenizer: PreTrainedTokenizerBase) -> StructuredOutputManager:
    return StructuredOutputManager(tokenizer, len(tokenizer), (EOS,))


@pytest.fixture(scope="module")
def texts(tokenizer: PreTrainedTokenizerBase) -> list[str | None]:
    """What each token writes; None: nothing that is whole text, or a special one."""
    special = set(tokenizer.all_special_ids)
    written = [tokenizer.decode([i]) for i in range(len(tokenizer))]
    return [None if i in special or "\ufffd" in t else t for i, t in enumerate(written)]


def allowed(manager: StructuredOutputManager, grammar: Any, tokens: list[int]) -> set[int]:
    bits = grammar.bitmask(tokens, [])
    return set(unpack_bitmask(bits, manager.vocab_size).nonzero().flatten().tolist())


def test_a_mask_is_what_brute_force_finds(
    manager: StructuredOutputManager, texts: list[str | None]
) -> None:
    make = random.Random(0)
    for _ in range(sized(3, 8)):
        grammar = manager.grammar_init(StructuredOutputsParams(regex=PATTERN))
        tokens: list[int] = []
        written = ""
        while True:
            expected = {
                i
                for i, text in enumerate(texts)
                if text and regex.fullmatch(PATTERN, written + text, partial=True)
            }
            if regex.fullmatch(PATTERN, written):
                expected.add(EOS)
            found = allowed(manager, grammar, tokens)
            if found != expected:  # one way to go on: then only its usual tokens are let through
                [longest] = (texts[i] or "" for i in found)
                assert all(longest.startswith(texts[i] or "?") for i in expected), written
            assert grammar.accepts(tokens) == (EOS in expected)
            token = make.choice(sorted(found))
            if token == EOS:
                break
            tokens.append(token)
            written += texts[token] or ""


def test_whatever_the_mask_lets_through_is_valid(
    manager: StructuredOutputManager, tokenizer: PreTrainedTokenizerBase
) -> None:
    make = random.Random(1)
    num_whole = 0
    for _ in range(30):
        form = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
        grammar = manager.grammar_init(form)
        tokens: list[int] = []
        for _ in range(200):
            choices = sorted(allowed(manager, grammar, tokens))
            token = EOS if EOS in choices else make.choice(choices)
            if token == EOS:
                break
            tokens.append(token)
        if grammar.accepts(tokens):
            num_whole += 1
            jsonschema.validate(json.loads(tokenizer.decode(tokens)), SCHEMA)
    assert num_whole >= 10


@pytest.mark.parametrize(
    "document",
    [
        {"name": "Zoë", "age": 0, "kind": "cat"},
        {"name": "", "age": 130, "kind": "dog", "tags": []},
        {"name": 'a"b\\', "age": 7, "kind": "dog", "tags": [True, False]},
    ],
)
def test_every_valid_document_can_be_written(
    manager: StructuredOutputManager, tokenizer: PreTrainedTokenizerBase, document: dict
) -> None:
    grammar = manager.grammar_init(StructuredOutputsParams(json=SCHEMA))
    tokens = tokenizer.encode(json.dumps(document, ensure_ascii=False))
    for i, token in enumerate(tokens):
        assert token in allowed(manager, grammar, tokens[:i])
    assert EOS in allowed(manager, grammar, tokens)


def test_guesses_are_looked_through_and_forgotten(
    manager: StructuredOutputManager, tokenizer: PreTrainedTokenizerBase
) -> None:
    form = StructuredOutputsParams(json=SCHEMA)
    tokens = tokenizer.encode('{"name": "Ada", "age": 36, "kind": "cat"}')
    grammar = manager.grammar_init(form)
    for i in range(len(tokens)):
        for n in (1, 3):
            ahead = grammar.bitmask(tokens[:i], tokens[i : i + n])
            fresh = manager.grammar_init(form).bitmask(tokens[: i + n], [])
            assert torch.equal(ahead, fresh)
        assert grammar.bitmask(tokens[:i], [*tokens[i : i + 1], 5, 5, 5]) is None
        assert torch.equal(
            grammar.bitmask(tokens[:i], []), manager.grammar_init(form).bitmask(tokens[:i], [])
        )


def test_answers_do_not_share_a_state(manager: StructuredOutputManager) -> None:
    form = StructuredOutputsParams(choice=["yes", "no"])
    one, other = manager.grammar_init(form), manager.grammar_init(form)
    first = allowed(manager, one, [])
    token = min(first)
    assert allowed(manager, one, [token]) != first
    assert allowed(manager, other, []) == first


def test_no_whitespace_if_none_is_wanted(
    manager: StructuredOutputManager, tokenizer: PreTrainedTokenizerBase, texts: list[str | None]
) -> None:
    begun = tokenizer.encode('{"name":')
    for without in (False, True):
        form = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=without)
        written = [texts[i] for i in allowed(manager, manager.grammar_init(form), begun)]
        assert any(text and text.startswith('"') for text in written)
        spaced = [text for text in written if text and text[0].isspace()]
        assert bool(spaced) != without


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({}, "exactly one of"),
        ({"json": {}, "regex": "a"}, "json and regex"),
        ({"json": 3}, "json must be a dict or a text"),
        ({"choice": []}, "choice must be a list"),
        ({"json_object": False}, "json_object must be true"),
        ({"json": {"a": object()}}, "json is no JSON"),
        ({"regex": "a", "disable_any_whitespace": [[]]}, "must be true or false"),
        ({"json": '{"type": '}, "json cannot be used"),
        ({"json": {"type": "strin"}}, "json cannot be used"),
        ({"json": {"not": {"type": "string"}}}, "json cannot be used"),
        ({"json": {"$ref": "#/$defs/none"}}, "json cannot be used"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "json cannot be used"),
        ({"regex": "("}, "regex cannot be used"),
        ({"regex": "a" * (module.MAX_CHARS + 1)}, "characters. At most"),
        ({"grammar": "start: ("}, "grammar cannot be used"),
        ({"json": '{"items":' * 5000 + "{}" + "}" * 5000}, "json cannot be used: recursion"),
        ({"json": {"$ref": "#"}}, "json cannot be used"),
    ],
)
def test_what_is_wrong_with_a_form_is_said(
    manager: StructuredOutputManager, form: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        manager.grammar_init(StructuredOutputsParams(**form))


RECURSIVE = {
    f"field{i}": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"$ref": "#"}]}
    for i in range(60)
}
TEXTS = {f"f{i}": {"type": "string", "maxLength": 200} for i in range(1000)}
HONEST: dict[str, tuple[dict[str, Any], Any]] = {  # with what shall be written
    "usual": (SCHEMA, {"name": "Ada", "age": 36, "kind": "cat"}),
    "recursive": (
        {"type": "object", "properties": RECURSIVE, "additionalProperties": False},
        {
            name: "x y" if i % 3 else {"field1": i, "field2": {"field3": "abc"}}
            for i, name in enumerate(RECURSIVE)
        },
    ),
    "many fields": (
        {"type": "object", "properties": TEXTS, "required": [*TEXTS]},
        dict.fromkeys(TEXTS, "a b"),
    ),
    "multiples": ({"type": "integer", "multipleOf": 9973}, 9973 * 2024),
}


@pytest.mark.parametrize("name", HONEST)
def test_a_large_form_is_followed_to_its_end(
    manager: StructuredOutputManager, tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    schema, document = HONEST[name]
    grammar = manager.grammar_init(StructuredOutputsParams(json=schema))
    tokens = tokenizer.encode(json.dumps(document))
    for end in range(len(tokens)):
        allowed_bits = grammar.bitmask(tokens[:end], [])
        assert allowed_bits[tokens[end] // 8] >> (tokens[end] % 8) & 1
    assert grammar.accepts(tokens)


def test_an_engine_without_an_end_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    manager = StructuredOutputManager(tokenizer, len(tokenizer), ())
    with pytest.raises(ValueError, match="end-of-sequence"):
        manager.grammar_init(StructuredOutputsParams(regex="a"))
