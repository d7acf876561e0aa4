"""nbgrader's settings for everybody on the hub: where labs are handed out and in.

The hub puts this folder on JUPYTER_CONFIG_PATH. An instructor's course folder has settings of its
own beside these (nbgrader_config.py at the repository's root).
"""

import os
from pathlib import Path

c = get_config()  # noqa: F821  (nbgrader provides it)

c.CourseDirectory.course_id = "from_kv_cache_to_vllm"
c.Exchange.root = os.environ.get("COURSE_EXCHANGE") or "/srv/nbgrader/exchange"
# A fetched lab lands beside the lessons, where their links look for it.
c.Exchange.assignment_dir = str(Path.home() / "course" / "labs")
