import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def pad_sequences(
    sequences: Sequence[Sequence[int]], pad_id: int, max_length: int | None = None
) -> Int[Tensor, "batch length"]:
    """Stack id sequences of unequal length into one rectangle, padded on the right.

    Args:
        sequences: One sequence of token ids per sentence; a sentence may be empty.
        pad_id: The id that fills the free places. No sequence may hold it.
        max_length: Longest sequence allowed; `None` allows any length.

    Returns:
        int64 ids of shape `(batch, length)`, `length` being that of the longest sequence.

    Raises:
        ValueError: If a sequence is longer than `max_length` (use `truncate` first),
            or already holds `pad_id`, so that a real token would pass for padding.
    """
    length = max((len(sequence) for sequence in sequences), default=0)
    if max_length is not None and length > max_length:
        raise ValueError(
            f"a sequence has {length} tokens, max_length allows {max_length}; "
            "shorten it with truncate() first"
        )
    ids = torch.full((len(sequences), length), pad_id, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        if pad_id in sequence:
            raise ValueError(f"sequence {row} holds {pad_id}, which is reserved for padding")
        ids[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.int64)
    return ids


def truncate(sequence: Sequence[int], max_length: int) -> list[int]:
    """Shorten `sequence` to `max_length` ids: keep its beginning and its last id.

    The last id is the end-of-sentence mark, without which a decoder never learns to stop.

    Raises:
        ValueError: If `max_length` is less than 1.
    """
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, got {max_length}")
    if len(sequence) <= max_length:
        return list(sequence)
    return [*sequence[: max_length - 1], sequence[-1]]


class TokenEmbedding(nn.Module):
    """Look up a vector for each token id and scale it by √d_model (paper, section 3.4).

    The table is drawn from N(0, 1/d_model), so the scaled vectors have unit variance and the
    table can also serve as the output projection.

    Args:
        vocab_size: Number of rows of the table; ids run from 0 to `vocab_size - 1`.
        d_model: Width of a vector.

    Shape:
        ids `(batch, length)` → vectors `(batch, length, d_model)`.

    Raises:
        TypeError: In `forward`, if the ids are not integers.
        ValueError: In `forward`, if an id lies outside the table. The check reads the ids, so it
            is left out while `torch.compile` or `torch.export` traces the model.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.scale = math.sqrt(d_model)
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length d_model"]:
        if ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"token ids must be int64 or int32, got {ids.dtype}")
        if ids.numel() and not ids.is_meta and not torch.compiler.is_compiling():
            low, high = ids.min().item(), ids.max().item()
            if low < 0 or high >= self.weight.size(0):
                wrong = low if low < 0 else high
                raise ValueError(
                    f"token id {wrong} is not in the vocabulary of ids 0 to {self.weight.size(0) - 1}"
                )
        return nn.functional.embedding(ids, self.weight) * self.scale
