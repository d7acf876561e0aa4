"""The table of files names files that exist, and counts code only."""

from __future__ import annotations

from pathlib import Path

from utils.viz.engine.counterparts import COUNTERPARTS, OURS, counterparts, lines_of_code


def test_only_code_counts(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        '"""A text."""\n\n# a comment\ndef f():\n    """Two\n    lines."""\n    return 1\n'
    )
    assert lines_of_code(file) == 2


def test_every_file_of_the_table_exists() -> None:
    table = counterparts().splitlines()
    assert len(table) == len(COUNTERPARTS) + 3
    for name, row in zip(COUNTERPARTS, table[1:], strict=False):
        ours, theirs = row.split()[1], row.split()[-1]
        assert int(ours) == lines_of_code(OURS / name)
        assert theirs == "?" or int(theirs) > 0
    together = table[-2].split()
    assert int(together[1]) == sum(lines_of_code(OURS / name) for name in COUNTERPARTS)


def test_the_table_keeps_to_the_default_model_runner() -> None:
    """V2, that is. Only the older one has Medusa."""
    older = ("v1/sample/", "v1/spec_decode/", "v1/worker/gpu_model_runner.py")
    named = [path for paths in COUNTERPARTS.values() for path in paths.split()]
    assert [path for path in named if path.startswith(older)] == ["v1/spec_decode/medusa.py"]
