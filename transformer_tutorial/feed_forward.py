import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class FeedForward(nn.Module):
    """The same two-layer network at every position (paper, section 3.3, equation 2).

    Args:
        d_model: Width of the states.
        d_ff: Width of the hidden layer; the paper uses 4 · d_model.
        activation: "relu" (the paper's), "gelu" or "silu".
        dropout: Probability of dropping a hidden unit while training. The paper has none.

    Shape:
        `(batch, length, d_model)` → the same.

    Raises:
        ValueError: If the activation is not one of those above.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: str = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {list(ACTIVATIONS)}, got {activation!r}")
        self.activation = activation
        self.expand = nn.Linear(d_model, d_ff)
        self.contract = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        hidden = ACTIVATIONS[self.activation](self.expand(x))
        output: Tensor = self.contract(self.dropout(hidden))
        return output
