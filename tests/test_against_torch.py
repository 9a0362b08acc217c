"""Every module equals torch's own in float64, forward and backward."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from models import PAD, batch, copy_attention, copy_layer, shake, small_config
from torch import Tensor, nn

from transformer_tutorial import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    RMSNorm,
    Transformer,
    causal_mask,
    log_softmax,
    padding_mask,
    scaled_dot_product_attention,
    softmax,
    target_mask,
)

pytestmark = pytest.mark.usefixtures("float64")


def same(
    ours: Callable[..., Tensor],
    theirs: Callable[..., Tensor],
    *inputs: Tensor,
    real: Tensor | None = None,
) -> None:
    """Outputs and the gradients of every input agree to 1e-10, where `real` is True."""
    results = []
    for function in (ours, theirs):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        output = function(*leaves)
        if real is not None:
            output = output.masked_fill(~real[..., None], 0.0)
        weight = torch.linspace(-1, 1, output.numel()).view_as(output)
        results.append([output, *torch.autograd.grad((output * weight).sum(), leaves)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


MASKS = {
    "none": None,
    "padding": padding_mask(torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]), PAD),
    "causal": causal_mask(3, 5),
    "per head": torch.rand(2, 4, 3, 5, generator=torch.Generator().manual_seed(1)) > 0.3,
}


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_attention(mask: Tensor | None, return_weights: bool) -> None:
    q, k, v = torch.randn(2, 4, 3, 6), torch.randn(2, 4, 5, 6), torch.randn(2, 4, 5, 7)
    same(
        lambda *x: scaled_dot_product_attention(*x, mask, return_weights=return_weights)[0],
        lambda *x: F.scaled_dot_product_attention(*x, mask),
        q, k, v,
    )  # fmt: skip


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_multi_head(padded: bool, return_weights: bool) -> None:
    theirs = shake(nn.MultiheadAttention(12, 3, batch_first=True))
    ours = MultiHeadAttention(12, 3)
    copy_attention(ours, theirs)
    keys = (
        torch.tensor([[5, 6, 7, 0], [5, 6, 0, 0]])
        if padded
        else torch.ones(2, 4, dtype=torch.int64)
    )
    query, memory = torch.randn(2, 3, 12), torch.randn(2, 4, 12)
    same(
        lambda q, m: ours(q, m, m, padding_mask(keys, PAD), return_weights=return_weights)[0],
        lambda q, m: theirs(q, m, m, key_padding_mask=keys == PAD)[0],
        query, memory,
    )  # fmt: skip
    if return_weights:
        _, weights = ours(query, memory, memory, padding_mask(keys, PAD), return_weights=True)
        _, wanted = theirs(
            query, memory, memory, key_padding_mask=keys == PAD, average_attn_weights=False
        )
        torch.testing.assert_close(weights, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_feed_forward(activation: str) -> None:
    between = {"relu": nn.ReLU(), "gelu": nn.GELU(), "silu": nn.SiLU()}[activation]
    theirs = shake(nn.Sequential(nn.Linear(6, 10), between, nn.Linear(10, 6)))
    ours = FeedForward(6, 10, activation)
    ours.expand.load_state_dict(theirs[0].state_dict())
    ours.contract.load_state_dict(theirs[2].state_dict())
    same(ours, theirs, torch.randn(2, 3, 6))


@pytest.mark.parametrize(("ours", "theirs"), [(LayerNorm, nn.LayerNorm), (RMSNorm, nn.RMSNorm)])
def test_norm(ours: type[nn.Module], theirs: type[nn.Module]) -> None:
    one, other = ours(5, 1e-5), shake(theirs(5, eps=1e-5))
    one.load_state_dict(other.state_dict())
    same(one, other, torch.randn(2, 3, 5) * 4 + 1)


@pytest.mark.parametrize("dim", [0, -1])
def test_softmax(dim: int) -> None:
    same(lambda x: softmax(x, dim), lambda x: F.softmax(x, dim), torch.randn(3, 4) * 5)
    same(lambda x: log_softmax(x, dim), lambda x: F.log_softmax(x, dim), torch.randn(3, 4) * 5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer(norm_first: bool, activation: str) -> None:
    theirs = shake(
        nn.TransformerEncoderLayer(
            16, 4, 24, 0.0, activation, batch_first=True, norm_first=norm_first
        )
    )
    ours = EncoderLayer(small_config(norm_first=norm_first, activation=activation))
    copy_layer(ours, theirs)
    ids, _ = batch()
    same(
        lambda x: ours(x, padding_mask(ids, PAD)),
        lambda x: theirs(x, src_key_padding_mask=ids == PAD),
        torch.randn(2, 6, 16),
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer(norm_first: bool) -> None:
    theirs = shake(
        nn.TransformerDecoderLayer(16, 4, 24, 0.0, batch_first=True, norm_first=norm_first)
    )
    ours = DecoderLayer(small_config(norm_first=norm_first))
    copy_layer(ours, theirs)
    src, tgt = batch()
    same(
        lambda x, m: ours(x, m, target_mask(tgt, PAD), padding_mask(src, PAD)),
        lambda x, m: theirs(
            x,
            m,
            ~causal_mask(5),
            tgt_key_padding_mask=tgt == PAD,
            memory_key_padding_mask=src == PAD,
        ),
        torch.randn(2, 5, 16),
        torch.randn(2, 6, 16),
    )


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_first", [False, True])
def test_whole_model(norm_first: bool) -> None:
    """Torch's model keeps a final norm even when post-norm, so there it is taken away."""
    theirs = nn.Transformer(16, 4, 2, 3, 24, 0.0, batch_first=True, norm_first=norm_first)
    shake(theirs)
    ours = Transformer(small_config(norm_first=norm_first))
    for stack, torchs in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for one, other in zip(stack.layers, torchs.layers, strict=True):
            copy_layer(one, other)
        if norm_first:
            stack.norm.load_state_dict(torchs.norm.state_dict())
        else:
            torchs.norm = None
    src, tgt = batch()
    source, target = padding_mask(src, PAD), target_mask(tgt, PAD)
    same(
        lambda x, y: ours.decoder(y, ours.encoder(x, source), target, source),
        lambda x, y: theirs(
            x, y, tgt_mask=~causal_mask(5), src_key_padding_mask=src == PAD,
            tgt_key_padding_mask=tgt == PAD, memory_key_padding_mask=src == PAD,
        ),
        torch.randn(2, 6, 16),
        torch.randn(2, 5, 16),
    )  # fmt: skip
    states = ours.decode(tgt, ours.encode(src), source)
    wanted = theirs(
        ours.src_positions(ours.src_embedding(src)), ours.tgt_positions(ours.tgt_embedding(tgt)),
        tgt_mask=~causal_mask(5), src_key_padding_mask=src == PAD,
        tgt_key_padding_mask=tgt == PAD, memory_key_padding_mask=src == PAD,
    )  # fmt: skip
    torch.testing.assert_close(states, wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        ours(src, tgt), states @ ours.tgt_embedding.weight.T, rtol=0, atol=1e-10
    )
