"""`make lab`: the course's notebooks stay as committed, and a learner sees no instructor's menus.

One server is started by the Makefile itself, in a copy of what it needs, and asked over HTTP as
JupyterLab asks it.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import nbformat
import pytest
from jupyter_client.manager import run_kernel
from jupyterlab_server.config import get_federated_extensions, get_page_config

from tests.browser.lab import said_by_server
from tools import lab
from tools.course_contents import as_committed
from tools.notebook_files import executed_notebooks, labs

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "tools" / "jupyter"
LABEXTENSIONS = [str(Path(sys.prefix) / "share/jupyter/labextensions")]
LESSON = "notebooks/02_kv_cache.ipynb"
LAB = "labs/02_kv_cache/02_kv_cache.ipynb"
SOLUTION = "solutions/02_kv_cache/02_kv_cache.ipynb"
# Not the course's, though they lie in its folders or have the name of one of its notebooks.
OWN = ["notebooks/notes.ipynb", "notebooks/02_kv_cache-Copy1.ipynb", "mine/02_kv_cache.ipynb"]
# What JupyterLab 4.6 was seen to write, for a kernel of another machine.
WRITTEN_BY_JUPYTERLAB = {
    "kernelspec": {"display_name": "Python 3 (other)", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "version": "3.12.1", "file_extension": ".py"},
    "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
}
WRITTEN_INTO_CELLS = {
    "collapsed": True,
    "jupyter": {"outputs_hidden": True, "source_hidden": True},
    "scrolled": True,
    "jp-MarkdownHeadingCollapsed": True,
    "execution": {"iopub.execute_input": "2026-11-22T08:00:00Z"},
}
WRITTEN_IF_MISSING = {
    "editable": True,
    "deletable": True,
    "slideshow": {"slide_type": ""},
    "tags": [],
}
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab") / "course"
    for name in [LESSON, LAB, SOLUTION]:
        (folder / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, folder / name)
    for name in OWN:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / LAB, folder / name)
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copytree(ROOT / "tools", folder / "tools")
    return folder


@pytest.fixture(scope="module")
def ask(course: Path) -> Iterator[Ask]:
    """`ask(address, content)`: GET from the server that `make lab` starts, or PUT content to it."""
    home = course.parent / "home"
    home.mkdir()
    command = [
        "make",
        "--old-file=setup",
        "lab",
        f"COURSE={sys.executable}",
        "LAB_OPTIONS=--no-browser --ServerApp.port=0",
    ]
    unwanted = ("JUPYTER", "JPY_", "MAKE", "MFLAGS", "PYTHONPATH", "INSTRUCTOR")
    env = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    env |= {"HOME": str(home), "JUPYTER_RUNTIME_DIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    with open(home / "log", "w") as log:
        server = subprocess.Popen(
            command, cwd=course, env=env, stdout=log, stderr=log, start_new_session=True
        )
    try:
        end = time.monotonic() + 120  # a busy machine
        while not (about := said_by_server(home)):
            assert server.poll() is None and time.monotonic() < end, (home / "log").read_text()
            time.sleep(0.1)

        def ask(address: str, content: dict[str, Any] | None = None) -> Any:
            body = {"type": "notebook", "format": "json", "content": content}
            request = urllib.request.Request(
                about["url"] + address,
                method="PUT" if content else "GET",
                data=json.dumps(body).encode() if content else None,
                headers={"Authorization": f"token {about['token']}"},
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = response.read().decode()
            return json.loads(answer) if address.startswith(("api/", "lab/api/")) else answer

        assert about["hostname"] == "127.0.0.1"
        ask.log = home / "log"  # type: ignore[attr-defined]
        yield ask
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def opened(ask: Ask, name: str) -> dict[str, Any]:
    return ask(f"api/contents/{name}")["content"]


def written_by_jupyterlab(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook as JupyterLab sends it after a learner has looked at everything."""
    notebook = copy.deepcopy(notebook)
    notebook["metadata"] |= WRITTEN_BY_JUPYTERLAB
    for cell in notebook["cells"]:
        cell["metadata"] = WRITTEN_IF_MISSING | cell["metadata"] | WRITTEN_INTO_CELLS
        if cell["cell_type"] == "code":
            cell["metadata"]["trusted"] = True
    return notebook


