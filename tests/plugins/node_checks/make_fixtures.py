#!/usr/bin/env python3
"""Writes fixtures/: what a node has beside the trees of its memory (tests/runtime/memory), in the same form: InfiniBand,
interfaces, PCI, limits, mounts, processes, and what NVML says (`ananke health --record-gpus`). Names, forms and sizes are
those of JUPITER's nodes as its users published them; a variant holds the files in which it differs.

    tests/plugins/node_checks/make_fixtures.py        # the same every time
"""
import pathlib

ROOT = pathlib.Path(__file__).parent / "fixtures"
PCI = ["0009:01:00.0", "0019:01:00.0", "0029:01:00.0", "0039:01:00.0"]


def limits(memlock="unlimited", files=1048576):
    rows = [("Limit", "Soft Limit", "Hard Limit", "Units"), ("Max stack size", "8388608", "unlimited", "bytes"),
            ("Max open files", files, files, "files"), ("Max locked memory", memlock, memlock, "bytes")]
    return "".join(f"{a:<25} {b:<20} {c:<20} {d:<10}\n" for a, b, c, d in rows)


def gpu(index, uuid=None, **change):
    name = "NVIDIA GH200 120GB"
    values = dict(index=index, uuid=uuid or f"GPU-0{index}1f52c6-6a3b-4b5e-9a37-2d1b7d0b8e0{index}", pci=PCI[index],
                  name=name, memory_total=102625181696, memory_used=3 << 20, utilization=0, processes_read="true",
                  sm_clock=345, sm_clock_max=1980, throttle_reasons=1, temperature=34, temperature_slowdown=87,
                  power_limit=680, pcie_generation=1, pcie_generation_max=4, pcie_width=16, pcie_width_max=16,
                  pcie_replays=0, nvlinks_read="true", ecc_volatile=0, ecc_aggregate=0, remap_pending="false",
                  remap_failure="false", c2c_links=10, c2c_active=10, c2c_mb_s=44712, minor=index)
    links = change.pop("links", [True] * 18)
    process = change.pop("process", None)
    values.update(change)
    lines = [f'{key}: "{value}"' if key in ("uuid", "pci", "name", "problem") else f"{key}: {value}"
             for key, value in values.items() if value is not None]
    lines += [f"nvlink: {str(link).lower()}" for link in links]
    if process:
        lines.append("process { process: %d bytes: %d }" % process)
    return "gpu {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def nvml(gpus, driver="580.95.05"):
    return f'driver: "{driver}"\n' + "".join(gpus)


def port(number, state="4: ACTIVE", physical="5: LinkUp", rate="200 Gb/sec (2X NDR)", downed=0):
    folder = f"sys/class/infiniband/mlx5_{number}/ports/1"
    return {f"{folder}/state": f"{state}\n", f"{folder}/phys_state": f"{physical}\n", f"{folder}/rate": f"{rate}\n",
            f"{folder}/link_layer": "InfiniBand\n", f"{folder}/counters/link_downed": f"{downed}\n",
            f"{folder}/counters/link_error_recovery": "0\n", f"{folder}/counters/symbol_error": "0\n"}


def process(number, parent, name, user, **more):
    folder = f"proc/{number}"
    files = {f"{folder}/comm": f"{name}\n",
             f"{folder}/status": f"Name:\t{name}\nPid:\t{number}\nPPid:\t{parent}\nUid:\t{user}\t{user}\t{user}\t{user}\n"}
    if "cgroup" in more:
        files[f"{folder}/cgroup"] = more["cgroup"]
    return files


def common(cpus, release, driver_mount="/e/project1"):
    return {"proc/self/limits": limits(), "proc/sys/kernel/osrelease": f"{release}\n",
            "proc/sys/kernel/random/boot_id": "5a1f0c0e-4b1e-4a4f-8a57-5f3b7f0f0d11\n",
            "sys/devices/system/cpu/online": f"0-{cpus - 1}\n", "sys/devices/system/cpu/present": f"0-{cpus - 1}\n",
            "proc/self/mounts": f"/dev/nvme0n1p2 / xfs rw 0 0\nproj1 {driver_mount} gpfs rw,relatime 0 0\n"
                                "tmpfs /dev/shm tmpfs rw 0 0\n",
            "proc/self/maps": "aaaac0000000-aaaac0100000 r-xp 00000000 fd:00 131 /usr/bin/ananke\n"
                              "ffff80000000-ffff80100000 r-xp 00000000 fd:00 132 /usr/lib/libananke.so\n"
                              "ffff90000000-ffff90100000 r-xp 00000000 fd:00 133 /usr/lib64/libstdc++.so.6.0.33\n",
            "e/project1/README": "x\n", "e/scratch/README": "x\n", "dev/shm/.keep": "",
            **process(1, 0, "systemd", 0), **process(900, 1, "slurmstepd", 0), **process(1000, 900, "ananke", 4242)}


