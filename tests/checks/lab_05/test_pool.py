"""A pool: each known mistake is named as itself, and what is not written says so."""

from __future__ import annotations

import pytest

from utils.checks import lab_05
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_05 import pool_mistakes
from utils.checks.lab_05.right_pool import METHODS, engine_methods_refuse
from utils.engine.core.block_pool import BlockPool

MISTAKES = pool_mistakes.CACHING_BLOCK_POOL.mistakes


@pytest.mark.parametrize(
    ("says", "answer"),
    [(m.says, answer) for m in MISTAKES for answer in m.answers],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_known_mistake_of_a_pool_is_named(says, answer):
    with engine_methods_refuse(), pytest.raises(Mismatch) as caught:
        pool_mistakes.CACHING_BLOCK_POOL.check(answer)
    assert caught.value.headline == says


def stub(*_):
    raise NotImplementedError


@pytest.mark.parametrize("missing", METHODS)
def test_a_half_written_pool_is_told_so_not_that_it_is_wrong(missing):
    feedback = lab_05.block_pool(type("Half", (pool_mistakes.Base,), {missing: stub}))
    assert feedback.status == "not written yet"
    assert "stub" in feedback.headline


@pytest.mark.parametrize("method", METHODS)
def test_the_engines_methods_refuse_only_while_they_are_asked_to(method):
    with engine_methods_refuse(), pytest.raises(Mismatch, match="engine's own method"):
        getattr(BlockPool(2), method)([], [], 0, 0)
    with pytest.raises(TypeError):
        getattr(BlockPool(2), method)(*range(9))


def test_a_constructor_that_fails_is_the_learners_fault():
    pool_class = type("NoNumber", (BlockPool,), {"__init__": lambda self: None})
    assert lab_05.block_pool(pool_class).status == "failed"
