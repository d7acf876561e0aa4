"""Sphinx's settings. `build.py` copies what becomes the site beside this file, and builds it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

_project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
project = html_title = "From KV Cache to vLLM"
author = "the course's authors"  # behind "By"
release = _project["version"]
extensions = ["myst_nb", "sphinx_copybutton", "sphinx_design", "mathml", "pages", "languages"]
html_math_renderer = "mathml"
nb_execution_mode = "off"  # what is shown is what was committed
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "dollarmath", "amsmath", "html_image"]
myst_heading_anchors = 4
html_theme = "sphinx_book_theme"
html_static_path = ["static", "notebooks/images"]
html_css_files = ["course.css", "frames.css"]
html_copy_source = False
html_show_sourcelink = False
html_favicon = "static/favicon.svg"
html_theme_options = {
    "repository_url": _project["urls"]["Repository"],
    "repository_branch": "main",
    "path_to_docs": "",
    "use_repository_button": True,
    "use_issues_button": True,
    "use_download_button": True,
    "home_page_in_toc": True,
    "show_toc_level": 2,
    "launch_buttons": {
        "colab_url": "https://colab.research.google.com",
        "binderhub_url": "https://mybinder.org",
        "notebook_interface": "jupyterlab",
    },
    "article_header_end": ["article-header-buttons"],
}
