"""Questions that several tests ask in the same words, answered once: what is tested is how they are put and shown."""

import functools
import pickle
from types import ModuleType
from typing import Any

import pytest

ANSWERS: dict[tuple[str, bytes], Any] = {}


def asked_once(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
    """Let a function of a module, asked what it has been asked before in this process, answer as it did then."""
    ask = getattr(module, name)

    @functools.wraps(ask)
    def answer(*about: Any, **how: Any) -> Any:
        given = {key: value for key, value in how.items() if not callable(value)}  # without bars of progress
        question = name, pickle.dumps((about, given))
        if question not in ANSWERS:
            ANSWERS[question] = ask(*about, **how)
        return ANSWERS[question]

    monkeypatch.setattr(module, name, answer)
