"""Transfers of KV memory between replicas: who gets how much, and how long a token takes a link."""

import numpy as np

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Ints, Ints32
from penstock.system.gpu_memory import Gpu
from penstock.workload.jobs import Jobs

_LEAST_GB_PER_S, _MOST_GB_PER_S = 1e-3, 1e6
_MOST_BYTES = 1e9


def link_ms_per_token(
    gb_per_s: float, kv_bytes_per_token: float | None = None, gpu: Gpu | None = None
) -> float:
    """Return the milliseconds that the KV memory of a token takes a link.

    Parameters
    ----------
    gb_per_s
        Bandwidth of the link of one replica, 10^9 bytes a second.
    kv_bytes_per_token
        Keys and values of a token, on all GPUs of a replica; None: those of the model of ``gpu``.
    gpu
        The model, where it is known.

    Raises
    ------
    InputError
        If there is no bandwidth, or the bytes are neither given nor known.

    >>> link_ms_per_token(25.0, 196_608)
    0.00786432
    """
    nothing = "what a link without bandwidth is given never arrives; leave it out for no transfer"
    checks.number("transfer_gb_per_s", gb_per_s, _LEAST_GB_PER_S, _MOST_GB_PER_S, "GB/s", nothing)
    if kv_bytes_per_token is None:
        if gpu is None:
            raise InputError(
                f"transfer_gb_per_s is {gb_per_s:g}, but how much a token takes is not known "
                "without the model; give kv_bytes_per_token (2 x layers x KV heads x head "
                "dimension x bytes of a number), or transfer_ms_per_token"
            )
        kv_bytes_per_token = gpu.memory.kv_bytes(1)
    what = "it is the keys and values of one token"
    checks.number("kv_bytes_per_token", kv_bytes_per_token, 1, _MOST_BYTES, "bytes", what)
    return kv_bytes_per_token / gb_per_s / 1e6


def checked_link(
    ms_per_token: float, gb_per_s: float | None, kv_bytes_per_token: float | None
) -> None:
    """Refuse a transfer that is described twice, or by half."""
    if gb_per_s is not None and ms_per_token:
        raise InputError(
            f"transfer_ms_per_token is {ms_per_token:g} and transfer_gb_per_s is {gb_per_s:g}, "
            "but both say how long a token takes a link; give one of them"
        )
    if gb_per_s is None and kv_bytes_per_token is not None:
        raise InputError(
            f"kv_bytes_per_token is {kv_bytes_per_token:g}, but says how long a transfer takes "
            "only beside the bandwidth of a link; add transfer_gb_per_s, or leave it out"
        )


def received_tokens(jobs: Jobs, decodes: Ints32, by_engines: Bools) -> Ints:
    """Return KV tokens sent to requests that only decode at an engine, or 0; shape (requests,)."""
    # ``decodes`` has shape (requests,), ``by_engines`` shape (stages,).
    received = np.zeros(jobs.requests, np.int64)
    if jobs.sender is None or not by_engines.any():
        return received
    later = np.flatnonzero((jobs.sender < 0) & (jobs.prompt == 0) & (jobs.output > 0))
    earlier = later + jobs.sender[later]
    processed = jobs.prompt.astype(np.int64) + decodes
    before = None
    while before is None or (before != received).any():  # some pass on what they got
        before = received.copy()
        received[later] = (received + processed)[earlier]
    return np.where(by_engines[jobs.stage], received, 0)
