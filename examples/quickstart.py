"""Trains a small network as a pipeline of two processes.

    torchrun --nproc-per-node 2 examples/quickstart.py

Three lines differ from the ordinary script; each is marked.
"""

from __future__ import annotations

import os

import torch
from torch import nn

import stagecut

torch.manual_seed(0)
model = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(64, 64), nn.ReLU())])
inputs = torch.randn(32, 64)
targets = inputs.roll(1, dims=1)

plan = stagecut.partition(model, 2, (inputs[:4],))  # 1: the example is one micro-batch
pipe = stagecut.pipeline(plan, model, loss_fn=nn.functional.mse_loss)  # 2
optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)
for step in range(10):
    loss = pipe.train_step(inputs, target=targets)  # 3: forward, loss and backward
    optimizer.step()
    optimizer.zero_grad()
    if os.environ.get("RANK", "0") == "0":
        print(f"step {step}: loss {loss:.6f}")
