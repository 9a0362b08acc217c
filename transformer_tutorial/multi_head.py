from jaxtyping import Float
from torch import Tensor, nn

from transformer_tutorial.attention import scaled_dot_product_attention


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each on its own slice of the width (paper, 3.2.2).

    Args:
        d_model: Width of the states; must be a multiple of `num_heads`.
        num_heads: Number of heads, each `d_model / num_heads` wide.
        dropout: Probability of dropping an attention weight while training. The paper has none.

    Shape:
        query `(batch, queries, d_model)`, key and value `(batch, keys, d_model)` →
        output `(batch, queries, d_model)`, weights `(batch, num_heads, queries, keys)` or `None`.

    Raises:
        ValueError: If `num_heads` does not divide `d_model`; in `forward`, if a mask does not fit
            `(batch, num_heads, queries, keys)`.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model, got {num_heads} and {d_model}")
        self.num_heads = num_heads
        self.dropout = dropout
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.output_projection = nn.Linear(d_model, d_model)
        for projection in self.children():
            assert isinstance(projection, nn.Linear)
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: Float[Tensor, "batch queries d_model"],
        key: Float[Tensor, "batch keys d_model"],
        value: Float[Tensor, "batch keys d_model"],
        mask: Tensor | None = None,
        *,
        return_weights: bool = False,
    ) -> tuple[
        Float[Tensor, "batch queries d_model"], Float[Tensor, "batch heads queries keys"] | None
    ]:
        heads, weights = scaled_dot_product_attention(
            self._split(self.query_projection(query)),
            self._split(self.key_projection(key)),
            self._split(self.value_projection(value)),
            mask,
            dropout=self.dropout if self.training else 0.0,
            return_weights=return_weights,
        )
        return self.output_projection(heads.transpose(1, 2).flatten(2)), weights

    def _split(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch heads length d_head"]:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
