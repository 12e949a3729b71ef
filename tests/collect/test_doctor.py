"""``seer doctor`` examines a fake device that works, each of its faults, and this machine."""

from dataclasses import replace

import pytest

from surrogate.collect import doctor, open_device
from surrogate.collect.counting import NsightCompute
from surrogate.collect.device import DeviceInfo, Measurement
from surrogate.collect.doctor import PROBLEM, Check, counting_denied, examine
from surrogate.formats.launches import PERMISSION_REMEDY
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)

FACTS = ANSWERS["facts"]


@pytest.fixture
def examined(fake_device, monkeypatch, tmp_path):
    """Return ``examined(**facts)``: the checks of a fake device by name; ``facts`` replace its properties."""
    monkeypatch.setattr(doctor, "driver", lambda: Check("driver", "ok", "for CUDA 12.8"))
    monkeypatch.setattr(doctor, "find_tool", lambda capability: NsightCompute("/x/ncu"))
    monkeypatch.setattr(doctor, "counting_denied", lambda: True)

    def examined(version="9.19.0", result=None, **facts):
        device = fake_device()
        versions = {"cuda_driver": "12.8", "cuda_runtime": "12.8", "cupy": "14.2"}
        device.info = DeviceInfo("NVIDIA H100 80GB HBM3", "cudnn", version, versions, {**FACTS, **facts})
        measure = device.measure
        measurement = result and Measurement(*result)
        clocks = {"sm_clock_mhz": 1755.0, "throttle_reasons": 0}
        device.measure = lambda *call: measurement or replace(measure(*call), **clocks)
        return {check.name: check for check in examine(device, tmp_path, quick=True)}

    return examined


def test_a_working_chain_fails_only_the_counters_check(examined):
    checks = examined()
    assert [name for name, check in checks.items() if check.status != "ok"] == ["counters"]
    assert checks["counters"].remedy == PERMISSION_REMEDY
    assert checks["gpu"].value.endswith("h100-sxm")
    assert checks["names"].value == "implicit_precomp_gemm_kernel()"
    assert checks["clocks"].value == "1755 of 1980 MHz under load"
    assert {"runtime", "cudnn", "cupti", "convolution", "arithmetic", "power", "mig", "mps", "disk"} <= checks.keys()


@cases(__file__)
def test_each_fault_is_reported_with_its_remedy(examined, facts, name, status, message):
    check = examined(**facts)[name]
    assert check.status == status and check.remedy and message in f"{check.value} {check.remedy}"


@cases(__file__)
def test_counting_denied_reads_the_driver_and_the_process(tmp_path, parameters, rights, denied):
    """A machine without the driver's file, such as a container, denies nothing."""
    driver, status = tmp_path / "params", tmp_path / "status"
    status.write_text(f"Name: x\nCapEff:\t{rights}\n")
    if parameters:
        driver.write_text(f"EnableMSI: 1\n{parameters}\n")
    assert counting_denied(driver, status) is denied


def test_doctor_reports_every_check_without_a_gpu(seer, monkeypatch):
    monkeypatch.setenv("SEER_CUDNN", "no-such-library.so")
    monkeypatch.setattr(doctor, "DRIVERS", ("no-such-driver.so",))
    result = seer("doctor")
    assert result.code == 1 and "Traceback" not in result.err
    assert "failed driver      no-such-driver.so is not installed\n" in result.out
    for part in ("--gpus all", "failed cudnn ", "failed device ", "\nok     disk "):
        assert part in result.out


def test_doctor_prints_json(seer, fake_device, monkeypatch):
    monkeypatch.setattr(open_device, "open_device", lambda name: fake_device())
    result = seer("doctor", "--json")
    status = {check["name"]: check["status"] for check in result.json}
    assert result.code == int("failed" in status.values()) and status["kernels"] == "ok"


def test_an_exact_result_is_right_and_a_missing_error_is_wrong():
    """Only fp32 FMA is concerned: TF32 has such errors by its nature."""
    errors = {"fma": {"FFT": 0.0, "GEMM": 1e-7, "WINOGRAD": None, "PRECOMP": float("nan")}}
    info = DeviceInfo("GPU", "cudnn", "9.19.0", properties={"relative_errors": errors})
    assert list(info.inexact_algorithms(PROBLEM)) == ["WINOGRAD", "PRECOMP"]
    assert info.inexact_algorithms(replace(PROBLEM, math="default")) == {}
