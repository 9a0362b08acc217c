"""Greedy, beam search, sampling and the cache. BR numbers are those of the collected faults."""

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import batch, small_config, small_model
from torch import Tensor

from transformer_tutorial import Transformer, pad_sequences, padding_mask
from transformer_tutorial.decoding import (
    CachedDecoder,
    DecodingConfig,
    Hypothesis,
    Scorer,
    UncachedDecoder,
    beam_search,
    evaluating,
    generate,
    greedy,
    largest,
    length_normalizer,
    next_log_probs,
    sample,
    sampling_probabilities,
)
from transformer_tutorial.training import label_smoothed_cross_entropy, shift_targets

PAD, BOS, EOS, A, B = range(5)
MARKS: dict[str, Any] = {"eos_id": EOS, "forbidden": (PAD, BOS)}
Probabilities = Callable[[int, tuple[int, ...]], Sequence[float]]


class Table:
    """A scorer that looks up the probabilities of EOS, A and B for a row and what it has written."""

    def __init__(self, probabilities: Probabilities, rows: int = 1, prefix: int = 1) -> None:
        self.probabilities = probabilities
        self.batch_size, self.max_length = rows, None
        self.read: list[tuple[int, list[int]]] = [(row, []) for row in range(rows)]
        self.prefix = prefix
        self.steps = 0

    def step(self, ids: Tensor) -> Tensor:
        self.steps += 1
        assert len(ids) == len(self.read)
        self.read = [
            (row, [*old, *new]) for (row, old), new in zip(self.read, ids.tolist(), strict=True)
        ]
        rows = [self.probabilities(row, tuple(ids[self.prefix :])) for row, ids in self.read]
        return torch.tensor([[0.0, 0.0, *row] for row in rows], dtype=torch.float64).log()

    def reorder(self, rows: Tensor) -> None:
        self.read = [self.read[row] for row in rows.tolist()]


def always(*probabilities: float) -> Probabilities:
    return lambda row, ids: probabilities


def by_ids(table: dict[tuple[int, ...], Sequence[float]]) -> Probabilities:
    return lambda row, ids: table.get(ids, (1.0, 0.0, 0.0))


def random_table(seed: int) -> Probabilities:
    def probabilities(row: int, ids: tuple[int, ...]) -> list[float]:
        generator = torch.Generator().manual_seed(hash((seed, row, *ids)))
        drawn = torch.rand(3, generator=generator, dtype=torch.float64) ** 3
        return (drawn / drawn.sum()).tolist()

    return probabilities


def begin(rows: int = 1, length: int = 1) -> Tensor:
    return torch.full((rows, length), BOS)


def search(probabilities: Probabilities, rows: int = 1, **options: Any) -> list[list[Hypothesis]]:
    return beam_search(Table(probabilities, rows), begin(rows), **MARKS, **options)


def log_prob(probabilities: Probabilities, ids: Sequence[int], row: int = 0) -> float:
    return sum(
        math.log(probabilities(row, tuple(ids[:place]))[word - EOS])
        for place, word in enumerate(ids)
    )


def copy_pairs(count: int) -> tuple[Tensor, Tensor]:
    """Sentences of one to six words, and the same as targets."""
    rows = [
        words[:length].tolist()
        for words, length in zip(
            torch.randint(3, 11, (count, 6)), torch.randint(1, 7, (count,)), strict=True
        )
    ]
    src = pad_sequences([[*row, EOS] for row in rows], PAD)
    return src, pad_sequences([[BOS, *row, EOS] for row in rows], PAD)


