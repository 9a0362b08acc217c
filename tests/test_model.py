"""Layers and the whole model. BR numbers are those of the collected faults."""

import math
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
import torch.nn.functional as F
from models import PAD, batch, small_config, small_model
from torch import Tensor, nn

from transformer_tutorial import (
    AttentionMaps,
    FeedForward,
    LayerNorm,
    OutputProjection,
    PositionalEncoding,
    ResidualConnection,
    RMSNorm,
    TokenEmbedding,
    Transformer,
    TransformerConfig,
)

both_norms = pytest.mark.parametrize("norm_first", [False, True])


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ([1.0, 0.0, 0.0, 0.0], [1.73200, -0.57733, -0.57733, -0.57733]),
        ([1e-3, -1e-3], [0.30151, -0.30151]),
        ([5.0, 5.0, 5.0, 5.0], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_layer_norm_on_rows_where_other_forms_differ(row: list[float], wanted: list[float]) -> None:
    """BR-26."""
    output = LayerNorm(len(row))(torch.tensor(row))
    torch.testing.assert_close(output, torch.tensor(wanted), rtol=0, atol=5e-5)


def test_layer_norm_has_a_bounded_gradient_on_a_constant_row() -> None:
    """BR-26."""
    x = torch.full((4,), 5.0, requires_grad=True)
    (LayerNorm(4)(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().max() <= 475


@both_norms
def test_number_of_norms(norm_first: bool) -> None:
    """BR-56."""
    model = small_model(norm_first=norm_first, num_encoder_layers=2, num_decoder_layers=2)
    count = [
        sum(isinstance(m, LayerNorm) for m in s.modules()) for s in (model.encoder, model.decoder)
    ]
    assert count == ([5, 7] if norm_first else [4, 6])
    x = torch.randn(2, 3, 16)
    if norm_first:
        fresh = Transformer(small_config(norm_first=True)).encoder(x)
        torch.testing.assert_close(fresh.mean(-1), torch.zeros(2, 3), rtol=0, atol=1e-5)
        torch.testing.assert_close(fresh.var(-1, correction=0), torch.ones(2, 3), rtol=0, atol=1e-3)
    else:
        by_hand = x
        for layer in model.encoder.layers:
            by_hand = layer(by_hand)
        assert torch.equal(model.encoder(x), by_hand)


def test_a_residual_adds_the_raw_input() -> None:
    """BR-72."""
    x = torch.tensor([[[1.0, 2.0, 3.0, 6.0]]])
    pre, post = (ResidualConnection(4, 0.0, norm_first).eval() for norm_first in (True, False))
    assert torch.equal(pre(x, torch.zeros_like), x)
    torch.testing.assert_close(post(x, torch.zeros_like), F.layer_norm(x, (4,)))


@pytest.mark.parametrize(
    ("rows", "src_length", "length"), [(1, 1, 1), (1, 1, 3), (2, 1, 1), (1, 4, 1)]
)
def test_no_axis_is_lost(rows: int, src_length: int, length: int) -> None:
    """BR-71."""
    model = small_model()
    src, tgt = torch.randint(1, 11, (rows, src_length)), torch.randint(1, 13, (rows, length))
    logits = model(src, tgt)
    assert logits.shape == (rows, length, 13)
    larger = model(torch.cat([src, src]), torch.cat([tgt, tgt]))
    torch.testing.assert_close(logits, larger[:rows])


@pytest.mark.parametrize(
    ("src", "tgt", "shape"),
    [
        (torch.zeros(0, 4, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.int64), (0, 3, 13)),
        (torch.zeros(2, 0, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64), (2, 3, 13)),
        (torch.ones(2, 4, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int64), (2, 0, 13)),
        (torch.full((2, 4), PAD), torch.full((2, 3), PAD), (2, 3, 13)),
    ],
    ids=["no rows", "no source", "no target", "only padding"],
)
@both_norms
def test_nothing_to_read_is_a_defined_result(
    norm_first: bool, src: Tensor, tgt: Tensor, shape: tuple[int, ...]
) -> None:
    model = small_model(norm_first=norm_first)
    for maps in (None, AttentionMaps()):
        logits = model(src, tgt, maps=maps)
        assert logits.shape == shape
        assert logits.isfinite().all()
    if logits.numel():
        logits.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_the_row_of_padding_changes_nothing_real() -> None:
    """BR-20."""
    model = small_model(tie_output=False)
    src, tgt = batch()
    before = model(src, tgt)
    with torch.no_grad():
        model.src_embedding.weight[PAD] = 1e3
        model.tgt_embedding.weight[PAD] = 1e3
    after = model(src, tgt)
    torch.testing.assert_close(after[tgt != PAD], before[tgt != PAD], rtol=0, atol=1e-5)


def test_sharing_needs_one_vocabulary() -> None:
    """BR-51."""
    with pytest.raises(
        ValueError, match=r"tgt_vocab_size must be equal to src_vocab_size=10 .* got 12"
    ):
        small_config(src_vocab_size=10, tgt_vocab_size=12, share_embeddings=True)
    shared = small_model(src_vocab_size=12, tgt_vocab_size=12, share_embeddings=True)
    assert shared.src_embedding.weight is shared.tgt_embedding.weight is shared.output.weight
    tied = small_model(src_vocab_size=10, tgt_vocab_size=12)
    assert tied.tgt_embedding.weight is tied.output.weight
    assert tied.src_embedding.weight is not tied.tgt_embedding.weight
    untied = small_model(tie_output=False)
    assert untied.tgt_embedding.weight is not untied.output.weight
    for model in (shared, tied, untied):
        ids = torch.ones(2, 3, dtype=torch.int64)
        model(ids, ids).sum().backward()
    with pytest.raises(ValueError, match=r"\(12, 4\), got \(10, 4\)"):
        OutputProjection(4, 12, nn.Parameter(torch.zeros(10, 4)))


@both_norms
@pytest.mark.parametrize("learned", [False, True])
def test_every_parameter_is_trained(norm_first: bool, learned: bool) -> None:
    """BR-55: only the bias of a key has no gradient, for it moves all scores of a query alike."""
    model = small_model(norm_first=norm_first, learned_positions=learned, max_length=6)
    ids = torch.randint(1, 11, (3, 6))
    (model(ids, ids) * torch.randn(3, 6, 13)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if "key_projection.bias" not in name:
            assert parameter.grad.abs().max() > 1e-7, name


@pytest.mark.parametrize(
    "change",
    [
        {"src_vocab_size": 12}, {"tgt_vocab_size": 14}, {"d_model": 32}, {"d_ff": 32},
        {"num_encoder_layers": 3}, {"num_decoder_layers": 2}, {"norm_first": True}, {"norm": "rms"},
        {"learned_positions": True}, {"tie_output": False}, {"num_heads": 2}, {"pad_id": 4},
        {"dropout": 0.5}, {"attention_dropout": 0.5}, {"activation_dropout": 0.5},
        {"activation": "gelu"}, {"norm_eps": 0.1}, {"max_length": 5},
        {"src_vocab_size": 13, "share_embeddings": True},
    ],
    ids=str,
)  # fmt: skip
def test_every_field_has_an_effect(change: dict[str, object]) -> None:
    """BR-55: each changes the parameters, a training output, or what is refused."""

    def behaviour(config: TransformerConfig) -> tuple[list[tuple[str, torch.Size]], Tensor | None]:
        torch.manual_seed(0)
        model = Transformer(config)
        shapes = [(name, p.shape) for name, p in model.state_dict().items()]
        shapes += [("parameters", torch.Size([sum(p.numel() for p in model.parameters())]))]
        try:
            torch.manual_seed(1)
            return shapes, model(*batch())
        except ValueError:
            return shapes, None

    shapes, output = behaviour(small_config())
    other_shapes, other = behaviour(replace(small_config(), **change))
    assert output is not None
    assert shapes != other_shapes or other is None or not torch.equal(output, other)


def test_parameters_are_counted_by_formula() -> None:
    """BR-77."""
    config = small_config(d_model=8, num_heads=2, d_ff=16, num_encoder_layers=3)
    model = Transformer(config)
    for stack, each in ((model.encoder, 600), (model.decoder, 904)):
        layers = [[id(p) for p in layer.parameters()] for layer in stack.layers]
        assert [sum(p.numel() for p in layer.parameters()) for layer in stack.layers] == [each] * 3
        assert len({i for layer in layers for i in layer}) == sum(map(len, layers))


def test_base_model_has_44_million_parameters() -> None:
    with torch.device("meta"):
        model = Transformer(TransformerConfig(1000, 1000))
    count = sum(p.numel() for s in (model.encoder, model.decoder) for p in s.parameters())
    assert count == 44_138_496


def test_layers_start_different() -> None:
    """BR-34."""
    one, two = Transformer(small_config()).encoder.layers[:2]
    for (name, a), (_, b) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        constant = a.dim() == 1
        assert torch.equal(a, b) == constant, name
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(Transformer(small_config()).state_dict())
    matrices = [name for name, p in models[0].items() if p.dim() == 2]
    assert all(torch.equal(models[0][n], models[1][n]) for n in models[0])
    assert not any(torch.equal(models[0][n], models[2][n]) for n in matrices)


@both_norms
@pytest.mark.parametrize("tied", [False, True])
def test_first_loss_is_near_ln_v(norm_first: bool, tied: bool) -> None:
    """BR-50."""
    config = TransformerConfig(
        1000, 1000, 512, 8, 128, num_encoder_layers=2, num_decoder_layers=2,
        norm_first=norm_first, tie_output=tied,
    )  # fmt: skip
    ids = torch.randint(1, 1000, (4, 16))
    loss = F.cross_entropy(Transformer(config)(ids, ids).flatten(0, 1), torch.randint(1000, (64,)))
    assert abs(loss.item() - math.log(1000)) < 1.0


def test_inputs_are_left_alone() -> None:
    """BR-58."""
    model = small_model()
    src, tgt = batch()
    src_mask, tgt_mask = (
        torch.ones(6, 6, dtype=torch.bool),
        torch.ones(5, 5, dtype=torch.bool).tril(),
    )
    inputs = [src, tgt, src_mask, tgt_mask]
    before = [x.clone() for x in inputs]
    model(src, tgt, src_mask[:1], tgt_mask)
    memory = model.encode(src)
    kept = memory.detach().clone()
    (model.decode(tgt, memory, None).sum() + model.decode(tgt, memory, None).sum()).backward()
    assert all(map(torch.equal, inputs, before))
    assert torch.equal(memory, kept)
    x = torch.randn(1, 2, 16)
    copy = x.clone()
    for module in (PositionalEncoding(16, 4), FeedForward(16, 8), LayerNorm(16), RMSNorm(16)):
        module(x)
    ResidualConnection(16)(x, torch.relu)
    assert torch.equal(x, copy)


def test_a_sentence_longer_than_the_table_is_refused_on_either_side() -> None:
    model, short, long = small_model(), torch.ones(1, 3).long(), torch.ones(1, 21).long()
    for src, tgt in ((long, short), (short, long)):
        with pytest.raises(ValueError, match=r"21 tokens, .* 20"):
            model(src, tgt)


def test_ids_are_checked_against_their_own_vocabulary() -> None:
    model = small_model()
    with pytest.raises(ValueError, match=r"token id 12 .* 0 to 10"):
        model(torch.tensor([[12]]), torch.tensor([[12]]))
    with pytest.raises(ValueError, match=r"token id 13 .* 0 to 12"):
        model(torch.tensor([[10]]), torch.tensor([[13]]))


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("src_vocab_size", 0, "at least 1"),
        ("d_model", -4, "at least 1"),
        ("d_model", 16.0, "a whole number, at least 1"),
        ("num_heads", True, "a whole number, at least 1"),
        ("dropout", "x", "at least 0 and less than 1"),
        ("pad_id", None, "0 to 10"),
        ("num_heads", 3, "a divisor of d_model=16"),
        ("d_ff", 0, "at least 1"),
        ("num_encoder_layers", 0, "at least 1"),
        ("max_length", 0, "at least 1"),
        ("pad_id", 11, "0 to 10"),
        ("pad_id", -1, "0 to 10"),
        ("dropout", 1.0, "at least 0 and less than 1"),
        ("dropout", float("nan"), "at least 0 and less than 1"),
        ("attention_dropout", -0.1, "at least 0 and less than 1"),
        ("activation_dropout", 2.0, "at least 0 and less than 1"),
        ("activation", "tanh", "'relu', 'gelu', 'silu'"),
        ("norm", "batch", "'layer', 'rms'"),
        ("norm_eps", 0.0, "more than 0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_field_that_is_not_allowed_is_named(field: str, value: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be .*{allowed}.*, got {value!r}"):
        small_config(**{field: value})


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        small_config().d_model = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    "make", [lambda: FeedForward(4, 8, "tanh"), lambda: ResidualConnection(4, norm="batch")]
)
def test_an_unknown_kind_is_named(make: object) -> None:
    with pytest.raises(ValueError, match=r"must be one of \['(relu|layer)'.*, got '(tanh|batch)'"):
        make()  # type: ignore[operator]


def test_embedding_and_positions_are_where_the_paper_has_them() -> None:
    model = small_model()
    src = torch.tensor([[3, 4]])
    by_hand = model.src_embedding.weight[src] * 4 + model.src_positions.table[:2]
    torch.testing.assert_close(model.encode(src), model.encoder(by_hand))
    assert isinstance(model.src_embedding, TokenEmbedding)
