"""Attention and masks. BR numbers are those of the collected faults."""

import pytest
import torch
import torch.nn.functional as F
from models import PAD, batch, small_model
from torch import Tensor

from transformer_tutorial import (
    MultiHeadAttention,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
    target_mask,
)


def weights_of(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    _, weights = scaled_dot_product_attention(q, k, k, mask, return_weights=True)
    assert weights is not None
    return weights


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_both_paths_agree_also_where_nothing_is_seen(training: bool, grad: bool) -> None:
    """BR-39."""
    attention = MultiHeadAttention(12, 3).train(training)
    x = torch.randn(2, 4, 12)
    mask = padding_mask(torch.tensor([[5, 6, 0, 0], [0, 0, 0, 0]]), PAD)
    with torch.set_grad_enabled(grad):
        fused, none = attention(x, x, x, mask)
        manual, weights = attention(x, x, x, mask, return_weights=True)
    assert none is None
    assert weights is not None
    torch.testing.assert_close(fused, manual, rtol=0, atol=1e-6)
    assert fused.shape == x.shape
    assert fused.isfinite().all()
    assert (weights[1] == 0).all()


@pytest.mark.parametrize("return_weights", [False, True])
def test_a_query_that_sees_nothing_has_finite_gradients(return_weights: bool) -> None:
    q, k = torch.randn(1, 2, 3, 4, requires_grad=True), torch.randn(1, 2, 5, 4, requires_grad=True)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    output, _ = scaled_dot_product_attention(q, k, k, mask, return_weights=return_weights)
    assert (output == 0).all()
    output.sum().backward()
    for leaf in (q, k):
        assert leaf.grad is not None
        assert (leaf.grad == 0).all()


def test_weights_are_those_before_dropout() -> None:
    """BR-40."""
    attention = MultiHeadAttention(12, 3, dropout=0.5).train()
    x = torch.randn(2, 4, 12)
    one, weights = attention(x, x, x, causal_mask(4), return_weights=True)
    two, _ = attention(x, x, x, causal_mask(4), return_weights=True)
    assert weights is not None
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 4))
    assert (weights.triu(1) == 0).all()
    assert not torch.equal(one, two)


def test_dropout_is_off_in_evaluation() -> None:
    """BR-63: every place that drops does so in training and in training only."""
    src, tgt = batch()
    for place in ("dropout", "attention_dropout", "activation_dropout"):
        model = small_model(**{place: 0.5})
        assert torch.equal(model(src, tgt), model(src, tgt))
        model.train()
        assert not torch.equal(model(src, tgt), model(src, tgt))


def test_noncontiguous_inputs() -> None:
    """BR-57."""
    attention = MultiHeadAttention(16, 4)
    x = torch.randn(5, 2, 16).transpose(0, 1)
    memory = torch.randn(1, 7, 16).expand(2, 7, 16)
    one, _ = attention(x, memory, memory)
    two, _ = attention(x.contiguous(), memory.contiguous(), memory.contiguous())
    torch.testing.assert_close(one, two)
    one.sum().backward()