@functools.cache
def trained(steps: int, **changes: Any) -> Transformer:
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    model = Transformer(small_config(num_encoder_layers=1, **{"num_decoder_layers": 1} | changes))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        src, tgt = copy_pairs(32)
        inputs, labels = shift_targets(tgt)
        loss = label_smoothed_cross_entropy(model(src, inputs), labels, PAD, smoothing=0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_default_dtype(dtype)
    return model.eval()


def half_trained(**changes: Any) -> Transformer:
    """A model that has begun to learn to copy: its translations differ, end, and are in doubt."""
    changes = changes or {"learned_positions": True}
    return copy.deepcopy(trained(60, **changes)).to(torch.get_default_dtype())


def decode(scorer: Scorer, method: str, max_new_tokens: int = 12) -> list[list[Hypothesis]]:
    """Every method in one form, with the random numbers fixed."""
    options: dict[str, Any] = MARKS | {"max_new_tokens": max_new_tokens}
    prefix = begin(scorer.batch_size)
    if method == "beam":
        return beam_search(scorer, prefix, beam_size=3, n_best=3, **options)
    if method == "greedy":
        return [[one] for one in greedy(scorer, prefix, **options)]
    generator = torch.Generator().manual_seed(5)
    return [[one] for one in sample(scorer, prefix, generator=generator, **options)]


def assert_same(
    left: list[list[Hypothesis]], right: list[list[Hypothesis]], close: float = 0.0
) -> None:
    assert [[one.ids for one in row] for row in left] == [[one.ids for one in row] for row in right]
    for one, other in zip(itertools.chain(*left), itertools.chain(*right), strict=True):
        assert abs(one.log_prob - other.log_prob) <= close
        assert abs(one.score - other.score) <= close
        assert one.finished == other.finished


every_method = pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
forms_of_model = pytest.mark.parametrize(
    "changes",
    [
        {"num_decoder_layers": 2},
        {"norm_first": True, "norm": "rms"},
        {"learned_positions": True},
    ],
    ids=["post-norm", "pre-norm", "learned positions"],
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The models are so small that a second thread would only be waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Greedy


def test_a_row_that_ended_is_left_alone_and_the_loop_ends_with_the_last_row() -> None:
    """BR-54."""

    def probabilities(row: int, ids: tuple[int, ...]) -> list[float]:
        wanted = ([A, EOS] if row == 0 else [B, B, B, EOS])[len(ids)]
        return [0.8 if word == wanted else 0.1 for word in (EOS, A, B)]

    table = Table(probabilities, rows=2)
    short, long = greedy(table, begin(2), **MARKS, max_new_tokens=10)
    assert (short.ids, long.ids) == ((A, EOS), (B, B, B, EOS))
    assert table.steps == 4
    assert short.log_prob == pytest.approx(2 * math.log(0.8))
    assert long.log_prob == pytest.approx(4 * math.log(0.8))
    assert short.finished
    assert long.finished
    assert short.score == short.log_prob


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_padding_is_forbidden_before_the_softmax(dtype: torch.dtype) -> None:
    """BR-41: not -7.314263."""
    logits = torch.tensor([[9.0, 8.0, 0.0, 2.0, 1.0]], dtype=dtype)
    log_probs = next_log_probs(logits, torch.tensor([PAD, BOS]))
    assert log_probs[0, A].item() == pytest.approx(-0.407606, abs=1e-6)
    assert log_probs.dtype == torch.float32
    assert logits[0, 0] == 9  # BR-58


class Constant:
    """A scorer that always returns the same tensor."""

    def __init__(self, logits: list[float], rows: int = 1, max_length: int | None = None) -> None:
        self.batch_size, self.max_length = rows, max_length
        self.logits = torch.tensor([logits] * rows)

    def step(self, ids: Tensor) -> Tensor:
        return self.logits

    def reorder(self, rows: Tensor) -> None:
        self.logits = self.logits[rows]


@every_method
def test_padding_and_begin_are_never_written(method: str) -> None:
    """BR-41."""
    for row in decode(Constant([9.0, 8.0, 0.0, 2.0, 1.0], rows=2), method):
        for hypothesis in row:
            assert not {PAD, BOS} & set(hypothesis.ids)


@every_method
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([0.0, 0.0, math.nan, 1.0, 1.0], "NaN or \\+inf"),
        ([0.0, 0.0, math.inf, 1.0, 1.0], "NaN or \\+inf"),
        ([5.0, 5.0, -math.inf, -math.inf, -math.inf], "no word that may come"),
    ],
)
def test_logits_without_a_distribution_are_refused(
    method: str, logits: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decode(Constant(logits), method)


@every_method
def test_a_bad_logit_of_a_forbidden_word_does_no_harm(method: str) -> None:
    assert decode(Constant([math.nan, math.inf, 0.0, 1.0, 1.0]), method)


def test_of_equally_likely_words_the_lowest_id_is_chosen() -> None:
    logits = [9.0, 9.0, *[0.0] * 300]
    assert greedy(Constant(logits), begin(), **MARKS, max_new_tokens=1)[0].ids == (EOS,)
    found = beam_search(Constant(logits), begin(), **MARKS, max_new_tokens=1, beam_size=5, n_best=5)
    assert [one.ids for one in found[0]] == [(EOS,), (3,), (4,), (5,), (6,)]


# Beam search


def test_nothing_finished_gives_what_was_written() -> None:
    """BR-18."""
    (found,) = search(always(0.0, 0.7, 0.3), max_new_tokens=3, beam_size=2, n_best=2)
    assert [one.ids for one in found] == [(A, A, A), (A, A, B)]
    assert found[0].log_prob == pytest.approx(3 * math.log(0.7))
    assert not found[0].finished
    (alone,) = greedy(Table(always(0.0, 0.7, 0.3)), begin(), **MARKS, max_new_tokens=3)
    assert (alone.ids, alone.finished) == ((A, A, A), False)


def test_a_better_beam_that_was_cut_comes_before_a_finished_one() -> None:
    """BR-18."""
    (found,) = search(always(0.2, 0.8, 0.0), max_new_tokens=3, beam_size=2, n_best=2)
    assert [(one.ids, one.finished) for one in found] == [
        ((A, A, A), False),
        ((A, A, EOS), True),
    ]


@pytest.mark.parametrize("length", [2, 6])
@pytest.mark.parametrize("prefix", [1, 4])
def test_length_counts_new_words_and_the_end_mark_but_not_the_prefix(
    length: int, prefix: int
) -> None:
    """BR-09."""
    likely = math.exp(-0.5)
    rest = 1 - likely

    def probabilities(row: int, ids: tuple[int, ...]) -> list[float]:
        return [likely, rest, 0.0] if len(ids) == length - 1 else [rest, likely, 0.0]

    table = Table(probabilities, rows=3, prefix=prefix)
    found = beam_search(table, begin(3, prefix), **MARKS, max_new_tokens=8)
    for (best,) in found:
        assert len(best.ids) == length
        assert best.score == pytest.approx(-0.5, abs=1e-9)
        assert best.log_prob == pytest.approx(-0.5 * length, abs=1e-9)


def test_equal_sentences_have_equal_scores() -> None:
    """BR-09: the length grew once for each row of the batch."""
    model = half_trained()
    src = torch.tensor([[3, 4, 5, 2]] * 3)
    rows = generate(model, src, bos_id=BOS, eos_id=EOS, config=DecodingConfig(n_best=4))
    assert_same([rows[0]] * 3, rows, 1e-6)


def test_a_beam_wider_than_the_vocabulary() -> None:
    """BR-17."""
    probabilities = random_table(3)
    (found,) = search(probabilities, max_new_tokens=2, beam_size=8, n_best=8)
    legal = {(EOS,), *itertools.product((A, B), (EOS, A, B))}
    assert {one.ids for one in found} == legal
    assert len(found) == len(legal)
    assert all(math.isfinite(one.score) for one in found)


@pytest.mark.parametrize(
    ("alpha", "form", "ids", "score"),
    [
        (0.0, "average", (EOS,), -0.7985),
        (0.0, "gnmt", (EOS,), -0.7985),
        (1.0, "average", (A, EOS), -0.4155),
        (0.6, "gnmt", (A, EOS), -0.7576),
    ],
)
def test_the_search_does_not_end_because_the_first_beam_ended(
    alpha: float, form: str, ids: tuple[int, ...], score: float
) -> None:
    """BR-33."""
    probabilities = by_ids({(): (0.45, 0.44, 0.11), (A,): (0.99, 0.005, 0.005)})
    ((best,),) = search(
        probabilities, max_new_tokens=3, beam_size=2, length_penalty=alpha, penalty_form=form
    )
    assert best.ids == ids
    assert best.score == pytest.approx(score, abs=5e-5)


def test_beams_are_not_copies_of_one_hypothesis() -> None:
    """BR-66."""
    probabilities = by_ids({(): (0.0, 0.55, 0.45), (A,): (0.4, 0.3, 0.3), (B,): (0.9, 0.05, 0.05)})
    options: dict[str, Any] = {"max_new_tokens": 3, "length_penalty": 0.0}
    ((one,),) = search(probabilities, beam_size=1, **options)
    assert (one.ids, round(one.log_prob, 4)) == ((A, EOS), -1.5141)
    ((two,),) = search(probabilities, beam_size=2, **options)
    assert (two.ids, round(two.log_prob, 4)) == ((B, EOS), -0.9039)
    (three,) = search(probabilities, beam_size=3, n_best=3, **options)
    assert len({each.ids for each in three}) == 3


def echo(row: int, ids: tuple[int, ...]) -> list[float]:
    """Row n writes A n + 1 times, and then the end mark."""
    return [0.1, 0.8, 0.1] if len(ids) <= row else [0.8, 0.1, 0.1]


def test_each_row_keeps_its_own_source() -> None:
    """BR-65."""
    rows = search(echo, rows=3, max_new_tokens=6, beam_size=2)
    assert [best.ids for (best,) in rows] == [(A,) * (n + 1) + (EOS,) for n in range(3)]


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_a_model_that_copies_copies_each_sentence(method: str) -> None:
    """BR-65."""
    model = trained(300, learned_positions=True)
    src, _ = copy_pairs(3)
    found = generate(model, src, bos_id=BOS, eos_id=EOS, config=DecodingConfig(method))
    assert [best.ids for (best,) in found] == [tuple(row[row != PAD].tolist()) for row in src]


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_rows_are_decoded_as_if_alone(method: str, float64: None) -> None:
    """BR-65, with sources of unequal lengths."""
    model = half_trained()
    src = torch.tensor([[3, 4, 5, 6, 7, 2], [8, 9, 2, PAD, PAD, PAD], [6, 6, 6, 2, PAD, PAD]])
    with evaluating(model):
        together = decode(CachedDecoder(model, src), method)
        alone = [
            decode(CachedDecoder(model, src[n : n + 1, :length]), method)[0]
            for n, length in enumerate((6, 3, 4))
        ]
    assert_same(together, alone, 1e-10)
    assert len({row[0].ids for row in together}) == 3


def legal_sequences(longest: int) -> list[tuple[int, ...]]:
    words = [w for n in range(longest + 1) for w in itertools.product((A, B), repeat=n)]
    return [(*w, EOS) for w in words if len(w) < longest] + [w for w in words if len(w) == longest]


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("form", ["average", "gnmt"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_wide_beam_finds_what_enumeration_finds(
    alpha: float, form: str, early_stopping: bool
) -> None:
    tables = [random_table(seed) for seed in range(4)]

    def of_row(row: int, ids: tuple[int, ...]) -> Sequence[float]:
        return tables[row](0, ids)

    rows = search(
        of_row,
        rows=4,
        max_new_tokens=4,
        beam_size=40,
        length_penalty=alpha,
        penalty_form=form,
        n_best=5,
        early_stopping=early_stopping,  # with so wide a beam it never comes to it
    )
    for probabilities, found in zip(tables, rows, strict=True):
        every = [(log_prob(probabilities, ids), ids) for ids in legal_sequences(4)]
        wanted = sorted(((p / length_normalizer(len(i), alpha, form), i) for p, i in every))[::-1]
        assert [one.ids for one in found] == [ids for _, ids in wanted[:5]]
        for one, (score, _) in zip(found, wanted, strict=False):
            assert one.score == pytest.approx(score, abs=1e-10)


@given(
    seed=st.integers(0, 10_000),
    beam_size=st.integers(1, 4),
    n_best=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    form=st.sampled_from(["average", "gnmt"]),
    longest=st.integers(1, 6),
)
def test_what_a_beam_search_returns(
    seed: int, beam_size: int, n_best: int, alpha: float, form: str, longest: int
) -> None:
    probabilities = random_table(seed)
    options: dict[str, Any] = {
        "max_new_tokens": longest,
        "beam_size": beam_size,
        "length_penalty": alpha,
        "penalty_form": form,
        "n_best": min(n_best, beam_size),
    }
    exact, early = Table(probabilities, rows=2), Table(probabilities, rows=2)
    found = beam_search(exact, begin(2), **MARKS, **options)
    for row, hypotheses in enumerate(found):
        scores = [one.score for one in hypotheses]
        assert 1 <= len(hypotheses) <= options["n_best"]
        assert len({one.ids for one in hypotheses}) == len(hypotheses)
        assert scores == sorted(scores, reverse=True)
        for one in hypotheses:
            assert one.log_prob == pytest.approx(log_prob(probabilities, one.ids, row), abs=1e-9)
            assert one.score == one.log_prob / length_normalizer(len(one.ids), alpha, form)
            assert set(one.ids[:-1]) <= {A, B}
            assert one.finished == (one.ids[-1] == EOS)
            assert one.finished or len(one.ids) == longest
    sooner = beam_search(early, begin(2), **MARKS, **options, early_stopping=True)
    if options["n_best"] == beam_size:  # then stopping exactly needs as many finished
        assert early.steps <= exact.steps
    for full, quick in zip(found, sooner, strict=True):
        assert full[0].score >= quick[0].score
    if beam_size == 1:
        alone = greedy(Table(probabilities, rows=2), begin(2), **MARKS, max_new_tokens=longest)
        for one, (other,) in zip(alone, sooner, strict=True):
            assert (one.ids, one.log_prob) == (other.ids, other.log_prob)


def test_the_exact_search_stops_as_soon_as_nothing_better_can_come() -> None:
    likely_end = always(0.9, 0.09, 0.01)
    table = Table(likely_end)
    beam_search(table, begin(), **MARKS, max_new_tokens=100, beam_size=2, length_penalty=0.0)
    assert table.steps == 1
    # With alpha 1 a beam may win back what it lost: -2.41 / 100 is more than -0.11 / 1.
    table = Table(likely_end)
    beam_search(table, begin(), **MARKS, max_new_tokens=100, beam_size=2, length_penalty=1.0)
    assert 2 < table.steps < 10


@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_row_without_a_beam_to_continue_is_done(early_stopping: bool) -> None:
    table = Table(always(1.0, 0.0, 0.0))
    options: dict[str, Any] = {"n_best": 3, "early_stopping": early_stopping}
    (found,) = beam_search(table, begin(), **MARKS, max_new_tokens=9, **options)
    assert [one.ids for one in found] == [(EOS,)]
    assert table.steps == 1


@pytest.mark.parametrize("width", [5, 40])
@pytest.mark.parametrize("count", [1, 4, 8])
def test_the_largest_are_those_of_a_stable_sort(width: int, count: int) -> None:
    scores = torch.randint(0, 6, (50, width)).float()
    scores[scores == 0] = -torch.inf
    values, places = largest(scores, count)
    sorted_values, sorted_places = scores.sort(descending=True, stable=True)
    filled = min(count, width)
    finite = sorted_values[:, :filled] > -torch.inf
    assert torch.equal(values[:, :filled], sorted_values[:, :filled])
    assert torch.equal(places[:, :filled][finite], sorted_places[:, :filled][finite])
    assert (values[:, filled:] == -torch.inf).all()


@pytest.mark.parametrize(
    ("length", "alpha", "form", "wanted"),
    [
        (7, 0.0, "average", 1.0),
        (7, 1.0, "average", 7.0),
        (4, 0.5, "average", 2.0),
        (1, 0.6, "gnmt", 1.0),
        (7, 1.0, "gnmt", 2.0),
        (3, 2.0, "gnmt", 16 / 9),
    ],
)
def test_length_normalizer(length: int, alpha: float, form: str, wanted: float) -> None:
    assert length_normalizer(length, alpha, form) == pytest.approx(wanted)


def test_length_normalizer_refuses() -> None:
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        length_normalizer(0, 1.0)
    with pytest.raises(ValueError, match=r"length_penalty .* got -1\.0"):
        length_normalizer(3, -1.0)
    with pytest.raises(ValueError, match=r"penalty_form .* got 'mean'"):
        length_normalizer(3, 1.0, "mean")


# Sampling


def test_words_are_drawn_as_often_as_they_are_likely() -> None:
    rows = 4000
    table = Table(by_ids({(): (0.5, 0.3, 0.2), (A,): (0.1, 0.0, 0.9)}), rows)
    generator = torch.Generator().manual_seed(0)
    drawn = sample(table, begin(rows), **MARKS, max_new_tokens=2, generator=generator)
    expected = {(EOS,): 0.5, (A, EOS): 0.03, (A, B): 0.27, (B, EOS): 0.2}
    assert {one.ids for one in drawn} == set(expected)
    for ids, probability in expected.items():
        count = sum(one.ids == ids for one in drawn)
        deviation = math.sqrt(rows * probability * (1 - probability))
        assert abs(count - rows * probability) < 4 * deviation
    for one in drawn:
        assert one.log_prob == pytest.approx(math.log(expected[one.ids]))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_k": 9}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_p": 0.01}, [0, 1, 0, 0]),
        ({"top_p": 0.39}, [0, 1, 0, 0]),
        ({"top_p": 0.41}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.69}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.71}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"top_p": 1.0}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0]),  # 4/7 already reaches it
        ({"temperature": 0.5}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        ({"temperature": 0.5, "top_k": 2}, [0, 16 / 25, 0, 9 / 25]),
        ({"temperature": 1e-40}, [0, 1, 0, 0]),
    ],
)
def test_probabilities_to_draw_with(options: dict[str, Any], wanted: list[float]) -> None:
    log_probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64).log()
    probs = sampling_probabilities(log_probs, **options)
    torch.testing.assert_close(probs, torch.tensor([wanted], dtype=torch.float64))
    assert torch.equal(probs == 0, torch.tensor([wanted]) == 0)


