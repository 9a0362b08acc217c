"""Every test runs with the shapes in the package's signatures checked at run time."""

from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from hypothesis import settings

jaxtyping.install_import_hook("transformer_tutorial", "beartype.beartype")

settings.register_profile("book", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("book")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the checks of shapes and types, as users have it, and as a compiler needs it."""
    torch._dynamo.reset()
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
