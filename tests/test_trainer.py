"""Training that survives: schedules, exact steps, checkpoints, resuming, stopping (chapter 15)."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from transformer_tutorial import Transformer, TransformerConfig, trainer
from transformer_tutorial.data import Batch, SubwordTokenizer
from transformer_tutorial.trainer import (
    Outcome,
    RunningAverage,
    Trainer,
    TrainingConfig,
    checkpoints,
    cosine_rate,
    learning_rate,
    seed_step,
)
from transformer_tutorial.training import date_pairs
from transformer_tutorial.translator import Translator

PAIRS = date_pairs(260, seed=0)
TRAIN, VALIDATION = PAIRS[:250], PAIRS[250:]
SHORT = TrainingConfig(
    steps=12, max_tokens=300, warmup=4, validate_every=6, checkpoint_every=4, log_every=3
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer() -> SubwordTokenizer:
    return SubwordTokenizer.train(
        [text for pair in TRAIN for text in pair], vocab_size=360, model_type="bpe"
    )


def new_translator(tokenizer: SubwordTokenizer, **options: Any) -> Translator:
    shape: dict[str, Any] = {
        "d_model": 16,
        "num_heads": 2,
        "d_ff": 32,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "max_length": 48,
        "dropout": 0.1,
        "share_embeddings": True,
    }
    size = len(tokenizer)
    lowercase = options.pop("lowercase", False)
    torch.manual_seed(0)
    config = TransformerConfig(size, size, pad_id=tokenizer.pad_id, **{**shape, **options})
    return Translator(Transformer(config), tokenizer, tokenizer, lowercase=lowercase)


def weights(run: Trainer) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in run.model.named_parameters()}


def averages(run: Trainer) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in run.average.module.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rows(directory: Path) -> list[dict[str, Any]]:
    text = (directory / "log.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def straight(tokenizer: SubwordTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run that nothing has disturbed."""
    run = Trainer(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path_factory.mktemp("a"))
    assert run.fit() == Outcome(12, run.at.best_step, run.at.best_bleu, None)
    return run


class PowerCutError(Exception):
    pass


class StopsAt(Trainer):
    """Dies before the step after `last`."""

    last = 0

    def step(self, batches: list[Batch]) -> None:
        if self.at.step == self.last:
            raise PowerCutError
        super().step(batches)


# Schedules


@pytest.mark.parametrize(
    ("step", "rate"),
    [(1, 0.015625), (2, 0.03125), (3, 0.046875), (4, 0.0625), (5, 0.0559017)],
)
def test_noam_by_its_peak_is_the_papers_formula(step: int, rate: float) -> None:  # BR-31
    config = TrainingConfig(schedule="noam", warmup=4, learning_rate=0.0625)
    assert learning_rate(step, config, d_model=64) == pytest.approx(rate, rel=1e-5)


