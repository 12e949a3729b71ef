"""cuDNN's descriptors of one problem: input, filter, output, convolution."""

import ctypes
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

from surrogate.collect.cudnn import enums
from surrogate.collect.cudnn.library import Library
from surrogate.features.conv import Conv


class Descriptors:
    """Four descriptors made once and set to one problem after another; by role: ``x``, ``w``, ``y``, ``conv``."""

    def __init__(self, library: Library) -> None:
        self._library = library
        with ExitStack() as made:
            self.by_role: Mapping[str, Any] = {
                role: self._make(kind, made)
                for role, kind in (("x", "Tensor"), ("w", "Filter"), ("y", "Tensor"), ("conv", "Convolution"))
            }
            self._made = made.pop_all()

    def _make(self, kind: str, made: ExitStack) -> Any:
        descriptor = self._library.create(kind)
        made.callback(self._library.call, f"cudnnDestroy{kind}Descriptor", descriptor)
        return descriptor

    def set(self, conv: Conv) -> None:
        """Describe ``conv``. A refusal raises `CudnnError`, an element type that is not collected `InputError`."""
        check, by_role = self._library.check, self.by_role
        dtype, layout = enums.data_type(conv.dtype), enums.LAYOUTS[conv.layout]
        compute = enums.data_type(enums.COMPUTE_DTYPES[conv.dtype])
        check("cudnnSetTensor4dDescriptor", by_role["x"], layout, dtype, conv.n, conv.c, conv.h, conv.w)
        channels = conv.c // conv.groups
        check("cudnnSetFilter4dDescriptor", by_role["w"], dtype, layout, conv.k, channels, conv.r, conv.s)
        check(
            "cudnnSetConvolution2dDescriptor",
            by_role["conv"],
            conv.pad_h,
            conv.pad_w,
            conv.stride_h,
            conv.stride_w,
            conv.dilation_h,
            conv.dilation_w,
            enums.CROSS_CORRELATION,
            compute,
        )
        check("cudnnSetConvolutionGroupCount", by_role["conv"], conv.groups)
        check("cudnnSetConvolutionMathType", by_role["conv"], enums.MATHS[conv.math])
        check(
            "cudnnSetTensor4dDescriptor", by_role["y"], layout, dtype, conv.n, conv.k, conv.out_h, conv.out_w
        )

    def output_dims(self) -> tuple[int, int, int, int]:
        """The output's n, c, h, w as cuDNN computes them; needs no GPU."""
        dims = [ctypes.c_int() for _ in range(4)]
        self._library.check(
            "cudnnGetConvolution2dForwardOutputDim",
            self.by_role["conv"],
            self.by_role["x"],
            self.by_role["w"],
            *map(ctypes.byref, dims),
        )
        n, c, h, w = (dim.value for dim in dims)
        return n, c, h, w

    def close(self) -> None:
        """Destroy the descriptors."""
        self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
