"""What the answers for a server and for a network have in common: theorem and test side by side."""

import abc
from typing import TYPE_CHECKING, Any

from penstock.show.page import Shown

if TYPE_CHECKING:
    from penstock.checking.doubt import Doubt
    from penstock.checking.latency import SteadyState
    from penstock.checking.stability import Stability
    from penstock.theory.certificate import Certificate


class AnyAnswer(Shown):
    """What is known about a system.

    Attributes
    ----------
    certificate
        What a theorem says.
    stability
        What the test says; None where it is skipped.
    latency
        Latency of the steady state, or None where it is refused or not known.
    warnings
        What the user should know besides.
    calibration
        What is not known of the batch times; None: they are taken as exact.
    """

    certificate: "Certificate"
    stability: "Stability | None"
    latency: "SteadyState | None"
    warnings: tuple[str, ...]
    calibration: "Doubt | None"
    audited = ""  # how one finds out whether what is taken on trust holds
    unsteady: str | None = None  # why what was recorded has no steady state
    stability_skipped: str | None = None  # why there is no test

    @property
    def verdict(self) -> str:
        """Both in one word: ``contradiction``, or what the theorem says, or where it says nothing
        the test; ``undecided`` where other batch times that may be true give another.
        """
        if self.disagreement:
            return "contradiction"
        return "undecided" if self.hinges_on_calibration else self._deciding.verdict

    @property
    def reason(self) -> str:
        """The sentence of the one that gave the verdict, or of both if they contradict."""
        if self.calibration is not None and self.hinges_on_calibration:
            return self.calibration.reason(self._deciding.verdict)
        return self.disagreement or self._deciding.reason

    @property
    def hinges_on_calibration(self) -> bool:
        """Whether batch times that may be the true ones give another verdict."""
        if self.calibration is None or self.disagreement:
            return False
        return not self.calibration.holds(self._deciding.verdict)

    @property
    def _deciding(self) -> "Certificate | Stability":
        if self.certificate.verdict == "unknown" and self.stability is not None:
            return self.stability
        return self.certificate

    @property
    def latency_refused(self) -> str | None:
        """Why there is no latency of a steady state, or None."""
        return no_steady_state(self.certificate, self.stability) or self.unsteady

    @property
    def disagreement(self) -> str | None:
        """What to doubt where theorem and test contradict each other, or None: what nobody checked,
        or Penstock.
        """
        certificate = self.certificate
        test = self.stability
        if test is None or {certificate.verdict, test.verdict} != {"stable", "unstable"}:
            return None
        if certificate.trusted:
            cause = (
                "in doubt is what was taken on trust: "
                f"{', '.join(certificate.trusted)}{self.audited}"
            )
        else:
            cause = (
                f"every hypothesis was checked, so {test.error}, and if it stays, please report it"
            )
        both = f"{certificate.theorem} says {certificate.verdict}, but the test says {test.verdict}"
        return f"{both} ({test.reason}); {cause}"

    @abc.abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""


def no_steady_state(
    certificate: "Certificate",
    stability: "Stability | None",
) -> str | None:
    """Return why the latency of a steady state is refused, or None."""
    if certificate.verdict in ("unstable", "critical"):
        is_none = "there is no" if certificate.verdict == "unstable" else "there may be no"
        return f"{certificate.reason}; {is_none} steady state whose latency could be told"
    if stability is not None and stability.verdict == "unstable":
        return f"{stability.reason}; there is no steady state whose latency could be told"
    return None


def latency_warnings(
    certificate: "Certificate",
    stability: "Stability | None",
    latency: "SteadyState | None",
) -> list[str]:
    """Say what is in doubt of a latency."""
    warnings = []
    if (
        stability is not None
        and stability.verdict == "undecided"
        and not no_steady_state(certificate, stability)
    ):
        warnings.append(
            "whether it is stable is undecided, so there may be no steady state whose latency "
            "this is"
        )
    if latency is not None:
        warnings += latency.notices
    return warnings
