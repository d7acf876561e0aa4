"""JupyterLab's configuration. `make lab` puts this folder on Jupyter's path; postBuild links it."""

import sys
from pathlib import Path

import zmq
from jupyter_server.serverapp import ServerApp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

c = get_config()  # noqa: F821  (Jupyter provides it)
c.ServerApp.contents_manager_class = "tools.course_contents.CourseContents"
# Other users of this machine can't listen in, and no kernel warns in the terminal that they could.
if zmq.has("curve"):
    c.KernelManager.transport_encryption = "auto"
# Figures in a dark theme. (jupyter_server 2.21 forgot to let this path be configured.)
ServerApp.static_custom_path.tag(config=True)
c.LabApp.custom_css = True
c.ServerApp.static_custom_path = [str(Path(__file__).resolve().parent / "custom")]
