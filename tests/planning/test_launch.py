"""A deployment can be started as it was planned: by a command line, and on Kubernetes."""

import dataclasses
import shlex

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.planning.deployment import Deployment, Kind
from penstock.planning.launch import _PRODUCTS, MODEL, launch, launches
from penstock.system.models.gpus import known_gpu
from penstock.system.models.served import served_model, shaped_hardware

A100 = "codellama-34b-a100-tp2"


def deployment(policy="sarathi", budget=512, slots=128, replicas=3, router="random", **server):
    one = ps.Server(ps.hardware(A100).batch_time, budget, slots, policy=policy, **server)
    return Deployment(Kind(one, A100, accelerators=2), replicas, router)


def on(known):
    """Return the deployment on other hardware."""
    plain = deployment()
    return dataclasses.replace(plain, kind=dataclasses.replace(plain.kind, hardware=known.name, known=known))


def options(command):
    """Each option with the word behind it, None for a switch."""
    pairs = zip(command, [*command[1:], "--"], strict=True)
    return {word: None if value.startswith("--") else value for word, value in pairs if word.startswith("--")}


def test_sarathi_is_vllms_own_scheduler_with_the_limits_of_the_plan():
    found = launch(deployment())
    assert found.command[:3] == ("vllm", "serve", "CodeLlama-34B")
    assert options(found.command) == {
        "--tensor-parallel-size": "2",
        "--max-num-batched-tokens": "512",
        "--max-num-seqs": "128",
        "--no-async-scheduling": None,
    }
    assert found.exact
    assert not found.environment


@pytest.mark.parametrize(("budget", "slots"), [(256, 64), (2048, None)])
def test_what_is_started_for_sarathi_serves_each_request_at_the_same_time_as_planned(budget, slots):
    workload = ps.Workload.poisson(5.0, ps.LogNormal(700, 1.2), ps.Geometric(60), seed=1)
    assert "--no-async-scheduling" in launch(deployment("sarathi", budget, slots)).command
    at_once = deployment("vllm", budget, slots, policy_params={"async_scheduling": False})
    planned, started = (
        ps.simulate(workload, one.server, requests=3_000) for one in (deployment("sarathi", budget, slots), at_once)
    )
    assert (planned.rows.finish == started.rows.finish).all()
    assert (planned.rows.first_token == started.rows.first_token).all()


