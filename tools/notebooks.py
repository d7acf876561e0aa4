"""Re-execute notebooks and save them in place, outputs and plots included. Behind `make notebooks`.

    python tools/notebooks.py                                  all lessons and solutions
    python tools/notebooks.py notebooks/02_kv_cache.ipynb      only this one

A notebook is saved only if every cell ran. Widgets cannot live in a saved file, so each is saved as
the picture or text that it shows at first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.notebook_rules import executed_notebooks, problems
from tools.translate import rebuild

CELL_TIMEOUT_S = 600
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_TEXT = "A widget. Run this cell to use it."
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(path: Path) -> nbformat.NotebookNode:
    """Run a notebook in its own folder, in a kernel of this Python.

    Raises:
        CellExecutionError, CellTimeoutError, DeadKernelError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    run(notebook, path.parent, CELL_TIMEOUT_S)
    states = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if WIDGET_VIEW in output.get("data", {}):
                model_id = output["data"][WIDGET_VIEW]["model_id"]
                output["data"], output["metadata"] = snapshot(model_id, states)
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def run(notebook: nbformat.NotebookNode, folder: Path, timeout_s: int) -> None:
    """Run a notebook's cells in `folder`, in a kernel of this Python; its outputs go into it.

    Raises:
        CellExecutionError, CellTimeoutError, DeadKernelError: a cell failed.
    """
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=timeout_s,
        startup_timeout=timeout_s,  # a busy machine needs more than the default minute
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=True,
        resources={"metadata": {"path": str(folder)}},
    )
    # Else a kernel that the user registered under the same name would be started instead.
    ours = mock.patch.dict(os.environ, {"JUPYTER_PREFER_ENV_PATH": "1"})
    with ours, tempfile.TemporaryDirectory() as nobody:  # notebook 00 draws nobody's progress
        client.execute(env=os.environ | {"XDG_STATE_HOME": nobody})


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
            data["image/png"] = model["buffers"][0]["data"]
            metadata["image/png"] = {"alt": model["state"].get("tooltip") or ""}
            break
    else:
        for model in _models(model_id, states):
            if model["model_name"] == "HTMLModel" and model["state"].get("value"):
                data["text/html"] = model["state"]["value"]
                break
    return nbformat.from_dict(data), nbformat.from_dict(metadata)


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, help="default: all lessons and solutions")
    paths = [path.resolve() for path in parser.parse_args().paths] or executed_notebooks()
    failed = False
    for number, path in enumerate(paths, 1):
        print(f"[{number}/{len(paths)}] {path.name} ...", end=" ", flush=True)
        started = time.monotonic()
        try:
            notebook = execute(path)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(f"failed and not saved:\n{error}")
            failed = True
            continue
        save(notebook, path)
        rebuild(path)  # the same lesson in other languages has its code and outputs
        print(f"{time.monotonic() - started:.0f} s")
        for problem in problems(path):
            print(f"    {problem}")
            failed = True
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
