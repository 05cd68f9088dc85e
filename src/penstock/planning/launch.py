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
from typing import Any, NamedTuple

import yaml

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.planning.deployment import Deployment
from penstock.system.by_name import name_of
from penstock.system.engines import ENGINES
from penstock.system.models.served import ServedModel, ShapedHardware
from penstock.system.policies import POLICIES
from penstock.system.scheduler import Program
from penstock.system.server import Server
from penstock.words import counted

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
# Seconds between probes; loading weights over a network may take most of an hour.
_PROBE_S, _STARTUP_S = (
    10,
    3600,
)


@dataclasses.dataclass(frozen=True)
class Launch:
    """How to start one replica of a deployment, and all of them on Kubernetes."""

    engine: str  # `vllm` or `sglang`
    command: tuple[str, ...]  # arguments, the program first
    environment: Mapping[str, str]  # variables that must be set
    replicas: int  # how often to start it
    accelerators: int  # GPUs of each
    model: str  # weights, as the engine is told
    exact: bool  # the engine then schedules as the plan was simulated
    notes: tuple[str, ...]  # what to know before it is started, a sentence each
    kind: str = ""  # the hardware, where a fleet has two kinds and this starts one of them
    nodes: str = ""  # what NVIDIA's GPU operator calls the GPU of the nodes; empty: not known

    @property
    def _program(self) -> Program:
        program = ENGINES[self.engine].program
        assert program is not None
        return program

    @property
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

    @property
    def manifest(self) -> str:
        """A Kubernetes Deployment and Service as YAML, notes first; it holds no secrets."""
        kind = f"-{self.kind}" if self.kind else ""
        name = _label(f"{self.engine}-{self.model.rsplit('/', 1)[-1]}{kind}")
        labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "penstock"}
        port = self._program.port
        documents = (
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name, "labels": labels},
                "spec": {
                    "replicas": self.replicas,
                    "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
                    "template": {"metadata": {"labels": labels}, "spec": self._pod(port)},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name, "labels": labels},
                "spec": {
                    "selector": {"app.kubernetes.io/name": name},
                    "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
                },
            },
        )
        notes = [*self.notes]
        if _SCHEDULER in self.command:
            notes.append(
                f"{_PLUGIN_IMAGE} is a placeholder: build {self._program.image} with "
                "penstock-llm, and name it here"
            )
        notes.append("a gated model needs a token: take HF_TOKEN from a Secret of your own")
        return "".join(f"# {line[:1].upper()}{line[1:]}.\n" for line in notes) + "---\n".join(
            yaml.dump(d, Dumper=_Plain, sort_keys=False, width=120) for d in documents
        )

    def _pod(self, port: int) -> dict[str, Any]:
        probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": _PROBE_S}
        container = {
            "name": self.engine,
            "image": _PLUGIN_IMAGE if _SCHEDULER in self.command else self._program.image,
            "command": [*self.command, "--host", "0.0.0.0", "--port", str(port)],
            "env": [{"name": name, "value": value} for name, value in self.environment.items()],
            "ports": [{"name": "http", "containerPort": port}],
            "resources": {"limits": {"nvidia.com/gpu": self.accelerators}},
            "startupProbe": probe | {"failureThreshold": _STARTUP_S // _PROBE_S},
            "readinessProbe": probe,
            "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
        }
        if not self.environment:
            del container["env"]
        return {
            **({"nodeSelector": {_PRODUCT: self.nodes}} if self.nodes else {}),
            "containers": [container],
            "volumes": [
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
            ],  # tensor parallelism talks there
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "engine": self.engine,
            "exact": self.exact,
            "command": list(self.command),
            "environment": dict(self.environment),
            "shell": self.shell,
            "notes": list(self.notes),
            "manifest": self.manifest,
        }


def launches(deployment: Deployment) -> list[Launch]:
    """Return how to start each kind of replica, as `launch` does."""
    if not deployment.others:
        return [launch(deployment)]
    starts = []
    for part in deployment.parts:
        start = launch(part)
        notes = (
            f"this starts {counted(part.replicas, 'replica')} of {part.kind.title}; one router, "
            f"{deployment.router_title}, stands before all {deployment.total_replicas:,} of the "
            "plan",
            *start.notes,
        )
        starts.append(dataclasses.replace(start, notes=notes, kind=part.kind.title))
    return starts


def launch(
    deployment: Deployment, engine: str | None = None, *, model: str | None = None
) -> Launch:
    """Return how to start a deployment."""
    # ``engine`` is ``vllm`` or ``sglang``; None: SGLang for its own scheduler, else vLLM. ``model``
    # is a repository of Hugging Face or a folder; None: as in the hardware preset.
    policy = deployment.server.policy
    programs = {
        name: chosen.program for name, chosen in ENGINES.items() if chosen.program is not None
    }
    if engine is None:
        engine = _HOST if policy.program is None else policy.name
    if engine not in programs:
        raise InputError(
            "no command line is known for the engine "
            f"{checks.shown(engine)}{nearest(engine, programs)}"
        )
    if not policy.by_phase and policy.program is None:
        raise InputError(
            f"the plan runs the scheduler {policy.name!r}, for which no command line is known; "
            "plan with one of "
            f"{', '.join([*programs, *POLICIES])}"
        )
    if deployment.others:
        raise InputError(
            f"the plan has two kinds of replica, {deployment.fleet}, each with a command of its "
            "own; start each of deployment.parts"
        )
    if deployment.prefill_replicas:
        raise InputError(
            f"the plan has {deployment.prefill_replicas} replicas for prefill alone, which need a "
            "connector for KV "
            "memory and a proxy of your own; start them by the engine's guide to disaggregated "
            "serving"
        )
    known = deployment.kind.known
    weights = model or (known and known.weights) or MODEL
    notes = []
    if "/" not in weights:
        notes = [f"replace {weights} below by the repository or the folder of your model's weights"]
    start = _start(programs[engine], weights, deployment.server, deployment.kind.accelerators)
    if isinstance(known, ShapedHardware) and model is None:
        flags, unlike = _as_planned(programs[engine], known.served)
        start.flags.extend(flags)
        notes += unlike
    notes += [*start.notes, *_memory_notes(deployment.server), *_router_notes(deployment)]
    return Launch(
        engine, tuple(start.flags), start.environment, deployment.replicas,
        deployment.kind.accelerators, weights,
        start.exact, tuple(notes), nodes=_PRODUCTS.get((known and known.accelerator) or "", ""),
    )  # fmt: skip


class _Plain(yaml.SafeDumper):
    """Writes parts that occur twice out twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Started(NamedTuple):
    """A scheduler in an engine: options, variables, whether it is the same there, and notes."""

    flags: list[str]
    environment: dict[str, str]
    exact: bool
    notes: list[str]


def _start(program: Program, model: str, server: Server, gpus: int) -> _Started:
    """Return how an engine is started for a server."""
    flags = [*program.command, model, program.tensor_parallel, str(gpus)]
    flags += [program.token_budget, str(server.token_budget)]
    slots = server.max_batch_size
    notes = []
    if program.capped and (slots is None or slots > server.token_budget):
        plan = "has no max batch size" if slots is None else f"runs {slots:,} requests"
        option = program.max_batch_size.lstrip("-")
        slots = server.token_budget
        notes = [
            f"the plan {plan}, and {program.title} takes at most the token budget as {option}: "
            f"{slots:,}"
        ]
    if slots is not None:
        flags += [program.max_batch_size, str(slots)]
    chosen = _scheduler(program, server)
    flags += [*program.by_arrival, *chosen.flags]
    if server.order == "priority":
        flags += program.by_priority
    if server.memory is not None:
        flags += [program.block_size, str(server.memory.block_size)]
        if server.memory.prefix_caching is False:
            flags += program.no_cache
    exact = chosen.exact and server.max_batch_size in (None, slots)
    return _Started(flags, chosen.environment, exact, [*notes, *chosen.notes])


def _as_planned(program: Program, served: ServedModel) -> tuple[list[str], list[str]]:
    """Return options by which published weights are served as planned, or what they lack."""
    numbers, stored = served.numbers, served.shape.stored
    flags, notes = [], []
    if numbers.kv != stored.kv:
        flags += ["--kv-cache-dtype", "bfloat16" if numbers.kv == "bf16" else "fp8_e4m3"]
    weights = {numbers.dense, numbers.experts, numbers.attention}
    if weights == {"fp8"} and {stored.dense, stored.experts, stored.attention} == {"bf16"}:
        flags += ["--quantization", "fp8"]  # as they are loaded
    elif dataclasses.replace(numbers, kv=stored.kv) != stored:
        notes = [
            f"the plan serves the model {served.taken}, and {served.shape.name} is published in "
            f"{stored.dense}: put the repository of a checkpoint in that precision in its place"
        ]
    if served.expert_parallel > 1:
        told = [word.format(served.expert_parallel) for word in program.expert_parallel]
        flags += told
        if told == [*program.expert_parallel] and served.expert_parallel < served.tensor_parallel:
            notes += [
                f"the plan spreads experts over {served.expert_parallel} of the GPUs, and "
                f"{program.title} over all {served.tensor_parallel}: plan again with "
                f"expert_parallel {served.tensor_parallel}, or without"
            ]
    return flags, notes


def _scheduler(program: Program, server: Server) -> _Started:
    """Return how an engine is told its scheduler: its own, a policy inside it, or one it lacks."""
    policy = server.policy
    if policy.program is program:
        return _Started(policy.flags(), policy.environment(), True, policy.notes())
    if not (policy.by_phase and program.plugin):
        return _Started(
            [*program.beside_other], {}, False, [program.other.format(name=policy.name)]
        )
    # The plan composes each batch when it starts.
    flags, environment, notes = [*program.at_once], {}, []
    if not policy.decode_first:  # which is the engine's own, as long as nobody is preempted
        flags += [program.plugin, _SCHEDULER]
        environment["PENSTOCK_POLICY"] = _name_for_plugin(policy)
        if server.params:
            environment["PENSTOCK_POLICY_PARAMS"] = ",".join(
                f"{value:.12g}" for value in server.params
            )
        notes.append(
            "the policy runs inside vLLM 0.32 or 0.33: its environment, or image, needs `pip "
            "install penstock-llm` "
            "(`penstock` is another project)"
        )
    exact = server.scope == "running" and server.convention == "engine"
    if not exact:
        notes.append(
            f"the plan counts as the paper does (scope {server.scope}, convention "
            f"{server.convention}), and "
            f"{program.title} does not: plan again with scope running and convention engine"
        )
    return _Started(flags, environment, exact, notes)


def _name_for_plugin(policy: Any) -> str:
    """Return what the plugin finds a policy by: its name, or one's own module and function."""
    if policy in POLICIES.values():
        return str(policy.name)
    return name_of(policy.function)


def _memory_notes(server: Server) -> list[str]:
    if server.memory is None:
        return [
            "the plan takes KV memory for ample: see that the engine does not report preemptions "
            "or retractions"
        ]
    tokens = (server.usable_blocks or 0) * server.memory.block_size
    about = " (an estimate)" if server.kv_estimate else ""
    return [
        f"the plan counts on KV memory for {tokens:,} tokens{about}: compare what the engine "
        "reports at its start"
    ]


def _router_notes(deployment: Deployment) -> list[str]:
    if deployment.total_replicas == 1:
        return []
    spread = (
        "a Service of Kubernetes spreads connections at random, and requests of one connection "
        "stay together"
    )
    if deployment.router.name == "random":
        return [
            f"{spread}: let clients open one per request, or take a gateway that spreads requests"
        ]
    return [
        f"{spread}: the plan's router is {deployment.router_title}, which takes a gateway in "
        "front of the replicas"
    ]


def _label(text: str) -> str:
    """Return a Kubernetes name (RFC 1035): at most 63 letters, digits, dashes, a letter first."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-")
