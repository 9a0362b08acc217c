"""Data, loss, schedule, loop and decoding. BR numbers are those of the collected faults."""

import builtins
import copy
import math
import pickle
from datetime import date
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from models import PAD, small_config, small_model
from torch import Tensor
from torch.optim import Adam

from transformer_tutorial import Transformer
from transformer_tutorial.training import (
    Vocabulary,
    alignment_share,
    date_alignment,
    date_pairs,
    greedy_decode,
    label_smoothed_cross_entropy,
    noam_rate,
    shift_targets,
    tokenize,
    train,
    translate,
    warmup_schedule,
)

INF = float("inf")
LOGITS = torch.tensor([[0, 2, -1, 0.5, 1.5], [1, 0, 0, 0, 2], [5, -3, 0, 1, 0]])[None]
LABELS = torch.tensor([[2, 1, 0]])
DAY = ("2026年11月30日星期一", "Monday, November 30, 2026")


# Data


def test_dates_are_those_of_the_locale() -> None:
    day = date(2026, 11, 30)
    assert date_pairs(1, 0, first=day, last=day) == [DAY]
    assert date_pairs(1, 0, "de", "fr", day, day) == [
        ("Montag, 30. November 2026", "lundi 30 novembre 2026")
    ]


def test_dates_are_distinct_and_fixed_by_the_seed() -> None:
    assert len(set(date_pairs(2000, seed=3))) == 2000
    assert date_pairs(20, seed=3) == date_pairs(20, seed=3) != date_pairs(20, seed=4)


@pytest.mark.parametrize("count", [-1, 3])
def test_more_dates_than_days_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"count must be 0 to 2, .* got {count}"):
        date_pairs(count, 0, first=date(2026, 1, 1), last=date(2026, 1, 2))


def test_without_babel_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_babel(name: str, *rest: Any) -> Any:
        if name.startswith("babel"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_babel)
    with pytest.raises(ImportError, match=r"transformer-tutorial\[train\]"):
        date_pairs(1, 0)


@pytest.mark.parametrize(
    "text", ["", "straße, 你好\n 12  34", DAY[0], DAY[1], "<pad> <eos>", "e\u0301 👩‍👧"]
)
def test_tokens_join_back_to_the_text(text: str) -> None:
    assert "".join(tokenize(text)) == text
    vocabulary = Vocabulary.from_texts([text])
    assert vocabulary.decode(vocabulary.encode(text)) == text
    assert pickle.loads(pickle.dumps(vocabulary)).tokens == vocabulary.tokens


def test_a_vocabulary_is_a_list_of_distinct_tokens() -> None:
    vocabulary = Vocabulary(["a", "b"])
    assert len(vocabulary) == 6
    assert vocabulary.encode("abc") == [1, 3, 2]
    assert vocabulary.decode([1, 4, 0, 5, 2, 4]) == "ab"
    with pytest.raises(ValueError, match="'a' occurs twice"):
        Vocabulary(["a", "b", "a"])


def test_labels_are_shifted_by_one_and_end_with_the_end_mark() -> None:
    """BR-73."""
    inputs, labels = shift_targets(torch.tensor([[1, 5, 6, 2, 0], [1, 7, 2, 0, 0]]))
    assert inputs.tolist() == [[1, 5, 6, 2], [1, 7, 2, 0]]
    assert labels.tolist() == [[5, 6, 2, 0], [7, 2, 0, 0]]


def test_what_the_input_holds_after_the_end_mark_is_of_no_account() -> None:
    """BR-73."""
    model = small_model()
    src = torch.tensor([[3, 4]])
    losses = []
    for rest in (0, 9):
        _, labels = shift_targets(torch.tensor([[1, 7, 2, 0, 0]]))
        inputs = torch.tensor([[1, 7, rest, rest]])
        losses.append(label_smoothed_cross_entropy(model(src, inputs), labels, PAD))
    torch.testing.assert_close(losses[0], losses[1])


# Loss


def test_smoothed_loss_is_that_of_the_documented_distribution() -> None:
    """BR-45, BR-46: mass over all words, real labels only, however many rows are padded."""
    wanted = torch.tensor(2.696842)
    for rows in ([0, 1], [0, 1, 2], [0, 1, 2, 2, 2]):
        loss = label_smoothed_cross_entropy(LOGITS[:, rows], LABELS[:, rows], PAD, 0.4)
        torch.testing.assert_close(loss, wanted)
    q = torch.full((5,), 0.08)
    q[2] = 0.68
    by_hand = -(q * LOGITS[0, 0].log_softmax(-1)).sum()
    torch.testing.assert_close(
        label_smoothed_cross_entropy(LOGITS[:, :1], LABELS[:, :1], PAD, 0.4), by_hand
    )


def test_without_smoothing_it_is_cross_entropy() -> None:
    loss = label_smoothed_cross_entropy(LOGITS, LABELS, PAD, 0.0)
    torch.testing.assert_close(loss, F.cross_entropy(LOGITS[0], LABELS[0], ignore_index=PAD))


