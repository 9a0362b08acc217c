import torch
from jaxtyping import Float
from torch import Tensor, nn


def sinusoidal_table(max_length: int, d_model: int) -> Float[Tensor, "max_length d_model"]:
    """Sines and cosines of every position (paper, section 3.5).

    Column 2i holds sin(pos / 10000^(2i/d_model)), column 2i+1 the cosine of the same angle. An
    odd `d_model` ends on a sine. Angles are computed in float64 and returned in float32.

    Raises:
        ValueError: If `max_length` or `d_model` is less than 1.
    """
    if max_length < 1 or d_model < 1:
        raise ValueError(
            f"max_length and d_model must be at least 1, got {max_length} and {d_model}"
        )
    position = torch.arange(max_length, dtype=torch.float64).unsqueeze(1)
    even_columns = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = position / 10000 ** (even_columns / d_model)
    table = torch.empty(max_length, d_model, dtype=torch.float64)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : d_model // 2]
    return table.to(torch.float32)


class PositionalEncoding(nn.Module):
    """Add a vector for its position to each embedding, then drop out (paper, 3.5 and 5.4).

    Args:
        d_model: Width of a vector.
        max_length: Number of positions in the table.
        dropout: Probability of dropping a component of the sum.
        learned: Train the table, starting from N(0, 1/d_model), instead of using sinusoids.
            A sinusoidal table is not part of the `state_dict`: it can be computed anew for any
            `max_length`.

    Shape:
        `(batch, length, d_model)` → the same.

    Raises:
        ValueError: In `forward`, if `length` is more than `max_length`.
    """

    table: Tensor

    def __init__(
        self, d_model: int, max_length: int, dropout: float = 0.1, learned: bool = False
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        if learned:
            self.table = nn.Parameter(torch.empty(max_length, d_model))
            nn.init.normal_(self.table, std=d_model**-0.5)
        else:
            self.register_buffer("table", sinusoidal_table(max_length, d_model), persistent=False)

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        length, max_length = x.size(1), self.table.size(0)
        if length > max_length:
            raise ValueError(f"a sequence has {length} tokens, the table of positions {max_length}")
        dropped: Tensor = self.dropout(x + self.table[:length].to(x.dtype))
        return dropped
