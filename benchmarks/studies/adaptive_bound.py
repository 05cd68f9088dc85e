"""Print how much smaller the exact region is at points of the sweep where MaxWeight fails, and what
MaxWeight carries there.

`penstock.region` lets a slot hold as many prefill tokens as fit. A prompt ends, though, and its
last piece leaves the slot half empty or takes one of a decode: `penstock.exact_region` counts that.

Run ``python benchmarks/studies/adaptive_bound.py NUMBER ...`` with numbers of points of
``adaptive_sweep.py``; it prints the exact region and what MaxWeight carries, as shares of the
region's boundary, the latter also with lengths 10 and 3 times as long.
"""

import sys

from adaptive_sweep import LONGEST, Point

import penstock as ps


def carried(server: ps.Server, prompt: ps.Geometric, output: ps.Geometric) -> tuple[str, float]:
    """Return what MaxWeight carries, as shares of the region's boundary, and the boundary in
    requests/s.
    """
    boundary = ps.region(server, prompt=prompt, output=output).max_rate
    workload = ps.Workload.poisson(boundary, prompt, output)
    found = ps.max_rate(workload, server.with_policy("maxweight"), precision=0.005)
    return f"{found.rate / boundary:.3f} to {found.above / boundary:.3f}", boundary


def main() -> None:
    """Print a row for each point."""
    for point in (Point.draw(int(number)) for number in sys.argv[1:]):
        shares = []
        for times in (10, 3, 1):
            prompt, output = (
                ps.Geometric(
                    times * length.mean_tokens, max=round(times * LONGEST * length.mean_tokens)
                )
                for length in (point.prompt, point.output)
            )
            share, boundary = carried(point.server, prompt, output)
            shares.append(f"x{times} {share}")
        exact = ps.exact_region(point.server, prompt=prompt, output=output).rate / boundary
        print(f"{point}  exact {exact:.3f}; maxweight", *shares, flush=True)


if __name__ == "__main__":
    main()
