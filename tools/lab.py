"""JupyterLab on the course's start page, which says in one line where it is. Behind `make lab`.

    python tools/lab.py [options of JupyterLab]

Jupyter's own log begins with thirty lines, and the address is the last but four of them. Only
warnings are left of it; `--log-level=INFO` brings it back.
"""

from __future__ import annotations

import sys

from jupyterlab.labapp import LabApp


def main() -> None:
    server = LabApp.initialize_server(argv=["--log-level=WARN", *sys.argv[1:]])
    address = server.display_url.split()[0]
    print(f"The course is open at {address}\nStop it with Ctrl+C.", flush=True)
    server.start()


if __name__ == "__main__":
    main()
