"""Translating, scoring, saving and loading. BR numbers are those of the collected faults."""

import itertools
import json
import math
import os
import shutil
import stat
import sys
import tracemalloc
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import shake, small_config, small_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transformer_tutorial import Transformer, pad_sequences, translator
from transformer_tutorial.data import Batch, SubwordTokenizer
from transformer_tutorial.decoding import DecodingConfig, Hypothesis
from transformer_tutorial.training import Vocabulary
from transformer_tutorial.translator import (
    LENGTH_STEP,
    Scores,
    Translator,
    atomic_directory,
    batches_by_length,
    best_device,
    corpus_scores,
    find_directory,
    join_pieces,
    load_model,
    one_line,
    save_model,
    split_text,
    stored_names,
    token_nll,
    unwrapped,
    write_translator,
)

ENGLISH = [
    f"The {a} {b} sees a {c}, and it {d}."
    for a in ("old", "small")
    for b in ("dog", "cat")
    for c in ("bird", "house", "tree")
    for d in ("runs", "sings", "sleeps")
]
CHINESE = [
    f"{a}{b}看见{c}，它{d}。"
    for a in ("老", "小")
    for b in ("狗", "猫")
    for c in ("鸟", "房子", "树")
    for d in ("跑", "唱", "睡")
]
SIZES = {"max_length": 40, "num_encoder_layers": 2, "num_decoder_layers": 2}
GREEDY = DecodingConfig(method="greedy")
SHORT = DecodingConfig(method="greedy", max_new_tokens=6)


@pytest.fixture(scope="session")
def chinese() -> SubwordTokenizer:
    return SubwordTokenizer.train(CHINESE, 278)


@pytest.fixture(scope="session")
def english() -> SubwordTokenizer:
    return SubwordTokenizer.train(ENGLISH, 284)


def make(source: SubwordTokenizer, target: SubwordTokenizer, **changes: Any) -> Translator:
    """An untrained translator; it differs from call to call."""
    fields = {"src_vocab_size": len(source), "tgt_vocab_size": len(target)} | SIZES
    return Translator(small_model(**fields | changes), source, target, SHORT)


@pytest.fixture
def zh_en(chinese: SubwordTokenizer, english: SubwordTokenizer) -> Translator:
    return make(chinese, english)


@pytest.fixture
def copier(english: SubwordTokenizer, monkeypatch: pytest.MonkeyPatch) -> Translator:
    """A translator that gives back what it reads."""

    def copy(model: Transformer, src: Tensor, **options: Any) -> list[list[Hypothesis]]:
        assert options["config"].max_new_tokens <= model.config.max_length
        ends = (src == options["eos_id"]).int().argmax(1).tolist()
        rows = [row[1 : end + 1] for row, end in zip(src.tolist(), ends, strict=True)]
        return [[Hypothesis(tuple(row), -1.0, -1.0, True)] for row in rows]

    monkeypatch.setattr(translator, "generate", copy)
    return make(english, english)


# Order, blank lines, batches


def test_order_is_kept_and_blank_lines_stay_blank(copier: Translator) -> None:  # BR-49
    lines = [
        "The old dog sees a bird, and it sings.",
        "",
        "a cat",
        " ",
        "The small cat sees a dog.",
    ]
    for batch_tokens in (1, 20, 2048):
        written = copier.translate(lines, batch_tokens=batch_tokens)
        assert written == [line.strip() for line in lines]
    assert corpus_scores(written, lines).bleu == pytest.approx(100)
    assert copier.translate([]) == []
    assert copier.translate(["", "\t", "\u3000"]) == ["", "", ""]


@pytest.mark.parametrize(
    "decoding", [GREEDY, DecodingConfig(beam_size=3), DecodingConfig(early_stopping=False)]
)
def test_a_translation_does_not_depend_on_its_company(
    decoding: DecodingConfig, chinese: SubwordTokenizer, english: SubwordTokenizer
) -> None:
    model = make(chinese, english, tie_output=False, max_length=30)
    shake(model.model.double())
    lines = [
        CHINESE[0],
        "鸟",
        CHINESE[5] * 2,
        "",
        "唱。",
        CHINESE[9] + CHINESE[20],
        CHINESE[30] * 4,
    ]
    alone = [model.translate([line], decoding=decoding)[0] for line in lines]
    assert model.translate(lines, decoding=decoding) == alone
    assert model.translate(lines[::-1], decoding=decoding, batch_tokens=60) == alone[::-1]
    assert len(set(alone)) > 3


@given(st.lists(st.integers(1, 70)), st.integers(1, 200))
def test_batches_hold_each_sentence_once_and_no_more_than_fits(
    lengths: list[int], budget: int
) -> None:
    batches = batches_by_length(lengths, budget)
    assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[place] for place in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget
        assert len({math.ceil(lengths[place] / LENGTH_STEP) for place in batch}) == 1


