"""Open a device by its name, in this process or in a child process; this module is also the child's program.

A child process limits a sticky CUDA error, a crash or a hang to one measurement. The parent (`WorkerDevice`,
`WorkerOperators`) starts ``python -m surrogate.collect.open_device NAME WORDS…``. The child (`serve`) exchanges JSON
lines with it over standard input and output. A request is ``{"call": name, …}``; a reply is ``{"result": …}``,
``{"input_error": line}`` or ``{"lost": reason}``. The next call starts a new child if the last one replied ``lost``,
died, or did not answer in time. A child ends within seconds after its parent, even inside a call that hangs.

CUPTI may hang or crash on a driver. So as long as it has timed nothing, two lost calls without a measurement between
make the next child leave it out. Two more make the next child use it again, since it was not the cause.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from surrogate.collect.cudnn.activity import AFTER_LOSSES, TIMER
from surrogate.collect.device import Device, DeviceInfo, DeviceLostError, HeuristicEntry, Measurement, RepeatPolicy
from surrogate.collect.operators import operator_key, parse_operator
from surrogate.collect.plan import CPU_CAPS, GPU_CAPS, Caps
from surrogate.features import Conv, InputError
from surrogate.features.families import Operator

TIMEOUT_S = 15.0
"""Seconds for each call, which measures for a few seconds at most. A slower child counts as hung."""
START_FACTOR = 4.0
"""Factor of a child's first call, which loads libraries and checks the device."""
LOST_STARTS = 2
"""Number of processes that may be lost at their start. The third one leaves CUPTI out."""
ENDING_S = 3.0
"""Seconds in which a child can end in order after its parent has ended."""


if TYPE_CHECKING:
    from surrogate.collect.cudnn_heuristic import HeuristicDevice
    from surrogate.collect.operators import GpuOperators

Served: TypeAlias = "Device | GpuOperators | HeuristicDevice"
"""A device that a child process serves."""


