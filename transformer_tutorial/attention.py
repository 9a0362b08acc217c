import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def check_mask(mask: Tensor, scores_shape: tuple[int, ...]) -> None:
    """Refuse a mask that is not boolean or does not fit scores of shape `(..., queries, keys)`.

    A mask has two axes, or as many as the scores; each is 1 or the scores' own size.

    Raises:
        TypeError: If the mask is not boolean.
        ValueError: If its shape does not fit.
    """
    if mask.dtype != torch.bool:
        raise TypeError(
            f"a mask must be torch.bool, True where a query may attend; got {mask.dtype}"
        )
    fits = mask.dim() in (2, len(scores_shape)) and all(
        size in (1, wanted)
        for size, wanted in zip(reversed(mask.shape), reversed(scores_shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"a mask must fit scores of shape {scores_shape}: two axes, or as many as the scores, "
            f"each 1 or equal; got {tuple(mask.shape)}"
        )


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch queries d_k"],
    key: Float[Tensor, "*batch keys d_k"],
    value: Float[Tensor, "*batch keys d_v"],
    mask: Tensor | None = None,
    *,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> tuple[Float[Tensor, "*batch queries d_v"], Float[Tensor, "*batch queries keys"] | None]:
    """softmax(query · keyᵀ / √d_k) · value (paper, section 3.2.1, equation 1).

    Without `return_weights` PyTorch's fused kernel does the work and the weights are never
    stored: memory grows linearly with the number of keys. With it the same result is computed
    step by step.

    Args:
        mask: Boolean, True where a query may attend to a key; of shape `(queries, keys)` or of
            the scores' own number of axes, with 1 for an axis that does not matter. A query that
            may attend to no key at all gets weights and an output of 0.
        dropout: Probability of dropping a weight. The caller passes 0 when not training.
        return_weights: Also return the weights, as they are before dropout: each row sums to 1.

    Returns:
        The output and the weights, or the output and `None`.

    Raises:
        TypeError: If the mask is not boolean.
        ValueError: If the mask's shape does not fit.
    """
    seen = None
    if mask is not None:
        check_mask(mask, (*query.shape[:-1], key.size(-2)))
        # A row without any key would be a softmax over nothing. It looks at all keys instead,
        # and its output is set to 0 afterwards.
        seen = mask.any(-1, keepdim=True)
        mask = mask | ~seen

    if not return_weights:
        output = F.scaled_dot_product_attention(query, key, value, mask, dropout)
        return output if seen is None else output.masked_fill(~seen, 0.0), None

    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1)
    if seen is not None:
        weights = weights.masked_fill(~seen, 0.0)
    return F.dropout(weights, dropout) @ value, weights
