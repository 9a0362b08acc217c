from dataclasses import dataclass, field

from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer_tutorial.embeddings import TokenEmbedding
from transformer_tutorial.feed_forward import ACTIVATIONS, FeedForward
from transformer_tutorial.masks import padding_mask, target_mask
from transformer_tutorial.multi_head import MultiHeadAttention
from transformer_tutorial.normalization import NORMS, make_norm
from transformer_tutorial.output import OutputProjection
from transformer_tutorial.positional import PositionalEncoding
from transformer_tutorial.residual import ResidualConnection


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that fixes a Transformer's shape. The defaults are the paper's base model.

    Args:
        src_vocab_size: Number of source words.
        tgt_vocab_size: Number of target words.
        d_model: Width of the states.
        num_heads: Heads of each attention; must divide `d_model`.
        d_ff: Width of the feed-forward's hidden layer.
        num_encoder_layers: Layers of the encoder.
        num_decoder_layers: Layers of the decoder.
        max_length: Most tokens a sentence may have, on either side.
        pad_id: The id of padding, in both vocabularies.
        dropout: Dropped from the embedded input and from each sublayer's output (paper, 5.4).
        attention_dropout: Dropped from the attention weights; the paper has none.
        activation_dropout: Dropped from the feed-forward's hidden layer; the paper has none.
        activation: "relu", "gelu" or "silu".
        norm: "layer" or "rms".
        norm_eps: The norms' eps.
        norm_first: Pre-norm, with a norm at the end of each stack, instead of post-norm.
        learned_positions: A trained table of positions instead of sinusoids.
        share_embeddings: One table for both languages; their sizes must then be equal.
        tie_output: Use the target embedding as the output projection (paper, 3.4).

    Raises:
        ValueError: If a value is not allowed; the message names field, value and what is.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    max_length: int = 1024
    pad_id: int = 0
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "relu"
    norm: str = "layer"
    norm_eps: float = 1e-5
    norm_first: bool = False
    learned_positions: bool = False
    share_embeddings: bool = False
    tie_output: bool = True

    def __post_init__(self) -> None:
        def require(name: str, allowed: bool, what: str) -> None:
            if not allowed:
                raise ValueError(f"{name} must be {what}, got {getattr(self, name)!r}")

        for name in ("src_vocab_size", "tgt_vocab_size", "d_model", "num_heads", "d_ff",
                     "num_encoder_layers", "num_decoder_layers", "max_length"):
            require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            require(name, 0 <= getattr(self, name) < 1, "at least 0 and less than 1")
        require("num_heads", self.d_model % self.num_heads == 0, f"a divisor of d_model={self.d_model}")
        vocab_size = min(self.src_vocab_size, self.tgt_vocab_size)
        require("pad_id", 0 <= self.pad_id < vocab_size, f"an id of both vocabularies, 0 to {vocab_size - 1}")
        require("activation", self.activation in ACTIVATIONS, f"one of {list(ACTIVATIONS)}")
        require("norm", self.norm in NORMS, f"one of {list(NORMS)}")
        require("norm_eps", self.norm_eps > 0, "more than 0")
        require("tgt_vocab_size", not self.share_embeddings or self.tgt_vocab_size == self.src_vocab_size,
                f"equal to src_vocab_size={self.src_vocab_size} when share_embeddings is set")


@dataclass
class AttentionMaps:
    """The attention weights of each layer, first layer first, each `(batch, heads, queries, keys)`."""

    encoder: list[Tensor] = field(default_factory=list)
    decoder: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)


def attend(
    attention: MultiHeadAttention,
    query: Float[Tensor, "batch queries d_model"],
    memory: Float[Tensor, "batch keys d_model"],
    mask: Tensor | None,
    maps: list[Tensor] | None,
) -> Float[Tensor, "batch queries d_model"]:
    """Attend from `query` to `memory`; append the weights to `maps` if there is such a list."""
    output: Tensor
    output, weights = attention(query, memory, memory, mask, return_weights=maps is not None)
    if maps is not None:
        maps.append(weights)
    return output


