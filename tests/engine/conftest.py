"""Without a card, kernels run in Triton's interpreter; that has to be said before triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