def test_of_equally_likely_words_the_lower_ids_are_kept() -> None:
    probs = sampling_probabilities(torch.full((1, 500), 1 / 500).log(), top_k=3)
    assert probs.nonzero()[:, 1].tolist() == [0, 1, 2]
    some = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0]]).log_softmax(-1)
    assert sampling_probabilities(some, top_k=3).tolist() == [[0.0, 0.5, 0.0, 0.5]]


def test_extremes_of_sampling_in_float32() -> None:
    rare = torch.tensor([[-30.0, 0.0, -30.0]]).log_softmax(-1)
    assert (sampling_probabilities(rare, top_p=1.0) > 0).all()  # their sum reaches 1 before them
    even = torch.tensor([[0.2, 0.5, 0.3]]).log()
    assert sampling_probabilities(even, temperature=1e-40).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize(("point", "word"), [(0.0, EOS), (1 - 2**-24, B)])
def test_the_ends_of_the_line_are_words_that_can_come(
    point: float, word: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda *size, **options: torch.full(size, point))
    logits = [5.0, 5.0, 0.1, 0.3, 0.2, -math.inf]
    (one,) = sample(Constant(logits), begin(), **MARKS, max_new_tokens=1)
    assert one.ids == (word,)


@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.6}, {"temperature": 0.1}])
def test_only_kept_words_are_drawn_and_log_prob_is_the_models_own(options: dict[str, Any]) -> None:
    drawn = sample(
        Table(always(0.5, 0.3, 0.2), 200), begin(200), **MARKS, max_new_tokens=2, **options
    )
    for one in drawn:
        assert one.log_prob == pytest.approx(log_prob(always(0.5, 0.3, 0.2), one.ids))
        assert B not in one.ids or "temperature" in options


