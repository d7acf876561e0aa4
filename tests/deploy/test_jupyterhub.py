"""The hub's files: settings that JupyterHub knows, limits, who sees what, and a lock that adds.

JupyterHub is not among the course's packages: one test installs it, from its lock, into a folder.
"""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from traitlets.config import Config

from tools.setup import get_uv, uv_environment

ROOT = Path(__file__).resolve().parents[2]
HUB = ROOT / "deploy" / "jupyterhub"
FILE = HUB / "jupyterhub_config.py"
SYSTEMD = "/run/systemd/system"


def load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


memory = load(HUB / "memory.py", "memory_per_learner")
learner_server = load(ROOT / "deploy" / "learner_server.py", "learner_server")


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the administrator made and set; its folder."""
    for name in ("cache", "exchange"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"COURSE_{name.upper()}", str(tmp_path / name))
    monkeypatch.setenv("COURSE_HUB_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COURSE_SPAWNER", "local")
    return tmp_path


def settings() -> Any:
    """The configuration as JupyterHub would read it."""
    config = Config()
    code = compile(FILE.read_text(), str(FILE), "exec")
    exec(code, {"get_config": lambda: config, "__file__": str(FILE)})
    return config


def test_everything_listens_on_this_machine_alone(variables: Path) -> None:
    config = settings()
    urls = [
        config.JupyterHub.bind_url,
        config.JupyterHub.hub_bind_url,
        config.ConfigurableHTTPProxy.api_url,
    ]
    assert urls == [f"http://127.0.0.1:{port}" for port in (8000, 8001, 8002)]
    assert config.Spawner.ip == "127.0.0.1"
    assert "reverse_proxy 127.0.0.1:{$COURSE_HUB_PORT:8000}" in (HUB / "Caddyfile").read_text()


def test_limits_are_set_by_variables(variables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MEMORY": "3G",
        "PROCESSORS": "1.5",
        "LEARNERS": "12",
        "IDLE_SERVER": "60",
        "IDLE_KERNEL": "50",
    }.items():
        monkeypatch.setenv(f"COURSE_{name}", value)
    config = settings()
    assert (config.Spawner.mem_limit, config.Spawner.cpu_limit) == ("3G", 1.5)
    assert config.Spawner.environment["OMP_NUM_THREADS"] == "1"
    assert config.JupyterHub.active_server_limit == 12
    assert "--timeout=60" in config.JupyterHub.services[0]["command"]
    assert "--MappingKernelManager.cull_idle_timeout=50" in config.Spawner.args


def test_a_terminal_on_the_hub_finds_what_grading_needs(variables: Path) -> None:
    path = settings().Spawner.environment["PATH"]
    programs = ("python", "nbgrader", "unshare", "setpriv", "mount", "umount", "pivot_root")
    assert [name for name in programs if not shutil.which(name, path=path)] == []


def test_the_culler_may_end_servers_and_nothing_else(variables: Path) -> None:
    config = settings()
    [role] = config.JupyterHub.load_roles
    assert role["services"] == [config.JupyterHub.services[0]["name"]]
    assert {scope for scope in role["scopes"] if not scope.startswith(("list:", "read:"))} == {
        "delete:servers"
    }


def test_what_is_missing_is_said(variables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_EXCHANGE", str(variables / "none"))
    with pytest.raises(SystemExit, match=r"COURSE_EXCHANGE: there is no folder .*none\. README"):
        settings()


@pytest.mark.parametrize("there", [True, False])
def test_without_systemd_nobody_is_unlimited_unless_it_was_asked_for(
    variables: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.delenv("COURSE_SPAWNER")
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda p: there if str(p) == SYSTEMD else is_dir(p))
    if there:
        assert settings().JupyterHub.spawner_class == "systemdspawner.SystemdSpawner"
    else:
        with pytest.raises(SystemExit, match="COURSE_SPAWNER=local"):
            settings()


def plugins(*folders: str) -> set[str]:
    disabled: dict[str, bool] = {}
    for folder in folders:
        file = Path(folder) / "labconfig" / "page_config.json"
        if file.is_file():
            disabled |= json.loads(file.read_text())["disabledExtensions"]
    return {name for name, value in disabled.items() if value}


def test_a_learner_sees_the_list_of_labs_and_nothing_for_instructors(variables: Path) -> None:
    """Each plugin of the installed nbgrader is decided on, and each server part, too."""
    choose = settings().Spawner.environment["JUPYTER_CONFIG_PATH"]
    folders = {
        admin: choose(SimpleNamespace(user=SimpleNamespace(admin=admin))).split(":")
        for admin in (True, False)
    }
    extension = Path(sys.prefix) / "share/jupyter/labextensions/@jupyter/nbgrader/static"
    code = "".join(file.read_text() for file in extension.glob("*.js"))
    offered = set(re.findall(r"@jupyter/nbgrader:[a-z-]+", code))
    assert plugins(*folders[True]) == set()
    shown = {"@jupyter/nbgrader:assignment-list", "@jupyter/nbgrader:menu"}
    assert plugins(*folders[False]) == offered - shown
    off = json.loads((HUB / "jupyter/learner/jupyter_server_config.json").read_text())
    parts = {
        name.rpartition(".")[2]: on for name, on in off["ServerApp"]["jpserver_extensions"].items()
    }
    package = Path(importlib.util.find_spec("nbgrader").submodule_search_locations[0])  # type: ignore[union-attr, index]
    installed = {path.parent.name for path in (package / "server_extensions").glob("*/handlers.py")}
    assert set(parts) == installed - {"assignment_list"}
    assert not any(parts.values())


def test_lessons_are_copied_once_and_work_is_never_touched(tmp_path: Path) -> None:
    course, home = tmp_path / "srv", tmp_path / "home"
    for name in ("notebooks/00.ipynb", "notebooks/01.ipynb", "labs/01/01.ipynb"):
        (course / name).parent.mkdir(parents=True, exist_ok=True)
        (course / name).write_text(name)
        (course / name).chmod(0o444)
    learner_server.hand_out(course, home, ["notebooks"])
    mine, other = home / "course/notebooks/00.ipynb", home / "course/notebooks/01.ipynb"
    assert list((home / "course/labs").iterdir()) == []
    mine.write_text("my work")
    other.unlink()
    learner_server.hand_out(course, home, ["notebooks", "labs"])
    assert (mine.read_text(), other.read_text()) == ("my work", "notebooks/01.ipynb")
    assert (home / "course/labs/01/01.ipynb").is_file()
    with pytest.raises(SystemExit, match=r"'solution', and .* has no such folder"):
        learner_server.hand_out(course, home, ["solution"])


def test_the_service_sets_what_the_settings_read() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((HUB / "course-hub.service").read_text())
    assert str(FILE.relative_to(ROOT)) in unit["Service"]["ExecStart"]
    text = (HUB / "course-hub.service").read_text()
    set_here = set(re.findall(r"\b(COURSE_\w+)=", text))
    assert set_here <= set(re.findall(r'"(COURSE_\w+)"', FILE.read_text()))


def test_the_readme_names_files_that_exist() -> None:
    text = (HUB / "README.md").read_text()
    for name in re.findall(r"(?:deploy|requirements)/[\w./-]+\w", text):
        assert (ROOT / name).exists(), name


def test_the_hubs_lock_adds_to_the_courses_and_changes_nothing() -> None:
    locks = {}
    for name in ("cpu", "hub"):
        lines = (ROOT / "requirements" / f"{name}.lock").read_text().splitlines()
        locks[name] = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert not set(locks["hub"]) & set(locks["cpu"])
    assert list(locks["hub"]) == sorted(locks["hub"])
    text = (ROOT / "requirements/hashes/hub.txt").read_text().replace(" \\\n   ", "")
    pins = [line.split(" ", 1) for line in text.splitlines()[1:]]
    assert {pin for pin, _ in pins} == {f"{k}=={v}" for k, v in locks["hub"].items()}
    assert all(re.fullmatch(r"(--hash=sha256:[0-9a-f]{64} ?)+", hashes) for _, hashes in pins)


# Prints what is set and no class knows. JupyterHub itself says nothing of a name that it ignores.
UNKNOWN = """
import jupyterhub.app, jupyterhub.auth, jupyterhub.proxy, jupyterhub.spawner, systemdspawner, sys
from traitlets.config import PyFileConfigLoader
modules = (jupyterhub.app, jupyterhub.auth, jupyterhub.proxy, jupyterhub.spawner, systemdspawner)
for name, section in PyFileConfigLoader(sys.argv[1]).load_config().items():
    classes = [getattr(module, name) for module in modules if hasattr(module, name)]
    known = classes[0].class_trait_names(config=True)
    print(*(f"{name}.{key}" for key in section if key not in known), sep="", end="")