@pytest.mark.parametrize("name", [LESSON, LAB, SOLUTION])
def test_looking_at_a_notebook_changes_no_byte(ask: Ask, course: Path, name: str) -> None:
    ask(f"api/contents/{name}", written_by_jupyterlab(opened(ask, name)))
    assert (course / name).read_bytes() == (ROOT / name).read_bytes()


def test_jupyterlab_has_nothing_to_write_into_an_opened_notebook(ask: Ask) -> None:
    with run_kernel(kernel_name="python3") as client:
        kernel = client.kernel_info(reply=True, timeout=60)["content"]["language_info"]
    spec = ask("api/kernelspecs")["kernelspecs"]["python3"]["spec"]
    recorded = json.loads((ROOT / LESSON).read_text())["metadata"]["recorded"]
    assert opened(ask, LESSON)["metadata"] == {
        "recorded": recorded,
        "kernelspec": {
            "name": "python3",
            "display_name": spec["display_name"],
            "language": spec["language"],
        },
        "language_info": kernel,
    }


def test_a_learners_work_is_saved_and_nothing_else(ask: Ask, course: Path) -> None:
    before = (course / LAB).read_bytes()
    sent = written_by_jupyterlab(opened(ask, LAB))
    number = next(n for n, cell in enumerate(sent["cells"]) if cell["cell_type"] == "code")
    output = nbformat.v4.new_output("display_data", {"text/html": "<b>größer ≥</b>"})
    work = {"source": "show('größer ≥')", "execution_count": 7, "outputs": [output]}
    sent["cells"][number] |= work
    ask(f"api/contents/{LAB}", sent)
    expected = nbformat.read(ROOT / LAB, as_version=4)
    expected.cells[number].update(nbformat.from_dict(work))
    assert (course / LAB).read_text(encoding="utf-8") == nbformat.writes(expected) + "\n"
    # What the learner ran is trusted when the notebook is opened again.
    again = opened(ask, LAB)["cells"]
    assert all(cell["metadata"]["trusted"] for cell in again if cell["cell_type"] == "code")
    (course / LAB).write_bytes(before)


def test_what_a_teacher_sets_is_saved(ask: Ask, course: Path) -> None:
    before = (course / SOLUTION).read_bytes()
    sent = opened(ask, SOLUTION)
    wanted = {"editable": False, "slideshow": {"slide_type": "slide"}, "tags": ["widget"]}
    sent["cells"][0]["metadata"]["nbgrader"]["points"] = 5
    sent["cells"][0]["metadata"] |= wanted
    ask(f"api/contents/{SOLUTION}", sent)
    saved = nbformat.read(course / SOLUTION, as_version=4).cells[0].metadata
    assert {key: saved[key] for key in wanted} == wanted
    assert saved["nbgrader"]["points"] == 5
    (course / SOLUTION).write_bytes(before)


@pytest.mark.parametrize("name", OWN)
def test_a_learners_own_notebook_is_left_alone(ask: Ask, course: Path, name: str) -> None:
    assert opened(ask, name)["metadata"] == json.loads((ROOT / LAB).read_text())["metadata"]
    sent = written_by_jupyterlab(opened(ask, name))
    ask(f"api/contents/{name}", sent)
    saved = json.loads((course / name).read_text())
    assert saved["metadata"] == WRITTEN_BY_JUPYTERLAB
    for cell in sent["cells"]:
        cell["metadata"].pop("trusted", None)  # never in a file
    assert [c["metadata"] for c in saved["cells"]] == [c["metadata"] for c in sent["cells"]]


def test_committed_notebooks_are_as_they_are_saved() -> None:
    for path in executed_notebooks() + labs():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        before = copy.deepcopy(notebook)
        as_committed(notebook)
        assert notebook == before, path.name


# --- the first screen ---------------------------------------------------------------------------


def test_settings_exist_and_are_in_force(ask: Ask) -> None:
    settings = json.loads((CONFIG / "labconfig" / "default_setting_overrides.json").read_text())
    schemas = Path(sys.prefix) / "share/jupyter/lab/schemas"
    for plugin, values in settings.items():
        package, _, name = plugin.partition(":")
        schema = json.loads((schemas / package / f"{name}.json").read_text())
        assert values.keys() <= schema["properties"].keys(), plugin
        jsonschema.validate(values, schema)
        in_force = ask(f"lab/api/settings/{plugin}")["schema"]["properties"]
        assert {key: in_force[key]["default"] for key in values} == values
        assert all(schema["properties"][key]["default"] != value for key, value in values.items())