def test_the_same_generator_draws_the_same() -> None:
    def draw(seed: int | None) -> list[Hypothesis]:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        table = Table(always(0.2, 0.4, 0.4), 20)
        return sample(table, begin(20), **MARKS, max_new_tokens=9, generator=generator)

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    torch.manual_seed(3)
    first = draw(None)
    torch.manual_seed(3)
    assert first == draw(None)
    assert first != draw(None)


def test_a_draw_does_not_depend_on_padding_or_on_how_long_others_run(float64: None) -> None:
    model = half_trained()
    src, _ = batch()
    wider = torch.nn.functional.pad(src, (0, 3), value=PAD)
    other = src.clone()
    other[0, 0] = 10
    with evaluating(model):
        one, two, three = (
            decode(CachedDecoder(model, each), "sample") for each in (src, wider, other)
        )
    assert_same(one, two, 1e-10)
    assert_same(one[1:], three[1:], 1e-10)


# The cache


@every_method
@forms_of_model
def test_with_and_without_a_cache(method: str, changes: dict[str, Any], float64: None) -> None:
    model = half_trained(**changes)
    src = torch.tensor([[3, 4, 5, 6, 7, 2], [8, 9, 2, PAD, PAD, PAD], [6, 6, 6, 2, PAD, PAD]])
    with evaluating(model):
        cached = decode(CachedDecoder(model, src), method)
        uncached = decode(UncachedDecoder(model, src), method)
    assert_same(cached, uncached, 1e-10)


