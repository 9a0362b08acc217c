"""Devices, dtypes, compilers, copies. BR numbers are those of the collected faults."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from models import batch, small_model
from torch import Tensor

from transformer_tutorial import Transformer

DEVICES = ["cpu"]
if torch.cuda.is_available():
    DEVICES.append("cuda")
if torch.backends.mps.is_available():
    DEVICES.append("mps")


devices = pytest.mark.parametrize("device", DEVICES)


@devices
def test_devices_agree(device: str) -> None:
    model = small_model()
    src, tgt = batch()
    wanted = model(src, tgt)
    logits = model.to(device)(src.to(device), tgt.to(device))
    torch.testing.assert_close(logits.cpu(), wanted, rtol=1e-3, atol=1e-4)
    logits.sum().backward()
    torch.testing.assert_close(model.to("cpu")(src, tgt), wanted)


@devices
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm_first", [False, True])
def test_half_precision(device: str, dtype: torch.dtype, norm_first: bool) -> None:
    model = small_model(norm_first=norm_first)
    src, tgt = batch()
    src[1] = 0
    wanted = model(src, tgt)
    logits = model.to(device, dtype)(src.to(device), tgt.to(device))
    assert logits.dtype == dtype
    assert logits.isfinite().all()
    torch.testing.assert_close(logits.float().cpu(), wanted, rtol=0, atol=0.25)


@devices
def test_autocast(device: str) -> None:
    model = small_model().to(device)
    src, tgt = (x.to(device) for x in batch())
    wanted = model(src, tgt)
    with torch.autocast(device, torch.bfloat16):
        logits = model(src, tgt)
        logits.float().sum().backward()
    torch.testing.assert_close(logits.float(), wanted, rtol=0, atol=0.25)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@devices
def test_the_future_does_not_leak_in_half_precision(device: str) -> None:
    """BR-83: some versions of torch leak in their fused causal kernel on Apple's chips."""
    model = small_model().to(device, torch.float16)
    src, tgt = (x.to(device) for x in batch())
    other = tgt.clone()
    other[:, 3:] = 7
    one, two = model(src, tgt), model(src, other)
    torch.testing.assert_close(one[:, :3], two[:, :3], rtol=0, atol=0.01)


def test_nothing_is_float64() -> None:
    """BR-62."""
    model = small_model()
    assert {x.dtype for x in (*model.parameters(), *model.buffers())} == {torch.float32}


def test_meta() -> None:
    """BR-62: every tensor that a forward makes is on the device of its inputs."""
    model = small_model().to("meta")
    src, tgt = batch()
    assert model(src.to("meta"), tgt.to("meta")).shape == (2, 5, 13)


@pytest.mark.parametrize("tied", [False, True])
def test_copies(tied: bool) -> None:
    model = small_model(tie_output=tied)
    src, tgt = batch()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = small_model(tie_output=tied)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert torch.equal(other(src, tgt), model(src, tgt))
        assert (other.output.weight is other.tgt_embedding.weight) == tied


@pytest.mark.usefixtures("unchecked")
def test_compiling_does_not_compile_each_length() -> None:
    """BR-38."""
    from torch._dynamo.testing import CompileCounter

    model, counter = small_model(), CompileCounter()
    compiled = torch.compile(model, backend=counter)
    for length in range(2, 20):
        src, tgt = torch.randint(1, 11, (2, length)), torch.randint(1, 13, (2, length))
        torch.testing.assert_close(compiled(src, tgt), model(src, tgt), rtol=0, atol=1e-5)
    assert counter.frame_count <= 3


@pytest.mark.usefixtures("unchecked")
def test_compiling_needs_one_graph() -> None:
    model = small_model()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*batch()), model(*batch()))


@pytest.mark.usefixtures("unchecked")
def test_export_takes_any_batch_and_length() -> None:
    model = small_model()
    rows, src_length, length = (
        torch.export.Dim(n, max=20) for n in ("rows", "src_length", "length")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        program = torch.export.export(
            model, batch(), dynamic_shapes=({0: rows, 1: src_length}, {0: rows, 1: length})
        )
    exported = program.module()
    for shape, tgt_shape in (((3, 4), (3, 9)), ((5, 11), (5, 2))):
        src, tgt = torch.randint(1, 11, shape), torch.randint(1, 13, tgt_shape)
        torch.testing.assert_close(exported(src, tgt), model(src, tgt))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs two devices")
def test_a_step_on_a_gpu_is_saved_for_a_machine_without() -> None:
    model = small_model().cuda()
    src, tgt = batch()
    model(src.cuda(), tgt.cuda()).sum().backward()
    torch.optim.SGD(model.parameters(), 0.01).step()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    other: Transformer = small_model()
    other.load_state_dict(state)
    torch.testing.assert_close(other(src, tgt), model.cpu()(src, tgt))
