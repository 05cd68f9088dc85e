"""Where paths lead, and loops from which none leads out."""

from collections.abc import Collection, Mapping

import numpy as np

from penstock.inputs.arrays import Bools, Floats


def reached(after: Mapping[str, Collection[str]], first: str) -> set[str]:
    """Return all to which paths lead from one, and that one."""
    found, left = {first}, [first]
    while left:
        new = set(after[left.pop()]) - found
        found |= new
        left += new
    return found


def closed_loop(chances: Floats, leaves: Bools, forks: Bools | None = None) -> list[int]:
    """Return a loop without a way out, as places visited, ending with the first; [] if none."""
    # ``chances``, shape (places, places), are above 0 where a path leads on; ``leaves``, shape
    # (places,), where one leads out. Where ``forks`` all paths are taken, so all must; None:
    # nowhere.
    paths = chances > 0
    every = np.zeros(leaves.size, np.bool_) if forks is None else forks
    for _ in range(leaves.size):
        out = np.where(every, ~(paths & ~leaves).any(axis=1), (paths & leaves).any(axis=1))
        leaves = leaves | out
    if leaves.all():
        return []
    inside = chances * ~leaves
    path = [int(np.argmin(leaves))]
    while path[-1] not in path[:-1]:
        path.append(int(np.argmax(inside[path[-1]])))
    return path[path.index(path[-1]) :]