def test_a_begin_mark_that_is_padding_is_read(float64: None) -> None:
    """As Marian's models have it."""
    model = half_trained()
    src, _ = batch()
    with evaluating(model):
        cached, uncached = (
            greedy(
                make(model, src),
                torch.tensor([[PAD]] * 2),
                eos_id=2,
                forbidden=[PAD],
                max_new_tokens=8,
            )
            for make in (CachedDecoder, UncachedDecoder)
        )
    assert_same([cached], [uncached], 1e-10)
    found = generate(model, src, bos_id=PAD, eos_id=EOS, config=DecodingConfig("greedy"))
    assert [one.ids[:8] for (one,) in found] == [one.ids for one in cached]


@forms_of_model
@pytest.mark.parametrize("chunks", [[1] * 8, [3, 1, 1, 1, 1, 1], [8], [1, 4, 1, 2]])
def test_each_step_sees_what_the_whole_model_sees(
    chunks: list[int], changes: dict[str, Any]
) -> None:
    """BR-64 and BR-28: positions go on, and a chunk sees all that came before it."""
    model = small_model(**changes)
    src, _ = batch()
    tgt = torch.randint(3, 13, (2, 8))
    wanted = model(src, tgt)
    with evaluating(model):
        decoder = CachedDecoder(model, src)
        end = 0
        for chunk in chunks:
            end += chunk
            logits = decoder.step(tgt[:, end - chunk : end])
            torch.testing.assert_close(logits, wanted[:, end - 1], rtol=0, atol=1e-5)
            assert not logits.requires_grad