def test_a_batch_of_padding_costs_nothing_and_moves_nothing() -> None:
    """BR-16."""
    model = small_model()
    before = copy.deepcopy(model.state_dict())
    loss = label_smoothed_cross_entropy(
        model(torch.tensor([[3]]), torch.tensor([[1, 0]])),
        torch.zeros(1, 2, dtype=torch.int64),
        PAD,
    )
    loss.backward()
    torch.optim.SGD(model.parameters(), 1.0).step()
    assert loss.item() == 0
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())


def test_a_word_of_probability_zero() -> None:
    """BR-05: infinite by the documented distribution, finite without smoothing, never NaN."""
    logits = torch.tensor([[[-INF, 2, -1, 0.5, 1.5]]])
    assert label_smoothed_cross_entropy(logits, torch.tensor([[2]]), PAD, 0.4).item() == INF
    assert label_smoothed_cross_entropy(logits, torch.tensor([[2]]), PAD, 0.0).isfinite()


def test_a_perfect_prediction_costs_nearly_nothing() -> None:
    """BR-59: the loss takes logits."""
    logits = torch.tensor([[[0.0, 10.0, 0.0, 0.0]]])
    loss = label_smoothed_cross_entropy(logits, torch.tensor([[1]]), PAD, 0.0)
    torch.testing.assert_close(loss, torch.tensor(0.000136), rtol=0, atol=1e-6)


def test_noncontiguous_labels() -> None:
    """BR-57."""
    tgt = torch.tensor([[1, 5, 6, 2, 0], [1, 7, 2, 0, 0]])
    inputs, labels = shift_targets(tgt)
    assert not labels.is_contiguous()
    label_smoothed_cross_entropy(small_model()(inputs, inputs), labels, PAD).backward()


# Schedule


def test_the_rate_that_each_step_uses() -> None:
    """BR-31."""
    optimizer = Adam([torch.nn.Parameter(torch.zeros(1))])
    schedule = warmup_schedule(optimizer, 64, 4)
    used = []
    for _ in range(5):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert used == pytest.approx([0.015625, 0.03125, 0.046875, 0.0625, 0.0559017])


def test_rates_of_the_paper() -> None:
    for step, rate in ((1, 1.746928e-7), (4000, 6.987712e-4), (8000, 4.941059e-4)):
        assert noam_rate(step, 512, 4000) == pytest.approx(rate, rel=1e-6)
    assert noam_rate(0, 512, 4000) == 0
    for warmup in (0, -1):
        with pytest.raises(ValueError, match=f"at least 1 step, got {warmup}"):
            noam_rate(1, 512, warmup)


def test_a_resumed_schedule_goes_on() -> None:
    """BR-44."""

    def fresh() -> tuple[Adam, Any]:
        optimizer = Adam([torch.nn.Parameter(torch.zeros(1))])
        return optimizer, warmup_schedule(optimizer, 64, 4)

    optimizer, schedule = fresh()
    for _ in range(3):
        optimizer.step()
        schedule.step()
    saved = optimizer.state_dict(), schedule.state_dict()
    optimizer, schedule = fresh()
    optimizer.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0625)


# Loop


def vocabularies(pairs: list[tuple[str, str]]) -> tuple[Vocabulary, Vocabulary]:
    return Vocabulary.from_texts(a for a, _ in pairs), Vocabulary.from_texts(b for _, b in pairs)


def date_model(sides: tuple[Vocabulary, Vocabulary], **changes: Any) -> Transformer:
    fields = {"src_vocab_size": len(sides[0]), "tgt_vocab_size": len(sides[1]), "max_length": 30}
    return Transformer(small_config(**fields | changes))


def test_training_lowers_the_loss_and_is_fixed_by_its_seeds() -> None:
    pairs = date_pairs(50, 0)
    sides = vocabularies(pairs)
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        model = date_model(sides).eval()
        runs.append(train(model, pairs, *sides, steps=30, batch_size=8, warmup=10, seed=seed))
        assert not model.training
    assert runs[0] == runs[1] != runs[2]
    assert sum(runs[0][-5:]) / 5 < 0.8 * runs[0][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pairs": []}, "pairs must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"warmup": 0}, "warmup must be at least 1 step, got 0"),
        ({"src_vocab": Vocabulary(["x"])}, r"vocabularies have \(5, \d+\) tokens, the model \("),
        ({"pairs": [("1" * 40, "2")]}, "42 tokens, max_length allows 30"),
    ],
)
def test_training_refuses(change: dict[str, Any], message: str) -> None:
    pairs = date_pairs(5, 0)
    sides = vocabularies(pairs)
    arguments = {"pairs": pairs, "src_vocab": sides[0], "tgt_vocab": sides[1], "steps": 1} | change
    with pytest.raises(ValueError, match=message):
        train(date_model(sides), **arguments)