def test_splitting_and_joining_heads_loses_nothing() -> None:
    """BR-57: with identity projections and one key, attention hands the value through."""
    attention = MultiHeadAttention(16, 4)
    for projection in (attention.value_projection, attention.output_projection):
        torch.nn.init.eye_(projection.weight)
    value = torch.randn(3, 1, 16)
    torch.testing.assert_close(
        attention(torch.randn(3, 5, 16), value, value)[0], value.expand(3, 5, 16)
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
def test_a_mask_that_is_not_boolean_is_refused(dtype: torch.dtype) -> None:
    """BR-19."""
    x, mask = torch.randn(1, 3, 8), torch.tensor([[1, 1, 0]] * 3).to(dtype)
    model, ids = small_model(), torch.tensor([[3, 4, 5]])
    for call in (
        lambda: scaled_dot_product_attention(x, x, x, mask),
        lambda: MultiHeadAttention(8, 2)(x, x, x, mask),
        lambda: model(ids, ids, src_mask=mask),
        lambda: model(ids, ids, tgt_mask=mask),
    ):
        with pytest.raises(TypeError, match=rf"torch.bool.*{dtype}"):
            call()


@pytest.mark.parametrize(
    "shape", [(2, 5), (2, 3, 5), (2, 1, 1, 4), (3, 1, 1, 5), (5,), (4, 3), (1, 2, 1, 3, 5)]
)
def test_a_mask_of_a_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    q, k = torch.randn(2, 4, 3, 6), torch.randn(2, 4, 5, 6)
    with pytest.raises(ValueError, match=r"\(2, 4, 3, 5\).*got \(" + ", ".join(map(str, shape))):
        scaled_dot_product_attention(q, k, k, torch.ones(shape, dtype=torch.bool))


def test_causal_mask_for_fewer_queries_than_keys() -> None:
    """BR-28: torch's own flag would let the last of five see the first only."""
    assert causal_mask(1, 5).all()
    assert causal_mask(2, 5).int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    q, v = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 5, 4)
    ours, _ = scaled_dot_product_attention(q, v, v, causal_mask(1, 5))
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, v, v))
    with pytest.raises(ValueError, match="5 queries and 3 keys"):
        causal_mask(5, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_and_padding_together_with_padding_on_the_left(dtype: torch.dtype) -> None:
    """BR-36."""
    mask = target_mask(torch.tensor([[0, 0, 5, 6]]), PAD)
    x = torch.randn(1, 2, 4, 8).to(dtype)
    weights = weights_of(x, x, mask)
    assert weights.isfinite().all()
    alone, _ = scaled_dot_product_attention(*[x[:, :, 2:]] * 3, causal_mask(2))
    torch.testing.assert_close(scaled_dot_product_attention(x, x, x, mask)[0][:, :, 2:], alone)


@pytest.mark.parametrize("blocked", [0.0, 1e30])
@pytest.mark.parametrize("return_weights", [False, True])
def test_a_blocked_key_never_wins(blocked: float, return_weights: bool) -> None:
    """BR-47: the allowed score is very negative; a finite fill would lose to it."""
    q = torch.tensor([[2**0.5, 0.0]])
    k = torch.tensor([[-3e4, 0.0], [blocked, 0.0]])
    mask = torch.tensor([[True, False]])
    output, _ = scaled_dot_product_attention(
        q, k, torch.eye(2), mask, return_weights=return_weights
    )
    assert output.tolist() == [[1.0, 0.0]]


def test_one_polarity_for_builders_and_consumers() -> None:
    """BR-67."""
    x = torch.randn(1, 1, 3, 4)
    assert weights_of(x, x, causal_mask(3))[0, 0, 0].tolist() == [1, 0, 0]
    weights = weights_of(x, x, padding_mask(torch.tensor([[5, 6, 0]]), PAD))
    assert (weights[..., 2] == 0).all()
    assert (weights[..., :2] > 0).all()


def test_padding_is_hidden_as_a_key() -> None:
    """BR-68."""
    ids = torch.tensor([[5, 7, 0, 0]])
    assert padding_mask(ids, PAD).tolist() == [[[[True, True, False, False]]]]
    assert target_mask(ids, PAD).sum(-1).tolist() == [[[1, 2, 2, 2]]]
    x = torch.randn(1, 2, 4, 8)
    weights = weights_of(x, x, padding_mask(ids, PAD))
    assert (weights[..., 2:] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 4))


def test_each_row_and_head_uses_its_own_mask() -> None:
    """BR-69."""
    attention = MultiHeadAttention(8, 2)
    x = torch.randn(2, 3, 8)
    mask = padding_mask(torch.tensor([[5, 0, 0], [5, 6, 7]]), PAD)
    together, _ = attention(x, x, x, mask)
    for row in range(2):
        alone, _ = attention(*[x[row : row + 1]] * 3, mask[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone)


@pytest.mark.parametrize("tgt_length", [4, 3])
def test_cross_attention_uses_the_mask_of_the_source(tgt_length: int) -> None:
    """BR-70: what lies under the source's padding changes nothing."""
    model = small_model()
    src = torch.tensor([[5, 7, 0, 0]]) if tgt_length == 4 else torch.tensor([[5, 7, 3, 0, 0, 0]])
    tgt = torch.tensor([[1, 4, 6, 8]])[:, :tgt_length]
    mask = padding_mask(src, PAD)
    other = torch.where(src == PAD, 9, src)
    torch.testing.assert_close(model(src, tgt), model(other, tgt, src_mask=mask))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="num_heads must divide d_model, got 3 and 16"):
        MultiHeadAttention(16, 3)
    with pytest.raises(ValueError, match="got 0 and 16"):
        MultiHeadAttention(16, 0)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5])
def test_a_dropout_that_is_no_share_is_refused(dropout: float) -> None:
    with pytest.raises(ValueError, match=f"less than 1, got {dropout}"):
        MultiHeadAttention(16, 4, dropout)


def test_memory_grows_linearly_without_weights() -> None:
    """Counted as the bytes of the largest tensor that a call makes: no (queries, keys) among them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                if isinstance(tensor, Tensor):
                    self.elements = max(self.elements, tensor.untyped_storage().nbytes())
            return result

    def largest(length: int, return_weights: bool) -> int:
        x = torch.randn(1, 2, length, 8)
        mask = torch.ones(1, 1, 1, length, dtype=torch.bool)
        with Largest() as mode:
            scaled_dot_product_attention(x, x, x, mask, return_weights=return_weights)
        return mode.elements

    assert largest(1024, False) == 4 * largest(256, False)
    assert largest(1024, True) == 16 * largest(256, True)
