"""What tests of Triton kernels on a CPU need."""

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run in Triton's interpreter; its ``dot`` is taught bfloat16, read as integers there."""
    if torch.cuda.is_available():
        pytest.skip("compiled kernels are tested in tests/gpu")
    triton = pytest.importorskip("triton")
    assert triton.knobs.runtime.interpret, "triton was imported before TRITON_INTERPRET=1 was set"
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot = InterpreterBuilder.create_dot

    def widened(handle: TensorHandle) -> TensorHandle:
        if handle.dtype.scalar != triton.language.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), triton.language.float32)

    monkeypatch.setattr(
        InterpreterBuilder, "create_dot", lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)
    )