def jupiter():
    files = common(288, "5.14.0-570.12.1.el9_6.aarch64+64k")
    files["sys/devices/system/clocksource/clocksource0/current_clocksource"] = "arch_sys_counter\n"
    files["sys/class/net/ib0/operstate"] = "up\n"
    files["sys/class/net/lo/operstate"] = "unknown\n"
    for i in range(4):
        files.update(port(i))
        files[f"sys/bus/pci/devices/{PCI[i]}/vendor"] = "0x10de\n"
        files[f"sys/bus/pci/devices/{PCI[i]}/class"] = "0x030200\n"
    files["nvml.textproto"] = nvml([gpu(i) for i in range(4)])
    return files


def x86():
    """Two sockets with SMT, four A100: no C2C, four NVLinks to each other GPU."""
    files = common(256, "4.18.0-553.el8_10.x86_64")
    files["sys/devices/system/clocksource/clocksource0/current_clocksource"] = "tsc\n"
    files["sys/class/net/ib0/operstate"] = "up\n"
    for i in range(4):
        files.update(port(i, rate="200 Gb/sec (4X HDR)"))
    change = dict(links=[True] * 12, c2c_links=0, c2c_active=None, c2c_mb_s=None, sm_clock_max=1410, power_limit=400,
                  memory_total=42949672960, name="NVIDIA A100-SXM4-40GB")
    files["nvml.textproto"] = nvml([gpu(i, **change) for i in range(4)])
    return files


def variants():
    healthy = [gpu(i) for i in range(4)]

    def one(**change):
        return {"nvml.textproto": nvml(healthy[:2] + [gpu(2, **change)] + healthy[3:])}

    return {
        "nic_down": port(2, "1: DOWN", "3: Disabled", "10 Gb/sec (4X SDR)", downed=2),
        "nic_slow": port(1, rate="100 Gb/sec (2X HDR)"),
        "nic_flapped": port(3, downed=1),
        "gpu_missing": {"nvml.textproto": nvml([gpu(0), gpu(1), gpu(3)])},
        "gpu_lost": one(problem="GPU is lost"),
        "gpu_in_use": {**one(memory_used=21 << 30, utilization=97, process=(4711, 20 << 30)),
                       **process(4711, 1, "python3", 1234)},
        "gpu_busy_unseen": one(memory_used=21 << 30, utilization=97),
        "gpu_memory_held": one(memory_used=21 << 30),
        "gpu_remap": one(remap_pending="true"),
        "gpu_ecc": one(ecc_aggregate=9),
        "gpu_throttled": one(throttle_reasons=0x48),
        "gpu_nvlink": one(links=[True] * 17 + [False]),
        "gpu_c2c": one(c2c_active=9),
        "gpu_pcie": one(pcie_width=8),
        "old_driver": {"nvml.textproto": nvml(healthy, driver="550.54.15")},
        "limits": {"proc/self/limits": limits(memlock=8388608, files=1024)},
        "not_mounted": {"proc/self/mounts": "/dev/nvme0n1p2 / xfs rw 0 0\n"},
        "residual_mount": {"proc/self/mounts": "/dev/nvme0n1p2 / xfs rw 0 0\nproj1 /e/project1 gpfs rw 0 0\n"
                                               "squashfuse_ll /tmp/image fuse.squashfuse_ll ro 0 0\n"},
        "leftover": {**process(4712, 1, "python3", 4242), **process(1001, 1000, "child", 4242)},
        "two_nccls": {"proc/self/maps": "ffff80000000-ffff80100000 r-xp 00000000 fd:00 132 /usr/lib/libnccl.so.2.27.5\n"
                                        "ffff90000000-ffff90100000 r-xp 00000000 fd:00 133 /opt/nccl/lib/libnccl.so.2.28.9\n"},
        "cpus_offline": {"sys/devices/system/cpu/online": "0-215\n"},
        "slow_clock": {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"},
    }


def main():
    ROOT.mkdir(exist_ok=True)
    for name, files in {"jupiter": jupiter(), "x86": x86(), **variants()}.items():
        (ROOT / f"{name}.txt").write_text("\n".join(f"==> /{path} <==\n{text}" for path, text in files.items()))


if __name__ == "__main__":
    main()
