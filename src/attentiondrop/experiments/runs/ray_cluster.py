"""Connect to a running Ray cluster."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import ArgumentError


@contextmanager
def cluster_at(address: str) -> Iterator[Any]:
    """The module `ray`, connected to the cluster at this address."""
    import ray

    _check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"ray: expected the address of a running cluster, received {address!r}: {error}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Try to connect before Ray does, because Ray takes minutes to notice that there is no cluster."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto" or not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise ArgumentError(f"ray: expected the address of a running cluster, received {address!r}: {error}") from None
