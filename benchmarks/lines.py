"""Peak memory of translating files of 1,000, 10,000 and 100,000 lines.

python benchmarks/lines.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from transformer_tutorial import Transformer, TransformerConfig, Translator
from transformer_tutorial.data import SubwordTokenizer
from transformer_tutorial.training import date_pairs

PROGRAM = """
import resource, sys
from transformer_tutorial.cli import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""


def main() -> None:
    pairs = date_pairs(1_000, seed=0)
    tokenizer = SubwordTokenizer.train([text for pair in pairs for text in pair], vocab_size=400)
    torch.manual_seed(0)
    size = len(tokenizer)
    model = Transformer(
        TransformerConfig(size, size, 32, 2, 64, 1, 1, max_length=64, pad_id=tokenizer.pad_id)
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Translator(model, tokenizer, tokenizer).save_pretrained(folder / "translator")
        for count in (1_000, 10_000, 100_000):
            source, target = folder / "source.txt", folder / "target.txt"
            with source.open("w", encoding="utf-8") as file:
                file.writelines(f"{pairs[line % 1_000][0]}\n" for line in range(count))
            options = ["translate", "--model", str(folder / "translator"), "--method", "greedy"]
            files = ["--input", str(source), "--output", str(target), "--max-new-tokens", "8"]
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, *options, *files],
                stdout=subprocess.PIPE,
                encoding="utf-8",
                check=True,
            )
            lines = target.read_bytes().count(b"\n")
            unit = 1024**2 if sys.platform == "darwin" else 1024  # of ru_maxrss, in a MiB
            peak = int(done.stdout) / unit
            print(f"{count:7,} lines in, {lines:7,} out: at most {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