@pytest.mark.parametrize(
    "orders",
    [
        [[1, 0]],
        [[0, 0, 1, 1], [1, 0, 2, 2], [3, 3, 2, 1, 0, 0]],  # groups stay equal, then not
        [[0, 0, 0, 1], [0, 3]],
        [[1], [0, 0, 0], [2]],
        [[0, 1, 0, 1], [0, 2, 1, 3]],
        [[0, 0, 1, 1], [0, 1]],  # a whole sentence goes
        [[]],
    ],
)
def test_rows_may_be_swapped_repeated_and_dropped(orders: list[list[int]]) -> None:
    model = small_model()
    src, _ = batch()
    with evaluating(model):
        decoders = CachedDecoder(model, src), UncachedDecoder(model, src)
        first, second = (decoder.step(torch.tensor([[BOS], [BOS]])) for decoder in decoders)
        torch.testing.assert_close(first, second, rtol=0, atol=1e-5)
        for order in orders:
            rows = torch.tensor(order, dtype=torch.int64)
            new = torch.randint(3, 13, (len(order), 1))
            for decoder in decoders:
                decoder.reorder(rows)
            first, second = (decoder.step(new) for decoder in decoders)
            torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


def test_beams_of_a_sentence_share_its_memory_and_an_order_kept_copies_nothing() -> None:
    model = small_model()
    src, _ = batch()
    with evaluating(model):
        decoder = CachedDecoder(model, src)
        decoder.step(begin(2))
        keys = decoder.layers[0].keys
        decoder.reorder(torch.tensor([0, 1]))
        assert decoder.layers[0].keys is keys
        memory_keys = decoder.layers[0].memory_keys
        decoder.reorder(torch.tensor([0, 0, 0, 1, 1, 1]))
        assert decoder.layers[0].keys.size(0) == 6
        assert decoder.layers[0].memory_keys is memory_keys


@every_method
def test_nothing_stays_behind(method: str) -> None:
    """BR-48."""
    model = half_trained()
    src, _ = batch()
    other = torch.tensor([[7, 7, 2]])
    with evaluating(model):
        wanted = decode(CachedDecoder(model, src), method)
        decode(CachedDecoder(model, other), method)
        assert decode(CachedDecoder(model, src), method) == wanted
        broken = CachedDecoder(model, other)
        broken.step(begin(1))
        with pytest.raises(ValueError, match="token id 99"):
            broken.step(torch.tensor([[99]]))
        assert decode(CachedDecoder(model, src), method) == wanted
        one, two = CachedDecoder(model, src), CachedDecoder(model, src.flip(0))
        new = begin(2)
        for _ in range(4):  # interleaved
            here, there = one.step(new), two.step(new)
            torch.testing.assert_close(here, there.flip(0), rtol=0, atol=1e-5)


