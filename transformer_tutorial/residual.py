from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from transformer_tutorial.normalization import make_norm


class ResidualConnection(nn.Module):
    """Add a sublayer's output to its input, and normalise (paper, sections 3.1 and 5.4).

    Post-norm, the paper's form: norm(x + dropout(sublayer(x))).
    Pre-norm (Xiong et al., 2020): x + dropout(sublayer(norm(x))).

    Args:
        d_model: Width of the states.
        dropout: Probability of dropping a component of the sublayer's output while training.
        norm_first: Pre-norm instead of post-norm.
        norm: "layer" or "rms".
        eps: The norm's eps.

    Shape:
        x `(batch, length, d_model)` → the same; `sublayer` maps that shape to itself.

    Raises:
        ValueError: If `norm` is not one of those above.
    """

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        norm_first: bool = False,
        norm: str = "layer",
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.norm = make_norm(norm, d_model, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        sublayer: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, "batch length d_model"]:
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        normalised: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return normalised
