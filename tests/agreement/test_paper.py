"""What the paper shows in its figures comes out here, with the numbers that were checked independently."""

import pytest

import penstock as ps

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
GROWTH = [
    (128, "orca", 15.3, 16.4),
    (128, "vllm-vanilla", 22.5, 22.7),
    (128, "fastertransformer", 99, 99),
    (1024, "sarathi", 17.9, 17.9),
    (1024, "orca", 17.1, 17.9),
    (1024, "vllm-vanilla", 18.9, 19.5),
    (1024, "fastertransformer", 96.5, 96.5),
]
"""At vertex C: token budget, policy, and between which shares of what arrives the backlog grows, percent."""


def growth_share(workload: ps.Workload, server: ps.Server, until: float) -> float:
    """Growth of the backlog as a share of what arrives."""
    run = ps.simulate(workload, server, until=until)
    return run.growth_tokens_per_s / ps.certify(workload, server).load.offered_tokens_per_s


class TestFigure1:
    """14 requests/s, 129 prompt and 112 output tokens: offered 3,374 tokens/s."""

    workload = ps.Workload.poisson(rate=14.0, prompt=129, output=112, seed=0)

    @pytest.mark.parametrize("budget", [256, 512])
    @pytest.mark.parametrize("policy", ps.POLICIES)
    def test_at_small_budgets_everything_grows_and_the_certificate_says_so(self, policy: str, budget: int) -> None:
        server = ps.Server(TP1, budget, policy=policy, convention="paper")
        certificate = ps.certify(self.workload, server)
        assert certificate.verdict == "unstable"
        assert certificate.rho == pytest.approx({256: 1.084, 512: 1.009}[budget], abs=5e-4)
        overload = certificate.rho - 1
        assert growth_share(self.workload, server, 20_000) > overload / certificate.rho * 0.7

    @pytest.mark.parametrize("policy", ["sarathi", "orca"])
    def test_at_1024_tokens_the_work_conserving_policies_level_off(self, policy: str) -> None:
        server = ps.Server(TP1, 1024, policy=policy, convention="paper")
        certificate = ps.certify(self.workload, server)
        assert certificate.verdict == "stable"
        assert certificate.rho == pytest.approx(0.972, abs=5e-4)
        assert abs(growth_share(self.workload, server, 20_000)) < 0.005

    @pytest.mark.parametrize(("policy", "capacity"), [("fastertransformer", 1.44), ("vllm-vanilla", 11.4)])
    def test_at_1024_tokens_the_others_grow_by_what_exceeds_their_own_capacity(
        self, policy: str, capacity: float
    ) -> None:
        server = ps.Server(TP1, 1024, policy=policy, convention="paper")
        assert ps.certify(self.workload, server).verdict == "unknown"
        assert growth_share(self.workload, server, 20_000) == pytest.approx(1 - capacity / 14, abs=0.02)


class TestVertexC:
    """k_max 100, a request of 290 + 990 tokens every 467.5 ms: the corner of the region that only b_0 reaches."""

    workload = ps.Workload.deterministic(rate=1 / 0.4675, prompt=290, output=990)

    @pytest.mark.parametrize("scope", ["batch", "running"])
    def test_sarathi_at_128_tokens_cycles_below_50780_tokens(self, scope: str) -> None:
        server = ps.Server(TP1, 128, 100, policy="sarathi", convention="paper", scope=scope)  # type: ignore[arg-type]
        backlog = ps.simulate(self.workload, server, until=40_000.0).series["uncompleted_tokens"][1000:]
        assert (backlog.min(), backlog.max()) == (49_628, 50_780)

    @pytest.mark.parametrize("scope", ["batch", "running"])
    @pytest.mark.parametrize(("budget", "policy", "low", "high"), GROWTH)
    def test_every_other_choice_grows_at_its_rate(
        self, budget: int, policy: str, low: float, high: float, scope: str
    ) -> None:
        server = ps.Server(TP1, budget, 100, policy=policy, convention="paper", scope=scope)  # type: ignore[arg-type]
        assert low - 0.06 <= 100 * growth_share(self.workload, server, 40_000) <= high + 0.06
