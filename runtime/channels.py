"""Messages between ranks over torch.distributed: gloo on CPUs, NCCL on GPUs, the same code.

Two process groups, one for each direction of travel: with NCCL, the messages of one group between
one pair of ranks share a stream, so that a send waiting there would hold up the receives behind it.
Within a group each ordered pair has a channel of its own, and its messages match in posting order.

Tensors travel as bytes, which every backend can carry, whatever their dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from stagecut.ir.schedule import Message


@dataclass(slots=True)
class Channels:
    """A transport between the ranks of the default process group."""

    rank: int
    rank_of_stage: tuple[int, ...]
    """In this rank's pipeline."""
    up: dist.ProcessGroup | None
    """Carries what goes to a higher rank."""
    down: dist.ProcessGroup | None
    """Carries what goes to a lower rank."""
    sending: list[tuple[dist.Work, torch.Tensor]] = field(default_factory=list)
    """Sends in progress, with the bytes that must stay alive meanwhile."""
    receiving: dict[Message, tuple[list[dist.Work], Sequence[torch.Tensor]]] = field(
        default_factory=dict
    )

    def post_send(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        """Starts sending; the tensors may be dropped by the caller."""
        peer = self.rank_of_stage[message.destination]
        for tensor in tensors:
            if tensor.numel():
                data = as_bytes(tensor)
                work = dist.isend(data, peer, group=self._group(self.rank, peer))
                if work is not None:
                    self.sending.append((work, data))

    def post_receive(self, message: Message, blanks: Sequence[torch.Tensor]) -> None:
        """Starts receiving into `blanks`."""
        peer = self.rank_of_stage[message.source]
        works = [
            dist.irecv(as_bytes(blank), peer, group=self._group(peer, self.rank))
            for blank in blanks
            if blank.numel()
        ]
        self.receiving[message] = ([work for work in works if work is not None], blanks)

    def arrived(self, message: Message) -> Sequence[torch.Tensor]:
        """Waits for a posted receive; on a GPU the stream waits, and not the host."""
        works, blanks = self.receiving.pop(message)
        for work in works:
            work.wait()
        return blanks

    def flush(self) -> None:
        """Waits until every send of the step is done."""
        for work, _ in self.sending:
            work.wait()
        self.sending.clear()

    def close(self) -> None:
        """Closes the connections, which ends the waits of every peer at once."""
        self.sending.clear()
        self.receiving.clear()
        for group in (self.up, self.down):
            if group is not None:
                dist.destroy_process_group(group)
        self.up = self.down = None

    def _group(self, source: int, destination: int) -> dist.ProcessGroup | None:
        return self.up if source < destination else self.down


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor as one row of bytes; shares its storage where it is contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    return flat.view(torch.uint8)