def test_line_breaks_never_reach_the_model_or_the_output(
    zh_en: Translator, english: SubwordTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert one_line(" a\r\nb \n\n c\n") == "a b c"
    ids = tuple(english.encode("a\rb")[1:])
    found = [[Hypothesis(ids, -1.0, -1.0, True)]]
    monkeypatch.setattr(translator, "generate", lambda *args, **options: found)
    assert zh_en.translate(["狗\n猫"]) == ["a b"]
    assert zh_en.translate(["狗\n猫", "鸟"][:1]) == ["a b"]


def test_one_line_takes_time_in_proportion_to_the_text() -> None:
    assert one_line("a" + " " * 200_000 + "b") == "a" + " " * 200_000 + "b"


def test_unknown_characters_survive(copier: Translator) -> None:
    lines = ["Zürich 🙂", "我爱你", "𠀀 \u202b ﷽", "e\u0301"]
    assert copier.translate(lines) == lines


def test_input_is_lower_cased_if_the_model_wants_it(copier: Translator) -> None:
    small = Translator(copier.model, copier.src_tokenizer, copier.tgt_tokenizer, lowercase=True)
    assert copier.translate(["A Cat İ"]) == ["A Cat İ"]
    assert small.translate(["A Cat İ"]) == ["A Cat İ".lower()]


def test_one_string_is_not_a_list(zh_en: Translator) -> None:
    with pytest.raises(TypeError, match="list of sentences"):
        zh_en.translate("狗")
    with pytest.raises(TypeError, match="got one string"):
        zh_en.translate_stream("狗")


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_string_is_named(zh_en: Translator) -> None:
    with pytest.raises(TypeError, match="line 2 is not a string, but NoneType"):
        zh_en.translate(["狗", None])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long": "cut"}, "long must be 'split' or 'refuse', got 'cut'"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1, got 0"),
    ],
)
def test_options_are_checked_at_once(
    zh_en: Translator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        zh_en.translate(["狗"], **options)
    with pytest.raises(ValueError, match=message):
        zh_en.translate_stream(["狗"], **options)
    with pytest.raises(ValueError, match="window must be at least 1 line, got 0"):
        zh_en.translate_stream(["狗"], window=0)


def test_more_new_tokens_than_the_model_has_places_are_refused(zh_en: Translator) -> None:
    with pytest.raises(ValueError, match="41"):
        zh_en.translate(["狗"], decoding=DecodingConfig(max_new_tokens=41))
    assert zh_en.translate(["狗"], decoding=DecodingConfig(max_new_tokens=1)) != []


def test_tokenizers_must_be_those_of_the_model(
    chinese: SubwordTokenizer, english: SubwordTokenizer
) -> None:
    model = make(chinese, english).model
    message = f"the source tokenizer has {len(english)} tokens, the model has {len(chinese)}"
    with pytest.raises(ValueError, match=message):
        Translator(model, english, chinese)
    with pytest.raises(ValueError, match="pads with 0, the model with 7"):
        make(chinese, english, pad_id=7)


# Long inputs


def fits_characters(limit: int) -> Callable[[str], bool]:
    return lambda text: len(text) <= limit


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("One. Two.", 9, ["One. Two."]),
        ("One. Two! Three?", 9, ["One.", "Two!", "Three?"]),
        ('He said "No." Then 3.14 of a.b.', 20, ['He said "No."', "Then 3.14 of a.b."]),
        ("好。“走吧！”他说？不；", 8, ["好。", "“走吧！”", "他说？", "不；"]),
        ("a, bb, ccc, 1,000", 8, ["a, bb,", "ccc,", "1,000"]),
        ("我们，你们、他们", 4, ["我们，", "你们、", "他们"]),
        ("one two  three", 7, ["one two", "three"]),
        ("abcdefgh ij", 3, ["abc", "def", "gh", "ij"]),
        ("Wait... what?! Yes", 10, ["Wait...", "what?!", "Yes"]),
    ],
)
def test_long_texts_are_cut_at_the_best_places(text: str, limit: int, pieces: list[str]) -> None:
    assert [piece for piece, _ in split_text(text, fits_characters(limit))] == pieces


TEXTS = st.text(st.sampled_from("ab1.!,;:\"' \t\u3000。，、？”我👍\u0301"), max_size=60).map(
    str.strip
)


@given(TEXTS, st.integers(1, 12))
def test_pieces_lose_nothing_but_the_spaces_between_them(text: str, limit: int) -> None:
    pieces = split_text(text, fits_characters(limit))
    assert "".join(piece + spaces for piece, spaces in pieces) == text
    assert all(len(piece) <= limit for piece, _ in pieces)
    assert all(not spaces.strip() for _, spaces in pieces)
    assert text == "" or all(piece.strip() for piece, _ in pieces)


@given(text=TEXTS, limit=st.integers(8, 20))
def test_pieces_fit_when_counted_in_tokens(
    text: str, limit: int, english: SubwordTokenizer
) -> None:
    tokenizer = english
    pieces = split_text(text, lambda piece: len(tokenizer.encode(piece)) <= limit)
    assert "".join(piece + spaces for piece, spaces in pieces) == text
    assert all(len(tokenizer.encode(piece)) <= limit for piece, _ in pieces)


@pytest.mark.parametrize(
    "text", ["x" * 50_000, "x " * 25_000, "。" * 9999, "." * 50_000, "a. " * 9999]
)
def test_splitting_takes_time_in_proportion_to_the_text(text: str) -> None:
    read = 0

    def fits(piece: str) -> bool:
        nonlocal read
        read += len(piece)
        return len(piece) <= 100

    pieces = split_text(text.strip(), fits)
    assert "".join(piece + spaces for piece, spaces in pieces) == text.strip()
    assert read < 25 * len(text)


def test_a_model_that_cannot_read_one_character_says_so() -> None:
    with pytest.raises(ValueError, match="not even one character fits: '我'"):
        split_text("我爱你", lambda text: not text)


@pytest.mark.parametrize(
    ("source", "pieces", "joined"),
    [
        ("好。走", ["Good.", "Go."], "Good. Go."),
        ("Good. Go.", ["好。", "走。"], "好。走。"),
        ("Good. Go.", ["좋아", "가자"], "좋아 가자"),
        ("Good. Go.", ["", "Go."], "Go."),
        ("Good. Go.", ["Gut.", ""], "Gut."),
    ],
)
def test_pieces_are_joined_as_the_language_writes(
    source: str, pieces: list[str], joined: str
) -> None:
    cut = split_text(source, fits_characters(5 if " " in source else 2))
    assert len(cut) == 2
    assert join_pieces(cut, pieces) == joined


def test_a_word_that_was_cut_is_joined_without_a_space() -> None:
    cut = split_text("abcdef gh", fits_characters(3))
    assert join_pieces(cut, ["ABC", "DEF", "GH"]) == "ABCDEF GH"


def test_long_lines_are_translated_in_pieces(copier: Translator) -> None:
    lines = [" ".join(ENGLISH), "a cat", "".join(CHINESE), "x" * 400, "dog, " * 60 + "dog"]
    assert copier.translate(lines) == lines


