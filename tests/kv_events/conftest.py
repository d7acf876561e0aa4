"""The tiny model of the servers' tests."""

from __future__ import annotations

from tests.serving.conftest import tiny_folder

__all__ = ["tiny_folder"]
