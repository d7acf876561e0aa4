"""Colab and Kaggle, imitated: `make test-hosted` runs Part I and a stage of Part II on both.

    python tools/hosted/check.py                            both, all notebooks of Part I
    python tools/hosted/check.py Kaggle 02_kv_cache         one of them, one notebook

An environment with the host's Python and its published versions (requirements/colab.txt and
kaggle.txt), none of the course's packages, the host's environment variables, and an empty start
folder. Some 3 GB are downloaded. What it cannot imitate: their browsers, cards and disks. Where
PyTorch's own index cannot be reached, COURSE_PIPELINE_PYTHON names a Python for Part II.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.notebook_files import code_cells, part_one  # noqa: E402
from tools.set_repository_url import configured_slug  # noqa: E402
from tools.setup import uv_environment  # noqa: E402

REQUIREMENTS = ROOT / "requirements"
# Of what is preinstalled, that which the course comes in touch with.
PREINSTALLED = (
    "torch",
    "torchao",
    "transformers",
    "accelerate",
    "peft",
    "safetensors",
    "xxhash",
    "psutil",
    "tqdm",
    "matplotlib",
    "ipykernel",
    "ipython",
    "ipywidgets",
)
# Their variables; the files that some of Colab's name do not exist there either.
COLABS = {
    "COLAB_RELEASE_TAG": "release-colab-external_20261101-060000_RC00",
    "COLAB_GPU": "",
    "PYTHONPATH": "/env/python",
    "UV_SYSTEM_PYTHON": "true",
    "UV_CONSTRAINT": "/backend-container/containers/requirements.constraints",
    "UV_BUILD_CONSTRAINT": "/backend-container/containers/build.constraints",
    "UV_PRERELEASE": "if-necessary-or-explicit",
}
VARIABLES = {
    "Colab": COLABS,
    # Kaggle's image is Colab's, so it may hold Colab's mark too.
    "Kaggle": COLABS
    | {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "KAGGLE_URL_BASE": "https://www.kaggle.com"},
}
OURS = {"COURSE_PROFILE", "COURSE_ARTIFACTS", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
BOOTSTRAP = (ROOT / "tools" / "bootstrap_cell.py").read_text()
PART_II = """
import dataclasses
from pathlib import Path

from utils.hub import resolve_model
from utils.environments.pipeline import pipeline_python
from utils.pipeline.runner import Runner
from utils.pipeline.stages.chain import build_stages
from utils.pipeline.stages.folders import BASE
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


def their_python() -> str:
    """The version of Python that both run, such as "3.12": Kaggle's image has Colab's."""
    [found] = re.findall(r"^# Python (\d+\.\d+)\.", (REQUIREMENTS / "colab.txt").read_text(), re.M)
    return str(found)


def versions_of(host: str) -> list[str]:
    """What a host pins or bounds, of the packages that matter to the course."""
    names = {"Colab": ["colab"], "Kaggle": ["colab", "kaggle"]}[host]
    found: dict[str, str] = {}
    for name in names:
        for line in (REQUIREMENTS / f"{name}.txt").read_text().splitlines():
            if not line.startswith("#"):
                found[re.split(r"[=<>]", line)[0]] = line
    if host == "Kaggle":
        del found["numpy"]  # Kaggle's installer chooses one that fits its matplotlib
        for name in ("notebook", "jupyterlab-widgets", "widgetsnbextension"):
            del found[name]  # its ipywidgets is newer
    return list(found.values())


