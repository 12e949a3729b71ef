"""cuDNN's status codes → the dataset's statuses."""

SUCCESS = 0
V8_NOT_SUPPORTED = {6, 9}
"""cuDNN 8: ARCH_MISMATCH and NOT_SUPPORTED."""
V8_EXECUTION_FAILED = {7, 8}
"""cuDNN 8: MAPPING_ERROR and EXECUTION_FAILED."""


class CudnnError(RuntimeError):
    """A call that returned another status than success; ``code`` is cudnnStatus_t."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> str:
        """The dataset's status."""
        return status_of(self.code)


def status_of(code: int) -> str:
    """``ok``, ``not_supported`` or ``failed``. cuDNN 9 groups its codes by thousands: 3xxx is not supported."""
    if code == SUCCESS:
        return "ok"
    if code // 1000 == 3 or code in V8_NOT_SUPPORTED:
        return "not_supported"
    return "failed"


def may_be_sticky(code: int) -> bool:
    """True for the codes after which the CUDA context itself must be asked (execution failed)."""
    return code // 1000 == 5 or code in V8_EXECUTION_FAILED
