"""Ids, embeddings and positions. BR numbers are those of the collected faults."""

import math

import pytest
import torch
from models import PAD, small_model
from torch import nn

from transformer_tutorial import (
    PositionalEncoding,
    TokenEmbedding,
    pad_sequences,
    sinusoidal_table,
    truncate,
)


def test_padding_makes_a_rectangle() -> None:
    assert pad_sequences([[5, 6, 7], [8], []], PAD).tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]
    assert pad_sequences([], PAD).shape == (0, 0)
    assert pad_sequences([[]], PAD).shape == (1, 0)


def test_padding_refuses_a_real_token_that_looks_like_padding() -> None:
    """BR-21: with pad = eos every end mark would be masked away."""
    with pytest.raises(ValueError, match="sequence 1 holds 2, which is reserved for padding"):
        pad_sequences([[1, 5], [1, 5, 2]], pad_id=2)


def test_padding_refuses_what_is_too_long() -> None:
    with pytest.raises(ValueError, match="4 tokens, max_length allows 3"):
        pad_sequences([[1, 5, 6, 2]], PAD, max_length=3)


def test_truncation_keeps_the_beginning_and_the_end_mark() -> None:
    assert truncate([1, 5, 6, 7, 2], 4) == [1, 5, 6, 2]
    assert truncate([1, 5, 2], 3) == [1, 5, 2]
    assert truncate([1, 5, 2], 1) == [2]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        truncate([1, 2], 0)


def test_embedding_is_a_scaled_lookup() -> None:
    ours, theirs = TokenEmbedding(7, 9), nn.Embedding(7, 9)
    with torch.no_grad():
        theirs.weight.copy_(ours.weight)
    ids = torch.tensor([[0, 6, 3]])
    torch.testing.assert_close(ours(ids), theirs(ids) * 3.0)


@pytest.mark.parametrize("d_model", [64, 512])
def test_scaled_embeddings_have_unit_variance(d_model: int) -> None:
    """BR-50."""
    vectors = TokenEmbedding(1000, d_model)(torch.arange(1000)[None])
    assert 0.95 < vectors.std() < 1.05


def test_no_row_is_zeroed() -> None:
    """BR-20: padding is hidden by masks, so its row needs no special value."""
    assert (TokenEmbedding(7, 4).weight.abs().sum(1) > 0).all()


@pytest.mark.parametrize("wrong", [7, -1, 10**6])
def test_an_id_outside_the_table_is_named(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"token id {wrong} is not .* 0 to 6"):
        TokenEmbedding(7, 4)(torch.tensor([[3, wrong]]))


def test_ids_must_be_integers() -> None:
    with pytest.raises(TypeError):
        TokenEmbedding(7, 4)(torch.tensor([[3.0]]))


def test_odd_width() -> None:
    """BR-14."""
    wanted = [0.841471, 0.540302, 0.025116, 0.999685, 0.000631]
    torch.testing.assert_close(sinusoidal_table(10, 5)[1], torch.tensor(wanted), rtol=0, atol=1e-6)
    torch.testing.assert_close(sinusoidal_table(10, 1)[1], torch.tensor([0.841471]))


def test_sine_and_cosine_of_a_pair_share_a_frequency() -> None:
    """BR-75."""
    wanted = torch.tensor([0.841471, 0.540302, 0.01, 0.99995])
    torch.testing.assert_close(sinusoidal_table(2, 4)[1], wanted, rtol=0, atol=1e-6)
    table = sinusoidal_table(5000, 512)
    exact = [math.sin(4999 / 10000 ** (2 * i / 512)) for i in range(256)]
    torch.testing.assert_close(table[4999, 0::2], torch.tensor(exact), rtol=0, atol=1e-6)


def test_products_depend_on_distance_only() -> None:
    """BR-75."""
    table = sinusoidal_table(200, 64).double()
    products = table @ table.T
    for k in (0, 1, 7, 50):
        assert products.diagonal(k).std() < 1e-5


def test_positions_run_along_the_sentence() -> None:
    """BR-74."""
    encoded = PositionalEncoding(4, 10, dropout=0.0)(torch.ones(3, 3, 4))
    assert torch.equal(encoded[0], encoded[1])
    assert not torch.equal(encoded[0, 0], encoded[0, 1])


@pytest.mark.parametrize("learned", [False, True])
def test_too_long_for_the_table(learned: bool) -> None:
    """BR-15."""
    positions = PositionalEncoding(4, 10, learned=learned)
    assert positions(torch.zeros(1, 10, 4)).shape == (1, 10, 4)
    with pytest.raises(ValueError, match=r"11 tokens, .* 10"):
        positions(torch.zeros(1, 11, 4))
    with pytest.raises(ValueError, match=r"5 tokens, .* 1"):
        PositionalEncoding(4, 1, learned=learned)(torch.zeros(1, 5, 4))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("width", [1, 5])
def test_states_of_another_width_are_not_broadcast(width: int) -> None:
    with pytest.raises(ValueError, match=rf"{width} wide, .* 4"):
        PositionalEncoding(4, 10)(torch.zeros(2, 3, width))


def test_the_sinusoidal_table_is_not_in_a_checkpoint() -> None:
    """BR-35: an old checkpoint loads into a model with another max_length."""
    model = small_model(max_length=12)
    ids = torch.tensor([[1, 2, 3]])
    for max_length in (9, 40):
        other = small_model(max_length=max_length)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(ids, ids), model(ids, ids))


def test_a_longer_table_begins_with_the_shorter() -> None:
    assert torch.equal(sinusoidal_table(50, 6)[:20], sinusoidal_table(20, 6))


@pytest.mark.parametrize(("max_length", "d_model"), [(0, 4), (4, 0)])
def test_an_empty_table_is_refused(max_length: int, d_model: int) -> None:
    with pytest.raises(ValueError, match=f"got {max_length} and {d_model}"):
        sinusoidal_table(max_length, d_model)
