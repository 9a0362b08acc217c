import random
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from transformer_tutorial.embeddings import pad_sequences
from transformer_tutorial.masks import padding_mask
from transformer_tutorial.model import Transformer


def date_pairs(
    count: int,
    seed: int,
    source: str = "zh",
    target: str = "en",
    first: date = date(1900, 1, 1),
    last: date = date(2100, 12, 31),
) -> list[tuple[str, str]]:
    """Distinct random dates, each written out in two languages in CLDR's full form.

    Raises:
        ImportError: If Babel, which knows how languages write dates, is not installed.
        ValueError: If there are fewer than `count` days from `first` to `last`.
    """
    try:
        from babel.dates import format_date
    except ImportError as error:
        raise ImportError(
            'date_pairs() needs Babel: pip install "transformer-tutorial[train]"'
        ) from error

    days = (last - first).days + 1
    if not 0 <= count <= days:
        raise ValueError(f"count must be 0 to {days}, the days from {first} to {last}; got {count}")
    chosen = [first + timedelta(day) for day in random.Random(seed).sample(range(days), count)]
    return [
        (format_date(day, "full", locale=source), format_date(day, "full", locale=target))
        for day in chosen
    ]


def tokenize(text: str) -> list[str]:
    """Cut text into words, single digits, and single other characters; joined, they are the text.

    A space belongs to the word or digit that follows it.
    """
    return re.findall(r" ?[A-Za-z]+| ?\d|.", text, re.DOTALL)


