"""A deployment as something to start: a command line of vLLM or SGLang, and a manifest for
Kubernetes.

Options are those of vLLM 0.33 and SGLang 0.5.23. vLLM's own scheduler is `sarathi` where memory
does not bind; other policies run inside vLLM through `penstock.vllm_plugin`. SGLang runs its own
scheduler only.
"""

import dataclasses
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import yaml

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.planning.deployment import Deployment
from penstock.show.answers import Meaning, computed
from penstock.system.engines import ENGINES
from penstock.system.models.served import ServedModel, ShapedHardware
from penstock.system.own_functions import name_of
from penstock.system.policies import POLICIES
from penstock.system.scheduler import Program
from penstock.system.server import Server
from penstock.words import counted, sentence

_PRODUCT = "nvidia.com/gpu.product"  # the label of a node, and its values by GPU
_PRODUCTS = {
    "a100-sxm": "NVIDIA-A100-SXM4-80GB", "h100-sxm": "NVIDIA-H100-80GB-HBM3",
    "h200-sxm": "NVIDIA-H200", "b200-sxm": "NVIDIA-B200", "l40s": "NVIDIA-L40S", "l4": "NVIDIA-L4",
    "a10": "NVIDIA-A10", "t4": "Tesla-T4",
}  # fmt: skip

MODEL = "MODEL"
"""What stands for the weights where neither a preset nor the user says which."""

_PLUGIN_IMAGE = "registry.example.com/vllm-with-penstock:v0.33.0"
_HOST = next(name for name, engine in ENGINES.items() if engine.hosts_policies)
_SCHEDULER = "penstock.vllm_plugin.PenstockScheduler"
_PROBE_S = 10  # between probes
_STARTUP_S = 3600  # loading weights over a network may take most of an hour


