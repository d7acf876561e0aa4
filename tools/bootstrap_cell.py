# Finds the course's code. On Colab and Kaggle it fetches the code first (a few MB).
import pathlib
import subprocess
import sys

here = pathlib.Path.cwd()
roots = [p for p in (here, *here.parents, here / "course") if (p / "utils/hub.py").is_file()]
if not roots:
    url = "https://github.com/from-kv-cache-to-vllm/course"
    if subprocess.run(["git", "clone", "--quiet", "--depth=1", url, "course"]).returncode:
        hint = "Check the network (on Kaggle: Settings, Internet), and run this cell again."
        raise RuntimeError(f"Cannot fetch {url}. {hint}")
    roots = [here / "course"]
sys.path.insert(0, str(roots[0]))

from utils.bootstrap import ready

ready()
