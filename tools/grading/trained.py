"""What a lab's checks find trained. Where learners' code is shut in, nothing could be trained."""

from __future__ import annotations

from pathlib import Path

from nbformat import NotebookNode

from utils.pipeline.__main__ import default_out
from utils.pipeline.drafts.distill import ensure_eagle


def train_for(lab: NotebookNode) -> None:
    """Train what a lab names, if need be: minutes once, and afterwards nothing."""
    if any("ensure_eagle" in cell.source for cell in lab.cells if cell.cell_type == "code"):
        ensure_eagle()


def drafts() -> Path:
    """Where the helpers of speculative decoding lie. They hold nobody's answers."""
    return (default_out() / "drafts").absolute()
