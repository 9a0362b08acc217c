"""Carry each chapter from its text to its notebook, its module and the checks.

python scripts/flow.py notebooks            sync text and notebooks, export modules, run what changed
python scripts/flow.py notebooks 04_attention   the same for one chapter
python scripts/flow.py export attention     write one chapter's module (a chapter's last cell does this)
python scripts/flow.py check                say what is out of step; exit 1 if anything is
python scripts/flow.py address              carry the address in pyproject.toml to every place that has it
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parent.parent
TEXTS, NOTEBOOKS, PACKAGE = (
    ROOT / "book/chapters",
    ROOT / "notebooks",
    ROOT / "transformer_tutorial",
)
HAND_WRITTEN = ("__init__.py", "cli.py", "plotting.py")
CELL_TIMEOUT = 600
MEND = "run: make notebooks"

# What a stored output must not hold, because it differs from run to run or from machine to machine.
UNSTABLE = {
    "a path": r"(/home/|/root/|/tmp/|/Users/|/content/|/work/|[A-Z]:\\|site-packages)",
    "a time": r"(\b\d+:\d\d:\d\d\b|\b\d+(\.\d+)? ?(ns|µs|us|ms|s|sec|secs|seconds|minutes)\b)",
    "an address": r"\b0x[0-9a-fA-F]{6,}",
    "a progress bar": r"(\r(?!\n)|\d+%\||it/s\b|█{3})",
}


def texts() -> list[Path]:
    """The chapters' texts, in order."""
    return sorted(TEXTS.glob("[0-9][0-9]_*.md"))


def notebook_of(text: Path) -> Path:
    return NOTEBOOKS / f"{text.stem}.ipynb"


def here(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read(path: Path) -> Any:
    return jupytext.read(path)


def write(path: Path, content: str) -> None:
    """Replace a file whole or not at all, and leave it alone if it is already so."""
    if path.exists() and path.read_text(encoding="utf-8") == content:
        return
    new = path.with_name(path.name + ".new")
    new.write_text(content, encoding="utf-8", newline="\n")
    os.replace(new, path)


def tool(*command: str, text: str | None = None) -> str:
    """Run a Python tool and return what it prints; leave with its message if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        input=text,
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


# Module: what a chapter exports


def module_of(notebook: Any) -> str | None:
    """The module that a chapter writes, if it writes one."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and (
            found := re.search(r"^#\| default_exp (\w+)", cell.source, re.M)
        ):
            return found[1]
    return None


def exported(path: Path) -> str:
    """The module's source, as nbdev takes it from the notebook and ruff formats it."""
    from nbdev.export import nb_export

    with tempfile.TemporaryDirectory() as folder:
        copy, library = Path(folder, NOTEBOOKS.name, path.name), Path(folder, PACKAGE.name)
        copy.parent.mkdir()
        shutil.copy(path, copy)
        nb_export(str(copy), lib_path=str(library), solo_nb=True)
        (source,) = library.glob("*.py")
        text = source.read_text(encoding="utf-8")
    filename = here(PACKAGE / source.name)
    text = tool(
        "ruff",
        "check",
        "-q",
        "--fix-only",
        "--select=I",
        "--stdin-filename",
        filename,
        "-",
        text=text,
    )
    return tool("ruff", "format", "-q", "--stdin-filename", filename, "-", text=text)


def export(path: Path) -> None:
    if module := module_of(read(path)):
        write(PACKAGE / f"{module}.py", exported(path))


# Execution: what a notebook's outputs depend on


