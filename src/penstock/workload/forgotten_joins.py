"""Which stages look as if they were to wait for all branches of a fork, and do not."""

from penstock.workload.routes import Routes


def forgotten_joins(routes: Routes) -> list[str]:
    """Say which stages, no joins, different branches of a fork reach, and so run again."""
    # Only the first on each path: what follows runs again because they do.
    sentences: dict[int, str] = {}
    for fork, targets in enumerate(routes.targets):
        if not routes.forks[fork]:
            continue
        branches = {target: _branch(routes, fork, target) for target in targets}
        reached = frozenset().union(*branches.values())
        # a join among them closes a fork within each branch
        shared = {
            s
            for s in reached
            if not routes.joins[s] and sum(s in branch for branch in branches.values()) > 1
        }
        after = {target for stage in reached - shared for target in routes.edges(stage)}
        for stage in shared & (after | set(targets)):
            count = sum(stage in branches[target] for target in targets)
            sentences.setdefault(
                stage,
                f"stage {routes.names[stage]!r} of {routes.workflow} is reached by {count} "
                f"branches of {routes.names[fork]!r} and is no join, so it runs once for each that "
                "comes; give it join: true if it is to wait for them",
            )
    return [sentences[stage] for stage in sorted(sentences)]


def _branch(routes: Routes, fork: int, first: int) -> frozenset[int]:
    """Return the stages that a fork's branch comes to before it joins, or is at the fork again."""
    reached, left = {first}, [first]
    while left:
        stage = left.pop()
        if stage == fork:
            continue
        ways = {target for target in routes.edges(stage) if not routes.joins[target]}
        ways |= {routes.closes[stage]} if stage in routes.closes else set()
        left.extend(ways - reached)
        reached |= ways
    return frozenset(reached)
