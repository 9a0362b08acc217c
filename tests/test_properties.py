"""What must hold for any input."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import PAD, batch, small_model
from torch import Tensor

from transformer_tutorial import (
    AttentionMaps,
    causal_mask,
    log_softmax,
    sinusoidal_table,
    softmax,
    target_mask,
)

MODELS = {norm_first: small_model(norm_first=norm_first).double() for norm_first in (False, True)}

lengths = st.integers(1, 8)
both_norms = pytest.mark.parametrize("norm_first", [False, True])


def words(rows: int, length: int, vocab: int, seed: int) -> Tensor:
    return torch.randint(1, vocab, (rows, length), generator=torch.Generator().manual_seed(seed))


@both_norms
@given(length=lengths, changed=st.integers(0, 7), seed=st.integers(0, 99))
def test_the_future_never_changes_the_past(
    norm_first: bool, length: int, changed: int, seed: int
) -> None:
    model, changed = MODELS[norm_first], min(changed, length - 1)
    src, tgt = words(2, 4, 11, seed), words(2, length, 13, seed + 1)
    other = tgt.clone()
    other[:, changed] = other[:, changed] % 12 + 1
    one, two = model(src, tgt), model(src, other)
    torch.testing.assert_close(one[:, :changed], two[:, :changed], rtol=0, atol=1e-12)
    assert not torch.allclose(one[:, changed:], two[:, changed:])


@both_norms
def test_no_gradient_reaches_the_future(norm_first: bool) -> None:
    model = MODELS[norm_first]
    src, tgt = words(1, 4, 11, 0), words(1, 6, 13, 1)
    memory = model.encode(src).detach()
    x = model.tgt_positions(model.tgt_embedding(tgt)).detach().requires_grad_()
    states = model.decoder(x, memory, target_mask(tgt, PAD))
    for position in range(6):
        (gradient,) = torch.autograd.grad(states[:, position].sum(), x, retain_graph=True)
        assert gradient[:, position + 1 :].count_nonzero() == 0
        assert gradient[:, position].count_nonzero() > 0


@both_norms
@given(real=lengths, padding=st.integers(1, 5), seed=st.integers(0, 99))
def test_padding_never_changes_what_is_real(
    norm_first: bool, real: int, padding: int, seed: int
) -> None:
    model = MODELS[norm_first]
    src, tgt = words(2, real, 11, seed), words(2, real, 13, seed + 1)
    pad = torch.full((2, padding), PAD)
    one = model(src, tgt)
    two = model(torch.cat([src, pad], 1), torch.cat([tgt, pad], 1))[:, :real]
    torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


@both_norms
@given(rows=st.integers(2, 4), seed=st.integers(0, 99))
def test_rows_of_a_batch_are_independent(norm_first: bool, rows: int, seed: int) -> None:
    model = MODELS[norm_first]
    src, tgt = words(rows, 5, 11, seed), words(rows, 3, 13, seed + 1)
    together = model(src, tgt)
    for row in range(rows):
        alone = model(src[row : row + 1], tgt[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-12)


@both_norms
@given(length=lengths, seed=st.integers(0, 99))
def test_without_positions_the_encoder_is_permutation_equivariant(
    norm_first: bool, length: int, seed: int
) -> None:
    model = MODELS[norm_first]
    x = model.src_embedding(words(2, length, 11, seed))
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(
        model.encoder(x)[:, order], model.encoder(x[:, order]), rtol=0, atol=1e-12
    )


@given(k=st.integers(0, 50), half=st.integers(1, 8))
def test_a_shift_of_positions_is_one_linear_map(k: int, half: int) -> None:
    """The map is a rotation of each pair of columns, fitted at two positions and used at all."""
    table = sinusoidal_table(100, 2 * half).double()
    sines, cosines = table[:, 0::2], table[:, 1::2]
    turned_sines = sines[:50] * cosines[k] + cosines[:50] * sines[k]
    turned_cosines = cosines[:50] * cosines[k] - sines[:50] * sines[k]
    torch.testing.assert_close(turned_sines, sines[k : k + 50], rtol=0, atol=1e-6)
    torch.testing.assert_close(turned_cosines, cosines[k : k + 50], rtol=0, atol=1e-6)


scores = st.lists(
    st.one_of(st.floats(-1e4, 1e4), st.sampled_from([-float("inf"), 1e4, -1e4])),
    min_size=1,
    max_size=6,
)


@given(row=scores)
def test_softmax_survives_any_scores(row: list[float]) -> None:
    logits = torch.tensor(row)
    probabilities = softmax(logits)
    assert probabilities.isfinite().all()
    if logits.isfinite().any():
        torch.testing.assert_close(probabilities, logits.softmax(-1), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(probabilities.sum(), torch.tensor(1.0), rtol=0, atol=1e-5)
        torch.testing.assert_close(
            log_softmax(logits), logits.log_softmax(-1), rtol=1e-5, atol=1e-5
        )
    else:
        assert (probabilities == 0).all()


@given(queries=lengths, more=st.integers(0, 5))
def test_a_causal_mask_ends_at_the_last_key(queries: int, more: int) -> None:
    mask = causal_mask(queries, queries + more)
    assert mask.sum(1).tolist() == list(range(more + 1, more + queries + 1))
    assert (mask.int().diff(dim=1) <= 0).all()


@both_norms
def test_asking_for_weights_changes_nothing(norm_first: bool) -> None:
    model = MODELS[norm_first]
    src, tgt = batch()
    src[1] = PAD
    maps = AttentionMaps()
    torch.testing.assert_close(model(src, tgt, maps=maps), model(src, tgt), rtol=0, atol=1e-12)
    assert [m.shape for m in maps.encoder] == [(2, 4, 6, 6)] * 2
    assert [m.shape for m in maps.decoder] == [(2, 4, 5, 5)] * 3
    assert [m.shape for m in maps.cross] == [(2, 4, 5, 6)] * 3
    for weights in (*maps.encoder, *maps.decoder, *maps.cross):
        total = weights.sum(-1)
        assert ((total - 1).abs().lt(1e-12) | total.eq(0)).all()
