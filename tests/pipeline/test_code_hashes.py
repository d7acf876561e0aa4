"""A stage is made anew when code that it reaches changes, and only then."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from utils.pipeline import code_hashes as module
from utils.pipeline.code_hashes import ROOT, code_hashes
from utils.pipeline.drafts import distill
from utils.pipeline.stages import chain
from utils.profiles import get_profile

FILES = {
    "utils/stages.py": """\
        from utils.a.parts import helper
        LIMIT = 3
        TABLE = {}
        TABLE["a"] = 1
        TABLE.update(b=1)
        def one(settings, inputs, out):
            from utils.b.parts import other
            return middle(other)
        def middle(x):
            return helper(x, LIMIT, TABLE)
        def two(settings, inputs, out):
            command = ["python", "-m", "utils.program"]
    """,
    "utils/a/__init__.py": "",
    "utils/a/parts.py": "from utils.deep import value\ndef helper(x, y):\n    return value\n",
    "utils/b/__init__.py": "from utils.unused import z\n",
    "utils/b/parts.py": "def other():\n    return 1\n",
    "utils/deep.py": "import utils.a.parts\nfrom . import near\nfrom .b.far import up\nvalue = 1\n",
    "utils/near.py": "x = 1\n",
    "utils/b/far.py": "from .. import up\n",
    "utils/up.py": "x = 1\n",
    "utils/program.py": "x = 1\n",
    "utils/unused.py": "z = 1\n",
    "utils/engine/__init__.py": "",
}


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return tmp_path


def hashes(course: Path, name: str) -> dict[str, str]:
    """Of a function of the made-up `stages.py`, read anew."""
    spec = importlib.util.spec_from_file_location("made_up_stages", course / "utils/stages.py")
    assert spec is not None
    source = compile((course / "utils/stages.py").read_text(), spec.origin or "", "exec")
    found: dict[str, object] = {}
    wanted = [c for c in source.co_consts if getattr(c, "co_name", "") == name]
    exec(f"def {name}(): pass", found)
    function = found[name]
    function.__code__ = wanted[0]  # type: ignore[attr-defined]
    return code_hashes(function)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("utils/deep.py", "value = 1", "value = 2", {"one"}),
        ("utils/a/parts.py", "return value", "return -value", {"one"}),
        ("utils/b/parts.py", "return 1", "return 2", {"one"}),
        ("utils/near.py", "x = 1", "x = 2", {"one"}),
        ("utils/up.py", "x = 1", "x = 2", {"one"}),
        ("utils/stages.py", 'TABLE["a"] = 1', 'TABLE["a"] = 2', {"one"}),
        ("utils/stages.py", "TABLE.update(b=1)", "TABLE.update(b=2)", {"one"}),
        ("utils/stages.py", "LIMIT = 3", "LIMIT = 4", {"one"}),
        ("utils/stages.py", "return helper(x, LIMIT,", "return helper(LIMIT, x,", {"one"}),
        ("utils/stages.py", '"python"', '"python3"', {"two"}),
        ("utils/program.py", "x = 1", "x = 2", {"two"}),
        ("utils/unused.py", "z = 1", "z = 2", set()),
        ("utils/deep.py", "value = 1", "value   =  1  # a remark", set()),
        ("utils/stages.py", "def middle(x):", "\n# a remark\ndef middle(x):", set()),
    ],
)
def test_a_change_counts_where_it_is_reached(
    course: Path, file: str, old: str, new: str, changes: set[str]
) -> None:
    before = {name: hashes(course, name) for name in ("one", "two")}
    text = (course / file).read_text()
    assert old in text
    (course / file).write_text(text.replace(old, new) + "\n")
    module._parsed.cache_clear()
    assert {name for name in before if hashes(course, name) != before[name]} == changes


def test_files_of_one_name_are_two(course: Path) -> None:
    assert {"utils/a/parts.py", "utils/b/parts.py"} <= set(hashes(course, "one"))


IMPORT_ALL = """
import importlib, json, os, sys
import peft, torch, transformers  # what takes long, once
for stage, names in json.loads(sys.argv[1]).items():
    sys.stdout.flush()
    if not os.fork():
        for name in names:
            importlib.import_module(name)
        files = [m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'utils']
        print(json.dumps([stage, [f for f in files if f]]), flush=True)
        os._exit(0)
    os.wait()
"""


def test_no_file_that_python_loads_is_missing() -> None:
    """The oracle is Python: import all that was found, and see what it brought along."""
    stages = [*chain.build_stages(get_profile(), "gptqmodel", "gptqmodel"),
              *distill.build_stages(get_profile())]  # fmt: skip
    found = {
        stage.name: {name for name in code_hashes(stage.function, stage.sources) if ":" not in name}
        for stage in stages
    }
    modules = {  # but not scripts, which run in environments of their own
        stage: [name.removesuffix(".py").replace("/", ".") for name in names
                if "/quantizers/" not in name]
        for stage, names in found.items()
    }  # fmt: skip
    command = [sys.executable, "-c", IMPORT_ALL, json.dumps(modules)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [stage for stage, _ in lines] == [stage.name for stage in stages]
    for stage, files in lines:
        loaded = {str(Path(file).relative_to(ROOT)) for file in files}
        packages = {n for n in loaded if "/engine/" in n or n.endswith("__init__.py")}
        missing = loaded - packages - _imported_by_packages(packages) - found[stage]
        assert not missing, stage


def _imported_by_packages(files: set[str]) -> set[str]:
    """What a package's `__init__.py` imports for others, and what stands behind that."""
    found: set[str] = set()
    waiting = [ROOT / name for name in files]
    while waiting:
        path = waiting.pop()
        for file in module._imported_files(module._parsed(path, 0), path):
            name = str(file.relative_to(ROOT))
            if name not in found:
                found.add(name)
                waiting.append(file)
    return found
