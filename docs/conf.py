"""The site: ``make docs`` builds it from the Markdown files of the repository and from the package's docstrings.

Sphinx reads the whole checkout, of which docs/ is the centre. So a link of a page means on the site what it means on
GitHub, and benchmarks/ and CHANGELOG.md are pages of the site as they stand; ``repository`` beside this file does the
rest. Warnings are errors there (``-W``). ``-n`` is not used: docstrings name classes of torch and pyspark, whose own
inventories would have to be fetched.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from sparkdl import __version__  # noqa: E402 - of this checkout, whatever is installed

project = "sparkdl"
version = release = __version__
html_title = f"sparkdl {release}"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_theme = "furo"
html_extra_path = ["front"]  # index.html, which leads to docs/index.html

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "repository"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "benchmarks/**README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
# Where there is nothing to include there is no need to look either.
exclude_patterns = [".*", "build", "conf", "dist", "examples", "jobs", "sparkdl", "tests", "spark-warehouse"]

myst_heading_anchors = 4  # with the anchors that GitHub gives
myst_url_schemes = ["http", "https", "mailto", "repository"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
_NUMBERS = {"int": "Count Natural Several Seed", "float": "BelowOne Fraction NonNegative Positive Share _Factor"}
autodoc_type_aliases = {name: kind for kind, names in _NUMBERS.items() for name in names.split()}
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes as a list: autodoc describes dataclass fields itself
