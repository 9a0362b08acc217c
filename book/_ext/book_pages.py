"""What the pages need beyond Jupyter Book: text alternatives, one search box, this year's copyright,
and each name of the package under its own module only."""

from datetime import date
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def give_pictures_their_text(app: Sphinx, doctree: nodes.document) -> None:
    """A picture's `alt` is the plain text stored beside it in the notebook."""
    for bundle in doctree.findall(nodes.container):
        if bundle.get("nb_element") != "mime_bundle":
            continue
        plain = [c for c in bundle.children if c.get("mime_type") == "text/plain"]
        for image in bundle.findall(nodes.image):
            image["alt"] = plain[0].astext().strip("'\"") if plain else ""


def complete(app: Sphinx, config: Any) -> None:
    config.copyright = str(date.today().year)
    # Without this the theme puts a second search box into the header.
    config.html_theme_options["navbar_persistent"] = []


def skip_imported(
    app: Sphinx, kind: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    return True if getattr(member, "imported", False) else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", complete)
    app.connect("autodoc-skip-member", skip_imported)
    app.connect("doctree-read", give_pictures_their_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