def test_a_real_model_takes_lines_of_any_length(zh_en: Translator) -> None:
    lines = ["狗" * n for n in range(30, 50)] + ["".join(CHINESE)]
    assert len(zh_en.translate(lines, decoding=GREEDY)) == len(lines)


def test_long_lines_are_refused_by_number(copier: Translator) -> None:
    long = " ".join(ENGLISH)
    tokens = len(copier.src_tokenizer.encode(long))
    message = f"line 3: {tokens} tokens, but the model reads at most 40"
    with pytest.raises(ValueError, match=message):
        copier.translate(["a", "", long], long="refuse")
    stream = copier.translate_stream(iter(["a", "", long]), window=2, long="refuse")
    assert [next(stream), next(stream)] == ["a", ""]
    with pytest.raises(ValueError, match=message):
        next(stream)


# Streams


def test_a_stream_gives_one_translation_for_each_line(zh_en: Translator) -> None:
    lines = [CHINESE[0], "", CHINESE[1], "鸟", " ", CHINESE[2]]
    together = zh_en.translate(lines)
    for window in (1, 2, 6, 7):
        stream = zh_en.translate_stream((line + "\n" for line in lines), window)
        assert list(stream) == together
    assert list(zh_en.translate_stream(iter([]))) == []


def test_a_stream_reads_no_further_than_its_window(copier: Translator) -> None:
    numbers = itertools.count()
    stream = copier.translate_stream((f"dog {number}" for number in numbers), window=5)
    assert next(numbers) == 0
    assert list(itertools.islice(stream, 7)) == [f"dog {number}" for number in range(1, 8)]
    assert next(numbers) == 11


@pytest.mark.usefixtures("unchecked")
def test_a_stream_needs_constant_memory(copier: Translator) -> None:
    def peak(count: int) -> int:
        lines = ("" if number % 250 else "a" for number in range(count))
        tracemalloc.start()
        written = sum(1 for _ in copier.translate_stream(lines, window=256))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert written == count
        return most

    peak(200)
    assert peak(20_000) < peak(1_000) + 50_000  # 20,000 references alone take 160,000


def test_what_cannot_be_encoded_is_named_by_its_line(zh_en: Translator) -> None:
    with pytest.raises(ValueError, match=r"line 2: .*surrogate"):
        zh_en.translate(["狗", "\ud83d"])


# n best, attention


def test_n_best_are_ordered_and_the_first_is_the_translation(zh_en: Translator) -> None:
    zh_en.decoding = DecodingConfig(beam_size=2)
    found = zh_en.n_best("狗看见鸟", 3)
    scores = [score for _, score in found]
    assert len(found) == 3
    assert scores == sorted(scores, reverse=True)
    wide = DecodingConfig(beam_size=3)
    assert found[0][0] == zh_en.translate(["狗看见鸟"], decoding=wide)[0]
    for wrong, message in ((0, "n must be at least 1"), (-1, "got -1")):
        with pytest.raises(ValueError, match=message):
            zh_en.n_best("狗", wrong)
    with pytest.raises(ValueError, match="blank"):
        zh_en.n_best(" ", 1)
    with pytest.raises(ValueError, match="the model reads 40"):
        zh_en.n_best("狗猫" * 40, 1)


def test_attention_has_a_row_for_each_piece_that_is_written(zh_en: Translator) -> None:
    seen = zh_en.attention("狗看见鸟。", "The dog sees a bird.")
    src = zh_en.src_tokenizer.encode("狗看见鸟。")
    tgt = zh_en.tgt_tokenizer.encode("The dog sees a bird.")
    assert seen.weights.shape == (2, 4, len(tgt) - 1, len(src))
    assert len(seen.source_pieces) == len(src)
    assert len(seen.target_pieces) == len(tgt) - 1
    assert (seen.source_pieces[0], seen.source_pieces[-1]) == ("<bos>", "<eos>")
    assert seen.target_pieces[-1] == "<eos>"
    assert "狗" in "".join(seen.source_pieces)
    assert "dog" in "".join(seen.target_pieces)
    assert torch.allclose(seen.weights.sum(-1), torch.ones(2, 4, len(tgt) - 1), atol=1e-6)
    assert not seen.weights.requires_grad


def test_attention_translates_when_no_target_is_given(zh_en: Translator) -> None:
    own = zh_en.attention("狗看见鸟。")
    text = "".join(piece for piece in own.target_pieces if piece != "<eos>").replace("▁", " ")
    written = zh_en.translate(["狗看见鸟。"])[0]
    assert one_line(text).replace(" ", "") == written.replace(" ", "") or "<0x" in text
    with pytest.raises(ValueError, match="blank"):
        zh_en.attention("")


# The model's state


def calls(model: Translator) -> list[Callable[[], object]]:
    return [
        lambda: model.translate(["狗看见鸟", "", "猫"]),
        lambda: list(model.translate_stream(["狗看见鸟", "猫"])),
        lambda: model.n_best("狗", 2),
        lambda: model.attention("狗看见鸟"),
        lambda: token_nll(model.model, [some_batch(model)]),
    ]


def some_batch(model: Translator) -> Batch:
    src = pad_sequences([model.src_tokenizer.encode(text) for text in CHINESE[:3]], 0)
    tgt = pad_sequences([model.tgt_tokenizer.encode(text) for text in ENGLISH[:3]], 0)
    return Batch(src, tgt, int((tgt[:, 1:] != 0).sum()))


@pytest.mark.parametrize("training", [True, False])
def test_mode_and_weights_are_left_as_they_were(  # BR-32, BR-58
    training: bool, chinese: SubwordTokenizer, english: SubwordTokenizer
) -> None:
    model = make(chinese, english, dropout=0.5)
    model.model.train(training)
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    for call in calls(model):
        first = call()
        assert model.model.training is training
        again = call()
        assert model.model.training is training
        if not isinstance(first, translator.AlignmentMap):
            assert first == again  # no dropout
    assert all(torch.equal(before[name], t) for name, t in model.model.state_dict().items())
    assert torch.is_grad_enabled()


