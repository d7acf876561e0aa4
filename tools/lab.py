"""JupyterLab on the course's start page, which says in one line where it is. Behind `make lab`.

    python tools/lab.py [options of JupyterLab]

Jupyter's own log begins with thirty lines, and the address is in the middle of them. Later it warns
of each notebook that is opened for the first time. Only errors are left of it;
`make lab LAB_OPTIONS=--log-level=INFO` brings it back.
"""

from __future__ import annotations

import os
import secrets
import sys

from jupyterlab.labapp import LabApp

QUIET = ["--log-level=ERROR", "--LabApp.log_level=ERROR"]


def main() -> None:
    # A make typed in a terminal of JupyterLab isn't part of the one that started it.
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        os.environ.pop(name, None)
    # Jupyter tells of a token that it made itself in six lines more. This one is just as secret.
    token = f"--IdentityProvider.token={secrets.token_hex(24)}"
    server = LabApp.initialize_server(argv=[*QUIET, token, *sys.argv[1:]])
    address = server.display_url.split()[0].replace("token=...", f"token={server.token}")
    print(f"The course is open at {address}\nStop it with Ctrl+C.", flush=True)
    server.start()


if __name__ == "__main__":
    main()