def test_other_policies_run_through_the_plugin_with_their_numbers():
    maxweight = deployment("maxweight", policy_params=[700.0, 60.0])
    found = launch(maxweight)
    assert options(found.command)["--scheduler-cls"] == "penstock.vllm_plugin.PenstockScheduler"
    assert found.environment["PENSTOCK_POLICY"] == "maxweight"
    numbers = [float(part) for part in found.environment["PENSTOCK_POLICY_PARAMS"].split(",")]
    assert numbers == pytest.approx(maxweight.server.params, rel=1e-11)
    image = yaml.safe_load_all(found.manifest).__next__()["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.startswith("registry.example.com/"), "the engine's own image has no penstock in it"


def sarathi(queue, limits, params):
    """Bear the name of another policy."""
    return queue.prompt_tokens, 0, ps.PREFILL_FIRST


def test_a_policy_of_ones_own_is_named_to_the_plugin_by_its_module_whatever_it_is_called():
    found = launch(deployment(sarathi))
    assert "--scheduler-cls" in found.command
    assert found.environment["PENSTOCK_POLICY"] == f"{__name__}:sarathi"


def test_processes_of_a_front_end_become_an_option_or_a_note():
    front_end = ps.FrontEnd(per_request=0.004, processes=4)
    assert options(launch(deployment("vllm", front_end=front_end)).command)["--api-server-count"] == "4"
    other = launch(deployment("sglang", front_end=front_end))
    assert not other.exact
    assert any("4 processes in front of each replica, and SGLang has one" in note for note in other.notes)


def test_settings_of_the_engines_become_their_options():
    slow = deployment("vllm", policy_params={"long_prefill_threshold": 256}, order="priority", kv_blocks=900)
    asked = options(launch(slow).command)
    assert asked["--long-prefill-token-threshold"] == "256"
    assert asked["--scheduling-policy"] == "priority"
    mixed = deployment("sglang", policy_params={"mixed_chunk": True, "new_token_ratio": 0.5})
    found = launch(mixed)
    assert found.engine == "sglang"
    assert found.exact
    assert options(found.command) == {
        "--model-path": "CodeLlama-34B",
        "--tp-size": "2",
        "--chunked-prefill-size": "512",
        "--max-running-requests": "128",
        "--schedule-policy": "fcfs",
        "--max-prefill-tokens": "16384",
        "--enable-mixed-chunk": None,
    }
    assert float(found.environment["SGLANG_INIT_NEW_TOKEN_RATIO"]) == 0.5
    assert "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR" not in found.environment  # the least ratio follows the first


@pytest.mark.parametrize(("engine", "policy"), [("sglang", "sarathi"), ("sglang", "vllm"), ("vllm", "sglang")])
def test_an_engine_with_another_scheduler_is_said_to_differ(engine, policy):
    found = launch(deployment(policy), engine)
    assert not found.exact
    assert any("plan again" in note for note in found.notes)


def test_the_counting_of_the_paper_is_said_to_differ():
    assert not launch(deployment("orca", scope="batch", convention="paper")).exact


def test_vllm_is_never_given_more_requests_than_tokens():
    """It refuses max-num-seqs above max-num-batched-tokens."""
    for slots in (None, 700):
        found = launch(deployment(slots=slots))
        assert options(found.command)["--max-num-seqs"] == "512"
        assert any("max-num-seqs" in note for note in found.notes)


def test_other_engines_are_refused_in_one_line():
    with pytest.raises(ps.InputError, match="no command line") as error:
        launch(deployment("tensorrt-llm"))
    assert "\n" not in str(error.value)


def test_disaggregated_replicas_and_unknown_engines_are_refused():
    with pytest.raises(ps.InputError, match="prefill"):
        launch(Deployment(Kind(deployment().server, A100), 3, prefill_replicas=1))
    with pytest.raises(ps.InputError, match="sglang"):
        launch(deployment(), "sgland")


def test_a_placeholder_is_said_to_be_one():
    server = deployment().server
    assert any(MODEL in note for note in launch(Deployment(server, 1)).notes)
    assert any("CodeLlama-34B" in note for note in launch(deployment()).notes)
    given = launch(deployment(), model="codellama/CodeLlama-34b-hf")
    assert given.command[2] == "codellama/CodeLlama-34b-hf"
    assert not any("placeholder" in note or "preset" in note for note in given.notes)


def test_a_manifest_names_the_model_and_the_gpu_of_its_nodes_where_a_scenario_does():
    def shaped(model: str, gpu: str) -> Deployment:
        known = shaped_hardware(served_model(model, gpu, 4))
        return on(known)

    (found,) = launches(shaped("meta-llama/Llama-3.3-70B-Instruct", "h100-sxm"))
    pod = yaml.safe_load(found.manifest.split("---\n")[0])["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert "meta-llama/Llama-3.3-70B-Instruct" in pod["containers"][0]["command"]
    assert not any(note.startswith("replace ") for note in found.notes)
    (named,) = launches(shaped("Llama-3.1-8B-Instruct", "rtx4090"))
    assert named.notes[0].startswith("replace Llama-3.1-8B-Instruct below by the repository")
    assert "nodeSelector" not in named.manifest


@pytest.mark.parametrize(
    ("engine", "served", "options", "noted"),
    [
        ("vllm", {"model": "Llama-3.1-8B"}, "", ""),
        ("vllm", {"model": "Llama-3.1-8B", "precision": "fp8"}, "--quantization fp8", ""),
        ("sglang", {"model": "Llama-3.1-8B", "kv_precision": "fp8"}, "--kv-cache-dtype fp8_e4m3", ""),
        ("vllm", {"model": "Llama-3.1-70B-FP8", "kv_precision": "bf16"}, "--kv-cache-dtype bfloat16", ""),
        ("vllm", {"model": "Llama-3.1-8B", "precision": "int4"}, "", "published in bf16"),
        ("vllm", {"model": "Llama-3.1-8B-AWQ"}, "", ""),
        ("vllm", {"model": "Mixtral-8x7B", "expert_parallel": 4}, "--enable-expert-parallel", ""),
        ("vllm", {"model": "Mixtral-8x7B", "expert_parallel": 2}, "--enable-expert-parallel", "vLLM over all 4: plan"),
        ("sglang", {"model": "Mixtral-8x7B", "expert_parallel": 2}, "--ep-size 2", ""),
    ],
)
def test_an_engine_is_told_the_precision_and_the_experts_of_the_plan(engine, served, options, noted):
    def found(**served):
        known = shaped_hardware(served_model(gpu="h100-sxm", tensor_parallel=4, **served))
        return launch(on(known), engine)

    changed, plain = found(**served), found(model=served["model"])
    assert changed.command == (*plain.command, *options.split())
    assert bool(noted) == (len(changed.notes) > len(plain.notes))
    assert noted in " ".join(changed.notes)


def test_the_router_that_kubernetes_does_not_have_is_said_in_the_manifest():
    assert "jsq" in launch(deployment(router="jsq")).manifest.split("apiVersion")[0]
    assert "jsq" not in launch(deployment()).manifest


@given(
    policy=st.sampled_from([*ps.POLICIES, "vllm", "sglang"]),
    engine=st.sampled_from([None, "vllm", "sglang"]),
    budget=st.integers(1, 8192),
    slots=st.none() | st.integers(1, 2048),
    replicas=st.integers(1, 64),
    model=st.none() | st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1),
)
def test_command_and_manifest_say_the_same_and_kubernetes_takes_it(policy, engine, budget, slots, replicas, model):
    found = launch(deployment(policy, budget, slots, replicas), engine, model=model)
    words = shlex.split(found.shell.replace("\\\n", ""))  # as a shell joins continued lines
    assert words[len(found.environment) :] == list(found.command)
    assert dict(word.split("=", 1) for word in words[: len(found.environment)]) == dict(found.environment)
    workload, service = yaml.safe_load_all(found.manifest)
    pod = workload["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["command"][: len(found.command)] == list(found.command)
    assert {entry["name"]: entry["value"] for entry in container.get("env", [])} == dict(found.environment)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert workload["spec"]["replicas"] == replicas
    selector = workload["spec"]["selector"]["matchLabels"]
    assert selector == service["spec"]["selector"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    port = next(port for port in container["ports"] if port["name"] == service["spec"]["ports"][0]["targetPort"])
    assert container["command"][-2:] == ["--port", str(port["containerPort"])]
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": port["name"]}
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}


@pytest.mark.parametrize("policy", ["sarathi", "orca", "sglang"])
@pytest.mark.parametrize("model", [None, "Qwen/Qwen3-32B", "/srv/weights/_odd name_.gguf"])
def test_the_manifest_is_valid_by_the_schema_of_kubernetes(policy, model):
    validator = pytest.importorskip("kubernetes_validate", reason="the schemas come with kubernetes-validate")
    for document in yaml.safe_load_all(launch(deployment(policy), model=model).manifest):
        validator.validate(document, validator.latest_version(), strict=True)
        broken = {**document, "metadata": {**document["metadata"], "labels": {"one": 1}}}
        with pytest.raises(validator.ValidationError):  # or the schema would take anything
            validator.validate(broken, validator.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("policy", "option"), [("vllm", "--no-enable-prefix-caching"), ("sglang", "--disable-radix-cache")]
)
def test_an_engine_that_was_planned_without_its_prefix_cache_is_started_without_it(policy, option):
    """The engine has it on unless told otherwise, and so has the plan."""
    for caching in (None, True, False):
        memory = ps.Memory(20_000, prefix_caching=caching)
        command = launch(deployment(policy, memory=memory), policy).command
        assert (option in command) == (caching is False)


@pytest.mark.parametrize(("gpu", "product"), _PRODUCTS.items())
def test_a_gpu_is_known_by_what_kubernetes_calls_it(gpu: str, product: str) -> None:
    assert known_gpu(product).name == gpu
