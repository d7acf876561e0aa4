"""Re-execute notebooks and save them in place, outputs and plots included. Behind `make notebooks`.

    python tools/notebooks.py                                  all lessons and solutions
    python tools/notebooks.py notebooks/03_kv_memory_waste.ipynb       only this one

A notebook is saved only if every cell ran. Widgets cannot live in a saved file, so each is saved as
the picture or text that it shows at first.

The machine is watched beside each cell whose output is not compared, and it should be quiet: such a
cell waits for that, and the notebook is run again if the machine was busy, for ten minutes in all.
A single cell isn't run twice: it may append to a list, or serve one more request. The steadiest run
is saved, with what the machine was like. Lessons that show the same measurements are recorded in
one go: name one of them, and all are run.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.notebook_files import METADATA, ROOT, executed_notebooks, lessons
from tools.notebook_rules import problems
from tools.saved import in_step
from tools.saved.machine import machine
from tools.saved.quiet import FixedWork, Watch
from tools.translate import rebuild

CELL_TIMEOUT_S = 600
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_TEXT = "A widget. Run this cell to use it."


def execute(path: Path, watch: Watch) -> nbformat.NotebookNode:
    """Run a notebook in its own folder, in a kernel of this Python.

    Raises:
        CellExecutionError, CellTimeoutError, DeadKernelError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    run(notebook, path.parent, CELL_TIMEOUT_S, watch)
    states = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if WIDGET_VIEW in output.get("data", {}):
                model_id = output["data"][WIDGET_VIEW]["model_id"]
                output["data"], output["metadata"] = snapshot(model_id, states)
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def run(
    notebook: nbformat.NotebookNode, folder: Path, timeout_s: int, watch: Watch | None = None
) -> None:
    """Run a notebook's cells in `folder`, in a kernel of this Python; its outputs go into it.

    Args:
        watch: is told before and after each cell whose output is not compared.

    Raises:
        CellExecutionError, CellTimeoutError, DeadKernelError: a cell failed.
    """

    def before(cell: nbformat.NotebookNode, cell_index: int) -> None:
        if watch and in_step.varies(cell):
            watch.before(cell.id)

    def after(cell: nbformat.NotebookNode, cell_index: int, execute_reply: object) -> None:
        if watch and in_step.varies(cell):
            watch.after(cell.id)

    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=timeout_s,
        startup_timeout=timeout_s,  # a busy machine needs more than the default minute
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=True,
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=before,
        on_cell_executed=after,
    )
    # Else a kernel that the user registered under the same name would be started instead.
    ours = mock.patch.dict(os.environ, {"JUPYTER_PREFER_ENV_PATH": "1"})
    with ours, tempfile.TemporaryDirectory() as nobody:  # notebook 00 draws nobody's progress
        client.execute(env=os.environ | {"XDG_STATE_HOME": nobody})


def steadiest(path: Path, work: FixedWork) -> tuple[nbformat.NotebookNode, Watch]:
    """Run a notebook, and again while the machine was busy and patience lasts; the best run.

    Raises:
        CellExecutionError, CellTimeoutError, DeadKernelError: a cell failed.
    """
    watch = Watch(work=work)
    runs = []
    while True:
        started, waited = time.monotonic(), watch.patience_s
        runs.append((execute(path, watch), watch))
        took = time.monotonic() - started - (waited - watch.patience_s)
        if not watch.busy or watch.patience_s < took:
            return min(runs, key=lambda run: run[1].unrest())
        print(f"busy during {len(watch.busy)} cells, again ...", end=" ", flush=True)
        watch = Watch(patience_s=watch.patience_s - took, work=work)


def snapshot(
    model_id: str, states: dict[str, Any]
) -> tuple[nbformat.NotebookNode, nbformat.NotebookNode]:
    """What a widget shows at first: the first image, or else the first HTML text, inside it.

    Returns:
        data, and metadata with the image's text.
    """
    data, metadata = {"text/plain": WIDGET_TEXT}, {}
    for model in _models(model_id, states):
        if model["model_name"] == "ImageModel" and model.get("buffers"):
            data["image/png"] = as_seen(model["buffers"][0]["data"], int(model["state"]["width"]))
            metadata["image/png"] = {"alt": model["state"].get("tooltip") or ""}
            break
    else:
        for model in _models(model_id, states):
            if model["model_name"] == "HTMLModel" and model["state"].get("value"):
                data["text/html"] = model["state"]["value"]
                break
    return nbformat.from_dict(data), nbformat.from_dict(metadata)


def as_seen(picture: str, width: int) -> str:
    """A widget's picture (PNG in base64) with as many pixels as the page gives it, not more."""
    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    size = width, round(image.height * width / image.width)
    out = io.BytesIO()
    image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def _models(model_id: str, states: dict[str, Any]) -> list[dict[str, Any]]:
    """A widget and all its children, in the order they are shown."""
    model = states.get(model_id)
    if model is None:
        return []
    children = [c.removeprefix("IPY_MODEL_") for c in model["state"].get("children", [])]
    return [model, *(m for child in children for m in _models(child, states))]


def save(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook all at once, so that an interruption cannot leave half of it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        nbformat.write(notebook, file)
    os.chmod(file.name, path.stat().st_mode)
    os.replace(file.name, path)


def with_their_groups(paths: Sequence[Path]) -> list[Path]:
    """The notebooks, and those that are recorded in one go with one of them, in order."""
    numbers = {path.stem.partition("_")[0] for path in paths if path in lessons()}
    wanted = {name for group in in_step.TOGETHER if numbers & set(group) for name in group}
    others = [path for path in lessons() if path.stem.partition("_")[0] in wanted]
    return list(paths) if not others else sorted({*paths, *others})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, help="default: all lessons and solutions")
    paths = [path.resolve() for path in parser.parse_args().paths] or executed_notebooks()
    paths = with_their_groups(paths)
    now = datetime.datetime.now(datetime.UTC)
    about = {
        "commit": _commit(),
        "when": f"{now:%Y-%m-%d}",
        "session": f"{now:%Y-%m-%dT%H:%M}",
        "machine": machine(),
    }
    work, failed = FixedWork(), False
    for number, path in enumerate(paths, 1):
        print(f"[{number}/{len(paths)}] {path.name} ...", end=" ", flush=True)
        started = time.monotonic()
        try:
            notebook, watch = steadiest(path, work)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(f"failed and not saved:\n{error}")
            failed = True
            continue
        in_step.record(notebook, about | watch.record())
        save(notebook, path)
        rebuild(path)  # the same lesson in other languages has its code and outputs
        print(f"{time.monotonic() - started:.0f} s")
        if watch.busy:
            print(
                f"    recorded on a busy machine: {len(watch.busy)} cells, others took up to "
                f"{watch.record()['others_percent']} % of it"
            )
        for problem in problems(path):
            print(f"    {problem}")
            failed = True
    sys.exit(int(failed))


def _commit() -> str:
    """The commit that lies under the working tree; "unknown" without git."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