"""


def test_jupyterhub_accepts_the_settings(variables: Path) -> None:
    folder = variables / "packages"
    install = [get_uv(), "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    hashes = str(ROOT / "requirements" / "hashes" / "hub.txt")
    subprocess.run(
        [*install, "--python", sys.executable, "--require-hashes", "-r", hashes],
        check=True,
        env=uv_environment(),
    )
    environment = os.environ | {"PYTHONPATH": str(folder)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=variables,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = json.loads(run("-m", "jupyterhub", "-f", str(FILE), "--show-config-json"))
    assert shown["JupyterHub"]["bind_url"] == "http://127.0.0.1:8000"
    assert run("-c", UNKNOWN, str(FILE)) == ""


# --- memory -------------------------------------------------------------------------------------


def test_a_process_that_takes_memory_is_seen() -> None:
    code = "kept = bytearray(300_000_000)\nkept[::4096] = bytes(len(kept[::4096]))\nprint(flush=1)"
    code += "\ninput()"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}])",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin and process.stdout
    process.stdout.readline()  # of the child, which holds it now
    own, _ = memory.memory_of(process.pid)
    process.communicate(b"\n")
    assert 300e6 < own < 400e6


def test_a_kernels_memory_is_measured(tmp_path: Path) -> None:
    cells = [
        "kept = bytearray(400_000_000); kept[::4096] = bytes(len(kept[::4096]))",
        "import time; time.sleep(1)",
        "del kept",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbformat.write(notebook, tmp_path / "a.ipynb")
    assert 400e6 < memory.measure(tmp_path / "a.ipynb")["own_bytes"] < 600e6


def test_learners_are_counted_by_the_largest_notebook() -> None:
    report = {
        "server": {"own_bytes": 0.1e9, "file_bytes": 0},
        "notebooks": {
            "a": {"own_bytes": 0.9e9, "file_bytes": 0.5e9},
            "b": {"own_bytes": 1.9e9, "file_bytes": 0.2e9},
        },
    }
    # 16 GB less 2 for the machine and 0.5 for files that all share: 13.5, at 2 GB for each
    assert memory.learners(16, report) == 6
    assert memory.learners(64, report) == 30


def test_the_table_is_that_of_the_measurements() -> None:
    report = json.loads(memory.RESULTS.read_text())
    begin, end = memory.MARKS
    shown = memory.README.read_text().split(begin)[1].split(end)[0].strip()
    assert shown == memory.table(report)
    assert set(report["notebooks"]) == set(memory.NOTEBOOKS)
    assert all((ROOT / name).is_file() for name in memory.NOTEBOOKS)
    assert set(report["machine"]) == {"cpu", "system", "torch", "threads", "date"}
