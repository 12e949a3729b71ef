"""After a failed call: does the CUDA error stay?"""

from typing import Any

from surrogate.collect.cudnn.gpu import GpuFaultError
from surrogate.collect.cudnn.status import may_be_sticky


def settle(gpu: Any, code: int | None = None) -> None:
    """Wait for ``gpu`` (`surrogate.collect.cudnn.gpu.Gpu`), so that a sticky error shows now, as `DeviceLostError`.

    ``code`` is the cuDNN status that failed; one that launched nothing needs no waiting. What passes is swallowed: the
    caller has reported it already.
    """
    if code is not None and not may_be_sticky(code):
        return
    try:
        gpu.synchronize()
    except GpuFaultError:
        return
