"""The site: `make docs` builds it. Pages are Markdown; what the code knows is written into them during the build."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # finds site_pages and methods_table
# The API reference imports the Keras package. Of the three backends, torch is there anyway, and starts fastest.
os.environ["KERAS_BACKEND"] = "torch"

from site_pages import (  # noqa: E402
    benchmark_pages,
    docstrings,
    example_pages,
    flowcharts,
    generated,
    other_libraries,
    table_cells,
)

import attentiondrop  # noqa: E402

project = "AttentionDrop"
author = "The AttentionDrop developers"
release = version = attentiondrop.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "site_pages"]

html_theme = "furo"
html_title = f"AttentionDrop {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]
# Texts in single backquotes are code in docstrings, as they are in Markdown.
default_role = "code"
smartquotes_action = "D"  # two hyphens become a dash; quotes stay, because they are part of commands
highlight_language = "none"  # a block without a language is output

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

BUILD = DOCS / "_build"
intersphinx_mapping = other_libraries.mapping(BUILD / "names")
nitpick_ignore = [("py:class", name) for name in ("Backend", "Choice", "Mode", "Patterns")]  # names of long types

benchmark_pages.prepare(DOCS.parent / "benchmarks", DOCS / "benchmarks")
example_pages.prepare(DOCS.parent / "examples", BUILD / "examples")
sphinx_gallery_conf = {
    "examples_dirs": str(BUILD / "examples"),
    "gallery_dirs": "examples",
    "plot_gallery": False,  # the tests run the examples; here they would train for minutes
    "download_all_examples": False,
    "notebook_extensions": set(),  # programs with arguments make no good notebooks
    "within_subsection_order": "FileNameSortKey",
    "show_signature": False,
    "write_computation_times": False,
}


def setup(app) -> None:
    """Connect the generated parts of pages."""
    app.connect("source-read", generated.insert)
    app.connect("doctree-read", table_cells.mark)
    app.add_directive("mermaid", flowcharts.Flowchart)
    docstrings.connect(app)
