"""The manual: ``make docs`` builds it, with every warning an error. Nothing is fetched for it."""

import os
import sys
from pathlib import Path

import collectives
from collectives import explorer

sys.path.insert(0, str(Path(__file__).resolve().parent))

project = "collectives"
author = "the maintainers of collectives"
copyright = f"{author}; Apache-2.0"
version = release = collectives.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "docstrings",
    "handout",
    "layers",
    "memory_pictures",
    "registry_pages",
    "terminal",
]
exclude_patterns = ["_build", "_extra"]

# Pages are Markdown; docstrings stay numpydoc, where a word in single backticks is a name.
default_role = "py:obj"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the Parameters sections say more
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"  # the column of contents has no room for them
autodoc_mock_imports = ["flwr"]  # whose dependencies are many; a class derives from one of its
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"collectives {release}"
html_static_path = ["_static"]
html_css_files = ["manual.css"]
# The explorer, written from the registry as the pages of algorithms are.
extra = Path(__file__).resolve().parent / "_extra" / "explorer"
explorer.write(extra, pyodide=os.environ.get("PYODIDE") or None)
html_extra_path = ["_extra"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "collectives"},
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
    # The explorer and the course need the width of the page.
    "secondary_sidebar_items": {"**": ["page-toc"], "learn/explorer": [], "learn/course": []},
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
