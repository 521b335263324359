"""Random stage graphs, random valid schedules on them, and ways to break them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from stagecut.ir.schedule import (
    Action,
    ActionList,
    Compute,
    Phase,
    Schedule,
    Send,
    StageEdge,
)
from stagecut.partitioner.schedules import expand

F, B, I, W = Phase  # noqa: E741
Rows = list[list[Action]]


def random_edges(random: Random, k: int) -> list[StageEdge]:
    """Skips included; not even neighbours need be joined."""
    pairs = [(a, b) for a in range(k) for b in range(a + 1, k)]
    dense = random.choice([0.3, 0.7, 1.0])
    return [StageEdge(a, b, random.random() < 0.8) for a, b in pairs if random.random() < dense]


def random_schedule(random: Random, edges: list[StageEdge], k: int, d: int, m: int) -> Schedule:
    """A random topological order of all computes, dealt out to their devices."""
    owner = [*range(d), *(random.randrange(d) for _ in range(k - d))]
    random.shuffle(owner)
    style = random.choice(["forward", "whole", "halves", "mixed"])
    return _dealt(random, edges, owner, _computes(random, style, k, m), m)


def patchwork(random: Random, edges: list[StageEdge], k: int, d: int, m: int) -> Schedule:
    """Each device's row from another valid schedule: right on its own, perhaps a deadlock."""
    schedule = random_schedule(random, edges, k, d, m)
    owner = list(schedule.device_of_stage)
    computes = [compute for row in schedule.devices for compute in row]
    others = [_dealt(random, edges, owner, list(computes), m) for _ in range(d)]
    return replace(schedule, devices=tuple(other.devices[i] for i, other in enumerate(others)))


def _dealt(
    random: Random, edges: list[StageEdge], owner: list[int], waiting: list[Compute], m: int
) -> Schedule:
    d = max(owner) + 1
    rows: list[list[Compute]] = [[] for _ in range(d)]
    done: set[Compute] = set()
    while waiting:
        ready = [c for c in waiting if _uses(c, edges, waiting) <= done]
        chosen = random.choice(ready)
        waiting.remove(chosen)
        done.add(chosen)
        rows[owner[chosen.stage]].append(chosen)
    return Schedule("random", tuple(owner), m, tuple(map(tuple, rows)))


def _computes(random: Random, style: str, k: int, m: int) -> list[Compute]:
    computes = []
    for s in range(k):
        for i in range(m):
            computes.append(Compute(s, F, i))
            halves = style == "halves" or (style == "mixed" and random.random() < 0.5)
            if style != "forward":
                computes += [Compute(s, p, i) for p in ((I, W) if halves else (B,))]
    return computes


def _uses(c: Compute, edges: list[StageEdge], waiting: list[Compute]) -> set[Compute]:
    """What is still to run before `c`, among those waiting."""
    before: set[Compute] = set()
    if c.phase is F:
        before = {Compute(e.source, F, c.microbatch) for e in edges if e.destination == c.stage}
    elif c.phase is W:
        before = {Compute(c.stage, I, c.microbatch)}
    else:
        before = {Compute(c.stage, F, c.microbatch)}
        consumers = [e.destination for e in edges if e.source == c.stage and e.gradient]
        before |= {Compute(s, p, c.microbatch) for s in consumers for p in (B, I)}
    return before & set(waiting)


def rebuilt(action_list: ActionList, rows: Rows) -> ActionList:
    """The list with other rows, and the schedule that those rows compute."""
    computes = tuple(tuple(a for a in row if isinstance(a, Compute)) for row in rows)
    schedule = replace(action_list.schedule, devices=computes)
    return replace(action_list, schedule=schedule, devices=tuple(map(tuple, rows)))


def mutate_computes(random: Random, schedule: Schedule) -> Schedule:
    """Breaks (perhaps) the schedule before communication is added."""
    rows = [list(row) for row in schedule.devices]
    row = random.choice([row for row in rows if row] or [[]])
    kind = random.choice(["swap", "swap", "shuffle", "drop", "twice"])
    _mutate(random, kind, row)
    return replace(schedule, devices=tuple(map(tuple, rows)))


def mutate_actions(random: Random, action_list: ActionList) -> ActionList:
    """Breaks (perhaps) the list after communication was added."""
    rows = [list(row) for row in action_list.devices]
    kinds = ["swap", "drop", "twice", "move", "elsewhere", "late", *["neighbours"] * 4]
    kind = random.choice(kinds)
    row = random.choice([row for row in rows if row] or [[]])
    if kind == "elsewhere" and row:
        random.choice(rows).append(row.pop(random.randrange(len(row))))
    elif kind == "late":
        posts = [j for j, a in enumerate(row) if not isinstance(a, Compute | Send)]
        if posts:
            row.append(row.pop(random.choice(posts)))
    else:
        _mutate(random, kind, row)
    return rebuilt(action_list, rows)


def _mutate(random: Random, kind: str, row: list) -> None:
    if not row:
        return
    here, there = random.randrange(len(row)), random.randrange(len(row))
    if kind == "neighbours":
        there = max(here - 1, 0)
    if kind in ("swap", "neighbours"):
        row[here], row[there] = row[there], row[here]
    elif kind == "move":
        row.insert(there, row.pop(here))
    elif kind == "shuffle":
        part = row[min(here, there) : max(here, there) + 1]
        random.shuffle(part)
        row[min(here, there) : max(here, there) + 1] = part
    elif kind == "drop":
        row.pop(here)
    elif kind == "twice":
        row.insert(there, row[here])


def random_action_list(random: Random) -> ActionList:
    """Valid, or broken in one or two ways: about half and half."""
    k = random.randint(1, 5)
    d = random.randint(1, min(k, 4))
    edges = random_edges(random, k)
    make = random.choice([random_schedule, patchwork, patchwork])
    schedule = make(random, edges, k, d, random.randint(1, 4))
    for _ in range(random.choice([0, 0, 0, 0, 1, 2])):
        schedule = mutate_computes(random, schedule)
    action_list = expand(schedule, edges, ahead=random.choice([0, 0, 1, 2]))
    for _ in range(random.choice([0, 0, 1, 2])):
        action_list = mutate_actions(random, action_list)
    return action_list
