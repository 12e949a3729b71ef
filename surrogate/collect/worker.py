"""A device in a process of its own, so that a sticky CUDA error, a crash or a hang costs one measurement, not the run.

The parent (`WorkerDevice`, `WorkerOperators`) and the child (`serve`) exchange JSON lines over the child's standard
input and output: a request is ``{"call": name, …}``, a reply ``{"result": …}``, ``{"input_error": line}`` or ``{"lost":
reason}``. A child that said ``lost``, died or kept silent too long is replaced by a fresh one at the next call.
"""

import json
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TextIO

from surrogate.collect.device import Choice, DeviceInfo, DeviceLostError, Measurement, Record, choices
from surrogate.collect.operators.operator import Operator, parse
from surrogate.collect.protocol import RepeatPolicy
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError

FIRST_TIMEOUT_S = 300.0
"""Silence after which a child is taken for hung at its first call, which loads libraries and checks itself."""
TIMEOUT_S = 30.0
"""… and at any later one: a call measures for seconds at most."""


class Worker:
    """A child process started by ``command``, and another one after that was lost."""

    def __init__(
        self, command: Sequence[str], timeout_s: float = TIMEOUT_S, first_timeout_s: float = FIRST_TIMEOUT_S
    ) -> None:
        self._command = list(command)
        self._timeout_s, self._first_timeout_s = timeout_s, first_timeout_s
        self._child: subprocess.Popen[str] | None = None
        self.starts = 0
        """Processes started so far."""

    def describe(self) -> DeviceInfo:
        """See `Device.describe`."""
        return DeviceInfo.from_dict(self._ask("describe"))

    def conditions(self) -> Mapping[str, float]:
        """See `Device.conditions`."""
        return self._ask("conditions")

    def close(self) -> None:
        """End the child: its standard input closes, it gives the device back; after a while it is killed."""
        child, self._child = self._child, None
        if child is None:
            return
        try:
            child.communicate(timeout=10.0)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            child.kill()
            child.wait()

    def _ask(self, call: str, **arguments: Any) -> Any:
        timeout_s = self._timeout_s if self._child else self._first_timeout_s
        child = self._child or self._start()
        request = json.dumps({"call": call, **arguments}, default=asdict)
        reply = self._exchange(child, request, timeout_s)
        if "lost" in reply:
            self._discard(child)
            raise DeviceLostError(reply["lost"])
        if "input_error" in reply:
            raise InputError(reply["input_error"])
        return reply["result"]

    def _start(self) -> subprocess.Popen[str]:
        # a session of its own keeps the terminal's Ctrl-C from the child: the parent ends it in order
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._child = subprocess.Popen(self._command, **pipes, text=True, bufsize=1, start_new_session=True)
        self.starts += 1
        return self._child

    def _exchange(self, child: "subprocess.Popen[str]", request: str, timeout_s: float) -> Mapping[str, Any]:
        """The child's reply, or ``lost`` with the reason."""
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
        self._child = None
        child.kill()
        # a request may still be buffered for it
        with suppress(OSError, ValueError, subprocess.TimeoutExpired):
            child.communicate(timeout=10.0)


class WorkerDevice(Worker):
    """A `Device` that lives in a child process."""

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """See `Device.candidates`."""
        return tuple(self._ask("candidates", conv=conv))

    def heuristic(self, conv: Conv) -> tuple[Choice, ...]:
        """See `Device.heuristic`."""
        return choices(self._ask("heuristic", conv=conv))

    def find(self, conv: Conv) -> tuple[Choice, ...]:
        """See `Device.find`."""
        return choices(self._ask("find", conv=conv))

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """See `Device.measure`."""
        return Measurement.from_dict(self._ask("measure", conv=conv, algorithm=algorithm, policy=policy))


class WorkerOperators(Worker):
    """The operators' device (`surrogate.collect.operators`) in a child process."""

    def measure(self, operator: Operator, policy: RepeatPolicy) -> Measurement:
        """As `WorkerDevice.measure`, of one operator."""
        return Measurement.from_dict(self._ask("measure", operator=operator.key, policy=policy))


def serve(open_device: Callable[[], Any], requests: TextIO, replies: TextIO) -> None:
    """Answer requests until they end, or until the device is lost."""
    device: Any = None
    try:
        for line in requests:
            try:
                device = device or open_device()
                reply: dict[str, Any] = {"result": _answer(device, **json.loads(line))}
            except InputError as error:
                reply = {"input_error": str(error)}
            except DeviceLostError as error:
                reply = {"lost": str(error)}
            except Exception as error:  # one failure never ends a run: a fresh process takes over
                reply = {"lost": f"{type(error).__name__}: {error}"}
            replies.write(json.dumps(reply, default=Record.to_dict) + "\n")
            replies.flush()
            if "lost" in reply:
                return
    finally:
        if device is not None:
            device.close()


READERS: Mapping[str, Callable[[Any], Any]] = {
    "conv": lambda values: Conv(**values),
    "operator": parse,
    "policy": lambda values: RepeatPolicy(**values),
}
"""Argument of a device's methods → how it is read from JSON; the others are plain."""


def _answer(device: Any, call: str, **arguments: Any) -> Any:
    read = {name: READERS[name](value) if name in READERS else value for name, value in arguments.items()}
    return getattr(device, call)(**read)


def _exit(child: "subprocess.Popen[str]") -> str:
    try:
        code = child.wait(timeout=10.0)
    except subprocess.TimeoutExpired:
        return "its output closed"
    return f"signal {-code}" if code < 0 else f"exit status {code}"