@every_method
def test_inputs_are_left_alone(method: str) -> None:
    """BR-58."""
    model = half_trained()
    src, _ = batch()
    prefix = torch.tensor([[BOS, 5], [BOS, 6]])
    mask = padding_mask(src, PAD)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    before = src.clone(), prefix.clone(), mask.clone()
    config = DecodingConfig(method)
    generate(model, src, bos_id=BOS, eos_id=EOS, config=config, prefix=prefix, src_mask=mask)
    for given_, old in zip((src, prefix, mask), before, strict=True):
        assert torch.equal(given_, old)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, weights[name])


@pytest.mark.usefixtures("unchecked")
def test_compiling_the_step_needs_few_graphs() -> None:
    """BR-38: the length is read from the tensors."""
    from torch._dynamo.testing import CompileCounter

    model, counter = small_model(), CompileCounter()
    src, _ = batch()
    with evaluating(model):
        decoder, wanted = CachedDecoder(model, src), UncachedDecoder(model, src)
        step = torch.compile(decoder.step, backend=counter)
        ids = begin(2)
        for _ in range(18):
            logits = step(ids)
            torch.testing.assert_close(logits, wanted.step(ids), rtol=0, atol=1e-5)
            ids = logits[:, 3:].argmax(-1, keepdim=True) + 3
    assert counter.frame_count <= 3


# The front door


@every_method
@pytest.mark.parametrize("training", [True, False])
def test_the_mode_comes_back_and_dropout_is_off(method: str, training: bool) -> None:
    """BR-32."""
    model = small_model(dropout=0.5, attention_dropout=0.5, activation_dropout=0.5).train(training)
    model.encoder.eval()
    src, _ = batch()
    config = DecodingConfig(method, seed=4, max_new_tokens=3)
    decoded = [generate(model, src, bos_id=BOS, eos_id=EOS, config=config) for _ in range(8)]
    assert all(each == decoded[0] for each in decoded)
    with pytest.raises(ValueError, match="token id 99"):
        generate(model, torch.tensor([[99]]), bos_id=BOS, eos_id=EOS, config=config)
    assert model.training == training
    assert model.decoder.layers[0].training == training
    assert not model.encoder.training
    assert torch.is_grad_enabled()


@every_method
@pytest.mark.parametrize("count", [8, 9, 20])
def test_decoding_past_the_table_is_refused_before_the_first_step(method: str, count: int) -> None:
    """BR-15."""
    model = small_model(max_length=8)
    with torch.no_grad():
        model.tgt_embedding.weight[EOS] = -10 * model.tgt_embedding.weight.mean(0)
    src = torch.tensor([[3, 4, 5]])
    config = DecodingConfig(method, max_new_tokens=count)
    if count == 8:
        found = generate(model, src, bos_id=BOS, eos_id=EOS, config=config)
        assert len(found[0][0].ids) <= 8
    else:
        with pytest.raises(ValueError, match=f"1 to 8, .* at most 8 .* has 1; got {count}"):
            generate(model, src, bos_id=BOS, eos_id=EOS, config=config)
    prefix = torch.tensor([[BOS, 3, 4, 5]])
    config = DecodingConfig(method, max_new_tokens=6)
    with pytest.raises(ValueError, match=r"1 to 5, .* at most 8 .* has 4; got 6"):
        generate(model, src, bos_id=BOS, eos_id=EOS, config=config, prefix=prefix)
    scorer = CachedDecoder(model.eval(), src)
    with pytest.raises(ValueError, match=r"1 to 5, .* got 6"):
        greedy(scorer, prefix, **MARKS, max_new_tokens=6)


def test_the_longest_length_when_none_is_given() -> None:
    def lengths(max_length: int, prefix: Tensor | None = None) -> list[int]:
        model = small_model(max_length=max_length, tie_output=False)
        torch.nn.init.zeros_(model.output.weight)
        torch.nn.init.ones_(model.output.weight[5])
        torch.nn.init.ones_(model.decoder.layers[-1].feed_forward_residual.norm.bias)
        with torch.no_grad():
            model.decoder.layers[-1].feed_forward_residual.norm.weight.zero_()
        src = torch.nn.functional.pad(batch()[0], (0, 5), value=PAD)
        found = generate(
            model,
            src,
            bos_id=BOS,
            eos_id=EOS,
            config=DecodingConfig("greedy"),
            prefix=prefix,
        )
        assert all(set(one.ids) == {5} for (one,) in found)
        return [len(one.ids) for (one,) in found]

    assert lengths(100) == [22, 22]  # twice the 6 tokens of the longer source, and 10
    assert lengths(14) == [14, 14]
    assert lengths(14, torch.tensor([[BOS, 3, 4]] * 2)) == [12, 12]


