"""Is this LLM deployment stable, how much can it carry, and with which scheduler?

By theorem where one applies, by simulation where none does. Start with `read_trace` or `Workload`,
describe a `Server`, then ask: `check`, or one witness at a time: `certify`, `verdict`, `max_rate`,
`region`, `simulate`, `audit`.
"""

import sys


def _attach() -> object:
    """Let the names of ``__init__.pyi`` be loaded when they are first used: some take a second.

    Nothing is imported before that, so that the command line is ready for Ctrl-C at once.
    """
    import lazy_loader

    names = ("__getattr__", "__dir__", "__all__")
    globals().update(zip(names, lazy_loader.attach_stub(__name__, __file__), strict=True))
    return sys.modules[__name__]


def __getattr__(name: str) -> object:
    return getattr(_attach(), name)


def __dir__() -> list[str]:
    return dir(_attach())
