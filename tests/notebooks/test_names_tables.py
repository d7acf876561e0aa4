"""Every vLLM name in the lessons' tables exists in the installed vLLM."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import nbformat
import pytest

from tools import newest_vllm
from tools.notebook_files import QUIZ
from tools.vllm_callers import num_uses
from tools.vllm_names import UnknownName, check, default, reading, table_rows

QUANT_UTILS = "vllm.model_executor.layers.quantization.utils.quant_utils"
# Names in the tables that nothing in vLLM uses, and why they are there all the same.
UNUSED = {
    f"{QUANT_UTILS}.gptq_pack": "packs checkpoints, which vLLM only reads; its own tests use it",
    f"{QUANT_UTILS}.awq_pack": "packs checkpoints, which vLLM only reads; its own tests use it",
}


def failures(path: Path) -> list[str]:
    """One message for each entry of the table that is not right."""
    found = []
    for here, there in table_rows(path):
        names = re.findall(r"`([^`]+)`", there)
        if not names and not there.startswith("none"):
            found.append(f"{path.name}, row {here!r}: names nothing. Write `name`, or none and why")
        for name in names:
            try:
                check(name)
            except UnknownName as error:
                found.append(f"{path.name}, row {here!r}: {error}")
    return found


def test_names_exist_in_vllm(lesson: Path) -> None:
    if lesson != QUIZ:
        assert list(table_rows(lesson)), f"{lesson.name} has no table '| here | in vLLM |'"
    assert failures(lesson) == []


def test_names_are_used_in_vllm(lesson: Path) -> None:
    """A name that exists may be dead: then another one does the work today."""
    dotted = [
        name.removesuffix("()")
        for _, there in table_rows(lesson)
        for name in re.findall(r"`(vllm\.[^`]+)`", there)
    ]
    assert [name for name in dotted if name not in UNUSED and num_uses(name) < 1] == []


def test_a_name_that_nothing_uses_is_found() -> None:
    """Of these two functions, 0.32 calls only the one with the underscore."""
    assert num_uses("vllm.v1.core.kv_cache_utils.check_enough_kv_cache_memory") == 0
    assert num_uses("vllm.v1.core.kv_cache_utils._check_enough_kv_cache_memory") > 0
    assert num_uses("vllm.config.CacheConfig.block_size") > 0
    assert num_uses("vllm.v1.core.block_pool") > 0
    assert [name for name in UNUSED if num_uses(name) > 0] == []


@pytest.mark.parametrize(
    "name",
    [
        "vllm.LLM.generate()",
        "vllm.sampling_params.SamplingParams.top_p",  # field of a struct
        "vllm.config.CacheConfig.block_size",  # data class, imported from another module
        "vllm.v1.core.kv_cache_utils.KVCacheBlock.ref_cnt",
        "vllm.v1.core.block_pool.BlockPool.free_block_queue",  # set on self
        "vllm.v1.request.RequestStatus.WAITING",  # member of an enum
        "vllm.v1.core.kv_cache_utils.hash_block_tokens",  # function
        "vllm.v1.core.sched.scheduler.Scheduler.has_requests",  # inherited
        "v1/core/block_pool.py",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--port",
        "VLLM_CPU_KVCACHE_SPACE",
        "vllm:prefix_cache_hits_total",
    ],
)
def test_finds_what_exists(name: str) -> None:
    check(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vllm.LLM.generat", "vllm has no LLM.generat"),
        ("vllm.sampling_params.SamplingParams.topp", "has no SamplingParams.topp"),
        ("vllm.sampling_params.SamplingParms", "has no SamplingParms"),
        ("vllm.v1.core.block_pol.BlockPool", "vllm.v1.core has no block_pol.BlockPool"),
        ("vllm.v1.core.block_pool.BlockPool.free", "has no BlockPool.free"),
        ("v1/core/pool.py", "no file"),
        ("--enable-prefix-cache", "no option"),
        ("VLLM_KVCACHE_SPACE", "no environment variable"),
        ("vllm:prefix_hits", "no metric"),
        ("BlockPool", "cannot be checked"),
    ],
)
def test_finds_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(UnknownName, match=re.escape(message)):
        check(name)


def test_message_names_notebook_and_row(tmp_path: Path) -> None:
    table = (
        "| here | in vLLM | why |\n|---|---|---|\n"
        "| `top_p` | `vllm.SamplingParams.top_p`, `vllm.SamplingParams.topp` | |\n"
        "| idea | none: vLLM has no such thing | |\n"
        "| other | something | |\n\n| a | b |\n|---|---|\n| x | `y` |\n"
    )
    path = tmp_path / "05_example.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(table)]), path)
    assert [here for here, _ in table_rows(path)] == ["`top_p`", "idea", "other"]
    first, second = failures(path)
    assert first.startswith("05_example.ipynb, row '`top_p`': vllm.SamplingParams.topp")
    assert second.startswith("05_example.ipynb, row 'other': names nothing")


def test_defaults_are_read() -> None:
    assert default("vllm.sampling_params.SamplingParams.top_p") == "1.0"
    assert default("--port") == "8000"
    assert default("v1/core/block_pool.py") == ""
    with pytest.raises(UnknownName):
        default("vllm.sampling_params.SamplingParams.topp")


def test_what_has_moved_in_another_vllm_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vLLM that is made up: one name is gone, one default is another, one is as it was."""
    wheel = tmp_path / "vllm-99.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        archive.writestr(
            "vllm/sampling_params.py", "class SamplingParams:\n    top_p = 0.9\n    top_k = 0\n"
        )
        archive.writestr("vllm/_C.so", b"")
    newest_vllm.unpack(wheel, tmp_path / "there")
    assert not (tmp_path / "there" / "vllm" / "_C.so").exists()
    fields = [f"vllm.sampling_params.SamplingParams.{name}" for name in ("top_p", "top_k", "seed")]
    monkeypatch.setattr(newest_vllm, "names", lambda: dict.fromkeys(fields, "06_x.ipynb"))
    rows = newest_vllm.moved(tmp_path / "there")
    assert [(name, what.partition(":")[0]) for name, _, what in rows] == [
        (fields[0], "its default was 1.0, is 0.9"),
        (fields[2], "gone"),
    ]
    with reading(tmp_path / "there"):
        check(fields[0])
    check(fields[2])  # outside, the installed one is read again
