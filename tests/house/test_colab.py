"""A clean environment that imitates Colab: the course runs in it and replaces nothing.

Another folder, none of the course's packages, an older transformers than the course needs, and
Colab's environment variables. Packages come from where `make setup` found them, and from its cache.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.setup import uv_environment
from utils.hub import resolve_model
from utils.pipeline.environment import lock_file

ROOT = Path(__file__).resolve().parents[2]
PREINSTALLED = (
    "torch", "transformers", "ipykernel", "ipywidgets", "matplotlib", "psutil", "safetensors",
)  # fmt: skip
OLD = ("transformers", "tokenizers", "huggingface-hub", "numpy")  # as the archived tools pin them
# As on Colab; the files that some of them name do not exist there either.
COLAB = {
    "COLAB_RELEASE_TAG": "release-colab-external_20261101-060000_RC00",
    "COLAB_GPU": "",
    "PYTHONPATH": "/env/python",
    "UV_SYSTEM_PYTHON": "true",
    "UV_CONSTRAINT": "/backend-container/containers/requirements.constraints",
    "UV_BUILD_CONSTRAINT": "/backend-container/containers/build.constraints",
    "UV_PRERELEASE": "if-necessary-or-explicit",
}
NOT_ON_COLAB = {
    "COURSE_PROFILE", "COURSE_ARTIFACTS", "COURSE_PIPELINE_PYTHON", "VIRTUAL_ENV",
    "PYTHONDONTWRITEBYTECODE",
}  # fmt: skip


def pins(lock: Path) -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in lock.read_text().splitlines())
    return {canonicalize_name(line.split("==")[0]): line for line in lines if line}


def with_requirements(names: tuple[str, ...]) -> set[str]:
    """Packages and all that they require, by the metadata of what is installed here."""
    found: set[str] = set()
    queue = [canonicalize_name(name) for name in names]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.distribution(name).requires or []:
            requirement = Requirement(line)
            if not requirement.marker or requirement.marker.evaluate({"extra": ""}):
                queue.append(canonicalize_name(requirement.name))
    return found


@pytest.fixture(scope="module")
def colab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `venv` (what Colab brings), `content` (where it starts) and `repository`."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is nothing that Colab's first cell could clone")
    folder = tmp_path_factory.mktemp("colab")
    env = uv_environment()
    uv = Path(sys.executable).with_name("uv")
    python = folder / "venv" / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "-p", sys.executable, folder / "venv"], check=True)
    new, old = pins(lock_file("cpu")), pins(lock_file("classic"))
    chosen = new | {name: old[name] for name in OLD}
    wanted = [chosen[name] for name in sorted(with_requirements(PREINSTALLED)) if name in chosen]
    install = [uv, "pip", "install", "--quiet", "-p", python, "--no-deps", *wanted]
    probe = subprocess.run([*install, "--dry-run"], env=env, capture_output=True)
    index = ["--torch-backend", "cpu"] if probe.returncode else []
    subprocess.run([*install, *index], env=env, check=True)
    _commit_working_tree(folder / "repository")
    # Converting the model is tested elsewhere.
    model = resolve_model()
    shutil.copytree(model, folder / "cache" / model.name)
    (folder / "content").mkdir()
    (folder / "bin").mkdir()
    (folder / "bin" / "uv").symlink_to(uv)  # Colab has uv
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # gigabytes, even if most are links


def _commit_working_tree(target: Path) -> None:
    """A repository with the files as they are here, committed or not."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "all"]):
        subprocess.run(["git", *identity, *command], cwd=target, check=True)


def kernel(folder: Path) -> tuple[AsyncKernelManager, dict[str, str]]:
    """The imitation's kernel, and the environment it starts with."""
    spec = folder / "kernels" / "colab"
    spec.mkdir(parents=True, exist_ok=True)
    argv = [str(folder / "venv/bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    described = {"argv": argv, "display_name": "Colab", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(described))
    finder = KernelSpecManager(kernel_dirs=[str(folder / "kernels")])
    manager = AsyncKernelManager(kernel_name="colab", kernel_spec_manager=finder)
    env = {name: value for name, value in uv_environment().items() if name not in NOT_ON_COLAB}
    address = "https://github.com/from-kv-cache-to-vllm/course"
    env |= COLAB | {
        "COURSE_CACHE": str(folder / "cache"),
        "PATH": f"{folder / 'bin'}{os.pathsep}{env['PATH']}",
        # `git clone` of the course's address clones what is here.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{folder / 'repository'}.insteadOf",
        "GIT_CONFIG_VALUE_0": address,
    }
    return manager, env


def run_cells(folder: Path, sources: list[str]) -> list[str]:
    """Run code cells in one kernel, started in `content`; return what each printed."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    manager, env = kernel(folder)
    client = NotebookClient(
        notebook, km=manager, timeout=600, resources={"metadata": {"path": folder / "content"}}
    )
    client.execute(env=env)
    return ["".join(o.get("text", "") for o in cell.outputs) for cell in notebook.cells]


BOOTSTRAP = (ROOT / "tools" / "bootstrap_cell.py").read_text()
LESSON = """
from utils.engine import LLM, SamplingParams

llm = LLM()
question = [{"role": "user", "content": "What is the capital of France?"}]
output = llm.chat(question, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)[0]
print(output.outputs[0].text)
"""
PART_II = """
import dataclasses
from pathlib import Path

from utils.hub import resolve_model
from utils.pipeline.environment import pipeline_python
from utils.pipeline.runner import Runner
from utils.pipeline.stages.chain import BASE, build_stages
from utils.profiles import get_profile

profile = dataclasses.replace(
    get_profile(), train_examples=4, train_steps=1, train_batch_size=1, eval_examples=2
)
stages = build_stages(profile, "gptqmodel", "gptqmodel")
manifests = Runner(Path("artifacts"), stages, {BASE: resolve_model()}).run(["data", "finetune"])
print(pipeline_python())
print(manifests["finetune"]["versions"])
"""
VERSIONS = """
import subprocess
import sys

code = "from importlib.metadata import distributions; "
code += "print(sorted(f'{d.name} {d.version}' for d in distributions()))"
print(subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True).stdout)
"""


@pytest.mark.slow
def test_both_parts_run_and_nothing_preinstalled_is_replaced(colab: Path) -> None:
    before, bootstrap, lesson, part_ii, again, after = run_cells(
        colab, [VERSIONS, BOOTSTRAP, LESSON, PART_II, BOOTSTRAP, VERSIONS]
    )
    old = pins(lock_file("classic"))
    print(bootstrap, lesson, part_ii, again)
    assert old["transformers"].replace("==", " ") in before
    assert before == after
    assert "Installing transformers" in bootstrap and "Ready. Profile: cpu." in bootstrap
    assert "Paris" in lesson
    assert again == bootstrap.splitlines(keepends=True)[-1]  # nothing is installed twice
    assert "Part II runs in an environment of its own" in part_ii
    assert str(colab / "cache" / "pipeline-env") in part_ii
    locked = pins(lock_file("cpu"))
    for package in ("transformers", "peft", "bitsandbytes"):
        assert repr(locked[package].split("==")[1]) in part_ii
