"""Sphinx configuration: Markdown pages, and the API from the docstrings."""

import weightshare

project = "weightshare"
author = "The weightshare developers"
version = release = weightshare.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "weightshare"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
exclude_patterns = []
suppress_warnings = ["myst.xref_missing"]  # links to files outside of docs/ are for readers of the repository
