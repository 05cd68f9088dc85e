"""The workflows of a scenario of a network: arrivals, stages, recorded sessions."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from penstock import checks
from penstock.document import Section, Whole, short, the_one, with_keys_of, within
from penstock.errors import InputError, nearest
from penstock.scenario.workload import PatienceSection, WorkloadSection, length
from penstock.system.gpu_memory import Gpu
from penstock.system.kv_transfer import checked_link, link_ms_per_token
from penstock.workload.arrivals import Arrivals, Deterministic, GammaRenewal, Poisson
from penstock.workload.lengths import pair_of
from penstock.workload.routes import reached
from penstock.workload.sessions import Sessions, read_sessions
from penstock.workload.stage import Stage, check_stage, released
from penstock.workload.workflow import Workflow
from penstock.workload.workload import Workload


def _stage_length(value: Any) -> Any:
    """Turn a length into what `Stage` takes: a number, ``job``, ``rest`` or a distribution."""
    if value in ("job", "rest") or type(value) in (int, float):
        return value
    if isinstance(value, str):
        raise InputError(
            f"a length is {checks.shown(value)}, but must be a number of tokens, a distribution "
            "such as "
            "{geometric: 112}, `job`, or for an output `rest`"
        )
    return length(value)


def _delay(value: Any) -> Any:
    """Turn a delay into what `Stage` takes: a number of milliseconds or a distribution."""
    if isinstance(value, Mapping):
        return length(value)
    return value


def _process(value: Any) -> Any:
    """Ask for the process where arrivals are a rate alone."""
    if isinstance(value, Mapping | ArrivalsSection) or value is None:
        return value
    rate = checks.shown(value) if type(value) in (int, float) else 3
    raise InputError(
        f"arrivals are {checks.shown(value)}, but need a process; give {{poisson: {rate}}}, in "
        "jobs/s"
    )


def _rate(value: Any) -> Any:
    """Ask for the number alone where a rate is a mapping, as it is in a workload."""
    if isinstance(value, Mapping):
        raise InputError(
            f"the rate is {checks.shown(value)}, but must be a bare number of jobs/s, such as "
            f"{checks.shown(value.get('rate', 3))}; lengths are those of the stages"
        )
    return value


StageLength = Annotated[Any, BeforeValidator(_stage_length)]
Delay = Annotated[Any, BeforeValidator(_delay)]
Rate = Annotated[float | None, BeforeValidator(_rate)]


@with_keys_of(GammaRenewal)
class _Gamma(Section):
    pass


class ArrivalsSection(Section):
    """When jobs arrive, where each stage has lengths of its own."""

    poisson: Rate = None
    deterministic: Rate = None
    gamma: _Gamma | None = None

    def build(self, seed: int) -> Workload:
        """Return such arrivals, with lengths that no stage takes."""
        kinds = ("poisson", "deterministic", "gamma")
        with within("arrivals"):
            the_one([kind for kind in kinds if getattr(self, kind) is not None], kinds)
        process: Arrivals
        if self.gamma is not None:
            process = self.gamma.build()
        elif self.poisson is not None:
            process = Poisson(self.poisson)
        else:
            process = Deterministic(self.deterministic)  # type: ignore[arg-type]
        return Workload(process, pair_of(1, 1), seed)


@with_keys_of(Stage)
class StageSection(Section):
    """A stage of a workflow, see `Stage`."""

    prompt: StageLength
    output: StageLength
    delay_ms: Delay = 0


@with_keys_of(read_sessions, without=("path", "pool", "seed"))
class SessionsSection(Section):
    """Recorded sessions of an agent, see `read_sessions`."""

    trace: str
    arrivals: Literal["poisson", "deterministic"] = "poisson"


@with_keys_of(Workflow.disaggregated, without=("workload", "name"))
class DisaggregatedSection(Section):
    """Prefill in one pool and decode in another, see `Workflow.disaggregated`."""

    workload: WorkloadSection
    transfer_ms: Delay = 0.0
    transfer_gb_per_s: float | None = None
    kv_bytes_per_token: float | None = None

    def build(self, workload: Workload, name: str, gpus: Mapping[str, Gpu | None]) -> Workflow:
        """Return the workflow; a transfer over a link goes by the model of the prefill's pool."""
        arguments, link = self.arguments(), self.transfer_gb_per_s
        checked_link(arguments.get("transfer_ms_per_token", 0.0), link, self.kv_bytes_per_token)
        if link is not None:
            pool = arguments["prefill"]
            if pool not in gpus:
                raise InputError(
                    f"prefill is at pool {checks.shown(pool)}, which there is not"
                    f"{nearest(pool, gpus)}"
                )
            per_token = link_ms_per_token(link, self.kv_bytes_per_token, gpus[pool])
            arguments["transfer_ms_per_token"] = per_token
        return Workflow.disaggregated(workload, name=name, **arguments)


class ByLengthSection(Section):
    """Pools, and the longest prompt of each, see `Workflow.by_length`."""

    workload: WorkloadSection
    pools: dict[str, Whole | None]


_USED_BESIDE: dict[str, tuple[str, ...]] = {
    "stages": ("arrivals", "workload", "context", "first", "priority"),
    "sessions": (),
    "disaggregated": ("priority",),
    "by_length": ("priority",),
    "pool": ("workload", "priority"),
}
"""What describes a workflow, one of these, and the keys that may stand beside it."""


