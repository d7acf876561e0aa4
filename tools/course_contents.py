"""How JupyterLab reads and saves the course's notebooks. tools/jupyter/ configures it.

JupyterLab writes the kernel's name and version into each notebook that it opens, and into its cells
how they were looked at. A learner's file would differ from the committed one at once, and the next
`git pull` conflict. So a notebook of the course is saved with the metadata that it is committed
with. And it is handed out with the metadata that JupyterLab would write, which then writes none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from ipykernel.ipkernel import IPythonKernel
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from nbformat import NotebookNode

from tools.notebook_files import (
    FOLDED,
    METADATA,
    NAME,
    RECORDED,
    executed_notebooks,
    labs,
    translations,
)

KERNEL = METADATA["kernelspec"]["name"]
# How a cell was looked at, and when it ran. Not `trusted`: it is needed to sign the notebook, and
# nbformat leaves it out of the file.
VIEW = {"collapsed", "scrolled", "jupyter", "execution", "jp-MarkdownHeadingCollapsed"}
# What the property inspector writes into a cell that is clicked on: it says nothing.
DEFAULTS: dict[str, Any] = {
    "editable": True,
    "deletable": True,
    "slideshow": {"slide_type": ""},
    "tags": [],
}


def is_of_the_course(path: Path) -> bool:
    """Whether the course has this notebook; a learner's own may lie beside it."""
    ours = executed_notebooks() + labs() + translations()
    return bool(re.fullmatch(NAME, path.stem)) and path in ours


def as_committed(notebook: dict[str, Any]) -> None:
    """Give a notebook the metadata that the course's notebooks are committed with."""
    notebook["metadata"] = _metadata(notebook, METADATA)
    for cell in notebook["cells"]:
        for key, value in list(cell["metadata"].items()):
            if key in VIEW or (key in DEFAULTS and value == DEFAULTS[key]):
                del cell["metadata"][key]
        if "bootstrap" in cell["metadata"].get("tags", ()):
            cell["metadata"]["jupyter"] = dict(FOLDED)


def _metadata(notebook: dict[str, Any], general: dict[str, Any]) -> NotebookNode:
    """`general`, and what the notebook itself says of its record."""
    recorded = notebook["metadata"].get(RECORDED)
    return nbformat.from_dict(general if recorded is None else general | {RECORDED: recorded})


class CourseContents(AsyncLargeFileManager):
    """JupyterLab's own contents manager, with the metadata of the course's notebooks kept."""

    async def get(self, path: str, content: bool = True, *args: Any, **kwargs: Any) -> Any:
        model = await super().get(path, content, *args, **kwargs)
        if content and model["type"] == "notebook" and self._keeps(path):
            model["content"]["metadata"] = _metadata(model["content"], self._as_opened())
        return model

    async def save(self, model: dict[str, Any], path: str = "") -> Any:
        if model.get("type") == "notebook" and model.get("content") and self._keeps(path):
            as_committed(model["content"])
        return await super().save(model, path)

    def _keeps(self, path: str) -> bool:
        return is_of_the_course(Path(self._get_os_path(path)).resolve())

    def _as_opened(self) -> dict[str, Any]:
        """The metadata that JupyterLab writes once the kernel has told it what it is."""
        manager = getattr(self.parent, "kernel_spec_manager", None) or KernelSpecManager()
        spec = manager.get_kernel_spec(KERNEL)
        return {
            "kernelspec": {
                "name": KERNEL,
                "display_name": spec.display_name,
                "language": spec.language,
            },
            "language_info": IPythonKernel.language_info,
        }