def test_cosine_goes_up_in_a_line_and_down_to_almost_nothing() -> None:
    assert [cosine_rate(n, 1.0, 4, 100) for n in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert cosine_rate(54, 1.0, 4, 103) == pytest.approx(0.5)  # half of the way to 104
    falling = [cosine_rate(n, 1.0, 4, 100) for n in range(4, 101)]
    assert falling == sorted(falling, reverse=True)
    assert 0 < falling[-1] < 1e-3
    assert cosine_rate(1, 1.0, 4, 2) == 0.25  # a run shorter than its warm-up
    assert cosine_rate(7, 1.0, 7, 7) == 1.0


def test_the_optimiser_uses_the_rates_of_the_schedule(straight: Trainer) -> None:
    config = straight.config
    for row in rows(straight.directory):
        if row["kind"] == "training":
            assert row["rate"] == pytest.approx(learning_rate(row["step"], config, 16))
    assert straight.optimizer.param_groups[0]["lr"] == learning_rate(12, config, 16)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("steps", 2.5),
        ("max_tokens", 0),
        ("accumulate", 0),
        ("warmup", 0),
        ("patience", 0),
        ("smoothing", 1.0),
        ("average", 1.0),
        ("average", -0.1),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("clip_norm", 0.0),
        ("weight_decay", -1.0),
        ("schedule", "linear"),
        ("precision", "fp8"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_value_that_is_not_allowed_is_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be .*{value}"):
        TrainingConfig(**{field: value})


# Steps


def test_several_batches_are_one_step_weighted_by_words(
    tokenizer: SubwordTokenizer, tmp_path: Path
) -> None:
    translator = new_translator(tokenizer, dropout=0.0)
    whole = [TRAIN[0], ("年", "a"), *TRAIN[1:5]]
    results = []
    for count in (1, 2):
        translator.model.load_state_dict(new_translator(tokenizer, dropout=0.0).model.state_dict())
        run = Trainer(translator, whole, VALIDATION, replace(SHORT, max_tokens=2000), tmp_path)
        (batch,) = list(run.batches_of(whole, shuffle=False))
        parts = [batch]
        if count == 2:  # one word against many
            cut = (batch.tgt != tokenizer.pad_id).sum(1).argmin().item()
            rest = [row for row in range(6) if row != cut]
            parts = []
            for places in ([cut], rest):
                tgt = batch.tgt[places]
                words = int((tgt[:, 1:] != tokenizer.pad_id).sum())
                parts.append(Batch(batch.src[places], tgt, words))
        run.since_report()
        run.step(parts)
        gradients = {
            name: weight.grad.clone()
            for name, weight in run.model.named_parameters()
            if weight.grad is not None
        }
        results.append((gradients, run.check_loss()))
    (one, loss), (two, other_loss) = results
    assert loss == pytest.approx(other_loss, rel=1e-5)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-6)


def test_a_long_gradient_is_shortened(tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    config = replace(SHORT, clip_norm=1e-3)
    run = Trainer(new_translator(tokenizer), TRAIN, VALIDATION, config, tmp_path)
    run.since_report()
    run.step([next(run.next_batches())])
    norms = [weight.grad.norm() for weight in run.model.parameters() if weight.grad is not None]
    assert torch.stack(norms).norm().item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bits_learn_and_leave_the_weights_in_32(
    precision: str, tokenizer: SubwordTokenizer, tmp_path: Path
) -> None:
    config = replace(SHORT, precision=precision, steps=20, learning_rate=5e-3)
    run = Trainer(new_translator(tokenizer), TRAIN, VALIDATION, config, tmp_path)
    run.fit()
    losses = [row["loss"] for row in rows(tmp_path) if row["kind"] == "training"]
    assert losses[-1] < losses[0]
    assert {weight.dtype for weight in run.model.parameters()} == {torch.float32}


def test_the_running_average_is_short_at_first_and_then_long() -> None:
    average = torch.tensor([0.0])
    RunningAverage(0.9)([average], [torch.tensor([1.0])], 1)
    assert average.item() == pytest.approx(1 - 2 / 11)
    RunningAverage(0.9)([average], [torch.tensor([0.0])], 10_000)
    assert average.item() == pytest.approx(0.9 * (1 - 2 / 11))


def test_without_average_the_last_weights_are_kept(
    tokenizer: SubwordTokenizer, tmp_path: Path
) -> None:
    config = replace(SHORT, average=0.0, steps=3)
    run = Trainer(new_translator(tokenizer), TRAIN, VALIDATION, config, tmp_path)
    run.fit()
    assert same(weights(run), averages(run))


def test_random_numbers_depend_on_seed_step_and_process_alone() -> None:
    drawn = set()
    for numbers in [(0, 1, 0), (0, 2, 0), (1, 1, 0), (0, 1, 1), (0, 11, 0), (0, 1, 10)]:
        seed_step(*numbers)
        drawn.add(torch.rand(1).item())
    assert len(drawn) == 6
    seed_step(0, 1, 0)
    assert torch.rand(1).item() in drawn


# Stopping and going on


@pytest.mark.parametrize("last", [3, 4, 7, 11])
def test_a_run_that_died_ends_with_the_same_weights(
    last: int, straight: Trainer, tokenizer: SubwordTokenizer, tmp_path: Path
) -> None:  # BR-44
    dying = StopsAt(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path)
    dying.last = last
    with pytest.raises(PowerCutError):
        dying.fit()
    found = [path.name for path in checkpoints(tmp_path)]
    assert found == [f"step-{step:08d}" for step in (8, 4) if step <= last]
    run = Trainer(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path)
    assert run.fit().step == 12
    assert same(weights(run), weights(straight))
    assert same(averages(run), averages(straight))
    kept = "kind", "step", "loss", "rate", "nll", "bleu", "chrf"

    def of(directory: Path) -> list[list[Any]]:
        return [[row.get(name) for name in kept] for row in rows(directory)]

    logged, undisturbed = of(tmp_path), of(straight.directory)
    assert [row[:2] for row in logged] == [row[:2] for row in undisturbed]
    assert [row for row in logged if row[0] == "validation"] == [
        row for row in undisturbed if row[0] == "validation"
    ]


def test_the_next_rate_is_that_of_the_next_step(
    tokenizer: SubwordTokenizer, tmp_path: Path
) -> None:  # BR-44
    config = replace(SHORT, schedule="noam", learning_rate=0.0625, steps=5, checkpoint_every=3)
    dying = StopsAt(new_translator(tokenizer, d_model=64), TRAIN, VALIDATION, config, tmp_path)
    dying.last = 3
    with pytest.raises(PowerCutError):
        dying.fit()
    run = Trainer(new_translator(tokenizer, d_model=64), TRAIN, VALIDATION, config, tmp_path)
    run.resume()
    run.since_report()
    run.step([next(run.next_batches())])
    assert run.rate == pytest.approx(0.0625)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_saves_and_leaves(
    number: signal.Signals, straight: Trainer, tokenizer: SubwordTokenizer, tmp_path: Path
) -> None:
    class Signalled(Trainer):
        def step(self, batches: list[Batch]) -> None:
            if self.at.step == 4:
                signal.raise_signal(number)
            super().step(batches)

    before = signal.getsignal(number)
    outcome = Signalled(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path).fit()
    assert (outcome.step, outcome.signal) == (5, number)
    assert signal.getsignal(number) is before
    assert checkpoints(tmp_path)[0].name == "step-00000005"
    run = Trainer(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path)
    run.fit()
    assert same(weights(run), weights(straight))


def test_a_second_ctrl_c_does_not_wait(tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    class Impatient(Trainer):
        def step(self, batches: list[Batch]) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Impatient(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path).fit()


def test_a_finished_run_does_nothing_more(straight: Trainer, tokenizer: SubwordTokenizer) -> None:
    before = (straight.directory / "log.jsonl").read_bytes()
    run = Trainer(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, straight.directory)
    assert run.fit().step == 12
    assert (straight.directory / "log.jsonl").read_bytes() == before


def test_killed_without_warning_and_resumed(tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    """`benchmarks/resume.py` does it twenty times, on a run that takes longer."""
    rows_of = "".join(f"{source}\t{target}\n" for source, target in TRAIN)
    (tmp_path / "train.tsv").write_text(rows_of, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "transformer_tutorial.cli", "train", "--output", "run"),
        *("--train", "train.tsv", "--vocabulary.size", "360", "--model.d-model", "16"),
        *("--model.num-heads", "2", "--model.d-ff", "32", "--model.num-encoder-layers", "1"),
        *("--model.num-decoder-layers", "1", "--training.max-tokens", "300"),
        *("--training.steps", "60", "--training.checkpoint-every", "3"),
        *("--training.validate-every", "60", "--training.log-every", "5"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    results = []
    for name, kill in (("straight", False), ("killed", True)):
        command[command.index("--output") + 1] = name
        run = tmp_path / name
        if kill:
            process = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
            )
            while not checkpoints(run) and process.poll() is None:
                time.sleep(0.01)
            process.kill()
            assert process.wait() == -signal.SIGKILL
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8"
        )
        assert done.returncode == 0, done.stderr
        results.append(load_file(checkpoints(run)[0] / "training.safetensors"))
    assert same(*results)


# Checkpoints


def test_a_checkpoint_holds_no_pickle_and_translates(straight: Trainer) -> None:  # BR-22
    newest = checkpoints(straight.directory)[0]
    names = {path.name for path in newest.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "source.spm",
        "training.safetensors",
        "state.json",
    }
    program = (
        "import json, sys; from safetensors.torch import load_file;"
        "load_file(sys.argv[1] + '/training.safetensors');"
        "json.load(open(sys.argv[1] + '/state.json', encoding='utf-8'));"
        "assert not any('transformer_tutorial' in name for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(newest)], check=True)
    assert len(Translator.from_pretrained(newest).translate(["2026年11月30日星期一"])) == 1


def test_as_many_checkpoints_as_asked_for_are_kept(straight: Trainer) -> None:
    assert [path.name[-2:] for path in checkpoints(straight.directory)] == ["12", "08"]


def test_a_full_disk_leaves_the_last_good_checkpoint(
    tokenizer: SubwordTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: Trainer
) -> None:  # BR-23
    real, calls = trainer.save_file, 0

    def full(tensors: dict[str, Tensor], path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            path.write_bytes(b"x" * 100)
            raise OSError(28, "No space left on device")
        real(tensors, path)

    monkeypatch.setattr(trainer, "save_file", full)
    run = Trainer(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path)
    with pytest.raises(OSError, match="No space left"):
        run.fit()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]
    monkeypatch.setattr(trainer, "save_file", real)
    run = Trainer(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path)
    run.fit()
    assert same(weights(run), weights(straight))


@pytest.mark.parametrize(
    "name", ["training.safetensors", "model.safetensors", "state.json", "config.json"]
)
def test_a_spoilt_checkpoint_is_named_and_passed_over(
    name: str,
    tokenizer: SubwordTokenizer,
    tmp_path: Path,
    straight: Trainer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dying = StopsAt(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path)
    dying.last = 10
    with pytest.raises(PowerCutError):
        dying.fit()
    newest, older = checkpoints(tmp_path)
    content = (newest / name).read_bytes()
    (newest / name).write_bytes(content[: len(content) // 2])
    run = Trainer(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path)
    run.fit()
    assert f"{newest.name} cannot be used" in capsys.readouterr().err
    assert same(weights(run), weights(straight))

    content = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for path in (*checkpoints(tmp_path), older):
        if path.exists():
            (path / name).write_bytes(b"{")
            content[path / name] = b"{"
    with pytest.raises(ValueError, match="no checkpoint to go on from"):
        Trainer(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path).fit()
    for path, text in content.items():
        assert path.read_bytes() == text


def test_a_checkpoint_of_another_model_is_refused(
    tokenizer: SubwordTokenizer, straight: Trainer
) -> None:
    other = new_translator(tokenizer, d_ff=64)
    with pytest.raises(ValueError, match="another configuration"):
        Trainer(other, TRAIN, VALIDATION, SHORT, straight.directory).fit()


def test_a_loss_that_is_no_number_stops_before_it_is_saved(
    tokenizer: SubwordTokenizer, tmp_path: Path
) -> None:
    class Exploding(Trainer):
        def step(self, batches: list[Batch]) -> None:
            super().step(batches)
            if self.at.step == 5:
                self.loss_sum += math.nan

    with pytest.raises(FloatingPointError, match=r"nan at step 6; .*step-00000004"):
        Exploding(new_translator(tokenizer), TRAIN, VALIDATION, SHORT, tmp_path).fit()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000004"]


# Validation


def test_best_is_the_translator_with_the_best_bleu(straight: Trainer) -> None:
    found = [row for row in rows(straight.directory) if row["kind"] == "validation"]
    assert [row["step"] for row in found] == [6, 12]
    assert straight.at.best_bleu == max(row["bleu"] for row in found)
    assert all(row["perplexity"] == pytest.approx(math.exp(row["nll"])) for row in found)
    assert Translator.from_pretrained(straight.directory / "best").model.config.d_model == 16


def test_patience_ends_a_run_that_gets_no_better(
    tokenizer: SubwordTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bleus = iter([5.0, 9.0, 8.0, 9.0, 20.0])
    real = trainer.corpus_scores
    monkeypatch.setattr(
        trainer,
        "corpus_scores",
        lambda *parts, **options: replace(real(*parts, **options), bleu=next(bleus)),
    )
    config = replace(SHORT, validate_every=1, patience=2, checkpoint_every=100)
    run = Trainer(new_translator(tokenizer), TRAIN, VALIDATION, config, tmp_path)
    assert run.fit() == Outcome(4, 2, 9.0, None)
    assert checkpoints(tmp_path)[0].name == "step-00000004"
    assert Trainer(new_translator(tokenizer), TRAIN, VALIDATION, config, tmp_path).fit().step == 4


def test_nothing_to_learn_or_to_validate_on(tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="validation must hold at least one pair"):
        Trainer(new_translator(tokenizer), TRAIN, [], SHORT, tmp_path)
    with pytest.raises(ValueError, match="train must hold at least one pair"):
        Trainer(new_translator(tokenizer), [], VALIDATION, SHORT, tmp_path).fit()


def test_a_lowercase_translator_learns_from_small_letters(
    tokenizer: SubwordTokenizer, tmp_path: Path
) -> None:
    run = Trainer(new_translator(tokenizer, lowercase=True), TRAIN, VALIDATION, SHORT, tmp_path)
    text = "".join(tokenizer.decode(row.tolist()) for batch in run.data for row in batch.tgt)
    assert text == text.lower()
    assert "november" in text


def test_tensorboard_files_on_request(tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    config = replace(SHORT, steps=3, validate_every=3)
    Trainer(new_translator(tokenizer), TRAIN, VALIDATION, config, tmp_path, tensorboard=True).fit()
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_the_configuration_is_written_into_the_checkpoint(straight: Trainer) -> None:
    state = (checkpoints(straight.directory)[0] / "state.json").read_text(encoding="utf-8")
    assert TrainingConfig(**json.loads(state)["config"]) == SHORT
    assert asdict(SHORT) == json.loads(state)["config"]


def test_a_run_on_generated_text_learns_it(tmp_path: Path) -> None:
    pairs = date_pairs(3_100, seed=1)
    tokenizer = SubwordTokenizer.train(
        [text for pair in pairs for text in pair], vocab_size=400, model_type="bpe"
    )
    translator = new_translator(tokenizer, d_model=64, num_heads=4, d_ff=256, attention_dropout=0.2)
    config = TrainingConfig(
        steps=500,
        max_tokens=1200,
        learning_rate=4e-3,
        warmup=80,
        average=0.98,
        validate_every=250,
        checkpoint_every=250,
    )
    outcome = Trainer(translator, pairs[:3_000], pairs[3_000:], config, tmp_path).fit()
    assert outcome.best_bleu > 95
    best = Translator.from_pretrained(tmp_path / "best")
    written = best.translate([source for source, _ in pairs[3_000:]])
    right = sum(one == two for one, (_, two) in zip(written, pairs[3_000:], strict=True))
    assert right >= 90
