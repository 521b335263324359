"""The norm of a pipeline's gradients, whose parts are on different ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import nn


def clip_gradients(
    parameters: Mapping[str, nn.Parameter],
    owned: Collection[str],
    max_norm: float,
    total: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Scales the gradients of all ranks together, as `torch.nn.utils.clip_grad_norm_` would.

    Args:
        parameters: Those of this process, by name.
        owned: The names that this process counts; a weight that several hold counts once.
        max_norm: The largest 2-norm to leave.
        total: The sum of a tensor over all processes of the pipeline.

    Returns:
        The 2-norm before, over all ranks. Shape [].
    """
    mine = [p.grad for n, p in parameters.items() if n in owned and p.grad is not None]
    norm = torch.nn.utils.get_total_norm(mine) if mine else torch.zeros(())
    norm = total(norm.square()).sqrt()
    torch.nn.utils.clip_grads_with_norm_(list(parameters.values()), max_norm, norm)
    return norm