def test_a_call_that_fails_leaves_nothing_behind(  # BR-32, BR-48
    zh_en: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    zh_en.model.train()
    right = zh_en.translate(["狗看见鸟"])
    batch = some_batch(zh_en)
    with monkeypatch.context() as patch:
        calls_left = iter(range(3))

        def fail(*args: Any) -> Tensor:
            if next(calls_left, None) is None:
                raise RuntimeError("in the middle")
            return nn.functional.linear(*args, zh_en.model.output.weight)

        patch.setattr(zh_en.model.output, "forward", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            zh_en.translate(["猫睡"])
        with pytest.raises(RuntimeError, match="in the middle"):
            token_nll(zh_en.model, [batch])
    assert zh_en.model.training
    assert zh_en.translate(["狗看见鸟"]) == right


def test_inputs_are_not_changed(zh_en: Translator) -> None:  # BR-58
    lines = [" 狗\n", "", "猫"]
    zh_en.translate(lines)
    assert lines == [" 狗\n", "", "猫"]
    batch = some_batch(zh_en)
    src, tgt = batch.src.clone(), batch.tgt.clone()
    token_nll(zh_en.model, [batch])
    assert torch.equal(batch.src, src)
    assert torch.equal(batch.tgt, tgt)


# Scores


def test_scores_are_sacrebleus() -> None:
    scores = corpus_scores(["the cat sat on a mat"], ["the cat sat on the mat"])
    # 5/6, 3/5, 2/4 and 1/3 of the 1- to 4-grams are in the reference; the lengths are equal.
    assert scores.bleu == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert 0 < scores.chrf < 100
    assert "tok:13a" in scores.bleu_signature
    assert "nc:6" in scores.chrf_signature
    assert scores == Scores(*(getattr(scores, name) for name in scores.__dataclass_fields__))


def test_scores_depend_on_case_and_words_as_told() -> None:
    upper, lower = ["THE CAT SAT ON THE MAT"], ["the cat sat on the mat"]
    assert corpus_scores(upper, lower).bleu == 0
    assert corpus_scores(upper, lower, lowercase=True).bleu == pytest.approx(100)
    assert "case:lc" in corpus_scores(upper, lower, lowercase=True).bleu_signature
    one, other = ["我爱你们大家。"], ["我爱你们大家！"]
    assert corpus_scores(one, other).bleu == pytest.approx(0)
    assert corpus_scores(one, other, tokenize="zh").bleu > 50
    assert "tok:zh" in corpus_scores(one, other, tokenize="zh").bleu_signature


def test_scores_want_as_many_of_one_as_of_the_other() -> None:
    with pytest.raises(ValueError, match="2 hypotheses, but 3 references"):
        corpus_scores(["a", "b"], ["a", "b", "c"])
    with pytest.raises(ValueError, match="nothing to score"):
        corpus_scores([], [])
    with pytest.raises(TypeError, match="two lists"):
        corpus_scores("a b", ["a b"])
    with pytest.raises(TypeError, match="two lists"):
        corpus_scores(["a b"], "a b")


def test_without_sacrebleu_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(ImportError, match="transformer-tutorial"):
        corpus_scores(["a"], ["a"])


# Negative log-likelihood


class Table(Transformer):
    """A model that says the same whatever it reads: for target id i, the i-th row."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__(small_config(tgt_vocab_size=rows.size(1)))
        self.rows = rows

    def forward(self, src: Tensor, tgt: Tensor, *masks: Any, **options: Any) -> Tensor:
        assert not self.training
        return self.rows[tgt]


def batch_of(*targets: list[int]) -> Batch:
    tgt = pad_sequences(targets, 0)
    src = torch.full((len(targets), 2), 5)
    return Batch(src, tgt, int((tgt[:, 1:] != 0).sum()))


def test_nothing_is_smoothed() -> None:  # BR-29
    rows = torch.full((10, 10), 0.1 / 9)
    rows[:, 3] = 0.9
    nll = token_nll(Table(rows.log()), [batch_of([1, 3, 3])])
    assert nll == pytest.approx(0.105361, abs=1e-6)
    assert math.exp(nll) == pytest.approx(1.1111, abs=1e-4)


def test_every_token_weighs_the_same() -> None:  # BR-30
    rows = torch.full((10, 10), -99.0)
    rows[1, 2], rows[4, 4], rows[3, 4] = -4.0, -1.0, -1.0
    rows = torch.cat([rows, torch.log1p(-rows.exp().sum(1, keepdim=True))], dim=1)
    short, long = batch_of([1, 2]), batch_of([3, *[4] * 9])
    nll = token_nll(Table(rows), iter([short, long]))
    assert nll == pytest.approx(1.3, abs=1e-6)
    assert math.exp(nll) == pytest.approx(3.66930, abs=1e-5)
    assert token_nll(Table(rows), [batch_of([1, 2], [3, *[4] * 9])]) == pytest.approx(nll)


def test_batches_and_padding_do_not_matter(zh_en: Translator) -> None:  # BR-30
    src = [zh_en.src_tokenizer.encode(text) for text in CHINESE[:7]]
    tgt = [zh_en.tgt_tokenizer.encode(text) for text in ("a", *ENGLISH[:5], "dog")]

    def batches(size: int, extra: int) -> Iterator[Batch]:
        for start in range(0, 7, size):
            sides = (pad_sequences(side[start : start + size], 0) for side in (src, tgt))
            one, other = (nn.functional.pad(side, (0, extra)) for side in sides)
            yield Batch(one, other, int((other[:, 1:] != 0).sum()))

    whole = token_nll(zh_en.model, batches(7, 0))
    for size, extra in ((1, 0), (3, 0), (3, 2)):
        assert token_nll(zh_en.model, batches(size, extra)) == pytest.approx(whole, abs=1e-5)


def test_no_token_is_nothing_to_measure(zh_en: Translator) -> None:
    for batches in ([], [batch_of([1])]):
        with pytest.raises(ValueError, match="no target token"):
            token_nll(zh_en.model, batches)


def test_half_precision_is_summed_in_float32(zh_en: Translator) -> None:
    batch = some_batch(zh_en)
    whole = token_nll(zh_en.model, [batch])
    assert token_nll(zh_en.model.bfloat16(), [batch] * 50) == pytest.approx(whole, rel=0.05)


# Saving and loading


def state_of(model: Translator) -> dict[str, Tensor]:
    return model.model.state_dict()


def equal(one: Translator, other: Translator) -> bool:
    first, second = state_of(one), state_of(other)
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back(zh_en: Translator, tmp_path: Path) -> None:
    zh_en.decoding = DecodingConfig(beam_size=3, length_penalty=0.6)
    zh_en.lowercase = True
    lines = ["狗看见鸟", "猫", "未知🙂"]
    before = zh_en.translate(lines)
    zh_en.save_pretrained(tmp_path / "deep" / "kept")
    assert names(tmp_path / "deep") == ["kept"]
    files = ["config.json", "model.safetensors", "source.spm", "target.spm"]
    assert names(tmp_path / "deep" / "kept") == files

    random = torch.get_rng_state()
    again = Translator.from_pretrained(tmp_path / "deep" / "kept")
    assert torch.equal(torch.get_rng_state(), random)
    assert equal(zh_en, again)
    assert again.translate(lines) == before
    assert (again.decoding, again.lowercase) == (zh_en.decoding, True)
    assert again.model.config == zh_en.model.config
    assert not again.model.training
    assert again.src_tokenizer.encode("狗🙂") == zh_en.src_tokenizer.encode("狗🙂")
    assert all(parameter.requires_grad for parameter in again.model.parameters())


def test_the_configuration_is_plain_text(zh_en: Translator, tmp_path: Path) -> None:  # BR-22
    zh_en.save_pretrained(str(tmp_path / "kept"))
    text = (tmp_path / "kept" / "config.json").read_text(encoding="utf-8")
    config = json.loads(text)
    assert config["format"] == 1
    assert config["model"]["d_model"] == 16
    assert config["decoding"]["method"] == "greedy"
    assert config["lowercase"] is False
    assert config["shared_tokenizer"] is False
    source = Path(translator.__file__).read_text(encoding="utf-8")
    assert "torch.load" not in source
    assert "pickle" not in source


def test_one_tokenizer_for_both_sides_is_saved_once(
    english: SubwordTokenizer, tmp_path: Path
) -> None:
    model = make(english, english, share_embeddings=True)
    model.save_pretrained(tmp_path / "kept")
    assert names(tmp_path / "kept") == ["config.json", "model.safetensors", "source.spm"]
    again = Translator.from_pretrained(tmp_path / "kept")
    assert again.tgt_tokenizer is again.src_tokenizer
    assert again.model.tgt_embedding is again.model.src_embedding
    assert again.translate(["a dog"]) == model.translate(["a dog"])


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({}, {"output.weight"}),
        ({"tie_output": False}, set()),
        ({"share_embeddings": True}, {"output.weight", "tgt_embedding.weight"}),
        ({"share_embeddings": True, "tie_output": False}, {"tgt_embedding.weight"}),
        ({"norm_first": True, "norm": "rms", "learned_positions": True}, {"output.weight"}),
    ],
)
def test_tied_weights_are_stored_once_and_stay_tied(
    changes: dict[str, Any], absent: set[str], english: SubwordTokenizer, tmp_path: Path
) -> None:
    model = make(english, english, **changes)
    model.save_pretrained(tmp_path / "kept")
    with safe_open(tmp_path / "kept" / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == state_of(model).keys() - absent
    again = Translator.from_pretrained(tmp_path / "kept")
    assert equal(model, again)
    tied = changes.get("tie_output", True)
    assert (again.model.output.weight is again.model.tgt_embedding.weight) is tied


def test_wrappers_leave_no_trace_in_the_file(  # BR-24
    zh_en: Translator, tmp_path: Path
) -> None:
    wrapped: list[nn.Module] = [
        torch.compile(zh_en.model, backend="eager"),  # type: ignore[list-item]
        nn.DataParallel(zh_en.model),
    ]
    wrapped.append(nn.DataParallel(wrapped[0]))
    for model in wrapped:
        assert unwrapped(model) is zh_en.model
        save_model(tmp_path / "kept", model, zh_en.src_tokenizer, zh_en.tgt_tokenizer)
        stored = load_file(tmp_path / "kept" / "model.safetensors")
        assert stored.keys() == {name for name, _ in stored_names(zh_en.model.config).values()}
        again = load_model(tmp_path / "kept")
        assert equal(zh_en, Translator(*again))
        unwrapped(model).load_state_dict(again.model.state_dict())  # and the other way round
        assert equal(zh_en, Translator(model, zh_en.src_tokenizer, zh_en.tgt_tokenizer))


def test_a_compiled_part_leaves_no_trace_either(zh_en: Translator, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in state_of(zh_en).items()}
    zh_en.model.encoder = torch.compile(zh_en.model.encoder, backend="eager")  # type: ignore[assignment]
    zh_en.save_pretrained(tmp_path / "kept")
    again = Translator.from_pretrained(tmp_path / "kept")
    assert state_of(again).keys() == before.keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in state_of(again).items())


def test_what_is_no_transformer_is_refused(zh_en: Translator) -> None:
    for model in (nn.Linear(2, 2), nn.DataParallel(nn.Linear(2, 2))):
        with pytest.raises(TypeError, match=f"must be a Transformer, got {type(model).__name__}"):
            Translator(model, zh_en.src_tokenizer, zh_en.tgt_tokenizer)


def test_another_max_length_is_possible(zh_en: Translator, tmp_path: Path) -> None:  # BR-35
    zh_en.save_pretrained(tmp_path / "kept")
    for max_length in (20, 100):
        again = Translator.from_pretrained(tmp_path / "kept", max_length=max_length)
        assert again.model.config.max_length == max_length
        batch = some_batch(zh_en)
        inputs = batch.src[:, :5], batch.tgt[:, :5]
        assert torch.equal(again.model(*inputs), zh_en.model(*inputs))


def test_learned_positions_cannot_be_lengthened(
    chinese: SubwordTokenizer, english: SubwordTokenizer, tmp_path: Path
) -> None:
    make(chinese, english, learned_positions=True).save_pretrained(tmp_path / "kept")
    message = r"src_positions.table has shape \(40, 16\) instead of \(50, 16\)"
    with pytest.raises(ValueError, match=message):
        Translator.from_pretrained(tmp_path / "kept", max_length=50)


def test_numbers_keep_their_type_or_take_another(  # BR-62
    zh_en: Translator, tmp_path: Path
) -> None:
    def type_of(model: Translator) -> torch.dtype:
        (dtype,) = {parameter.dtype for parameter in model.model.parameters()}
        return dtype

    for dtype in (torch.bfloat16, torch.float64, torch.float32):
        zh_en.model.to(dtype)
        zh_en.save_pretrained(tmp_path / "kept")
        again = Translator.from_pretrained(tmp_path / "kept", device="cpu")
        assert type_of(again) == dtype
        assert equal(again, zh_en)
        half = Translator.from_pretrained(tmp_path / "kept", device="cpu", dtype=torch.bfloat16)
        assert type_of(half) == torch.bfloat16
        assert len(half.translate(["狗"])) == 1
    zh_en.model.encoder.half()
    zh_en.save_pretrained(tmp_path / "kept")
    assert type_of(Translator.from_pretrained(tmp_path / "kept", device="cpu")) == torch.float32


def test_the_best_device_is_taken(
    zh_en: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert best_device().type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert best_device().type == "mps"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert best_device().type == "cpu"
    zh_en.save_pretrained(tmp_path / "kept")
    again = Translator.from_pretrained(tmp_path / "kept")
    assert {parameter.device.type for parameter in again.model.parameters()} == {"cpu"}


def test_only_subword_tokenizers_can_be_saved(tmp_path: Path) -> None:
    words = Vocabulary.from_texts(ENGLISH)
    sizes = {"src_vocab_size": len(words), "tgt_vocab_size": len(words)} | SIZES
    model = Translator(small_model(**sizes), words, words, SHORT)
    assert len(model.translate(["The old dog"])) == 1
    assert model.attention("The old dog", "The cat").target_pieces == ["The", " cat", "<eos>"]
    with pytest.raises(TypeError, match=r"only a SubwordTokenizer can be saved.*Vocabulary"):
        model.save_pretrained(tmp_path / "kept")
    assert names(tmp_path) == []


def test_weights_that_the_configuration_does_not_describe_are_refused(
    zh_en: Translator, tmp_path: Path
) -> None:
    zh_en.model.adapter = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"the model does not fit.*adapter.weight is unexpected"):
        zh_en.save_pretrained(tmp_path / "kept")
    del zh_en.model.adapter
    zh_en.model.output.weight = nn.Parameter(zh_en.model.output.weight + 1)
    with pytest.raises(ValueError, match=r"output.weight and tgt_embedding.weight differ"):
        zh_en.save_pretrained(tmp_path / "kept")
    assert names(tmp_path) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_others_may_read_what_the_mask_lets_them(zh_en: Translator, tmp_path: Path) -> None:
    zh_en.save_pretrained(tmp_path / "kept")
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "kept").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "file").stat().st_mode)
    assert (tmp_path / "kept").stat().st_mode == (tmp_path / "folder").stat().st_mode


# Whole or not at all


@pytest.fixture
def two(chinese: SubwordTokenizer, english: SubwordTokenizer) -> tuple[Translator, Translator]:
    one, other = make(chinese, english), make(chinese, english)
    assert not equal(one, other)
    return one, other


def test_a_failing_write_leaves_the_old_one_whole(  # BR-23
    two: tuple[Translator, Translator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: dict[str, Tensor], path: Path) -> None:
        Path(path).write_bytes(b"\0" * 100)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(translator, "save_file", full)
        with pytest.raises(OSError, match="No space left"):
            two[0].save_pretrained(tmp_path / "kept")
        assert names(tmp_path) == []
    two[0].save_pretrained(tmp_path / "kept")
    monkeypatch.setattr(translator, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        two[1].save_pretrained(tmp_path / "kept")
    assert names(tmp_path) == ["kept"]
    assert equal(Translator.from_pretrained(tmp_path / "kept"), two[0])


@pytest.mark.parametrize("older", [True, False])
def test_a_crash_at_any_step_leaves_a_whole_one(  # BR-23
    older: bool,
    two: tuple[Translator, Translator],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy of the disk before each step is what a machine finds that died there."""
    disk, copies = tmp_path / "disk", tmp_path / "copies"
    disk.mkdir()
    if older:
        two[0].save_pretrained(disk / "kept")

    with monkeypatch.context() as patch:
        count = itertools.count()

        def watch(module: Any, name: str) -> None:
            original = getattr(module, name)

            def step(*args: Any, **options: Any) -> Any:
                shutil.copytree(disk, copies / f"{next(count):02}")
                return original(*args, **options)

            patch.setattr(module, name, step)

        watch(translator, "save_file")
        watch(translator.os, "fsync")
        watch(translator.os, "replace")
        watch(translator.Path, "write_bytes")
        real_rmtree = shutil.rmtree
        fake = types.SimpleNamespace(rmtree=real_rmtree, copymode=shutil.copymode)
        patch.setattr(translator, "shutil", fake)
        watch(fake, "rmtree")
        two[1].save_pretrained(disk / "kept")

    assert names(disk) == ["kept"]
    assert equal(Translator.from_pretrained(disk / "kept"), two[1])
    seen = []
    for copy in sorted(copies.iterdir()):
        try:
            found = Translator.from_pretrained(copy / "kept")
        except FileNotFoundError:
            assert not older
            seen.append(-1)
        else:
            assert equal(found, two[0]) or equal(found, two[1])
            seen.append(int(equal(found, two[1])))
        # The next save puts things in order, and may itself fail first.
        with pytest.raises(RuntimeError, match="stop"), atomic_directory(copy / "kept"):
            raise RuntimeError("stop")
        assert set(names(copy)) <= {"kept"}
        if seen[-1] >= 0:
            assert equal(Translator.from_pretrained(copy / "kept"), two[seen[-1]])
        two[1].save_pretrained(copy / "kept")
        assert names(copy) == ["kept"]
        assert equal(Translator.from_pretrained(copy / "kept"), two[1])
    assert seen == sorted(seen)
    assert set(seen) == ({0, 1} if older else {-1, 1})
    assert len(seen) >= 8


def test_a_rename_that_fails_puts_the_old_one_back(
    two: tuple[Translator, Translator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two[0].save_pretrained(tmp_path / "kept")
    replace, moves = os.replace, []

    def second_fails(source: Path, target: Path) -> None:
        assert not Path(target).exists()  # Windows cannot replace a directory
        moves.append(target)
        if len(moves) == 2:
            raise PermissionError("a virus scanner holds the folder")
        replace(source, target)

    monkeypatch.setattr(os, "replace", second_fails)
    with pytest.raises(PermissionError, match="virus"):
        two[1].save_pretrained(tmp_path / "kept")
    assert len(moves) == 3
    assert names(tmp_path) == ["kept"]
    assert equal(Translator.from_pretrained(tmp_path / "kept"), two[0])


def test_an_interrupted_block_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_directory(tmp_path / "kept") as folder:
            (folder / "config.json").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert names(tmp_path) == []


def test_other_names_are_not_taken_for_left_overs(tmp_path: Path) -> None:
    for name in (
        ".kept.b.12345678.new",
        ".kept.new",
        ".kept.12345678.new.txt",
        "kept.12345678.new",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / ".kept.12345678.new").mkdir()
    before = set(names(tmp_path))
    with atomic_directory(tmp_path / "kept") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("a", encoding="utf-8")
    assert set(names(tmp_path)) == before - {".kept.12345678.new"} | {"kept"}
    assert (tmp_path / "kept" / "sub" / "file").read_text(encoding="utf-8") == "a"


def test_what_is_something_else_is_not_replaced(zh_en: Translator, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    (tmp_path / "thesis" / "config.json").touch()
    with pytest.raises(FileExistsError, match=r"also holds chapter.tex"):
        zh_en.save_pretrained(tmp_path / "thesis")
    (tmp_path / "notes").touch()
    with pytest.raises(FileExistsError, match="is a file"):
        zh_en.save_pretrained(tmp_path / "notes")
    assert names(tmp_path) == ["notes", "thesis"]
    assert names(tmp_path / "thesis") == ["chapter.tex", "config.json"]


def test_empty_folders_and_what_finders_leave_are_replaced(
    zh_en: Translator, tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    zh_en.save_pretrained(tmp_path / "kept")
    (tmp_path / "kept" / ".DS_Store").touch()
    zh_en.save_pretrained(tmp_path / "kept")
    assert equal(Translator.from_pretrained(tmp_path / "kept"), zh_en)


def test_a_checkpoint_names_the_files_that_it_may_replace(
    zh_en: Translator, tmp_path: Path
) -> None:
    allowed = (*translator.FILES, "state.json")
    for _ in range(2):
        with atomic_directory(tmp_path / "step-1", allowed) as folder:
            write_translator(folder, *zh_en.parts())
            (folder / "state.json").write_text("{}", encoding="utf-8")
    assert equal(Translator.from_pretrained(tmp_path / "step-1"), zh_en)
    with pytest.raises(FileExistsError, match=r"also holds state.json"):
        zh_en.save_pretrained(tmp_path / "step-1")


def test_links_and_relative_names(
    zh_en: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    zh_en.save_pretrained("kept")
    assert equal(Translator.from_pretrained("kept"), zh_en)
    try:
        Path("latest").symlink_to("kept", target_is_directory=True)
    except OSError:
        pytest.skip("no links here")
    zh_en.save_pretrained("latest")
    assert Path("latest").is_symlink()
    assert names(tmp_path) == ["kept", "latest"]


# What cannot be loaded


@pytest.fixture
def kept(zh_en: Translator, tmp_path: Path) -> Path:
    zh_en.save_pretrained(tmp_path / "kept")
    return tmp_path / "kept"


def change(kept: Path, *path: str, value: Any = None) -> None:
    file = kept / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    part = config
    for name in path[:-1]:
        part = part[name]
    if value is None:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    file.write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), 2, "format 2, this version of the package reads up to 1"),
        (("format",), None, "no format number"),
        (("format",), "1", "no format number"),
        (("extra",), 1, r"unknown fields \['extra'\]"),
        (("lowercase",), None, r"lacks \['lowercase'\]"),
        (("lowercase",), "no", "lowercase must be true or false, got 'no'"),
        (("model",), 3, "model must be a table of fields, got 3"),
        (("model", "heads"), 8, "model has unknown fields: heads"),
        (("model", "src_vocab_size"), None, "model lacks fields: src_vocab_size"),
        (("model", "num_heads"), 3, "num_heads must be a divisor of d_model=16"),
        (("model", "d_model"), "16", "d_model"),
        (("model", "norm_first"), "no", "norm_first must be true or false, got 'no'"),
        (("decoding", "beams"), 8, "decoding has unknown fields: beams"),
        (("decoding", "beam_size"), 0, "decoding: beam_size"),
        (("model", "num_encoder_layers"), 3, "encoder.layers.2.self_attention.*is missing"),
        (("model", "num_encoder_layers"), 1, "encoder.layers.1.self_attention.*is unexpected"),
        (("model", "d_ff"), 25, r"expand.weight has shape \(24, 16\) instead of \(25, 16\)"),
        (("model", "tie_output"), False, "output.weight is missing"),
        (("shared_tokenizer",), True, r"the target tokenizer has \d+ tokens, the model has"),
    ],
)
def test_a_wrong_configuration_is_named(
    kept: Path, path: tuple[str, ...], value: Any, message: str
) -> None:
    change(kept, *path, value=value)
    with pytest.raises(ValueError, match=message):
        Translator.from_pretrained(kept)


def test_older_configurations_may_lack_newer_fields(kept: Path) -> None:
    change(kept, "model", "activation_dropout")
    assert Translator.from_pretrained(kept).model.config.activation_dropout == 0


@pytest.mark.parametrize("text", ["", "{", "\ufeff{}", "[1]", "\udcff"])
def test_a_configuration_that_is_not_json(kept: Path, text: str) -> None:
    (kept / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"config.json is not"):
        Translator.from_pretrained(kept)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_damaged_weights_are_refused(kept: Path, keep: int) -> None:
    file = kept / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged"):
        Translator.from_pretrained(kept)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("encoder.layers.0.feed_forward.expand.bias"), r"expand.bias is missing"),
        (lambda t: t.update(more=torch.zeros(2)), "more is unexpected"),
        (lambda t: t.update({"src_embedding.weight": torch.zeros(3, 16)}), r"\(3, 16\) instead of"),
        (
            lambda t: t.update({"src_embedding.weight": t["src_embedding.weight"].to(torch.int8)}),
            "not floating-point: src_embedding.weight",
        ),
    ],
)
def test_wrong_tensors_are_named(
    kept: Path, edit: Callable[[dict[str, Tensor]], Any], message: str
) -> None:
    tensors = load_file(kept / "model.safetensors")
    edit(tensors)
    save_file(tensors, kept / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        Translator.from_pretrained(kept)


def test_a_tokenizer_of_another_model_is_refused(kept: Path) -> None:
    shutil.copy(kept / "source.spm", kept / "target.spm")
    with pytest.raises(ValueError, match=r"the target tokenizer has \d+ tokens, the model has"):
        Translator.from_pretrained(kept)


def test_missing_files_are_named(kept: Path) -> None:
    (kept / "target.spm").unlink()
    (kept / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks model.safetensors, target.spm"):
        Translator.from_pretrained(kept)
    with pytest.raises(FileNotFoundError, match=r"no config.json"):
        Translator.from_pretrained(kept.parent)


# The hub, without a network


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Stands for `huggingface_hub`; each repository is a folder."""
    seen: dict[str, Any] = {"downloads": []}
    root = tmp_path / "hub"

    def snapshot_download(name: str, **options: Any) -> str:
        seen["downloads"].append((name, options))
        if not (root / name).is_dir():
            raise OSError("404 Repository Not Found")
        return str(root / name)

    class HfApi:
        def __init__(self, token: str | None = None) -> None:
            seen["token"] = token

        def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> str:
            (root / repo_id).mkdir(parents=True, exist_ok=exist_ok)
            seen["private"] = private
            return f"https://huggingface.co/{repo_id}"

        def upload_folder(
            self, *, repo_id: str, folder_path: str, commit_message: str, delete_patterns: list[str]
        ) -> None:
            for pattern in delete_patterns:
                for path in (root / repo_id).glob(pattern):
                    path.unlink()
            shutil.copytree(folder_path, root / repo_id, dirs_exist_ok=True)

    module = types.ModuleType("huggingface_hub")
    module.__dict__.update(snapshot_download=snapshot_download, HfApi=HfApi)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return seen


def test_push_and_pull(zh_en: Translator, english: SubwordTokenizer, hub: dict[str, Any]) -> None:
    assert zh_en.push_to_hub("me/zh-en", token="t") == "https://huggingface.co/me/zh-en"
    assert hub["private"] is True
    assert hub["token"] == "t"
    again = Translator.from_pretrained("me/zh-en", revision="v1")
    assert equal(again, zh_en)
    (name, options), *_ = hub["downloads"]
    assert name == "me/zh-en"
    assert options["revision"] == "v1"
    assert set(options["allow_patterns"]) == set(translator.FILES)

    make(english, english).push_to_hub("me/zh-en", private=False)
    assert hub["private"] is False
    assert Translator.from_pretrained("me/zh-en").tgt_tokenizer.encode("dog")


def test_nothing_is_made_on_the_hub_for_what_cannot_be_saved(hub: dict[str, Any]) -> None:
    words = Vocabulary.from_texts(ENGLISH)
    model = small_model(src_vocab_size=len(words), tgt_vocab_size=len(words))
    with pytest.raises(TypeError, match="SubwordTokenizer"):
        Translator(model, words, words).push_to_hub("me/words")
    assert "private" not in hub


@pytest.mark.parametrize(
    "name",
    ["./kept", "../kept", "/no/where", "kept", ".\\kept", "models\\kept", "a/b/c", "~/no-such-x"],
)
def test_what_looks_like_a_path_never_goes_to_the_network(
    name: str, hub: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given_name in (name, Path(name)):
        with pytest.raises(FileNotFoundError, match="there is no directory"):
            Translator.from_pretrained(given_name)
    assert hub["downloads"] == []


def test_a_directory_comes_before_the_hub(
    zh_en: Translator, hub: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    zh_en.save_pretrained("runs/first")
    assert equal(Translator.from_pretrained("runs/first"), zh_en)
    assert hub["downloads"] == []
    with pytest.raises(FileNotFoundError, match=r"no directory runs.second, and runs/second could"):
        Translator.from_pretrained("runs/second")


def test_without_the_hub_package_both_ways_are_named(
    zh_en: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match=r"no directory .*pip install huggingface_hub"):
        Translator.from_pretrained("me/zh-en")
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        zh_en.push_to_hub("me/zh-en")


def test_find_directory_gives_the_older_one_between_two_renames(kept: Path) -> None:
    os.replace(kept, kept.with_name(".kept.0123abcd.old"))
    kept.with_name(".kept.0123abcd.new").mkdir()
    assert find_directory(kept) == kept.with_name(".kept.0123abcd.old")
    assert Translator.from_pretrained(str(kept)).translate([""]) == [""]
