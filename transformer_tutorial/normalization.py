import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """Shift and scale each state to mean 0 and variance 1, then by learned weights (Ba et al., 2016).

    (x − mean) / √(variance + eps) · weight + bias, over the last axis; the variance is the mean
    of the squared deviations (divided by d_model, not d_model − 1).

    Args:
        d_model: Width of the states.
        eps: Added to the variance, inside the root.

    Shape:
        `(..., d_model)` → the same.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Scale each state to a root mean square of 1, then by learned weights (Zhang & Sennrich, 2019).

    x / √(mean of x² + eps) · weight, over the last axis: no mean is subtracted, no bias added.

    Args:
        d_model: Width of the states.
        eps: Added to the mean square, inside the root.

    Shape:
        `(..., d_model)` → the same.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


NORMS = {"layer": LayerNorm, "rms": RMSNorm}


def make_norm(kind: str, d_model: int, eps: float = 1e-5) -> LayerNorm | RMSNorm:
    """A new norm of the kind "layer" or "rms".

    Raises:
        ValueError: If the kind is not one of those.
    """
    if kind not in NORMS:
        raise ValueError(f"norm must be one of {list(NORMS)}, got {kind!r}")
    return NORMS[kind](d_model, eps)