@dataclasses.dataclass(frozen=True)
class Launch:
    """How to start one replica of a deployment, and all of them on Kubernetes."""

    engine: Annotated[str, Meaning("``vllm`` or ``sglang``.")]
    command: Annotated[tuple[str, ...], Meaning("Arguments, the program first.")]
    environment: Annotated[Mapping[str, str], Meaning("Variables that must be set.")]
    replicas: int  # how often to start it
    accelerators: int  # GPUs of each
    model: str  # weights, as the engine is told
    exact: Annotated[bool, Meaning("The engine then schedules as the plan was simulated.")]
    notes: Annotated[tuple[str, ...], Meaning("What to know before it is started.")]
    program: Program  # of the engine
    kind: str = ""  # the hardware, where a fleet has two kinds and this starts one of them
    nodes: str = ""  # what NVIDIA's GPU operator calls the GPU of the nodes; empty: not known

    @computed()
    def shell(self) -> str:
        """The command for a POSIX shell, an option to a line."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        lines, rest = [], list(self.command)
        while rest:
            option = [rest.pop(0)]
            while rest and not rest[0].startswith("--"):
                option.append(rest.pop(0))
            lines.append(shlex.join(option))
        return " \\\n  ".join([" ".join([*variables, lines[0]]), *lines[1:]])

    @computed()
    def manifest(self) -> str:
        """A Kubernetes Deployment and Service as YAML, notes first; it holds no secrets."""
        kind = f"-{self.kind}" if self.kind else ""
        name = _label(f"{self.engine}-{self.model.rsplit('/', 1)[-1]}{kind}")
        selector = {"app.kubernetes.io/name": name}
        labels = {**selector, "app.kubernetes.io/managed-by": "penstock"}
        metadata = {"name": name, "labels": labels}
        fleet = {
            "replicas": self.replicas,
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": labels}, "spec": self._pod()},
        }
        ports = [{"name": "http", "port": 80, "targetPort": "http"}]
        service = {"selector": selector, "ports": ports}
        documents = [
            {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
            for version, kind, spec in (
                ("apps/v1", "Deployment", fleet),
                ("v1", "Service", service),
            )
        ]
        notes = [*self.notes]
        if _SCHEDULER in self.command:
            notes.append(
                f"{_PLUGIN_IMAGE} is a placeholder: build {self.program.image} with "
                "penstock-llm, and name it here"
            )
        notes.append("a gated model needs a token: take HF_TOKEN from a Secret of your own")
        return "".join(f"# {sentence(note)}\n" for note in notes) + "---\n".join(
            yaml.dump(part, Dumper=_Plain, sort_keys=False, width=120) for part in documents
        )

    def _pod(self) -> dict[str, Any]:
        port = self.program.port
        probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": _PROBE_S}
        variables = [{"name": name, "value": value} for name, value in self.environment.items()]
        container = {
            "name": self.engine,
            "image": _PLUGIN_IMAGE if _SCHEDULER in self.command else self.program.image,
            "command": [*self.command, "--host", "0.0.0.0", "--port", str(port)],
            **({"env": variables} if variables else {}),
            "ports": [{"name": "http", "containerPort": port}],
            "resources": {"limits": {"nvidia.com/gpu": self.accelerators}},
            "startupProbe": probe | {"failureThreshold": _STARTUP_S // _PROBE_S},
            "readinessProbe": probe,
            "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
        }
        memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
        return {
            **({"nodeSelector": {_PRODUCT: self.nodes}} if self.nodes else {}),
            "containers": [container],
            "volumes": [memory],  # tensor parallelism talks there
        }


def launches(deployment: Deployment) -> list[Launch]:
    """Return how to start each kind of replica, as `launch` does."""
    if not deployment.others:
        return [launch(deployment)]
    starts = []
    for part in deployment.parts:
        start, kind = launch(part), part.kind.title
        note = (
            f"this starts {counted(part.replicas, 'replica')} of {kind}; one router, "
            f"{deployment.router_title}, stands before all {deployment.total_replicas:,} of the "
            "plan"
        )
        starts.append(dataclasses.replace(start, notes=(note, *start.notes), kind=kind))
    return starts


def launch(
    deployment: Deployment, engine: str | None = None, *, model: str | None = None
) -> Launch:
    """Return how to start a deployment."""
    # ``engine`` is ``vllm`` or ``sglang``; None: SGLang for its own scheduler, else vLLM. ``model``
    # is a repository of Hugging Face or a folder; None: as in the hardware preset.
    kind, server = deployment.kind, deployment.server
    programs = {name: known.program for name, known in ENGINES.items() if known.program is not None}
    if engine is None:
        engine = _HOST if server.policy.program is None else server.policy.name
    if engine not in programs:
        raise InputError(
            "no command line is known for the engine "
            f"{checks.shown(engine)}{nearest(engine, programs)}"
        )
    if not server.policy.by_phase and server.policy.program is None:
        raise InputError(
            f"the plan runs the scheduler {server.policy.name!r}, for which no command line is "
            f"known; plan with one of {', '.join([*programs, *POLICIES])}"
        )
    if deployment.others:
        raise InputError(
            f"the plan has two kinds of replica, {deployment.fleet}, each with a command of its "
            "own; start each of deployment.parts"
        )
    if deployment.prefill_replicas:
        raise InputError(
            f"the plan has {deployment.prefill_replicas} replicas for prefill alone, which need a "
            "connector for KV memory and a proxy of your own; start them by the engine's guide to "
            "disaggregated serving"
        )
    known = kind.known
    weights = model or (known and known.weights) or MODEL
    start = _Start(programs[engine], server)
    if "/" not in weights:
        start.notes.append(
            f"replace {weights} below by the repository or the folder of your model's weights"
        )
    start.serve(weights, kind.accelerators)
    if isinstance(known, ShapedHardware) and model is None:
        start.as_planned(known.served)
    start.tell_memory()
    start.tell_router(deployment)
    return Launch(
        engine, tuple(start.flags), start.environment, deployment.replicas, kind.accelerators,
        weights, start.exact, tuple(start.notes), start.program,
        nodes=_PRODUCTS.get((known and known.accelerator) or "", ""),
    )  # fmt: skip


class _Plain(yaml.SafeDumper):
    """Writes parts that occur twice out twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@dataclasses.dataclass
