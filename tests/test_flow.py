"""The flow from text to notebook to module, on a book of one chapter: each check fails when it must."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent

CHAPTER = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# Tiny

```{code-cell} ipython3
# OWNER_AND_NAME
```

```{code-cell} ipython3
#| default_exp tiny
#| export
def double(x: int) -> int:
    return 2 * x
```

```{code-cell} ipython3
print(double(21))
```
"""


def flow(book: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/flow.py", *arguments],
        cwd=book,
        capture_output=True,
        encoding="utf-8",
    )


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished book of one chapter, in a folder with a space in its name."""
    book = tmp_path_factory.mktemp("a book")
    for name in (
        "pyproject.toml",
        "jupytext.toml",
        "_config.yml",
        "README.md",
        "CITATION.cff",
        "scripts/flow.py",
    ):
        (book / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, book / name)
    for folder in ("book/chapters", "notebooks", "transformer_tutorial"):
        (book / folder).mkdir(parents=True)
    for name in ("__init__.py", "plotting.py"):
        (book / "transformer_tutorial" / name).touch()
    address = (
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("github.com/")[1].split('"')[0]
    )
    (book / "book/chapters/00_tiny.md").write_text(
        CHAPTER.replace("OWNER_AND_NAME", address), encoding="utf-8"
    )
    done = flow(book, "notebooks")
    assert done.returncode == 0, done.stderr
    return book


@pytest.fixture
def book(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "a book", copy_function=shutil.copy2)
    return tmp_path / "a book"


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def change_notebook(path: Path, edit: Callable[[dict], None]) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    edit(notebook)
    path.write_text(json.dumps(notebook), encoding="utf-8")


def last_output(notebook: dict) -> dict:
    return notebook["cells"][-1]["outputs"][0]


TEXT, NOTEBOOK, MODULE = (
    "book/chapters/00_tiny.md",
    "notebooks/00_tiny.ipynb",
    "transformer_tutorial/tiny.py",
)


def test_a_finished_book_has_no_problem(finished: Path) -> None:
    assert flow(finished, "check").returncode == 0
    notebook = nbformat.read(finished / NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[-1].outputs[0].text == "42\n"
    module = (finished / MODULE).read_text(encoding="utf-8")
    assert "notebooks/00_tiny.ipynb" in module
    assert module.endswith("def double(x: int) -> int:\n    return 2 * x\n")


@pytest.mark.parametrize(
    ("tamper", "place", "what"),
    [
        (lambda b: change(b / TEXT, "# Tiny", "# Small"), TEXT, "differ, first in cell 1"),
        (lambda b: change(b / MODULE, "2 * x", "x + x"), MODULE, "is not what"),
        (lambda b: (b / MODULE).unlink(), MODULE, "is not what"),
        (lambda b: (b / NOTEBOOK).unlink(), TEXT, "has no notebook"),
        (
            lambda b: shutil.copy(b / NOTEBOOK, b / "notebooks/01_extra.ipynb"),
            "notebooks/01_extra.ipynb",
            "no text",
        ),
        (
            lambda b: (b / "transformer_tutorial/extra.py").touch(),
            "transformer_tutorial/extra.py",
            "no chapter",
        ),
    ],
)
def test_what_has_come_apart_is_named(
    book: Path, tamper: Callable[[Path], object], place: str, what: str
) -> None:
    tamper(book)
    done = flow(book, "check")
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if place in line and what in line)
    assert "run: make notebooks" in line or "delete it" in line


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (
            lambda n: n["cells"][-1].update(execution_count=None, outputs=[]),
            "not executed from top to bottom",
        ),
        (lambda n: n["cells"][-1].update(execution_count=7), "not executed from top to bottom"),
        (lambda n: n["metadata"].pop("executed"), "changed after it was executed"),
        (lambda n: last_output(n).update(text="saved in /home/me/x"), "a path"),
        (lambda n: last_output(n).update(text="took 3.2 s"), "a time"),
        (lambda n: last_output(n).update(text="<object at 0x7f12ab34cd>"), "an address"),
        (lambda n: last_output(n).update(text=" 40%|████      | 4/10"), "a progress bar"),
        (lambda n: last_output(n).update(name="stderr"), "stderr"),
        (
            lambda n: n["cells"][-1].update(
                outputs=[
                    {"output_type": "error", "ename": "ValueError", "evalue": "x", "traceback": []}
                ]
            ),
            "the error ValueError",
        ),
    ],
)
def test_outputs_that_must_not_be_stored_are_named(
    book: Path, edit: Callable[[dict], object], what: str
) -> None:
    change_notebook(book / NOTEBOOK, edit)
    done = flow(book, "check")
    assert done.returncode == 1
    assert NOTEBOOK in done.stderr
    assert what in done.stderr
    assert "run: make notebooks" in done.stderr


@pytest.mark.parametrize("side", [TEXT, NOTEBOOK])
def test_either_side_may_be_edited(book: Path, side: str) -> None:
    change(book / side, "2 * x", "3 * x")
    done = flow(book, "notebooks")
    assert done.returncode == 0, done.stderr
    assert flow(book, "check").returncode == 0
    assert "3 * x" in (book / TEXT).read_text(encoding="utf-8")
    assert "3 * x" in (book / MODULE).read_text(encoding="utf-8")
    assert nbformat.read(book / NOTEBOOK, as_version=4).cells[-1].outputs[0].text == "63\n"


def test_prose_alone_executes_nothing(book: Path) -> None:
    change(book / TEXT, "# Tiny", "# Small")
    done = flow(book, "notebooks")
    assert (done.returncode, done.stdout) == (0, "")
    assert flow(book, "check").returncode == 0


def test_a_cell_that_raises_fails_every_time_and_loses_nothing(book: Path) -> None:
    change(book / TEXT, "print(double(21))", "print(double(21)); 1 / 0")
    for _ in range(2):
        done = flow(book, "notebooks")
        assert done.returncode == 1
        assert NOTEBOOK in done.stderr
        assert "ZeroDivisionError" in done.stderr
        assert nbformat.read(book / NOTEBOOK, as_version=4).cells[-1].outputs[0].text == "42\n"
    assert flow(book, "check").returncode == 1


def test_a_fork_changes_one_line_and_runs_one_command(book: Path) -> None:
    change(
        book / "pyproject.toml",
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("github.com/")[1].split('"')[0],
        "someone/my.fork",
    )
    done = flow(book, "check")
    for place in (TEXT, "README.md", "CITATION.cff", "_config.yml"):
        assert (
            f"{place}: its address is not that of pyproject.toml; run: make address" in done.stderr
        )
    assert flow(book, "address").returncode == 0
    assert flow(book, "notebooks").returncode == 0
    assert flow(book, "check").returncode == 0
    readme = (book / "README.md").read_text(encoding="utf-8")
    assert "someone/my.fork" in readme
    assert "someone.github.io/my.fork" in readme


def test_an_unknown_chapter_is_named(book: Path) -> None:
    done = flow(book, "notebooks", "07_none")
    assert done.returncode == 1
    assert "['07_none']" in done.stderr
    assert "00_tiny" in done.stderr
