"""What the course does on Linux only, and what to do elsewhere. Part I runs on macOS, too."""

from __future__ import annotations

import sys


def linux_only(what: str) -> str:
    """Why something cannot run on this system, and what to do; '' on Linux.

    Args:
        what: the beginning of the sentence, such as "vLLM" or "The pipeline".
    """
    if sys.platform == "linux":
        return ""
    return (
        f"{what} runs on Linux, and this is {sys.platform}. Here the course has Part I, lessons "
        "and labs 00 to 08. Take Colab or Kaggle for the rest (the links stand at the top of each "
        "lesson), or a machine with Linux."
    )
