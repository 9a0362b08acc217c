import torch
from jaxtyping import Bool, Int
from torch import Tensor


def padding_mask(ids: Int[Tensor, "batch length"], pad_id: int) -> Bool[Tensor, "batch 1 1 length"]:
    """True at every real token. Any query may attend to it; no query may attend to padding.

    Shape:
        ids `(batch, length)` → `(batch, 1, 1, length)`: the same for each head and each query.
    """
    return (ids != pad_id)[:, None, None, :]


def causal_mask(
    queries: int, keys: int | None = None, device: torch.device | str | None = None
) -> Bool[Tensor, "queries keys"]:
    """True where a key is not later than the query (paper, section 3.2.3).

    With fewer queries than keys, the queries are the last ones: the final query sees every key.

    Args:
        queries: Number of queries.
        keys: Number of keys; as many as queries when `None`.

    Raises:
        ValueError: If there are more queries than keys, for the first would see nothing.
    """
    keys = queries if keys is None else keys
    if queries > keys:
        raise ValueError(f"a causal mask needs at least as many keys as queries, got {queries} "
                         f"queries and {keys} keys")
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def target_mask(
    ids: Int[Tensor, "batch length"], pad_id: int
) -> Bool[Tensor, "batch 1 length length"]:
    """What a decoder position may attend to: real tokens that are not later than itself.

    Shape:
        ids `(batch, length)` → `(batch, 1, length, length)`.
    """
    return padding_mask(ids, pad_id) & causal_mask(ids.size(1), device=ids.device)
