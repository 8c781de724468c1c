"""What is told of drivers, from the texts that the systems write."""

from workers.driver import driver
from workers.host import detect

NVIDIA = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    "GCC version:  gcc version 12.2.0\n"
)


def test_drivers_of_gpus(tmp_path):
    nvidia, amd = tmp_path / "nvidia", tmp_path / "amdgpu" / "version"
    assert driver("cuda", nvidia=nvidia) == driver("rocm", amd=amd) == ""
    nvidia.write_text(NVIDIA)
    assert driver("cuda", nvidia=nvidia) == "NVIDIA 570.86.15"
    nvidia.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183  Tue\n")
    assert driver("cuda", nvidia=nvidia) == "NVIDIA 535.183"
    amd.parent.mkdir()
    assert driver("rocm", amd=amd, kernel="6.9") == "Linux 6.9"  # came with the kernel
    amd.write_text("6.8.5\n")
    assert driver("rocm", amd=amd) == "amdgpu 6.8.5"


def test_driver_of_a_cpu(tmp_path):
    cpu_info = tmp_path / "cpuinfo"
    assert driver("cpu", cpu_info=cpu_info, kernel="6.9") == "Linux 6.9"
    cpu_info.write_text("processor\t: 0\nmicrocode\t: 0xa10113e\ncpu MHz\t: 1\n")
    assert driver("cpu", cpu_info=cpu_info, kernel="6.9") == "Linux 6.9, microcode 0xa10113e"


def test_a_detected_host_tells_its_driver_and_keeps_its_key():
    from dataclasses import replace

    host = detect()
    assert host.driver == driver("cpu")
    assert replace(host, driver="another").key == host.key
