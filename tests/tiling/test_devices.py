"""The data file of devices: each number has a source, and ceilings are reached ones."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from trigemm.tiling import devices

DATA = tomllib.loads(Path(devices.__file__).with_name("devices.toml").read_text())


@pytest.mark.parametrize("name", devices.names())
def test_every_number_has_a_source(name):
    entry = DATA[name]
    assert set(entry["sources"]) == set(entry) - {"name", "sources"}
    assert {field.name for field in fields(devices.Device)} - {"measured"} <= set(entry)


@pytest.mark.parametrize("name", devices.names())
def test_a_device_reaches_less_than_its_datasheet_says(name):
    device = devices.known(name)
    assert device.measured == ("measured" in DATA[name])
    for ceiling in ("memory_gbps", "tensor_tflops"):
        assert 0.5 * DATA[name][ceiling] < getattr(device, ceiling) < DATA[name][ceiling]


def test_an_unknown_device_is_named_with_those_that_are_known():
    with pytest.raises(ValueError, match="no device 'h300'; known are h200, h100, a100, l40s"):
        devices.known("h300")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_no_device_here():
    with pytest.raises(ValueError, match="no CUDA device here; name one of h200"):
        devices.here(lambda: (1.0, 1.0))


@pytest.mark.gpu
def test_the_gpu_of_this_machine():
    device = devices.here(lambda: (123.0, 45.0))
    listed = [known for known in map(devices.known, devices.names()) if known.measured and known.name == device.name]
    assert device.name == torch.cuda.get_device_name()
    assert device in listed or (device.memory_gbps, device.tensor_tflops) == (123.0, 45.0)
