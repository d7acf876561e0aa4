"""The example in the guide is a working check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from utils.checks.kit import contracts
from utils.checks.kit.runner import Mismatch

GUIDE = Path(contracts.__file__).parent / "README.md"


def test_the_example_works():
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    scope: dict = {}
    exec(compile(code, str(GUIDE), "exec"), scope)
    contract = scope["NUM_BLOCKS"]
    assert "63 blocks" in contract.check(lambda n, b, r=0: -(-n // b) + r)
    for known in contract.mistakes:
        with pytest.raises(Mismatch, match=re.escape(known.says)):
            contract.check(known.answers[0])