def build(host: str, folder: Path, python: str, torch: str | None = None) -> None:
    """Fill `folder`: `venv`, what the host brings; `content`, where it starts; `repository`.

    Args:
        python: a version, or a path.
        torch: a requirement to install in the place of the host's torch.
    """
    env, uv = uv_environment(), str(Path(sys.executable).with_name("uv"))
    to = folder / "venv"
    venv = [uv, "venv", "--quiet", "-p", python, str(to)]
    done = subprocess.run(venv, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Python {python} is not here. Put it on the PATH.\n{done.stderr}")
    # What belongs to the host's own CUDA build of torch, which is on no public index.
    pins = [p for p in versions_of(host) if not p.startswith(("nvidia-", "cuda-", "triton=="))]
    if torch:  # and the setuptools that it asks for
        pins = [pin for pin in pins if not pin.startswith(("torch==", "setuptools=="))] + [torch]
    constraints = folder / "versions.txt"
    constraints.write_text("".join(f"{pin}\n" for pin in pins))
    install = [uv, "pip", "install", "--quiet", "-p", str(to), "-c", str(constraints)]
    install += PREINSTALLED
    # A build for CPUs is on PyTorch's own index, or in a folder of wheels. Where neither has the
    # host's torch, the registry's serves, CUDA and all.
    cpu_index = ["--torch-backend", "cpu"]
    for extra in ([], cpu_index) if torch else (cpu_index, []):
        done = subprocess.run([*install, *extra], env=env, capture_output=True, text=True)
        if done.returncode == 0:
            break
    else:
        raise RuntimeError(f"{host}'s packages cannot be installed:\n{done.stderr[-2000:]}")
    commit_working_tree(folder / "repository")
    (folder / "content").mkdir()
    (folder / "bin").mkdir()
    (folder / "bin" / "uv").symlink_to(uv)  # both have uv


def commit_working_tree(target: Path) -> None:
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


def environment(host: str, folder: Path) -> dict[str, str]:
    """What the host's kernel starts with."""
    env = {name: value for name, value in uv_environment().items() if name not in OURS}
    return (
        env
        | VARIABLES[host]
        | {
            "COURSE_CACHE": str(folder / "cache"),
            "PATH": f"{folder / 'bin'}{os.pathsep}{env['PATH']}",
            # `git clone` of the course's address clones what is here.
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.file://{folder / 'repository'}.insteadOf",
            "GIT_CONFIG_VALUE_0": f"https://github.com/{configured_slug()}",
        }
    )


def run_cells(host: str, folder: Path, sources: Sequence[str]) -> list[str]:
    """Run code cells in one kernel, started in `content`; return what each printed.

    Raises:
        CellExecutionError: a cell failed.
    """
    spec = folder / "kernels" / "host"
    spec.mkdir(parents=True, exist_ok=True)
    argv = [str(folder / "venv/bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    described = {"argv": argv, "display_name": host, "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(described))
    finder = KernelSpecManager(kernel_dirs=[str(folder / "kernels")])
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_name="host", kernel_spec_manager=finder),
        timeout=1200,
        resources={"metadata": {"path": folder / "content"}},
    )
    client.execute(env=environment(host, folder), cleanup_kc=True)  # else the kernel lives on
    return [_printed(cell) for cell in notebook.cells]


def _printed(cell: NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def check(host: str, lessons: list[Path]) -> bool:
    """Run lessons on an imitation of `host`, and print a line for each; True: all ran."""
    all_ran = True
    with tempfile.TemporaryDirectory(prefix="hosted-", ignore_cleanup_errors=True) as name:
        folder, begin = Path(name), time.monotonic()
        build(host, folder, their_python())
        seconds = time.monotonic() - begin
        print(f"{host}: Python {their_python()} and its packages, {seconds:.0f} s", flush=True)
        [before] = run_cells(host, folder, [VERSIONS])
        parts = {lesson.stem: code_cells(lesson) for lesson in lessons}
        parts["a stage of Part II"] = [BOOTSTRAP, PART_II]
        for part, cells in parts.items():
            begin, problem = time.monotonic(), ""
            try:
                run_cells(host, folder, cells)
            except CellExecutionError as error:
                problem = str(error)[-1500:]
            seconds = time.monotonic() - begin
            print(f"{host}: {part}: {seconds:.0f} s, {'FAILED' if problem else 'ran'}", flush=True)
            print(problem, end="\n" if problem else "", flush=True)
            all_ran &= not problem
        if run_cells(host, folder, [VERSIONS]) != [before]:
            print(f"{host}: packages that it brought along were replaced")
            all_ran = False
    return all_ran


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("host", nargs="?", choices=list(VARIABLES), help="default: each in turn")
    parser.add_argument("lesson", nargs="*", help="default: all of Part I")
    arguments = parser.parse_args()
    known = {lesson.stem: lesson for lesson in part_one()}
    if unknown := sorted(set(arguments.lesson) - set(known)):
        parser.error(f"no lesson of Part I: {', '.join(unknown)}")
    hosts = [arguments.host] if arguments.host else list(VARIABLES)
    lessons = [known[name] for name in arguments.lesson or known]
    sys.exit(not all([check(host, lessons) for host in hosts]))


if __name__ == "__main__":
    main()