class _Start:
    """How an engine is started for a server, as it is written."""

    program: Program
    server: Server
    flags: list[str] = dataclasses.field(default_factory=list)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    exact: bool = True

    def serve(self, model: str, gpus: int) -> None:
        """Add weights, limits, scheduler and KV memory."""
        program, server = self.program, self.server
        self.flags += [*program.command, model, program.tensor_parallel, str(gpus)]
        self.flags += [program.token_budget, str(server.token_budget)]
        slots = server.max_batch_size
        if program.capped and (slots is None or slots > server.token_budget):
            plan = "has no max batch size" if slots is None else f"runs {slots:,} requests"
            option = program.max_batch_size.lstrip("-")
            self.exact = slots is None
            slots = server.token_budget
            self.notes.append(
                f"the plan {plan}, and {program.title} takes at most the token budget as {option}: "
                f"{slots:,}"
            )
        if slots is not None:
            self.flags += [program.max_batch_size, str(slots)]
        self.flags += program.by_arrival
        self.schedule()
        if server.order == "priority":
            self.flags += program.by_priority
        if server.memory is not None:
            self.flags += [program.block_size, str(server.memory.block_size)]
            if server.memory.prefix_caching is False:
                self.flags += program.no_cache
        processes = 1 if server.front_end is None else server.front_end.processes
        if processes > 1 and program.front_ends:
            self.flags += [program.front_ends, str(processes)]
        elif processes > 1:
            self.exact = False
            self.notes.append(
                f"the plan has {processes:,} processes in front of each replica, and "
                f"{program.title} has one: plan again with processes 1"
            )

    def schedule(self) -> None:
        """Add the scheduler: the engine's own, a policy inside it, or that it lacks it."""
        program, server, policy = self.program, self.server, self.server.policy
        if policy.program is program:
            self.flags += policy.flags()
            self.environment |= policy.environment()
            self.notes += policy.notes()
            return
        if not (policy.by_phase and program.plugin):
            self.flags += program.beside_other
            self.notes.append(program.other.format(name=policy.name))
            self.exact = False
            return
        # The plan composes each batch when it starts.
        self.flags += program.at_once
        if not policy.decode_first:  # which is the engine's own, as long as nobody is preempted
            self.flags += [program.plugin, _SCHEDULER]
            known = policy in POLICIES.values()
            name = policy.name if known else name_of(policy.function)  # type: ignore[attr-defined]
            self.environment["PENSTOCK_POLICY"] = name
            if server.params:
                numbers = ",".join(f"{value:.12g}" for value in server.params)
                self.environment["PENSTOCK_POLICY_PARAMS"] = numbers
            self.notes.append(
                "the policy runs inside vLLM 0.32 or 0.33: its environment, or image, needs `pip "
                "install penstock-llm` (`penstock` is another project)"
            )
        if server.scope != "running" or server.convention != "engine":
            self.exact = False
            self.notes.append(
                f"the plan counts as the paper does (scope {server.scope}, convention "
                f"{server.convention}), and {program.title} does not: plan again with scope "
                "running and convention engine"
            )

    def as_planned(self, served: ServedModel) -> None:
        """Add options by which published weights are served as planned, or say what they lack."""
        numbers, stored = served.numbers, served.shape.stored
        if numbers.kv != stored.kv:
            kept = "bfloat16" if numbers.kv == "bf16" else "fp8_e4m3"
            self.flags += ["--kv-cache-dtype", kept]
        weights = {numbers.dense, numbers.experts, numbers.attention}
        if weights == {"fp8"} and {stored.dense, stored.experts, stored.attention} == {"bf16"}:
            self.flags += ["--quantization", "fp8"]  # as they are loaded
        elif dataclasses.replace(numbers, kv=stored.kv) != stored:
            self.notes.append(
                f"the plan serves the model {served.taken}, and {served.shape.name} is published "
                f"in {stored.dense}: put the repository of a checkpoint in that precision in its "
                "place"
            )
        spread, gpus = served.expert_parallel, served.tensor_parallel
        if spread > 1:
            options = self.program.expert_parallel
            told = [word.format(spread) for word in options]
            self.flags += told
            if told == [*options] and spread < gpus:
                self.notes.append(
                    f"the plan spreads experts over {spread} of the GPUs, and "
                    f"{self.program.title} over all {gpus}: plan again with expert_parallel "
                    f"{gpus}, or without"
                )

    def tell_memory(self) -> None:
        """Say on which KV memory the plan counts."""
        server = self.server
        note = (
            "the plan takes KV memory for ample: see that the engine does not report preemptions "
            "or retractions"
        )
        if server.memory is not None:
            tokens = (server.usable_blocks or 0) * server.memory.block_size
            about = " (an estimate)" if server.kv_estimate else ""
            note = (
                f"the plan counts on KV memory for {tokens:,} tokens{about}: compare what the "
                "engine reports at its start"
            )
        self.notes.append(note)

    def tell_router(self, deployment: Deployment) -> None:
        """Say what spreads requests over several replicas."""
        if deployment.total_replicas == 1:
            return
        remedy = "let clients open one per request, or take a gateway that spreads requests"
        if deployment.router.name != "random":
            remedy = (
                f"the plan's router is {deployment.router_title}, which takes a gateway in front "
                "of the replicas"
            )
        self.notes.append(
            "a Service of Kubernetes spreads connections at random, and requests of one connection "
            f"stay together: {remedy}"
        )


def _label(text: str) -> str:
    """Return a Kubernetes name (RFC 1035): at most 63 letters, digits, dashes, a letter first."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-")
