"""Kill a training run twenty times at random moments and compare its end with an undisturbed one.

python benchmarks/resume.py
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from transformer_tutorial.trainer import checkpoints
from transformer_tutorial.training import date_pairs

EVERY = 5  # steps between two checkpoints


def command(folder: Path, run: Path) -> list[str]:
    options = {
        "--output": run,
        "--train": folder / "dates.tsv",
        "--vocabulary.size": 400,
        "--model.d-model": 64,
        "--model.num-heads": 4,
        "--model.d-ff": 256,
        "--model.num-encoder-layers": 1,
        "--model.num-decoder-layers": 1,
        "--training.steps": 300,
        "--training.max-tokens": 1000,
        "--training.checkpoint-every": EVERY,
        "--training.validate-every": 150,
        "--training.log-every": 1,
    }
    words = [str(word) for pair in options.items() for word in pair]
    return [sys.executable, "-m", "transformer_tutorial.cli", "train", *words]


def newest(run: Path) -> int:
    """The step of the newest checkpoint."""
    found = checkpoints(run)
    return int(found[0].name.removeprefix("step-")) if found else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    moments = random.Random(options.seed)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = "".join(f"{source}\t{target}\n" for source, target in date_pairs(1_500, seed=0))
        (folder / "dates.tsv").write_text(rows, encoding="utf-8")
        quiet = {"env": environment, "stderr": subprocess.DEVNULL}
        subprocess.run(command(folder, folder / "straight"), check=True, **quiet)  # type: ignore[call-overload]

        run, kills, repeated = folder / "killed", 0, 0
        log = run / "log.jsonl"
        while True:
            process = subprocess.Popen(command(folder, run), **quiet)  # type: ignore[call-overload]
            if kills < options.kills:
                size = log.stat().st_size if log.exists() else 0
                while process.poll() is None and (not log.exists() or log.stat().st_size <= size):
                    time.sleep(0.01)
                time.sleep(moments.uniform(0.0, 1.0))
                process.kill()
                process.wait()
                kills += 1
                done = log.read_bytes().count(b'"kind": "training"')
                repeated = max(repeated, done - newest(run))
                print(f"kill {kills:2}: step {done}, newest checkpoint {newest(run)}", flush=True)
                continue
            if process.wait():
                sys.exit("the run could not go on")
            break
        ends = [
            load_file(checkpoints(folder / which)[0] / "training.safetensors")
            for which in ("straight", "killed")
        ]
        same = ends[0].keys() == ends[1].keys() and all(
            torch.equal(tensor, ends[1][key]) for key, tensor in ends[0].items()
        )
    print(f"killed               {kills} times")
    print(f"steps lost at most   {repeated} (a checkpoint every {EVERY})")
    print(f"weights and moments  {'equal, bit for bit' if same else 'DIFFERENT'}")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