class Vocabulary:
    """A numbered list of tokens, after four special ones: padding, begin, end and unknown.

    Args:
        tokens: Ordinary tokens, in the order of their ids; the first gets id 4.

    Raises:
        ValueError: If a token occurs twice.
    """

    pad_id, bos_id, eos_id, unk_id = range(4)

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = ["<pad>", "<bos>", "<eos>", "<unk>", *tokens]
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self.ids) < len(self.tokens):
            twice = next(t for i, t in enumerate(self.tokens) if self.ids[t] != i)
            raise ValueError(f"a vocabulary lists each token once, {twice!r} occurs twice")

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> "Vocabulary":
        """Every token of the texts, sorted."""
        return cls(sorted({token for text in texts for token in tokenize(text)}))

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """Ids of the text's tokens, between begin and end; an unlisted token becomes unknown."""
        ids = [self.ids.get(token, self.unk_id) for token in tokenize(text)]
        return [self.bos_id, *ids, self.eos_id]

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first end mark, without padding and begin marks."""
        text = ""
        for index in ids:
            if index == self.eos_id:
                break
            if index not in (self.pad_id, self.bos_id):
                text += self.tokens[index]
        return text


def shift_targets(
    tgt: Int[Tensor, "batch length"],
) -> tuple[Int[Tensor, "batch shorter"], Int[Tensor, "batch shorter"]]:
    """Decoder input and labels: the label of a position is the token that comes after it.

    Shape:
        `(batch, length)` → twice `(batch, length - 1)`.
    """
    return tgt[:, :-1], tgt[:, 1:]


def label_smoothed_cross_entropy(
    logits: Float[Tensor, "batch length vocab"],
    labels: Int[Tensor, "batch length"],
    pad_id: int,
    smoothing: float = 0.1,
) -> Float[Tensor, ""]:
    """Mean loss in nats per real label, against smoothed labels (paper, section 5.4).

    The target distribution gives `smoothing / vocab` to every word, and what remains,
    `1 - smoothing`, to the label. So a logit of −inf makes the loss infinite unless `smoothing`
    is 0. Padding counts for nothing; without any real label the loss is 0.
    """
    total = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=pad_id,
        label_smoothing=smoothing,
        reduction="sum",
    )
    return total / (labels != pad_id).sum().clamp(min=1)


def noam_rate(step: int, d_model: int, warmup: int, factor: float = 1.0) -> float:
    """Learning rate of a step, counted from 1: up in a line, then down as 1/√step (paper, eq. 3).

    Raises:
        ValueError: If `warmup` is less than 1.
    """
    if warmup < 1:
        raise ValueError(f"warmup must be at least 1 step, got {warmup}")
    if step < 1:
        return 0.0
    return float(factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))


def warmup_schedule(
    optimizer: Optimizer, d_model: int, warmup: int, factor: float = 1.0
) -> LambdaLR:
    """A scheduler by which the optimiser's n-th step uses exactly `noam_rate(n)`.

    It replaces the optimiser's own learning rate. Call `step()` after each optimiser step.
    """
    noam_rate(1, d_model, warmup, factor)
    for group in optimizer.param_groups:
        group["lr"] = 1.0
        group.pop("initial_lr", None)
    return LambdaLR(optimizer, lambda done: noam_rate(done + 1, d_model, warmup, factor))


def train(
    model: Transformer,
    pairs: Sequence[tuple[str, str]],
    src_vocab: Vocabulary,
    tgt_vocab: Vocabulary,
    *,
    steps: int,
    batch_size: int = 64,
    warmup: int = 100,
    smoothing: float = 0.1,
    seed: int = 0,
) -> list[float]:
    """Train by teacher forcing, on the model's own device; return the loss of each step."""
    device = next(model.parameters()).device
    src = pad_sequences([src_vocab.encode(text) for text, _ in pairs], src_vocab.pad_id).to(device)
    tgt = pad_sequences([tgt_vocab.encode(text) for _, text in pairs], tgt_vocab.pad_id).to(device)
    optimizer = Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    schedule = warmup_schedule(optimizer, model.config.d_model, warmup)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(pairs), (batch_size,), generator=generator).to(device)
        inputs, labels = shift_targets(tgt[rows])
        loss = label_smoothed_cross_entropy(
            model(src[rows], inputs), labels, tgt_vocab.pad_id, smoothing
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


@torch.no_grad()
def greedy_decode(
    model: Transformer,
    src: Int[Tensor, "batch src_length"],
    bos_id: int,
    eos_id: int,
    max_new_tokens: int,
) -> Int[Tensor, "batch new_tokens"]:
    """From the begin mark on, append the likeliest word until every row has ended.

    Padding and the begin mark are never chosen. The model is in evaluation mode meanwhile.

    Returns:
        The new ids without the begin mark; after its end mark a row holds padding. A row that
        does not end within `max_new_tokens` has no end mark.

    Raises:
        ValueError: If `max_new_tokens` is less than 1 or more than the model's `max_length`.
    """
    limit = model.config.max_length
    if not 1 <= max_new_tokens <= limit:
        raise ValueError(f"max_new_tokens must be 1 to max_length={limit}, got {max_new_tokens}")
    pad_id = model.config.pad_id
    was_training = model.training
    model.eval()
    try:
        src_mask = padding_mask(src, pad_id)
        memory = model.encode(src, src_mask)
        tgt = src.new_full((src.size(0), 1), bos_id)
        ended = torch.zeros(src.size(0), dtype=torch.bool, device=src.device)
        for _ in range(max_new_tokens):
            logits = model.output(model.decode(tgt, memory, src_mask)[:, -1])
            logits[:, [pad_id, bos_id]] = -torch.inf
            chosen = logits.argmax(-1).masked_fill(ended, pad_id)
            tgt = torch.cat([tgt, chosen[:, None]], dim=1)
            ended |= chosen == eos_id
            if ended.all():
                break
    finally:
        model.train(was_training)
    return tgt[:, 1:]


def translate(
    model: Transformer,
    texts: Sequence[str],
    src_vocab: Vocabulary,
    tgt_vocab: Vocabulary,
    max_new_tokens: int = 40,
) -> list[str]:
    """Translate each text by greedy decoding."""
    device = next(model.parameters()).device
    src = pad_sequences([src_vocab.encode(text) for text in texts], src_vocab.pad_id).to(device)
    ids = greedy_decode(model, src, tgt_vocab.bos_id, tgt_vocab.eos_id, max_new_tokens)
    return [tgt_vocab.decode(row) for row in ids.tolist()]