def test_learners_see_no_menus_for_instructors(ask: Ask) -> None:
    page = json.loads(re.search(r'jupyter-config-data"[^>]*>(.*?)</script>', ask("lab"), re.S)[1])
    assert "@jupyter/nbgrader" in [extension["name"] for extension in page["federated_extensions"]]
    assert "@jupyter/nbgrader" in page["disabledExtensions"]
    assert "nbgrader" not in ask.log.read_text()  # its server parts would take seconds to load


def test_a_make_in_a_terminal_is_not_within_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would say "Entering directory" around each answer, and take over that make's variables."""
    names = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    for name in names:
        monkeypatch.setenv(name, "1")
    inherited: list[dict[str, str]] = []
    server = SimpleNamespace(display_url="http://127.0.0.1/lab?token=...", token="secret")
    server.start = lambda: inherited.append(dict(os.environ))
    monkeypatch.setattr(lab.LabApp, "initialize_server", lambda argv: server)
    monkeypatch.setattr(sys, "argv", ["lab.py"])
    lab.main()
    assert not inherited[0].keys() & set(names)


def test_instructors_get_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    disabled = {}
    for role in ("", "INSTRUCTOR=1"):
        command = ["make", "--dry-run", "lab", role] if role else ["make", "--dry-run", "lab"]
        env = {name: value for name, value in os.environ.items() if name != "INSTRUCTOR"}
        line = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True).stdout
        path = re.search(r'JUPYTER_CONFIG_PATH="([^"$]+)', line)[1]
        monkeypatch.setenv("JUPYTER_CONFIG_PATH", path)
        disabled[role] = set(get_page_config(LABEXTENSIONS)["disabledExtensions"])
    assert disabled[""] - disabled["INSTRUCTOR=1"] == {"@jupyter/nbgrader"}
    assert disabled["INSTRUCTOR=1"].isdisjoint(get_federated_extensions(LABEXTENSIONS))


def test_one_line_says_where_the_course_is_open(ask: Ask) -> None:
    begins = "The course is open at http://127.0.0.1:"
    lines = ask.log.read_text().splitlines()  # type: ignore[attr-defined]
    [line] = [line for line in lines if line.startswith(begins)]
    assert "/lab/tree/notebooks/00_start_here.ipynb?token=" in line and "..." not in line
    assert lines[lines.index(line) + 1] == "Stop it with Ctrl+C." and len(lines) < 10


def test_every_server_part_of_nbgrader_is_off_for_learners() -> None:
    installed = Path(sys.prefix) / "etc/jupyter/jupyter_server_config.d/nbgrader.json"
    off = json.loads((CONFIG / "learner" / "jupyter_server_config.json").read_text())
    parts = [json.loads(installed.read_text()), off]
    on, off = (part["ServerApp"]["jpserver_extensions"] for part in parts)
    assert off == dict.fromkeys(on, False)


def test_post_build_gives_the_same_to_conda_and_binder(tmp_path: Path) -> None:
    copied = tmp_path / "course"
    shutil.copytree(CONFIG, copied / "tools" / "jupyter")
    for name in ("postBuild", "requirements/cpu.lock"):
        (copied / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copied / name)
    (copied / "utils").mkdir()
    (copied / "utils" / "hub.py").touch()  # converting the model is tested elsewhere
    venv.create(tmp_path / "env", symlinks=True)
    programs = tmp_path / "env" / "bin"
    (programs / "uv").symlink_to(shutil.which("true"))  # so is installing
    env = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "UV_FIND_LINKS": "none"}
    for _ in range(2):  # it can be repeated
        subprocess.run([copied / "postBuild"], env=env, check=True)
    settings = tmp_path / "env" / "etc" / "jupyter"
    linked = settings / "jupyter_server_config.py"
    assert linked.resolve() == copied / "tools" / "jupyter" / "jupyter_server_config.py"
    for folder in (CONFIG / "labconfig", CONFIG / "learner" / "labconfig"):
        for path in folder.iterdir():
            assert (settings / "labconfig" / path.name).read_bytes() == path.read_bytes()
    server = "jupyter_server_config.json"
    assert (settings / server).read_bytes() == (CONFIG / "learner" / server).read_bytes()
