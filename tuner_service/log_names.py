"""What the tuning log calls kernels. Nothing that computes is loaded to say so."""

from __future__ import annotations

from tilecore import kernels


def logged_kernel(kernel: str) -> str:
    """Return what the log calls a kernel: one of the library, ``program:DIGEST``, ``script:name``.

    Raises:
        UnknownKernel: it is none of these (TC501).
    """
    return kernel if ":" in kernel else kernels.known(kernel)
