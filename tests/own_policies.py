"""Policies of a test's own, compiled when they are first asked and not when tests are collected."""

import functools
from typing import Any

from penstock.system.policies import Policy


def own_policy(function: Any = None, *, work_conserving: bool | None = None) -> Any:
    """Make a policy of a function, as `penstock.policy` does, which compiles it at once."""
    if function is None:
        return functools.partial(own_policy, work_conserving=work_conserving)
    return Policy(*Policy._name_and_function(function, None), work_conserving)
