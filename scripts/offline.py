"""Installed as `sitecustomize`: with OFFLINE set, no socket leaves this machine."""

import os
import socket
from typing import Any

HERE = ("127.0.0.1", "::1", "localhost")


class OfflineSocket(socket.socket):
    def connect(self, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in HERE:
            raise OSError(f"offline: refused to connect to {address}")
        super().connect(address)


if os.environ.get("OFFLINE"):
    socket.socket = OfflineSocket  # type: ignore[misc]