class Worker:
    """A child process started by ``command``. If the child is lost, the next call starts a new one."""

    def __init__(
        self,
        command: Sequence[str],
        timeout_s: float = TIMEOUT_S,
        first_timeout_s: float | None = None,
        without_cupti: bool = False,
    ) -> None:
        self._command = list(command)
        self._timeout_s, self._first_timeout_s = timeout_s, first_timeout_s or START_FACTOR * timeout_s
        self._child: subprocess.Popen[str] | None = None
        self._info: DeviceInfo | None = None
        self.losses = 0
        """Lost calls since the last measurement."""
        self._cupti_works = False
        self.without_cupti = without_cupti
        """True if the next process leaves CUPTI out."""
        self.starts = 0
        """Processes started so far."""

    def device_info(self) -> DeviceInfo:
        """See `Device.device_info`. Each process is asked once. Up to `LOST_STARTS` lost ones are replaced."""
        lost = 0
        while self._info is None:
            try:
                self._info = DeviceInfo.from_dict(self._ask("device_info"))
            except DeviceLostError:
                lost += 1
                if lost > LOST_STARTS:
                    raise
        return self._info

    def conditions(self) -> Mapping[str, float]:
        """See `Device.conditions`."""
        return self._ask("conditions")

    def close(self) -> None:
        """End the child: close its standard input, so that it releases the device; kill it after 10 s."""
        child, self._child, self._info = self._child, None, None
        if child is None:
            return
        try:
            child.communicate(timeout=10.0)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            child.kill()
            child.wait()

    def _measured(self, **arguments: object) -> Measurement:
        result = Measurement.from_dict(self._ask("measure", **arguments))
        self.losses = 0
        self._cupti_works |= result.timer == "cupti"
        return result

    def _ask(self, call: str, **arguments: object) -> Any:
        timeout_s = self._timeout_s if self._child else self._first_timeout_s
        child = self._child or self._start()
        reply = self._exchange(child, json.dumps({"call": call, **arguments}, default=asdict), timeout_s)
        if "lost" in reply:
            self._discard(child)
            self.losses += 1
            if not self._cupti_works and self.losses > 1:
                self.without_cupti, self.losses = not self.without_cupti, 0
            raise DeviceLostError(reply["lost"])
        if "input_error" in reply:
            raise InputError(reply["input_error"])
        return reply["result"]

    def _start(self) -> subprocess.Popen[str]:
        # In its own session the child does not get the terminal's Ctrl-C; the parent ends it in order.
        timer = {TIMER: AFTER_LOSSES} if self.without_cupti else {}
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self._child = subprocess.Popen(self._command, env=os.environ | timer, start_new_session=True, **streams)
        self._info = None
        self.starts += 1
        return self._child

    def _exchange(self, child: "subprocess.Popen[str]", request: str, timeout_s: float) -> Mapping[str, Any]:
        """Return the child's reply, or ``lost`` with the reason."""
        assert child.stdin is not None and child.stdout is not None
        hung = threading.Event()

        def stop() -> None:
            hung.set()
            child.kill()

        alarm = threading.Timer(timeout_s, stop)
        alarm.start()
        try:
            child.stdin.write(request + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except OSError:
            line = ""
        finally:
            alarm.cancel()
        if line.endswith("\n"):
            return json.loads(line)
        if hung.is_set():
            return {"lost": f"no answer within {timeout_s:g} s"}
        return {"lost": f"the worker process ended ({_exit(child)})"}

    def _discard(self, child: "subprocess.Popen[str]") -> None:
        self._child = self._info = None
        child.kill()
        # A request may still be in the pipe's buffer.
        with suppress(OSError, ValueError, subprocess.TimeoutExpired):
            child.communicate(timeout=10.0)


class WorkerDevice(Worker):
    """A `Device` that lives in a child process."""

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """See `Device.candidates`."""
        return tuple(self._ask("candidates", conv=conv))

    def heuristic(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """See `Device.heuristic`."""
        return HeuristicEntry.all_from(self._ask("heuristic", conv=conv))

    def find(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """See `Device.find`."""
        return HeuristicEntry.all_from(self._ask("find", conv=conv))

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """See `Device.measure`."""
        return self._measured(conv=conv, algorithm=algorithm, policy=policy)


class WorkerOperators(Worker):
    """The operators' device (`surrogate.collect.operators`) in a child process."""

    def measure(self, operator: Operator, policy: RepeatPolicy) -> Measurement:
        """Return the measurement of one operator, as `WorkerDevice.measure` does for a convolution."""
        return self._measured(operator=operator_key(operator), policy=policy)


def serve(open_device: Callable[[], Served], requests: TextIO, replies: TextIO) -> None:
    """Answer requests until they end, or until the device is lost."""
    threading.Thread(target=end_with_parent, args=(requests,), daemon=True).start()
    device: Served | None = None
    try:
        for line in requests:
            try:
                device = device or open_device()
                reply: dict[str, object] = {"result": _answer(device, **json.loads(line))}
            except InputError as error:
                reply = {"input_error": str(error)}
            except DeviceLostError as error:
                reply = {"lost": str(error)}
            except Exception as error:  # no failure ends a run: a new process continues
                reply = {"lost": f"{type(error).__name__}: {error}"}
            replies.write(json.dumps(reply, default=lambda record: record.to_dict()) + "\n")
            replies.flush()
            if "lost" in reply:
                return
    finally:
        if device is not None:
            device.close()


def end_with_parent(requests: TextIO) -> None:
    """End this process `ENDING_S` after the other end of the pipe closed, even if a call hangs.

    On systems without ``poll`` (Windows) the user must end such a child.
    """
    if not hasattr(select, "poll"):
        return
    pipe = select.poll()
    pipe.register(requests, 0)  # with mask 0, poll reports only that the other end closed, not new input
    pipe.poll()
    time.sleep(ENDING_S)
    os._exit(1)


READERS: Mapping[str, Callable[[Any], object]] = {
    "conv": lambda values: Conv(**values),
    "operator": parse_operator,
    "policy": lambda values: RepeatPolicy(**values),
}
"""Argument of a device's methods → its reader from JSON; other arguments are used as they are."""


def _answer(device: Served, call: str, **arguments: object) -> object:
    read = {name: READERS[name](value) if name in READERS else value for name, value in arguments.items()}
    return getattr(device, call)(**read)


def _exit(child: "subprocess.Popen[str]") -> str:
    try:
        code = child.wait(timeout=10.0)
    except subprocess.TimeoutExpired:
        return "its output closed"
    return f"signal {-code}" if code < 0 else f"exit status {code}"


DEVICES = {"cudnn": "cuDNN on this GPU", "cpu": "NumPy on this CPU", "replay": "a recorded run"}
"""Name → the device, as in the help of `seer collect`."""
ALIASES = {"reference": "cpu"}


def caps_for(name: str) -> Caps:
    """Return the caps of a plan for the device ``name``. A recording has no limits."""
    anything = Caps(0.0, float("inf"), 1 << 62, 1 << 62)
    return {"cpu": CPU_CAPS, "replay": anything}.get(ALIASES.get(name, name), GPU_CAPS)


def open_device(
    name: str,
    *,
    recording: str | Path | None = None,
    max_tensor_bytes: int = GPU_CAPS.max_tensor_bytes,
    engines: bool = False,
    timeout_s: float = TIMEOUT_S,
    without_cupti: bool = False,
) -> Device:
    """Return the device ``name``; ``recording`` is the run that ``replay`` reads.

    On a GPU, memory is reserved for three tensors of ``max_tensor_bytes``; other devices ignore the limit. cuDNN runs
    in a process of its own, so a sticky CUDA error costs only one measurement, and a call without an answer costs
    ``timeout_s``. ``engines`` measures cuDNN's engine configurations instead of its algorithms. ``without_cupti`` times
    by events. Raises `InputError` if the device cannot be opened.
    """
    name = ALIASES.get(name, name)
    if name == "cudnn":
        command = command_for("engines" if engines else "cudnn", str(max(max_tensor_bytes, GPU_CAPS.max_tensor_bytes)))
        return WorkerDevice(command, timeout_s, without_cupti=without_cupti)
    if name == "cpu":
        from surrogate.collect.cpu import CpuDevice

        return CpuDevice()
    if name == "replay":
        from surrogate.collect.log import ReplayDevice

        if recording is None:
            raise InputError("device replay needs a recorded run; give --recording RUN.jsonl")
        return ReplayDevice(recording)
    raise InputError(f"device {name!r} is unknown; known: {', '.join(DEVICES)}")


def open_operators(timeout_s: float = TIMEOUT_S, without_cupti: bool = False) -> WorkerOperators:
    """Return the operators' device, a GPU in a process of its own."""
    return WorkerOperators(command_for("operators"), timeout_s, without_cupti=without_cupti)


def open_ranking(gpu: str) -> WorkerDevice:
    """Return cuDNN's heuristic for a described GPU, in a process of its own: some cuDNN releases abort the process."""
    return WorkerDevice(command_for("heuristic", gpu))


def command_for(device: str, *words: str) -> list[str]:
    """Return the command of the child process that serves ``device``."""
    return [sys.executable, "-m", "surrogate.collect.open_device", device, *words]


def main(device: str, *words: str) -> None:
    """Serve ``device`` on standard input and output. Output of libraries goes to standard error."""

    def opened() -> Served:
        if device == "operators":
            from surrogate.collect.operators import GpuOperators

            return GpuOperators()
        if device == "heuristic":
            from surrogate.collect.cudnn_heuristic import HeuristicDevice
            from surrogate.features.gpu import gpu

            return HeuristicDevice(gpu(words[0]))
        if device == "engines":
            from surrogate.collect.cudnn.engines import EngineDevice

            return EngineDevice(max_tensor_bytes=int(words[0]))
        from surrogate.collect.cudnn.device import CudnnDevice

        return CudnnDevice(max_tensor_bytes=int(words[0]))

    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(opened, sys.stdin, replies)


if __name__ == "__main__":
    main(*sys.argv[1:])
