"""The command line, from training to a picture. Most tests run it in this process."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformer_tutorial.trainer import TrainingConfig

from transformer_tutorial import Transformer, TransformerConfig
from transformer_tutorial import cli as command_line
from transformer_tutorial.cli import Train, Translate, UsageError, main, read_options
from transformer_tutorial.decoding import DecodingConfig
from transformer_tutorial.training import date_pairs
from transformer_tutorial.translator import Translator

TINY = {
    "vocabulary": {"size": 360},
    "model": {
        "d_model": 32,
        "num_heads": 2,
        "d_ff": 32,
        "num_encoder_layers": 1,
        "num_decoder_layers": 2,
        "max_length": 48,
        "share_embeddings": True,
    },
    "training": {
        "steps": 8,
        "max_tokens": 800,
        "warmup": 4,
        "validate_every": 4,
        "checkpoint_every": 2,
        "log_every": 2,
    },
}
DATE = "2026年11月30日星期一"
SHORT = ["--max-new-tokens", "6", "--method", "greedy"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, a configuration, and a trained run."""
    place = tmp_path_factory.mktemp("cli")
    pairs = date_pairs(180, seed=0)
    for name, part in (("train", pairs[:160]), ("few", pairs[160:])):
        rows = "".join(f"{source}\t{target}\n" for source, target in part)
        (place / f"{name}.tsv").write_text(rows, encoding="utf-8")
        for side, ending in enumerate(("zh", "en")):
            text = "".join(f"{pair[side]}\n" for pair in part)
            (place / f"{name}.{ending}").write_text(text, encoding="utf-8")
    (place / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    assert train(place, "run", "--train", str(place / "train.tsv")) == 0
    return place


def train(place: Path, name: str, *words: str) -> int:
    config = ["--config", str(place / "tiny.yaml")]
    return main(["train", "--output", str(place / name), *config, *words])


def translate(place: Path, *words: str) -> int:
    return main(["translate", "--model", str(place / "run" / "best"), *SHORT, *words])


def usage(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """What a command line that is wrong is told."""
    try:
        code: Any = main(words)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return " ".join(printed.err.replace("│", " ").split())


def program(*words: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "transformer_tutorial.cli", *map(str, words)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=environment, **(pipes | options))


# Training.


def test_train_says_what_it_does(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--train", str(place / "train.zh"), str(place / "train.en"), "--training.steps", "2"]
    assert train(place, "files", *words) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "144 training pairs, 16 validation pairs" in printed.err
    assert "vocabularies of 360 and 360 pieces" in printed.err
    best = place / "files" / "best"
    assert f"transformer-tutorial translate --model {best}" in printed.err
    translator = Translator.from_pretrained(best, device="cpu")
    assert translator.model.config.d_model == 32
    count = sum(weight.numel() for weight in translator.model.parameters())
    assert f"{count:,} parameters" in printed.err


def test_validation_pairs_never_stand_in_the_training_text(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = place / "both.tsv"
    both.write_bytes((place / "train.tsv").read_bytes() + (place / "few.tsv").read_bytes())
    words = ["--train", str(both), "--validation", str(place / "few.tsv"), "--training.steps", "1"]
    assert train(place, "given", *words) == 0
    assert "160 training pairs, 20 validation pairs" in capsys.readouterr().err


def test_stream_two_lowercase_vocabularies(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--train", str(place / "train.tsv"), "--validation", str(place / "few.tsv")]
    words += ["--stream", "--vocabulary.no-joint", "--vocabulary.lowercase"]
    words += ["--model.no-share-embeddings", "--training.steps", "1", "--vocabulary.size", "300"]
    assert train(place, "stream", *words) == 0
    assert "a stream of training pairs, 20 validation pairs" in capsys.readouterr().err
    translator = Translator.from_pretrained(place / "stream" / "best", device="cpu")
    assert translator.lowercase
    assert translator.src_tokenizer is not translator.tgt_tokenizer
    assert (place / "stream" / "best" / "target.spm").is_file()


def test_going_on_needs_the_directory_alone(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--train", str(place / "train.tsv")]
    assert train(place, "cut", *words, "--training.steps", "4", "--training.warmup", "2") == 0
    capsys.readouterr()
    assert main(["train", "--output", str(place / "cut"), "--training.steps", "6"]) == 0
    printed = capsys.readouterr().err
    assert "step-00000004" in printed
    state = json.loads(
        (place / "cut/checkpoints/step-00000006/state.json").read_text(encoding="utf-8")
    )
    assert state["config"]["steps"] == 6
    assert state["config"]["warmup"] == 2
    before = (place / "cut/best/source.spm").read_bytes()
    assert (place / "cut/checkpoints/step-00000006/source.spm").read_bytes() == before
    # There is nothing left to do, and another model is refused.
    assert main(["train", "--output", str(place / "cut")]) == 0
    capsys.readouterr()
    assert main(["train", "--output", str(place / "cut"), "--model.d-ff", "64"]) == 2
    assert "model.d_ff 32, not 64" in capsys.readouterr().err


def test_tune_a_translator(place: Path) -> None:
    few, best = place / "few.tsv", place / "run" / "best"
    words = ["--train", str(few), "--from", str(best), "--training.steps", "1"]
    assert train(place, "tuned", *words, "--model.d-model", "64") == 0
    tuned = place / "tuned" / "best"
    assert (tuned / "source.spm").read_bytes() == (best / "source.spm").read_bytes()
    config = json.loads((tuned / "config.json").read_text(encoding="utf-8"))
    assert config["model"]["d_model"] == 32
    written = yaml.safe_load((place / "tuned" / "config.yaml").read_text(encoding="utf-8"))
    assert written["model"]["d_model"] == 32
    assert written["from"] == str(best)


def test_stop_by_a_signal_and_go_on(place: Path) -> None:
    words = ["--train", place / "train.tsv", "--training.steps", "100000"]
    output = place / "stopped"
    with program("train", "--output", output, "--config", place / "tiny.yaml", *words) as running:
        deadline = time.monotonic() + 60
        while not any((output / "checkpoints").glob("step-*")):
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        printed, message = running.communicate(timeout=60)
    assert running.returncode == 143, message
    assert printed == b""
    assert b"Traceback" not in message
    newest = max((output / "checkpoints").glob("step-*"))
    steps = int(newest.name.removeprefix("step-")) + 2
    again = ["train", "--output", str(output), "--training.steps", str(steps)]
    assert main(again) == 0
    assert (output / "checkpoints" / f"step-{steps:08d}").is_dir()


def test_a_corpus_in_a_folder(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = place / "tatoeba"
    folder.mkdir()
    for name, text in (("train", "train.tsv"), ("val", "few.tsv")):
        rows = (place / text).read_text(encoding="utf-8").replace("\n", "\tCC BY\n")
        (folder / f"{name}.tsv").write_text(rows, encoding="utf-8")
    corpus = ["--corpus", "tatoeba-zh-en", "--folder", str(folder)]
    assert train(place, "corpus", *corpus, "--training.steps", "1") == 0
    printed = capsys.readouterr().err
    assert "licence: CC BY 2.0 FR" in printed
    assert "160 training pairs, 20 validation pairs" in printed
    words = ["evaluate", "--model", str(place / "corpus/best"), *SHORT, *corpus]
    assert main([*words, "--split", "validation", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 20
    assert main(words) == 1
    assert "the test part of tatoeba-zh-en has no pairs" in capsys.readouterr().err


# Configuration files.


def test_a_written_configuration_is_read_again(place: Path) -> None:
    config = place / "run" / "config.yaml"
    words = ["train", "--output", str(place / "run")]
    first = read_options(
        [*words, "--config", str(place / "tiny.yaml"), "--train", str(place / "train.tsv")]
    )
    again = read_options([*words, "--config", str(config)])
    assert isinstance(first, Train)
    assert isinstance(again, Train)
    first.config = again.config = None
    assert first == again
    assert yaml.safe_load(config.read_text(encoding="utf-8"))["train"] == [
        str((place / "train.tsv").resolve())
    ]
    assert again.decided() == config.read_text(encoding="utf-8")


def test_options_win_over_the_file(place: Path) -> None:
    words = ["train", "--output", "x", "--config", "tatoeba-zh-en", "--model.d-model", "64"]
    options = read_options([*words, "--train", "a.tsv", "--model.no-norm-first"])
    assert isinstance(options, Train)
    assert options.model.d_model == 64
    assert not options.model.norm_first
    assert options.training.precision == "bf16"
    assert options.train == (Path("a.tsv"),)
    assert options.corpus is None  # the file's corpus gave way to the text given here


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz: 3", "unknown fields: stepz; allowed: corpus, "),
        ("training: {stepz: 3}", "unknown fields: training.stepz; allowed: training.steps, "),
        ("output: x", "unknown fields: output"),
        ("training: 3", "training. must be a table of fields, got 3"),
        ("- 3", "it must be a table of fields, got [3]"),
        ("training: {steps: many}", "--training.steps"),
        ("stream: 1", "stream must be true or false, got 1"),
        ("on_error: ignore", "--on-error"),
        ("model: {num_heads: 3}", "model.num_heads must be a divisor of d_model=512, got 3"),
        ("training: {steps: 0}", "training.steps must be a whole number, at least 1, got 0"),
        ("a: [", "is not YAML"),
    ],
)
def test_what_a_file_must_not_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    words = ["train", "--output", str(tmp_path / "run"), "--config", str(path), "--train", "a.tsv"]
    assert message in usage(capsys, words)
    assert not (tmp_path / "run").exists()


def test_numbers_that_yaml_takes_for_words(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("training: {learning_rate: 1e-3, patience: null}", encoding="utf-8")
    options = read_options(["train", "--output", "x", "--config", str(path)])
    assert isinstance(options, Train)
    assert options.training.learning_rate == 1e-3
    assert options.training.patience is None


def test_no_such_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    said = usage(capsys, ["train", "--output", "x", "--config", "klingon"])
    assert "multi30k-de-en, tatoeba-zh-en" in said


@pytest.mark.parametrize("recipe", ["multi30k-de-en", "tatoeba-zh-en"])
def test_recipes(recipe: str) -> None:
    options = read_options(["train", "--output", "x", "--config", recipe])
    assert isinstance(options, Train)
    assert options.corpus == recipe
    TrainingConfig(**vars(options.training))
    TransformerConfig(**options.model_fields(100, 100, 0))


def test_options_are_all_fields() -> None:
    options = read_options(["train", "--output", "x"])
    assert isinstance(options, Train)
    mine = {item.name for item in fields(options.model)}
    assert mine | {"src_vocab_size", "tgt_vocab_size", "pad_id"} == {
        item.name for item in fields(TransformerConfig)
    }
    assert vars(options.training) == vars(TrainingConfig())
    options = read_options(["translate", "--model", "x"])
    assert isinstance(options, Translate)
    mine = {item.name for item in fields(options.decoding)}
    assert mine | {"n_best"} == {item.name for item in fields(DecodingConfig)}


# Translating.


def typed(path: Path) -> io.TextIOWrapper:
    """A file as standard input, in a locale that knows no Chinese."""
    return io.TextIOWrapper(path.open("rb"), encoding="ascii")


ENDINGS = [
    (f"{DATE}\n", 1),
    (f"{DATE}", 1),
    ("", 0),
    ("\n", 1),
    (f"\n{DATE}\r\n\n  \n{DATE}\x0b{DATE}\x85\u2028\n\n", 6),
]


@pytest.mark.parametrize(("text", "count"), ENDINGS)
def test_a_line_for_each_line(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    text: str,
    count: int,
) -> None:
    path = place / "lines.txt"
    path.write_bytes(text.encode())
    assert translate(place, "--input", str(path)) == 0
    printed = capsysbinary.readouterr()
    assert printed.err == b""
    assert b"\r" not in printed.out
    translations = printed.out.decode().split("\n")
    assert translations.pop() == ""
    assert len(translations) == count
    sources = text.removesuffix("\n").split("\n") if count else []
    for source, translation in zip(sources, translations, strict=True):
        assert bool(source.strip()) == bool(translation)

    # From standard input and into a file it is the same.
    with typed(path) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert translate(place, "--output", str(place / "out.txt")) == 0
    assert capsysbinary.readouterr().out == b""
    assert (place / "out.txt").read_bytes() == printed.out


@pytest.mark.parametrize("from_stdin", [False, True])
def test_broken_text(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    from_stdin: bool,
) -> None:
    path, out = place / "broken.txt", place / "kept.txt"
    path.write_bytes(b"a\nb\xff\n")
    out.write_bytes(b"kept\n")
    source = [] if from_stdin else ["--input", str(path)]
    with typed(path) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert translate(place, *source, "--output", str(out)) == 1
    said = capsys.readouterr().err
    assert ":2" in said
    assert said.count("\n") == 1
    assert out.read_bytes() == b"kept\n"
    assert not list(place.glob(".kept*"))


def test_n_best(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "three.txt"
    path.write_text(f"{DATE}\n\n{DATE}\n", encoding="utf-8")
    words = ["translate", "--model", str(place / "run" / "best"), "--max-new-tokens", "6"]
    assert main([*words, "--input", str(path), "--n-best", "3"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] + ["3"] * 3
    assert [row[1:] for row in rows[:3]] == [row[1:] for row in rows[4:]]
    scores = [float(row[1]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)
    assert rows[3][2] == ""


def test_long_lines(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "long.txt"
    path.write_text(f"{DATE}\n" + f"{DATE}，" * 12 + "\n", encoding="utf-8")
    assert translate(place, "--input", str(path)) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert translate(place, "--input", str(path), "--long", "refuse") == 1
    assert "line 2: " in capsys.readouterr().err
    assert main([*LOAD, str(place / "run/best"), "--input", str(path), "--n-best", "2"]) == 1
    assert "line 2: " in capsys.readouterr().err


LOAD = ["translate", "--model"]


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is needed")
def test_typed_lines_are_answered_at_once(place: Path) -> None:
    keyboard, terminal = os.openpty()
    words = ["translate", "--model", place / "run/best", *SHORT]
    with program(*words, stdin=terminal) as running:
        assert running.stdout is not None
        answers = []
        for _ in range(2):
            os.write(keyboard, f"{DATE}\n".encode())
            answers.append(running.stdout.readline())
        os.write(keyboard, b"\x04")
        rest, message = running.communicate(timeout=60)
    os.close(keyboard)
    os.close(terminal)
    assert running.returncode == 0, message
    assert answers[0] == answers[1] != b""
    assert rest == message == b""


def test_whoever_reads_may_stop(place: Path) -> None:
    path = place / "many.txt"
    path.write_text(f"{DATE}\n" * 30000, encoding="utf-8")
    words = ["translate", "--model", place / "run/best", "--input", path, "--max-new-tokens", "1"]
    with program(*words, "--method", "greedy") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 0


# Evaluating.


def test_evaluate(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "--model", str(place / "run/best"), *SHORT]
    table = place / "table.tsv"
    data = ["--data", str(place / "few.zh"), str(place / "few.en")]
    assert main([*words, *data, "--json", "--output", str(table)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"] == 20
    assert 0 <= found["bleu"] <= 100
    assert "tok:13a" in found["bleu_signature"]
    assert found["decoding"]["max_new_tokens"] == 6
    assert found["perplexity"] == pytest.approx(2.718281828 ** found["nll"])
    rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    few = (place / "few.tsv").read_text(encoding="utf-8")
    assert "".join(f"{row[0]}\t{row[1]}\n" for row in rows) == few
    assert all(row[2] for row in rows)

    assert main([*words, "--data", str(place / "few.tsv"), "--tokenize", "char"]) == 0
    printed = capsys.readouterr().out
    for word in ("BLEU", "chrF", "perplexity", "tok:char", f"{found['nll']:.4f}"):
        assert word in printed


# Looking.


def rows_of(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_inspect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect"]) == 0
    rows = rows_of(capsys.readouterr().out)
    states, shapes = "(2, 4, 512)", {row[0]: row[2] for row in rows}
    assert shapes["source ids"] == shapes["target ids"] == "(2, 4)"
    for stage in ("source embedding", "target embedding", "+ positions", "memory"):
        assert shapes[stage] == states
    for number in range(1, 7):
        assert shapes[f"encoder layer {number}"] == shapes[f"decoder layer {number}"] == states
    assert shapes["logits"] == shapes["log-probabilities"] == "(2, 4, 1000)"
    counts = [int(row[3].replace(",", "")) for row in rows if row[3]]
    model = Transformer(TransformerConfig(1000, 1000, d_ff=64))
    assert counts[-1] == sum(counts[:-1]) == sum(p.numel() for p in model.parameters())


def test_inspect_another_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model.d-model", "32", "--model.num-decoder-layers", "1", "--model.norm-first"]
    words += ["--model.share-embeddings", "--model.no-tie-output", "--vocabulary-size", "500"]
    assert main(["inspect", *words]) == 0
    rows = rows_of(capsys.readouterr().out)
    stages = {row[0]: row for row in rows}
    assert "decoder layer 2" not in stages
    assert stages["decoder norm"][2] == "(2, 4, 32)"
    assert stages["source embedding"][3] == "16,000"
    assert stages["target embedding"][3] == ""
    assert stages["logits"][2:] == ["(2, 4, 500)", "16,000"]
    counts = [int(row[3].replace(",", "")) for row in rows if row[3]]
    assert counts[-1] == sum(counts[:-1])


def test_inspect_a_saved_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--model", str(place / "run/best"), "--sentence", DATE]) == 0
    printed = capsys.readouterr()
    stages = {row[0]: row for row in rows_of(printed.out)}
    assert stages["memory"][2].endswith(", 32)")
    assert f"{DATE} → " in printed.err


@pytest.mark.parametrize("ending", ["png", "SVG"])
def test_attention(place: Path, capsys: pytest.CaptureFixture[str], ending: str) -> None:
    picture = place / f"a.{ending}"
    words = ["attention", "--model", str(place / "run/best"), "--output", str(picture)]
    assert main([*words, "--source", f"{DATE}, $1$ 😀", "--target", "Monday", "--head", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG") if ending == "png" else b"<svg" in content
    assert main([*words, "--source", DATE, "--layer", "1", *SHORT]) == 0
    assert picture.read_bytes() != content


# Errors.


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "train, evaluate, translate, inspect, attention"),
        ("fly", "fly"),
        ("train", "--output"),
        ("train --output x", "give either --corpus NAME or --train FILE [FILE]"),
        ("train --output x --corpus a --train b", "give either"),
        ("train --output x --corpus a", "tatoeba-zh-en, multi30k-de-en; got a"),
        ("train --output x --train a b c", "--train takes a TSV file or two files, got 3"),
        ("train --output x --train a --stream", "--stream goes with"),
        ("train --output x --train a --model.d-ff 0", "model.d_ff must be"),
        ("train --output x --train a --training.stepz 1", "--training.stepz"),
        (
            "train --output x --train a --model.share-embeddings --vocabulary.no-joint",
            "--model.share-embeddings needs --vocabulary.joint",
        ),
        ("translate", "--model"),
        ("translate --model RUN --beam-size 0", "beam_size must be"),
        ("translate --model RUN --n-best 0", "--n-best must be at least 1, got 0"),
        ("translate --model RUN --long cut", "--long"),
        ("evaluate --model RUN", "give either --corpus NAME or --data"),
        ("inspect --model RUN", "--model DIR and --sentence TEXT go together"),
        ("inspect --model.num-heads 7", "model.num_heads must be a divisor of d_model=512, got 7"),
        ("attention --model RUN --source a --output a.gif", ".png, .svg, .pdf; got a.gif"),
        ("attention --model RUN --source a --output a.png --layer 3", "--layer must be 1 to 2"),
        ("attention --model RUN --source a --output a.png --head 0", "--head must be 1 to 2"),
    ],
)
def test_wrong_usage(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(place / "run/best") if word == "RUN" else word for word in line.split()]
    assert message in usage(capsys, words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("translate --model nowhere", "nowhere"),
        ("translate --model RUN --input nowhere.txt", "nowhere.txt"),
        ("translate --model RUN --input HERE --output nowhere/a.txt", "nowhere"),
        ("train --output x --train nowhere.tsv", "nowhere.tsv"),
        ("train --output x --train EMPTY", "empty.tsv has no pairs to train on"),
        ("train --output x --train HERE", "train.zh:1"),
        ("evaluate --model RUN --data EMPTY", "empty.tsv has no pairs to evaluate on"),
        ("attention --model RUN --source LONG --output a.png", "tokens"),
    ],
)
def test_errors_are_one_line(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.tsv").touch()
    named = {
        "RUN": str(place / "run/best"),
        "HERE": str(place / "train.zh"),
        "EMPTY": "empty.tsv",
        "LONG": DATE * 20,
    }
    words = [named.get(word, word) for word in line.split()]
    assert main(words) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    said = printed.err.splitlines()[-1]
    assert said.startswith("transformer-tutorial: ")
    assert message in said
    assert "Traceback" not in printed.err
    with pytest.raises((ValueError, OSError)):
        main([*words, "--debug"])


def test_an_error_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(options: Translate) -> int:
        raise KeyError("x")

    monkeypatch.setattr(Translate, "run", run)
    assert main(["translate", "--model", "x"]) == 1
    assert capsys.readouterr().err == "transformer-tutorial: KeyError('x')\n"


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(options: Translate) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Translate, "run", run)
    assert main(["translate", "--model", "x"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_usage_errors_are_not_value_errors() -> None:
    assert not issubclass(UsageError, ValueError)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    commands = ("train", "evaluate", "translate", "inspect", "attention")
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    for command in commands:
        assert f"Example: transformer-tutorial {command}" in printed
        with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as told:
            main([command, "--help"])
        # Every option has a sentence.
        text = told.getvalue()
        assert "See " not in text
        assert "--debug" in text
    assert command_line.__doc__ is not None


def test_a_locale_without_chinese(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    assert main(["inspect", "--model", str(place / "run/best"), "--sentence", DATE]) == 0
    out.flush()
    assert "│ logits" in out.buffer.getvalue().decode()
    assert DATE in err.buffer.getvalue().decode()
