"""The chapters as files, and the built pages."""

import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from urllib.parse import urldefrag, urlparse

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@each_notebook
def test_first_cell_installs_in_colab_and_nowhere_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-53."""
    cell = next(c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code")
    first = next(
        c for c in nbformat.read(NOTEBOOKS[0], as_version=4).cells if c.cell_type == "code"
    )
    assert cell.source == first.source
    assert re.search(r"%pip install -q .*@v\d", cell.source)
    assert not cell.outputs
    installed: list[bool] = []
    code = re.sub(r"%pip install.*", "installed.append(True)", cell.source)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    exec(code, {"installed": installed})
    assert not installed
    monkeypatch.setitem(sys.modules, "google.colab", object())
    exec(code, {"installed": installed})
    assert installed


@each_notebook
def test_a_chapter_has_its_parts(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    prose = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    headings = re.findall(r"^## (.+)$", prose, re.M)
    assert headings[-2:] == ["Exercises", "Summary"]
    assert 3 <= len(re.findall(r"^\*\*\d\.\*\*", prose, re.M)) <= 5
    solutions = [c for c in cells if c.source.startswith("#@title Solution")]
    assert solutions
    for cell in solutions:
        assert "hide-cell" in cell.metadata.tags
        assert cell.metadata.cellView == "form"
    pictures = [o for c in cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) >= 2
    assert all(len(o.data["text/plain"]) > 30 for o in pictures)
    assert not re.search(r"^(```\{|:::)|\{(ref|numref|doc|cite)[^}]*\}`", prose, re.M)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", ".", "--all",
         "--warningiserror", "--keep-going", "--quiet", "--path-output", folder],
        cwd=ROOT, capture_output=True, encoding="utf-8", env=os.environ | {"NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "_build/html"


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[Path, BeautifulSoup]:
    files = [*site.glob("book/*.html"), *site.glob("notebooks/*.html")]
    return {path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in files}


def test_every_chapter_opens_in_colab(site: Path, pages: dict[Path, BeautifulSoup]) -> None:
    """BR-52, BR-81."""
    repository = urlparse(CONFIG["repository"]["url"]).path
    for notebook in NOTEBOOKS:
        page = pages[site / f"notebooks/{notebook.stem}.html"]
        (link,) = {a["href"] for a in page.select('a[href*="colab.research.google.com"]')}
        assert link.endswith(f"/github{repository}/blob/main/notebooks/{notebook.name}")
        download = page.select_one("a[href$='.ipynb'][download], a.btn-download-source-button")
        assert download
        assert (site / "notebooks" / download["href"]).resolve().is_file()
    for path in set(pages) - {site / f"notebooks/{n.stem}.html" for n in NOTEBOOKS}:
        assert not pages[path].select('a[href*="colab.research.google.com"]')


def test_links_inside_the_book_lead_somewhere(pages: dict[Path, BeautifulSoup]) -> None:
    for path, page in pages.items():
        for link in page.select("article a[href]"):
            target, fragment = urldefrag(link["href"])
            if urlparse(target).scheme or not (target or fragment):
                continue
            file = (path.parent / target).resolve() if target else path
            assert file.is_file(), (path.name, link["href"])
            if fragment and file in pages:
                assert pages[file].find(id=fragment), (path.name, link["href"])


def test_pages_need_no_network_and_have_one_search_box(pages: dict[Path, BeautifulSoup]) -> None:
    for path, page in pages.items():
        for element in page.select("script[src], link[rel=stylesheet], img[src]"):
            address = element.get("src") or element.get("href")
            assert not urlparse(address).netloc, (path.name, address)
        visible = [b for b in page.select(".search-button-field") if not b.find_parent("dialog")]
        assert len(visible) == 1, path.name


def test_mathematics_is_typeset_by_the_site_itself(site: Path) -> None:
    page = (site / "notebooks/04_attention.html").read_text(encoding="utf-8")
    (script,) = re.findall(r'<script[^>]*src="([^"]*mathjax[^"]*\.js[^"]*)"', page)
    assert (site / "notebooks" / script.split("?")[0]).resolve().is_file()


def test_pictures_have_their_text(pages: dict[Path, BeautifulSoup]) -> None:
    for path, page in pages.items():
        for picture in page.select(".cell_output img"):
            assert len(picture.get("alt", "")) > 30, path.name


def test_copyright_is_of_this_year(pages: dict[Path, BeautifulSoup]) -> None:
    for page in pages.values():
        assert str(date.today().year) in page.select_one(".bd-footer-content").get_text()


def test_cells_may_take_three_times_as_long_as_the_slowest() -> None:
    """BR-78: the slowest cell trains for under 60 s on one thread."""
    flow = (ROOT / "scripts/flow.py").read_text(encoding="utf-8")
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    timeouts = re.findall(r"(?:CELL_TIMEOUT = |cell-timeout=)(\d+)", flow + pyproject)
    assert timeouts == ["600", "600"]


def test_jupyter_book_is_bounded() -> None:
    """BR-79."""
    assert '"jupyter-book>=1.0.4,<2"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_files_are_read_and_written_as_utf_8() -> None:
    """BR-61."""
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning",
         "scripts/flow.py", "check"],
        cwd=ROOT, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert "EncodingWarning" not in done.stderr
