"""The page "What was measured" shows what the benchmarks' files say."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "site" / "measured.md").read_text()
_spec = importlib.util.spec_from_file_location("measured", ROOT / "site" / "measured_tables.py")
assert _spec and _spec.loader
measured_tables = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(measured_tables)


def rows_of(table: str) -> list[dict[str, str]]:
    lines = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in table.splitlines()
        if line.startswith("|")
    ]
    return [dict(zip(lines[0], row, strict=True)) for row in lines[2:]]


def test_each_result_is_on_the_page():
    assert {file.name for file in RESULTS.glob("*.json")} == {
        Path(name).name for name in re.findall(r"<(benchmarks/results/\S+\.json)>", PAGE)
    }


def test_each_place_gets_its_table():
    page = measured_tables.filled(PAGE, RESULTS)
    names = measured_tables.PLACE.findall(PAGE)
    assert "{measured}" not in page and len(names) > 5
    for name in names:
        table = measured_tables.table_of(name, RESULTS)
        assert table in page and rows_of(table)
        assert json.loads((RESULTS / f"{name}.json").read_text())["machine"]["cpu"] in table
        assert f"{name}.json" in page


@pytest.mark.parametrize("name", ["throughput_avx2", "throughput_avx512_bf16"])
def test_tokens_per_second_are_those_of_the_file(name: str):
    report = json.loads((RESULTS / f"{name}.json").read_text())
    rows = rows_of(measured_tables.table_of(name, RESULTS))
    found = 0
    for row in rows:
        ran = report["results"]["engines"][row["numbers"]][row["requests"]]
        for engine, got in ran.items():
            said = [float(n.replace(",", "")) for n in re.findall(r"[\d.,]+", row[engine])]
            assert said[0] == pytest.approx(got["tokens_per_s"], rel=0.006)
            if len(said) == 3:
                longest, shortest = max(got["seconds"]), min(got["seconds"])
                assert said[2] / said[1] == pytest.approx(longest / shortest, rel=0.02)
            found += 1
    assert found == sum(
        len(ran) for w in report["results"]["engines"].values() for ran in w.values()
    )


def test_a_ratio_is_the_median_of_pairs():
    rows = rows_of(measured_tables.table_of("paged_kv", RESULTS))
    results = json.loads((RESULTS / "paged_kv.json").read_text())["results"]
    for row in rows:
        pairs = results[row["what"].replace(" ", "_")]["pairs"]
        said = float(row["median (lowest to highest)"].split()[0])
        assert said == pytest.approx(median(a / b for a, b in pairs), abs=0.006)
        assert len(pairs) == int(row["pairs"])


def test_a_name_without_a_table_is_an_error():
    for name in ("throughput_nowhere", "mooncake"):
        with pytest.raises(ValueError, match="no table for"):
            measured_tables.filled(f"```{{measured}} {name}\n```", RESULTS)