@every_method
def test_no_sentences(method: str) -> None:
    model = small_model()
    config = DecodingConfig(method)
    src = torch.zeros(0, 5, dtype=torch.int64)
    assert generate(model, src, bos_id=BOS, eos_id=EOS, config=config) == []
    with evaluating(model):
        assert decode(CachedDecoder(model, src), method) == []
        assert decode(UncachedDecoder(model, src), method) == []


@every_method
def test_a_source_of_padding_or_of_nothing_is_decoded(method: str) -> None:
    model = half_trained()
    for src in (torch.tensor([[3, 4, 2], [PAD, PAD, PAD]]), torch.zeros(2, 0, dtype=torch.int64)):
        config = DecodingConfig(method, seed=0)
        found = generate(model, src, bos_id=BOS, eos_id=EOS, config=config)
        assert all(math.isfinite(row[0].log_prob) for row in found)


@every_method
def test_a_prefix_is_continued(method: str) -> None:
    model = half_trained()
    src, _ = batch()
    prefix = torch.tensor([[BOS, 5, 6], [BOS, 7, 8]])
    config = DecodingConfig(method, length_penalty=0.0, max_new_tokens=5)
    found = generate(model, src, bos_id=BOS, eos_id=EOS, config=config, prefix=prefix)
    for row, (best,) in enumerate(found):
        ids = torch.tensor([[*prefix[row].tolist(), *best.ids]])
        logits = model(src[row : row + 1], ids[:, :-1])[0, 2:]
        logits[:, [PAD, BOS]] = -torch.inf
        total = logits.log_softmax(-1).gather(1, torch.tensor(best.ids)[:, None]).sum()
        assert best.log_prob == pytest.approx(total.item(), abs=1e-4)


@every_method
def test_a_bfloat16_model(method: str) -> None:
    model = half_trained().to(torch.bfloat16)
    found = generate(model, batch()[0], bos_id=BOS, eos_id=EOS, config=DecodingConfig(method))
    assert all(math.isfinite(row[0].score) for row in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bos_id": 13}, "bos_id must be an id of the vocabulary, 0 to 12; got 13"),
        ({"eos_id": -1}, "eos_id must be an id of the vocabulary, 0 to 12; got -1"),
        ({"eos_id": PAD}, "the end mark, 0, must not be forbidden"),
        ({"prefix": torch.tensor([[5], [5]])}, "must begin with the begin mark, 1"),
        ({"prefix": torch.tensor([[1, 5], [1, 0]])}, "hold no padding, 0"),
        ({"prefix": torch.zeros(2, 0, dtype=torch.int64)}, "at least the begin mark"),
    ],
)
def test_generate_refuses(change: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"bos_id": BOS, "eos_id": EOS}
    with pytest.raises(ValueError, match=message):
        generate(small_model(), batch()[0], **options | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "best"}, r"method must be one of \['greedy', 'beam', 'sample'\], got 'best'"),
        ({"beam_size": 0}, "beam_size must be .* at least 1; got 0"),
        ({"beam_size": True}, "beam_size .* got True"),
        ({"length_penalty": -0.1}, "length_penalty .* at least 0, got -0.1"),
        ({"length_penalty": math.nan}, "length_penalty .* got nan"),
        ({"penalty_form": "wu"}, r"penalty_form must be one of \['average', 'gnmt'\], got 'wu'"),
        ({"n_best": 5}, "n_best must be 1 to beam_size=4, got 5"),
        ({"n_best": 0}, "n_best must be 1 to beam_size=4, got 0"),
        ({"n_best": 2, "method": "greedy"}, "n_best must be 1 unless method is 'beam', got 2"),
        ({"temperature": 0.0}, "temperature .* more than 0, got 0.0"),
        ({"temperature": math.inf}, "temperature .* got inf"),
        ({"top_k": 0}, "top_k .* at least 1; got 0"),
        ({"top_p": 0.0}, "top_p .* got 0.0"),
        ({"top_p": 1.5}, "top_p .* at most 1, got 1.5"),
        ({"max_new_tokens": 0}, "max_new_tokens .* at least 1; got 0"),
    ],
)
def test_a_configuration_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecodingConfig(**change)


@pytest.mark.parametrize("change", [{"early_stopping": "never"}, {"seed": 1.5}])
@pytest.mark.usefixtures("unchecked")
def test_a_configuration_refuses_other_types(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        DecodingConfig(**change)


def test_the_searches_refuse_what_a_configuration_refuses() -> None:
    with pytest.raises(ValueError, match="beam_size"):
        search(always(1, 0, 0), max_new_tokens=3, beam_size=0)
    with pytest.raises(ValueError, match="temperature"):
        sample(Table(always(1, 0, 0)), begin(), **MARKS, max_new_tokens=3, temperature=-1.0)
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1; got 0"):
        search(always(1, 0, 0), max_new_tokens=0)
    with pytest.raises(ValueError, match="the prefix has 3 rows, the scorer 2"):
        greedy(Table(always(1, 0, 0), 2), begin(3), **MARKS, max_new_tokens=3)
