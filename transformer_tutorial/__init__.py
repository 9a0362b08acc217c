"""The encoder–decoder Transformer, one module per chapter of the book that builds it.

`Transformer` and `TransformerConfig` are the whole model, `Translator` puts it to work; every part
can be used alone.
"""

from transformer_tutorial.attention import scaled_dot_product_attention
from transformer_tutorial.decoding import DecodingConfig, Hypothesis, generate
from transformer_tutorial.embeddings import TokenEmbedding, pad_sequences, truncate
from transformer_tutorial.feed_forward import FeedForward
from transformer_tutorial.masks import causal_mask, padding_mask, target_mask
from transformer_tutorial.model import (
    AttentionMaps,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    Transformer,
    TransformerConfig,
)
from transformer_tutorial.multi_head import MultiHeadAttention
from transformer_tutorial.normalization import LayerNorm, RMSNorm
from transformer_tutorial.output import OutputProjection, log_softmax, softmax
from transformer_tutorial.positional import PositionalEncoding, sinusoidal_table
from transformer_tutorial.residual import ResidualConnection
from transformer_tutorial.translator import Translator

__all__ = [
    "AttentionMaps",
    "Decoder",
    "DecoderLayer",
    "DecodingConfig",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "Hypothesis",
    "LayerNorm",
    "MultiHeadAttention",
    "OutputProjection",
    "PositionalEncoding",
    "RMSNorm",
    "ResidualConnection",
    "TokenEmbedding",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "causal_mask",
    "generate",
    "log_softmax",
    "pad_sequences",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoidal_table",
    "softmax",
    "target_mask",
    "truncate",
]
