"""DualPipeV: two stages a device in a V, the forward of one leg next to the backward of the other.

Legend:  2 d stages, d devices, m micro-batches, r a device; down and up, its two stages.

    d = 2, stages 0 and 3 on device 0, 1 and 2 on device 1, m = 4
    device 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3
    device 1   1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3

A forward and the backward beside it are independent, so a device may overlap the messages of one
with the computing of the other. The backward is split only where that fills a gap. The paper gives
a bubble of (d - 1) (FB + B - 3 W) seconds where the two run as one of FB seconds; one after the
other, as here, it is (d - 1) (F + I - W) for W <= I <= F and m >= 2 d (F a forward, B = I + W a
backward and its halves). No device holds more than 2 d + 1 micro-batches of single stages.

DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1 (DualPipe); the V of half as many
devices, in which no stage is held twice: Qi et al., "DualPipe could be better without the Dual",
2025.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from stagecut.ir.schedule import Compute, Schedule
from stagecut.partitioner.schedules.v_shape import Leg, v_schedule


def dualpipe_v(k: int, d: int, m: int) -> Schedule:
    """Two stages a device.

    Raises:
        ArgumentError: k is not 2 d.
    """
    return v_schedule("dualpipe_v", _order, k, d, m, least=2 * d)


def _order(r: int, d: int, m: int, down: Leg, up: Leg) -> Iterator[Compute]:
    after = d - r - 1  # devices further down the V
    yield from (down.forward() for _ in range(2 * after))
    for _ in range(r + 1):
        yield from (down.forward(), up.forward())
    for _ in range(after):
        yield from (up.backward_input(), up.backward_weight(), up.forward())
    for _ in range(m - d - after):
        yield from (down.forward(), up.backward(), up.forward(), down.backward())
    for _ in range(after):
        yield from (up.backward(), up.forward(), down.backward())
    yield from _drain(r, after, down, up)


def _drain(r: int, after: int, down: Leg, up: Leg) -> Iterator[Compute]:
    """The last backwards; the weight halves of the later of them wait until there is time."""
    last = [up, down] * (r + 1)
    yield from (leg.backward() for leg in last[: r + 1])
    late = deque(last[r + 1 :])
    yield from (leg.backward_input() for leg in late)
    for _ in range(after):
        yield late.popleft().backward_weight()
        yield down.backward_input()
        late.append(down)
    yield from (leg.backward_weight() for leg in late)
