"""JupyterLab's configuration. `make lab` puts this folder on Jupyter's path; postBuild links it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

c = get_config()  # noqa: F821  (Jupyter provides it)
c.ServerApp.contents_manager_class = "tools.course_contents.CourseContents"
