import torch
from jaxtyping import Float
from torch import Tensor, nn


def log_softmax(logits: Float[Tensor, "*batch"], dim: int = -1) -> Float[Tensor, "*batch"]:
    """Logarithm of the softmax, safe for any finite logits and for −inf.

    Subtracting the maximum first keeps every exponent at or below 0: nothing overflows, and the
    sum is at least 1, so its logarithm is finite.

    Shape:
        any → the same; along `dim` the exponentials sum to 1. Where all logits along `dim` are
        −inf there is no distribution and the result is −inf.
    """
    maximum = logits.amax(dim, keepdim=True)
    shifted = logits - maximum.masked_fill(maximum == -torch.inf, 0.0)
    total = shifted.exp().sum(dim, keepdim=True)
    return shifted - total.masked_fill(total == 0, 1.0).log()


def softmax(logits: Float[Tensor, "*batch"], dim: int = -1) -> Float[Tensor, "*batch"]:
    """Probabilities from scores (paper, section 3.4), safe for any finite logits and for −inf.

    Shape:
        any → the same; sums to 1 along `dim`, or is 0 where all logits are −inf.
    """
    return log_softmax(logits, dim).exp()


class OutputProjection(nn.Module):
    """Score every word of the vocabulary for every state: logits = states · weightᵀ (paper, 3.4).

    Args:
        d_model: Width of a state.
        vocab_size: Number of words.
        weight: A `(vocab_size, d_model)` parameter to share, such as an embedding's; a new one
            is drawn when it is `None`.

    Shape:
        states `(..., d_model)` → logits `(..., vocab_size)`, not normalised.

    Raises:
        ValueError: If a shared weight has another shape.
    """

    def __init__(self, d_model: int, vocab_size: int, weight: nn.Parameter | None = None) -> None:
        super().__init__()
        if weight is None:
            weight = nn.Parameter(torch.empty(vocab_size, d_model))
            nn.init.xavier_uniform_(weight)
        elif weight.shape != (vocab_size, d_model):
            raise ValueError(
                f"a shared weight must have shape {(vocab_size, d_model)}, got {tuple(weight.shape)}"
            )
        self.weight = weight

    def forward(self, states: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        return nn.functional.linear(states, self.weight)
