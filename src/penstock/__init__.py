"""Is this LLM deployment stable, how much can it carry, and with which scheduler?

By theorem where one applies, by simulation where none does. Start with `read_trace` or `Workload`,
describe a `Server`, then ask: `check`, or one witness at a time: `certify`, `verdict`, `max_rate`,
`region`, `simulate`, `audit`.
"""

import lazy_loader

# The names stand in __init__.pyi; each is loaded when it is first used, for some take a second.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
