"""What the process of each rank runs: see `launcher`.

It imports nothing of the course, so that a rank is there soon; what it runs brings its own.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
import traceback
from contextlib import redirect_stdout
from datetime import timedelta
from multiprocessing.connection import Client
from pathlib import Path

import torch
import torch.distributed as dist


def end_with_parent() -> None:
    """Leave as soon as the parent's end of our standard input is closed: it is gone, or wants it.

    A thread of its own, because the main one may wait for a message of another rank for ever.
    """

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main(folder: str, rank: int, world_size: int, backend: str, timeout: float) -> None:
    end_with_parent()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
    )
    with Client(str(Path(folder) / "door"), "AF_UNIX") as parent:
        parent.send(rank)
        while True:
            message = io.BytesIO(parent.recv_bytes())
            number, printed = pickle.load(message), io.StringIO()
            try:
                with redirect_stdout(printed):
                    function, args, settings = pickle.load(message)
                    result = function(*args, **settings)
                answer = pickle.dumps((number, None, printed.getvalue(), result))
            except Exception:
                answer = pickle.dumps((number, traceback.format_exc(), printed.getvalue(), None))
            parent.send_bytes(answer)


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5]))
    except (EOFError, ConnectionError):
        os._exit(0)  # the parent has ended