def residual(config: TransformerConfig) -> ResidualConnection:
    """A new residual connection, as the configuration says."""
    return ResidualConnection(
        config.d_model, config.dropout, config.norm_first, config.norm, config.norm_eps
    )


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each in a residual connection (paper, 3.1).

    Shape:
        x `(batch, length, d_model)`, mask as in `MultiHeadAttention` → the shape of x.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(
            config.d_model, config.num_heads, config.attention_dropout
        )
        self.feed_forward = FeedForward(
            config.d_model, config.d_ff, config.activation, config.activation_dropout
        )
        self.self_attention_residual = residual(config)
        self.feed_forward_residual = residual(config)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: Tensor | None = None,
        maps: AttentionMaps | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        kept = None if maps is None else maps.encoder
        x = self.self_attention_residual(
            x, lambda h: attend(self.self_attention, h, h, mask, kept)
        )
        x = self.feed_forward_residual(x, self.feed_forward)
        return x


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention to the memory, feed-forward, each in a residual (paper, 3.1).

    Shape:
        x `(batch, length, d_model)`, memory `(batch, source length, d_model)`, masks as in
        `MultiHeadAttention` → the shape of x.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(
            config.d_model, config.num_heads, config.attention_dropout
        )
        self.cross_attention = MultiHeadAttention(
            config.d_model, config.num_heads, config.attention_dropout
        )
        self.feed_forward = FeedForward(
            config.d_model, config.d_ff, config.activation, config.activation_dropout
        )
        self.self_attention_residual = residual(config)
        self.cross_attention_residual = residual(config)
        self.feed_forward_residual = residual(config)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        memory: Float[Tensor, "batch src_length d_model"],
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        maps: AttentionMaps | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        kept, kept_cross = (None, None) if maps is None else (maps.decoder, maps.cross)
        x = self.self_attention_residual(
            x, lambda h: attend(self.self_attention, h, h, mask, kept)
        )
        x = self.cross_attention_residual(
            x, lambda h: attend(self.cross_attention, h, memory, memory_mask, kept_cross)
        )
        x = self.feed_forward_residual(x, self.feed_forward)
        return x


class Encoder(nn.Module):
    """A stack of encoder layers; a pre-norm stack ends with one more norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm = final_norm(config)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: Tensor | None = None,
        maps: AttentionMaps | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        for layer in self.layers:
            x = layer(x, mask, maps)
        x = self.norm(x)
        return x


class Decoder(nn.Module):
    """A stack of decoder layers; a pre-norm stack ends with one more norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.norm = final_norm(config)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        memory: Float[Tensor, "batch src_length d_model"],
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        maps: AttentionMaps | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        for layer in self.layers:
            x = layer(x, memory, mask, memory_mask, maps)
        x = self.norm(x)
        return x


def final_norm(config: TransformerConfig) -> nn.Module:
    """The norm at the end of a pre-norm stack; nothing for post-norm, whose layers end in one."""
    if not config.norm_first:
        return nn.Identity()
    return make_norm(config.norm, config.d_model, config.norm_eps)


class Transformer(nn.Module):
    """The encoder–decoder Transformer (Vaswani et al., 2017, figure 1). It returns logits.

    Where a mask is not given it is made from `config.pad_id`. Every function below accepts an
    empty batch or an empty sentence; a source that is all padding is one that cannot be attended
    to, so cross-attention adds nothing.

    Shape:
        src `(batch, src_length)`, tgt `(batch, length)` → logits `(batch, length, tgt_vocab_size)`;
        the logits at a position score the word that comes after it.

    Raises:
        TypeError: If ids are not integers or a mask is not boolean.
        ValueError: If an id is not in its vocabulary, a sentence is longer than
            `config.max_length`, or a mask does not fit.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.src_embedding = TokenEmbedding(config.src_vocab_size, d_model)
        self.tgt_embedding = (
            self.src_embedding
            if config.share_embeddings
            else TokenEmbedding(config.tgt_vocab_size, d_model)
        )
        self.src_positions = PositionalEncoding(
            d_model, config.max_length, config.dropout, config.learned_positions
        )
        self.tgt_positions = PositionalEncoding(
            d_model, config.max_length, config.dropout, config.learned_positions
        )
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.output = OutputProjection(
            d_model,
            config.tgt_vocab_size,
            self.tgt_embedding.weight if config.tie_output else None,
        )

    def forward(
        self,
        src: Int[Tensor, "batch src_length"],
        tgt: Int[Tensor, "batch length"],
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        maps: AttentionMaps | None = None,
    ) -> Float[Tensor, "batch length tgt_vocab"]:
        """Logits for every target position. Pass `maps=AttentionMaps()` to keep the weights."""
        if src_mask is None:
            src_mask = padding_mask(src, self.config.pad_id)
        memory = self.encode(src, src_mask, maps)
        logits: Tensor = self.output(self.decode(tgt, memory, src_mask, tgt_mask, maps))
        return logits

    def encode(
        self,
        src: Int[Tensor, "batch src_length"],
        src_mask: Tensor | None = None,
        maps: AttentionMaps | None = None,
    ) -> Float[Tensor, "batch src_length d_model"]:
        """The memory: one state for every source token."""
        if src_mask is None:
            src_mask = padding_mask(src, self.config.pad_id)
        memory: Tensor = self.encoder(self.src_positions(self.src_embedding(src)), src_mask, maps)
        return memory

    def decode(
        self,
        tgt: Int[Tensor, "batch length"],
        memory: Float[Tensor, "batch src_length d_model"],
        src_mask: Tensor | None,
        tgt_mask: Tensor | None = None,
        maps: AttentionMaps | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """One state for every target token; `self.output` turns states into logits.

        `src_mask` hides the padding in `memory`, and only the caller knows where that is:
        pass `padding_mask(src, pad_id)`, or `None` if the source has no padding.
        """
        if tgt_mask is None:
            tgt_mask = target_mask(tgt, self.config.pad_id)
        x = self.tgt_positions(self.tgt_embedding(tgt))
        states: Tensor = self.decoder(x, memory, tgt_mask, src_mask, maps)
        return states