def test_training_refuses_another_id_of_padding() -> None:
    pairs = date_pairs(5, 0)
    sides = vocabularies(pairs)
    with pytest.raises(ValueError, match="pad_id must be 0, the model has 3"):
        train(date_model(sides, pad_id=3), pairs, *sides, steps=1)


# Decoding


class Table(Transformer):
    """Writes what a table says: for each row of the batch the words to choose, step by step."""

    def __init__(self, rows: list[list[int]], max_length: int = 20) -> None:
        super().__init__(small_config(tgt_vocab_size=6, src_vocab_size=6, max_length=max_length))
        self.rows = rows
        self.steps = 0

    def decode(self, tgt: Tensor, memory: Tensor, *_: Any) -> Tensor:
        self.steps += 1
        return torch.zeros(len(tgt), tgt.size(1), 16)

    def __getattr__(self, name: str) -> Any:
        if name == "output":
            return self.score
        return super().__getattr__(name)

    def score(self, states: Tensor) -> Tensor:
        logits = torch.zeros(len(self.rows), 6)
        for row, words in enumerate(self.rows):
            word = words[min(self.steps, len(words)) - 1]
            logits[row, word] = 5.0
            logits[row, 0], logits[row, 1] = 9.0, 8.0  # padding and begin are likelier still
        return logits


A, B, EOS = 3, 4, 2


def test_a_row_that_ended_writes_padding_and_the_loop_ends_with_the_last_row() -> None:
    """BR-54, BR-41."""
    model = Table([[A, EOS, B], [B, B, B, EOS]])
    ids = greedy_decode(model, torch.ones(2, 3, dtype=torch.int64), 1, EOS, 10)
    assert ids.tolist() == [[A, EOS, PAD, PAD], [B, B, B, EOS]]
    assert model.steps == 4


def test_a_row_that_does_not_end_is_cut_without_an_end_mark() -> None:
    model = Table([[A]])
    assert greedy_decode(model, torch.ones(1, 1, dtype=torch.int64), 1, EOS, 3).tolist() == [
        [A, A, A]
    ]


@pytest.mark.parametrize("count", [0, 9])
def test_decoding_past_the_table_is_refused_before_the_first_step(count: int) -> None:
    """BR-15."""
    model = Table([[A]], max_length=8)
    with pytest.raises(ValueError, match=f"1 to max_length=8, got {count}"):
        greedy_decode(model, torch.ones(1, 1, dtype=torch.int64), 1, EOS, count)
    assert model.steps == 0
    assert greedy_decode(model, torch.ones(1, 1, dtype=torch.int64), 1, EOS, 8).shape == (1, 8)


@pytest.mark.parametrize("training", [False, True])
def test_decoding_is_without_dropout_and_restores_the_mode(training: bool) -> None:
    """BR-32."""
    model = small_model(dropout=0.5).train(training)
    src = torch.tensor([[3, 4, 5]])
    decoded = [greedy_decode(model, src, 1, 2, 6) for _ in range(8)]
    assert all(torch.equal(decoded[0], other) for other in decoded)
    assert model.training == training
    with pytest.raises(ValueError, match="token id 99"):
        greedy_decode(model, torch.tensor([[99]]), 1, 2, 6)
    assert model.training == training


def test_rows_are_decoded_as_if_alone() -> None:
    model = small_model()
    src = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]])
    together = greedy_decode(model, src, 1, 2, 7)
    for row, length in enumerate((4, 2, 1)):
        alone = greedy_decode(model, src[row : row + 1, :length], 1, 2, 7)[0]
        assert torch.equal(together[row, : len(alone)], alone)


def test_translations_come_in_the_order_of_the_sources() -> None:
    pairs = date_pairs(5, 0)
    sides = vocabularies(pairs)
    model = date_model(sides)
    texts = [pairs[0][0], "", "2", pairs[1][0] + "1"]
    together = translate(model, texts, *sides, max_new_tokens=5)
    assert together == [translate(model, [text], *sides, max_new_tokens=5)[0] for text in texts]
    assert translate(model, [], *sides) == []


# Alignment


def test_alignment_of_a_date() -> None:
    places = date_alignment(*DAY)
    source = tokenize(DAY[0])
    said = [None if p is None else "".join(source[i] for i in sorted(p)) for p in places]
    assert said == ["一", None, "11", "3", "0", None, "2", "0", "2", "6"]


def test_alignment_share_is_a_share() -> None:
    pairs = date_pairs(20, 0)
    sides = vocabularies(pairs)
    model = date_model(sides).train()
    assert 0 <= alignment_share(model, pairs, *sides) < 0.6
    assert model.training


def test_perplexity_of_a_known_model() -> None:
    """BR-29: measured without smoothing."""
    p = torch.full((10,), 0.1 / 9)
    p[3] = 0.9
    loss = label_smoothed_cross_entropy(p.log()[None, None], torch.tensor([[3]]), PAD, 0.0)
    assert loss.item() == pytest.approx(0.105361, abs=1e-6)
    assert math.exp(loss) == pytest.approx(1.1111, abs=1e-4)
