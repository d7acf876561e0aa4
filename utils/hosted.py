"""Colab and Kaggle: machines that bring their own packages, which stay as they are.

Their lists of versions, with dates, are `requirements/colab.txt` and `requirements/kaggle.txt`.
"""

from __future__ import annotations

import os

# Each sets a variable of its own. Kaggle's image is made from Colab's, so it is asked first.
MARKS = {"Kaggle": "KAGGLE_KERNEL_RUN_TYPE", "Colab": "COLAB_RELEASE_TAG"}
# Some of these are set there. They are about the host's packages, and name files that are not here.
ABOUT_ITS_PACKAGES = (
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "UV_SYSTEM_PYTHON",
    "UV_CONSTRAINT",
    "UV_BUILD_CONSTRAINT",
    "UV_OVERRIDE",
    "UV_PRERELEASE",
    "PIP_CONSTRAINT",
)


def host() -> str | None:
    """The service that this notebook runs on, "Colab" or "Kaggle"; None anywhere else."""
    return next((name for name, mark in MARKS.items() if mark in os.environ), None)