class WorkflowSection(Section):
    """A workflow: ``stages``, ``sessions``, a ``disaggregated`` pair, pools ``by_length`` of the
    prompts, or requests that all go to one ``pool``. ``patience``: of the client of each call.
    """

    arrivals: Annotated[ArrivalsSection | None, BeforeValidator(_process)] = None
    workload: WorkloadSection | None = None
    context: Literal["new", "grow", "reuse"] | None = None
    first: str | None = None
    priority: Whole | None = None
    patience: PatienceSection | None = None
    stages: dict[str, StageSection] | None = None
    sessions: SessionsSection | None = None
    disaggregated: DisaggregatedSection | None = None
    by_length: ByLengthSection | None = None
    pool: str | None = None

    def build(
        self, name: str, folder: Path, seed: int, gpus: Mapping[str, Gpu | None]
    ) -> Workflow | Sessions:
        """Return the workflow of that name; relative paths are looked for in ``folder``, and the
        models of pools are those of ``gpus``.
        """
        where = f"network.workflows.{short(name)}"
        with within(where):
            made = self._build(name, where, folder, seed, gpus)
            if self.patience is not None:
                if self.workload is not None and self.workload.patience is not None:
                    raise InputError(
                        f"{where} has patience, and its workload too; give one of them"
                    )
                with within("patience"):
                    made = made.with_patience(self.patience.build())
            if self.priority is None:
                return made
            assert isinstance(made, Workflow)  # sessions refuse the key
            return dataclasses.replace(made, priority=self.priority)

    def _build(
        self, name: str, where: str, folder: Path, seed: int, gpus: Mapping[str, Gpu | None]
    ) -> Workflow | Sessions:
        kinds = [kind for kind in _USED_BESIDE if getattr(self, kind) is not None]
        if self.sessions is not None and "pool" in kinds:
            kinds.remove("pool")  # which serves their requests
        self._refuse_idle_keys(the_one(kinds, _USED_BESIDE))
        if self.sessions is not None:
            with within(f"{where}.sessions", "sessions"):
                return self._sessions(name, folder, seed)
        if self.disaggregated is not None:
            with within(f"{where}.disaggregated.workload", "workload"):
                workload = self.disaggregated.workload.build(folder, seed)
            with within(f"{where}.disaggregated"):
                return self.disaggregated.build(workload, name, gpus)
        if self.by_length is not None:
            with within(f"{where}.by_length.workload", "workload"):
                workload = self.by_length.workload.build(folder, seed)
            return Workflow.by_length(workload, self.by_length.pools, name=name)
        arrivals = self._arrivals(where, folder, seed)
        if self.stages is None:
            return Workflow.single(arrivals, str(self.pool), name=name)
        stages: dict[str, Stage] = {key: stage.build() for key, stage in self.stages.items()}
        for key, stage in stages.items():
            check_stage(name, key, stage, stages)
        beginnings = _beginnings(stages) if self.first is None else [self.first]
        # None: some are never reached, which a workflow refuses.
        first = beginnings[0] if beginnings else None
        workflow = Workflow(name, arrivals, stages, first=first, context=self.context or "new")
        if len(beginnings) > 1:
            raise InputError(
                f"its jobs may begin at {' or '.join(beginnings)}, for all other stages are "
                f"reached from each of them; say at which, such as `first: {first}`"
            )
        return workflow

    def _refuse_idle_keys(self, kind: str) -> None:
        """Refuse keys that a workflow of this kind makes no use of."""
        for key in _USED_BESIDE["stages"]:
            if getattr(self, key) is not None and key not in _USED_BESIDE[kind]:
                raise InputError(f"`{key}` says nothing beside `{kind}`; leave it out")
        if kind == "pool" and self.workload is None:
            raise InputError(
                "a `pool` needs the `workload` that it serves; add it, or give `stages`"
            )

    def _arrivals(self, where: str, folder: Path, seed: int) -> Workload:
        if (self.arrivals is None) == (self.workload is None):
            raise InputError(
                "give either `arrivals`, where each stage has lengths of its own, or `workload`, "
                "and not both"
            )
        if self.workload is not None:
            with within(f"{where}.workload", "workload"):
                return self.workload.build(folder, seed)
        assert self.arrivals is not None
        for name, stage in (self.stages or {}).items():
            if "job" in (stage.prompt, stage.output) or stage.output == "rest":
                raise InputError(
                    f"stage {name!r} takes lengths of the job, but `arrivals` bring none; give a "
                    "`workload`, or give the stage lengths of its own"
                )
        with within(f"{where}.arrivals", "arrivals"):
            return self.arrivals.build(seed)

    def _sessions(self, name: str, folder: Path, seed: int) -> Sessions:
        assert self.sessions is not None
        if self.pool is None:
            raise InputError("sessions: their requests need a `pool`; add it beside them")
        path = folder / checks.path("sessions.trace", self.sessions.trace)
        sessions: Sessions = self.sessions.build(path, self.pool, seed=seed)
        return dataclasses.replace(sessions, name=name)


def _beginnings(stages: Mapping[str, Stage]) -> list[str]:
    """Return the stages from which all others are reached; order does not count."""
    # A program that writes YAML may sort them.
    after = {
        name: [target for target, chance in released(stage) if chance]
        for name, stage in stages.items()
    }
    return [name for name in stages if len(reached(after, name)) == len(stages)]