def digest(path: Path) -> str:
    """A fingerprint of a notebook's code and of the modules that it can import."""
    parts = [cell.source for cell in read(path).cells if cell.cell_type == "code"]
    for earlier in texts():
        if earlier.stem < path.stem and (module := module_of(read(notebook_of(earlier)))):
            parts.append((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    parts.append((PACKAGE / "plotting.py").read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def run(path: Path) -> None:
    """Execute a notebook from top to bottom and store its outputs, or leave with its error."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        sys.exit(f"{here(path)}: a cell failed; mend the chapter and {MEND}\n{error}")
    notebook.metadata.pop("language_info", None)
    notebook.metadata["executed"] = digest(path)
    write(path, nbformat.writes(notebook) + "\n")


def notebooks(names: list[str]) -> None:
    chosen = [text for text in texts() if not names or text.stem in names]
    if unknown := set(names) - {text.stem for text in chosen}:
        sys.exit(f"no chapter {sorted(unknown)}; there are {[text.stem for text in texts()]}")
    for text in chosen:
        if not notebook_of(text).exists():
            tool("jupytext", "--quiet", "--sync", str(text))
        tool("jupytext", "--quiet", "--sync", str(notebook_of(text)))
        export(notebook_of(text))
    for text in chosen:
        path = notebook_of(text)
        if any(execution_problems(path)):
            print(f"executing {here(path)}", flush=True)
            run(path)


# Checks: each yields what is wrong and the command that mends it


def pair_problems(text: Path) -> Iterator[str]:
    path = notebook_of(text)
    if not path.exists():
        yield f"{here(text)}: has no notebook; {MEND}"
        return

    def content(cell: Any) -> tuple[Any, ...]:
        return cell.cell_type, cell.source.rstrip(), dict(cell.metadata)

    left, right = read(text).cells, read(path).cells
    for number, (one, other) in enumerate(zip(left, right, strict=False), 1):
        if content(one) != content(other):
            yield f"{here(text)} and {here(path)} differ, first in cell {number}; {MEND}"
            return
    if len(left) != len(right):
        yield f"{here(text)} has {len(left)} cells, {here(path)} has {len(right)}; {MEND}"


def module_problems(path: Path) -> Iterator[str]:
    module = module_of(read(path))
    if module is None:
        return
    written = PACKAGE / f"{module}.py"
    if not written.exists() or written.read_text(encoding="utf-8") != exported(path):
        yield f"{here(written)} is not what {here(path)} exports; {MEND}"


def execution_problems(path: Path) -> Iterator[str]:
    notebook = read(path)
    counts = [
        c.execution_count for c in notebook.cells if c.cell_type == "code" and c.source.strip()
    ]
    if counts != list(range(1, len(counts) + 1)):
        yield f"{here(path)}: was not executed from top to bottom; {MEND}"
    elif notebook.metadata.get("executed") != digest(path):
        yield f"{here(path)}: its code or a module it imports changed after it was executed; {MEND}"


def output_problems(path: Path) -> Iterator[str]:
    for number, cell in enumerate(read(path).cells, 1):
        for output in cell.get("outputs", []):
            place = f"{here(path)}, cell {number}: its stored output"
            if output.output_type == "error":
                yield f"{place} is the error {output.ename}; mend the chapter and {MEND}"
            if output.get("name") == "stderr":
                yield f"{place} has text on stderr: {output.text[:80]!r}; mend the chapter and {MEND}"
            data = output.get("data", {})
            text = output.get("text", "") + data.get("text/plain", "") + data.get("text/html", "")
            for what, pattern in UNSTABLE.items():
                if found := re.search(pattern, text):
                    yield f"{place} holds {what}, {found[0]!r}; mend the chapter and {MEND}"


def orphan_problems() -> Iterator[str]:
    """Notebooks without a text, and modules without a chapter."""
    known = {notebook_of(text) for text in texts()}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if path not in known:
            yield f"{here(path)}: has no text in {here(TEXTS)}; {MEND} {path.stem}, or delete it"
    modules = {f"{module_of(read(path))}.py" for path in known if path.exists()}
    for path in sorted(PACKAGE.glob("*.py")):
        if path.name not in modules and path.name not in HAND_WRITTEN:
            yield f"{here(path)}: no chapter writes it; delete it, or move it into a chapter"


# Address: pyproject.toml has it, every other place has a copy


def address_of(pyproject: str) -> tuple[str, str, str]:
    """Owner, repository and version, as pyproject.toml has them."""
    found = re.search(r'^Repository = "https://github\.com/([\w.-]+)/([\w.-]+)"$', pyproject, re.M)
    version = re.search(r'^version = "(.+)"$', pyproject, re.M)
    if not found or not version:
        sys.exit(
            'pyproject.toml: needs a version, and a Repository = "https://github.com/OWNER/NAME"'
        )
    return found[1], found[2], version[1]


def with_address(text: str) -> str:
    """The text with every address of the repository and of its pages made to follow pyproject.toml."""
    owner, name, version = address_of((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    old_owner, old_name, _ = address_of(
        re.sub(
            r"(?m)^  url: (.+)$",
            r'Repository = "\1"\nversion = "0"',
            (ROOT / "_config.yml").read_text(encoding="utf-8"),
        )
    )
    text = re.sub(rf"\b{old_owner}/{old_name}@v[\w.]+", f"{owner}/{name}@v{version}", text)
    text = re.sub(rf"\b{old_owner}/{old_name}\b", f"{owner}/{name}", text)
    return re.sub(rf"\b{old_owner}\.github\.io/{old_name}\b", f"{owner}.github.io/{name}", text)


def holders() -> list[Path]:
    """The files with a copy of the address; `_config.yml` comes last, for it tells the old one."""
    others = [ROOT / name for name in ("README.md", "CITATION.cff", "_config.yml")]
    return [*texts(), *(p for p in map(notebook_of, texts()) if p.exists()), *others]


def address() -> None:
    new = {path: with_address(path.read_text(encoding="utf-8")) for path in holders()}
    for path, text in new.items():
        write(path, text)


def address_problems() -> Iterator[str]:
    owner, name, version = address_of((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wrong = re.compile(
        rf"github\.com/(?!{owner}/{name}\b)[\w.-]*transformer[\w.-]*/|{owner}/{name}@v(?!{version}\b)"
    )
    for path in holders():
        text = path.read_text(encoding="utf-8")
        if with_address(text) != text or f"{owner}/{name}" not in text or wrong.search(text):
            yield f"{here(path)}: its address is not that of pyproject.toml; run: make address"


def problems() -> Iterator[str]:
    yield from orphan_problems()
    yield from address_problems()
    for text in texts():
        yield from pair_problems(text)
        path = notebook_of(text)
        if path.exists():
            yield from module_problems(path)
            yield from execution_problems(path)
            yield from output_problems(path)


def main(command: str = "", *names: str) -> None:
    if command == "notebooks":
        notebooks(list(names))
    elif command == "export":
        for text in texts():
            if module_of(read(notebook_of(text))) in names:
                export(notebook_of(text))
    elif command == "address":
        address()
    elif command == "check":
        found = list(problems())
        if found:
            sys.exit("\n".join(found))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
