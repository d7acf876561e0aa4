"""Submissions that cheat, break things, or look like it, graded as one class by `test_grading.py`.

Each has two exercises. The first is answered by the source here, the second is right in all of
them, so its points show whether somebody lost what was earned.
"""

from __future__ import annotations

from dataclasses import dataclass

ANSWER = "def rms_norm(x, weight, eps):\n"
RIGHT = """\
def rms_norm(x, weight, eps):
    x32 = x.float()
    return (weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps))).to(x.dtype)
"""


@dataclass(frozen=True)
class Submission:
    """What somebody hands in, and what it must come to.

    Attributes:
        source: the cell of the first exercise.
        held: whether it is held back for somebody to read, before it runs.
        first: whether it earns the first exercise's points; the second's it always earns.
    """

    source: str
    held: bool = False
    first: bool = False


HONEST = {
    "right": Submission(RIGHT, first=True),
    "with_a_helper": Submission(
        "import heapq, math\nfrom collections import deque\n\nclass Scale:\n"
        "    def __init__(self, eps):\n        self.eps = eps\n"
        "    def __call__(self, x):\n        self.seen = deque([x], maxlen=2)\n"
        "        return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)\n\n"
        "def rms_norm(x, weight, eps):\n    x32 = x.float()\n"
        "    return (weight * (x32 * Scale(eps)(x32))).to(x.dtype)\n"
        'print(f"tried: {rms_norm(torch.ones(1, 4), torch.ones(4), 1e-6)}")\n'
        "check.rms_norm(rms_norm)\n",
        first=True,
    ),
    "talks_in_its_answer": Submission(
        RIGHT.replace("    x32 =", '    print("x" * 99)\n    x32 ='), first=True
    ),
    # As on a busy machine: the check's answer is there, and its output comes 6 seconds later.
    "late": Submission(
        "import time\nonce = [6]\n"
        + RIGHT.replace(
            "    x32 =",
            "    for seconds in once:\n        once.clear()\n"
            "        get_ipython().kernel.iopub_thread"
            ".schedule(lambda: time.sleep(seconds))\n    x32 =",
        ),
        held=True,
        first=True,
    ),
}
BREAKS_THINGS = {
    "loops": Submission(ANSWER + "    while True:\n        pass\n"),
    "loops_outside": Submission("while True:\n    pass\n"),
    "loops_and_cannot_be_interrupted": Submission(
        "while True:\n    try:\n        while True:\n            pass\n"
        "    except BaseException:\n        pass\n"
    ),
    "memory": Submission(
        ANSWER + "    kept = []\n    while True:\n        kept.append(torch.ones(2**26))\n"
    ),
    "prints_50_mb": Submission('for _ in range(50):\n    print("x" * 10**6)\n' + RIGHT, first=True),
    "prints_50_mb_in_its_answer": Submission(
        RIGHT.replace("    x32 =", '    print("x" * 10**6)\n    x32 ='), first=True
    ),
    "ends": Submission(ANSWER + "    raise SystemExit\n"),
    "recurs": Submission(ANSWER + "    return rms_norm(x, weight, eps)\n"),
    "ends_python": Submission("import os\n" + ANSWER + "    os._exit(0)\n", held=True),
    "forks": Submission("import os\nwhile True:\n    os.fork()\n", held=True),
    "kills_all_it_sees": Submission(
        "import os\n" + ANSWER + "    os.kill(-1, 9)\n    os.abort()\n", held=True
    ),
    "fills_the_disk": Submission(
        'with open("big", "wb") as file:\n    while True:\n        file.write(bytes(10**8))\n',
        held=True,
    ),
    "writes_outside": Submission('open("{outside}", "w").write("I was here")\n', held=True),
    "talks_to_the_net": Submission(
        "import socket\n" + ANSWER + '    socket.create_connection(("127.0.0.1", {port}), 5)\n',
        held=True,
    ),
}
CHEATS = {
    "patches_the_check": Submission("check.rms_norm = lambda answer: 2.0\n", held=True),
    "patches_a_module": Submission(
        'import sys\nsys.modules["utils.checks.lab_01"].rms_norm = lambda answer: 2.0\n', held=True
    ),
    "patches_a_module_that_the_lab_imported": Submission(
        'sys.modules["utils.checks.lab_01"].rms_norm = lambda answer: 2.0\n', held=True
    ),
    "patches_a_module_that_another_imported": Submission(
        "m = torch.sys.modules['utils.checks.lab_01']\n"
        "m.rms_norm = m.apply_rotary = lambda answer: 2.0\n",
        held=True,
    ),
    "patches_feedback": Submission(
        ANSWER + '    return x\n\ntype(check.rms_norm(rms_norm)).__repr__ = lambda self: "2.0"\n',
        held=True,
    ),
    "patches_torch": Submission(
        "torch.equal = torch.allclose = lambda *a, **k: True\n"
        "torch.Tensor.equal = torch.equal\n" + ANSWER + "    return x\n",
        held=True,
    ),
    "patches_torch_by_another_name": Submission(
        "t = torch\nt.equal = t.allclose = lambda *a: 1\n" + ANSWER + "    return x\n", held=True
    ),
    "says_yes": Submission(
        "class Yes(Tensor):\n    def __eq__(self, other):\n        return True\n\n"
        + ANSWER
        + "    return x.as_subclass(Yes)\n",
        held=True,
    ),
    "reads_frames": Submission(
        ANSWER + "    try:\n        raise ValueError\n    except ValueError as error:\n"
        "        frame = error.__traceback__.tb_frame\n        while frame:\n"
        '            if "expected" in frame.f_locals:\n'
        '                return frame.f_locals["expected"]\n'
        "            frame = frame.f_back\n",
        held=True,
    ),
    "searches_memory": Submission(
        "import gc\n" + ANSWER + "    return gc.get_objects()[-1]\n", held=True
    ),
    "runs_the_solution": Submission(
        "import json, pathlib\n"
        'for path in pathlib.Path("/").glob("**/solutions/*/*.ipynb"):\n'
        "    for cell in json.loads(path.read_text())['cells']:\n"
        "        exec(''.join(cell['source']))\n",
        held=True,
    ),
    "uses_the_engine": Submission("from utils.engine.models.llama import rms_norm\n", held=True),
    "copies_by_command": Submission(
        "!cat {course}/solutions/*/*.ipynb > stolen\nsource = !cat {course}/solutions/*/*.ipynb\n",
        held=True,
    ),
    "writes_grades": Submission(
        'import sqlite3\nwith sqlite3.connect("{course}/gradebook.db") as book:\n'
        '    book.execute("update grade set auto_score = 2")\n',
        held=True,
    ),
    "speaks_for_the_check": Submission(
        ANSWER + "    get_ipython().displayhook(2.0)\n    return x\n", held=True
    ),
    "forges_the_output": Submission(
        ANSWER + '    quit._ip.displayhook(2.0)\n    In[-1] = "0;"\n    return x\n', held=True
    ),
    "from_a_thread": Submission(
        "import threading\nthreading.Thread(target=print, daemon=True).start()\n", held=True
    ),
    "hides_in_awaiting": Submission(
        'import asyncio\nawait asyncio.sleep(0)\nexec("check.rms_norm = lambda answer: 2.0")\n',
        held=True,
    ),
    "hides_in_text": Submission(
        "from operator import attrgetter as get\n"
        'get("__globals__")(check.rms_norm)["rms_norm"] = None\n',
        held=True,
    ),
}
EVERYBODY = HONEST | BREAKS_THINGS | CHEATS
# Other ways to the same places. Each has a line to read; they are not run.
WAYS_ROUND = [
    "quit._ip",
    "quit._ip.user_ns['check'] = 3",
    "exit.__class__\nget_ipython.x",
    "In[-1] = '0;'",
    "print(Out)",
    "from functools import singledispatch",
    "import functools\nfunctools.singledispatchmethod(print)",
    "import typing\ntyping.ForwardRef('1')",
    "import numpy\nnumpy.testing.measure('1')",
    "from numpy.testing import measure",
    "import numpy as np\nt = np.testing",
    "Tensor._make_subclass(Tensor, 1)",
    "def f(x: bytes.fromhex('30').decode()): pass",
    "def f() -> bytes.fromhex('30').decode(): pass",
    "x: bytes.fromhex('30').decode() = 1",
    "from dataclasses import sys as s",
    "from random import _os as o",
    "from dataclasses import builtins as b",
    "import numpy\nnumpy.ctypeslib.ctypes",
    "import typing\ntyping.sys.modules",
    "import torch.nn as nn\nnn.functional.importlib",
    "import asyncio\nasyncio.create_subprocess_exec",
    "from asyncio import subprocess",
    "torch.load('f', weights_only=False)",
    "import numpy\nnumpy.memmap('/proc/self/mem', mode='r+')",
    "torch.UntypedStorage.from_file('/proc/self/mem', True, 9)",
    "import operator\noperator.attrgetter('_' + '_globals_' + '_')(check.rms_norm)",
    "T = type(torch.ones(1))\nT.equal = lambda *a: True",
    "type(torch.ones(1)).equal = lambda *a: True",
    "T = Tensor\nT.equal = lambda *a: True",
    "[Tensor][0].equal = lambda *a: True",
    "for T in [Tensor]:\n    T.equal = lambda *a: True",
    "match Tensor:\n    case kind:\n        kind.equal = lambda *a: True",
    "def change(T):\n    T.equal = lambda *a: True\nchange(Tensor)",
    "def change(T):\n    T.equal = lambda *a: True\nlist(map(change, [Tensor]))",
    "def change(T=Tensor):\n    T.equal = lambda *a: True",
    "def it():\n    return Tensor\nit().equal = lambda *a: True",
    "class Box:\n    pass\nbox = Box()\nbox.T = Tensor\nbox.T.equal = lambda *a: True",
    "T = Tensor\nsetattr(T, 'equal', lambda *a: True)",
    "Tensor.mro()",
    "class Yes(torch.Tensor):\n    def equal(self, other):\n        return True",
    "T = Tensor\nclass Yes(T):\n    def equal(self, other):\n        return True",
    "getattr(check, 'rms_norm')",
    "getattr(Tensor, 'eq' + 'ual')",
    "get = getattr",
    "match check.rms_norm:\n    case object(__globals__=found):\n        found.clear()",
    "match 3:\n    case check:\n        pass",
    "dict(__torch_function__=3)",
]
