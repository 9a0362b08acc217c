"""Small models and batches that the tests share. Sizes differ from each other on purpose."""

from typing import Any

import torch
from torch import Tensor, nn

from transformer_tutorial import MultiHeadAttention, Transformer, TransformerConfig

PAD = 0


def small_config(**changes: Any) -> TransformerConfig:
    fields: dict[str, Any] = {
        "src_vocab_size": 11,
        "tgt_vocab_size": 13,
        "d_model": 16,
        "num_heads": 4,
        "d_ff": 24,
        "num_encoder_layers": 2,
        "num_decoder_layers": 3,
        "max_length": 20,
        "pad_id": PAD,
        "dropout": 0.0,
    }
    return TransformerConfig(**fields | changes)


def small_model(**changes: Any) -> Transformer:
    """A model in evaluation mode whose biases and norms are not at their plain starting values."""
    model = Transformer(small_config(**changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def batch() -> tuple[Tensor, Tensor]:
    """Source and target ids of unequal lengths, padded on the right."""
    src = torch.tensor([[3, 4, 5, 6, 7, 2], [8, 9, 2, PAD, PAD, PAD]])
    tgt = torch.tensor([[1, 5, 12, 7, 2], [1, 9, 2, PAD, PAD]])
    return src, tgt


@torch.no_grad()
def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    projections = ours.query_projection, ours.key_projection, ours.value_projection
    assert theirs.in_proj_weight is not None
    assert theirs.in_proj_bias is not None
    for place, projection in enumerate(projections):
        rows = slice(place * theirs.embed_dim, (place + 1) * theirs.embed_dim)
        projection.weight.copy_(theirs.in_proj_weight[rows])
        projection.bias.copy_(theirs.in_proj_bias[rows])
    ours.output_projection.load_state_dict(theirs.out_proj.state_dict())


def copy_layer(ours: nn.Module, theirs: nn.Module) -> None:
    """Copy the weights of torch's encoder or decoder layer into ours."""
    copy_attention(ours.self_attention, theirs.self_attn)
    ours.feed_forward.expand.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.contract.load_state_dict(theirs.linear2.state_dict())
    ours.self_attention_residual.norm.load_state_dict(theirs.norm1.state_dict())
    if hasattr(ours, "cross_attention"):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        ours.cross_attention_residual.norm.load_state_dict(theirs.norm2.state_dict())
        ours.feed_forward_residual.norm.load_state_dict(theirs.norm3.state_dict())
    else:
        ours.feed_forward_residual.norm.load_state_dict(theirs.norm2.state_dict())


def shake(module: nn.Module) -> nn.Module:
    """Move every parameter away from its starting value, so that none is a plain 0 or 1."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return module
