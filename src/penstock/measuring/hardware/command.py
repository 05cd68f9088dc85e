"""The command ``penstock hardware``: batch times that were measured, or follow from a shape."""

from penstock import checks
from penstock.errors import InputError
from penstock.show.commands import command
from penstock.show.options import Form


@command()
def hardware(
    name: str | None = None,
    *,
    gpu: str | None = None,
    tensor_parallel: int = 1,
    precision: str | None = None,
    engine: str = "vllm",
    as_json: bool = False,
) -> None:
    """List the hardware whose batch times are known, or show one.

    Of one: its model, its source, how well it fits. With --gpu, work out those of any model from
    its shape.

    Parameters
    ----------
    name : [NAME]
        Show this one in full, or list those that match; with --gpu: a model, by name or by the path
        of its config.json.
    gpu
        Work out the batch times of a model on this GPU, such as h100-sxm.
    tensor_parallel : --tp
        GPUs that share each layer.
    precision
        bf16, fp8, fp4 or int4, in place of the published one.
    engine
        Whose host and limits: vllm, sglang, tensorrt-llm.
    """
    from penstock.measuring.hardware.view import catalogue_page, entry_of, hardware_page
    from penstock.system import presets

    if gpu is not None:
        _from_shape(name, gpu, tensor_parallel, precision, engine, as_json)
        return
    if tensor_parallel != 1 or precision is not None:
        raise InputError(
            "--tp and --precision are for a model on a GPU, but no GPU is given; add --gpu, such "
            "as --gpu h100-sxm"
        )
    names = list(presets.HARDWARE)
    if name is not None and name not in names:
        names = presets.matching(name)
    elif name is not None:
        names = [name]
    # Which says that there is none.
    shown = [presets.hardware(each) for each in names] or [presets.hardware(str(name))]
    page = catalogue_page(shown) if name is None or len(shown) > 1 else hardware_page(shown[0])
    Form(as_json).show(page, {"hardware": [entry_of(each) for each in shown]})


def _from_shape(
    model: str | None,
    gpu: str,
    tensor_parallel: int,
    precision: str | None,
    engine: str,
    as_json: bool,
) -> None:
    """Show what follows from the shape of a model on a GPU."""
    from penstock.measuring.hardware.view_of_shape import facts_of, shaped_page
    from penstock.show.answers import plain
    from penstock.system.engines import ENGINES, without_version
    from penstock.system.models.served import served_model

    if model is None:
        raise InputError(
            f"--gpu is {gpu}, but no model is named; give one, such as `penstock hardware "
            f"Llama-3.1-70B --gpu {gpu}`, or the path of its config.json"
        )
    sized = [name for name, known in ENGINES.items() if known.memory.gpu_rule is not None]
    checks.word("--engine", without_version(engine)[0], sized)
    served = served_model(model, gpu, tensor_parallel, precision=precision, engine=engine)
    Form(as_json).show(shaped_page(served), plain(facts_of(served)))
