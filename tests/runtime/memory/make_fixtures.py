#!/usr/bin/env python3
"""Writes the node trees under fixtures/, one file each: the files of /proc and /sys that Ananke reads, with the names
and forms that Linux gives them, behind headers as head(1) writes them, so that a tree of a real node is recorded by
    head -n 10000 /proc/meminfo /proc/zoneinfo /proc/self/status /proc/self/cgroup /sys/devices/system/node/online \\
        /sys/devices/system/node/node*/{cpulist,meminfo} /sys/fs/cgroup/...
Sizes of JUPITER's nodes are those that its users published; the others are made up to be like.

    tests/runtime/memory/make_fixtures.py        # writes fixtures/, the same every time
"""
import pathlib

ROOT = pathlib.Path(__file__).parent / "fixtures"
GIB = 1 << 20  # in kB


TREES = {}  # name: {path: text}


def write(tree, path, text):
    TREES.setdefault(tree, {})[path] = text


def gib(value):
    return int(value * GIB)


class Numa:
    """One NUMA node's memory in kB; what is not said is spread so that the kernel's counters add up to `total`."""

    def __init__(self, number, cpus, total, free, **known):
        self.number, self.cpus, self.total, self.free = number, cpus, total, free
        self.cache = known.get("cache", 0)            # page cache that can be dropped
        self.dirty = known.get("dirty", 0)
        self.shmem = known.get("shmem", 0)
        self.locked = known.get("locked", 0)          # page cache under mlock
        self.anon = known.get("anon", 0)
        self.slab = known.get("slab", 0)
        self.tables = known.get("tables", 0)
        self.stacks = known.get("stacks", 0)
        self.huge = known.get("huge", [])             # (size in kB, pages, free pages)
        self.leak = known.get("leak", 0)
        used = (self.free + self.cache + self.dirty + self.shmem + self.locked + self.anon + self.slab + self.tables
                + self.stacks + sum(size * pages for size, pages, _ in self.huge) + self.leak)
        rest = self.total - used
        assert rest >= 0, (number, rest)
        if known.get("rest") == "free":
            self.free += rest
        else:
            assert rest == 0 or known.get("rest") == "unattributed", (number, rest)

    def meminfo(self):
        pages = self.cache + self.dirty + self.shmem + self.locked
        values = {"MemTotal": self.total, "MemFree": self.free, "MemUsed": self.total - self.free, "SwapCached": 0,
                  "Active": self.anon + self.cache // 2, "Inactive": (self.cache + 1) // 2 + self.dirty,
                  "Active(anon)": self.anon, "Inactive(anon)": self.shmem, "Active(file)": self.cache // 2,
                  "Inactive(file)": (self.cache + 1) // 2 + self.dirty, "Unevictable": self.locked,
                  "Mlocked": self.locked, "Dirty": self.dirty, "Writeback": 0, "FilePages": pages,
                  "AnonPages": self.anon, "Shmem": self.shmem, "KernelStack": self.stacks, "PageTables": self.tables,
                  "SecPageTables": 0, "KReclaimable": self.slab // 2, "Slab": self.slab, "SReclaimable": self.slab // 2,
                  "SUnreclaim": self.slab - self.slab // 2}
        text = "".join(f"Node {self.number} {name + ':':<16} {value:8d} kB\n" for name, value in values.items())
        default = [(pages, free) for size, pages, free in self.huge if size == 2048]
        pages, free = default[0] if default else (0, 0)
        return text + "".join(f"Node {self.number} {name + ':':<16} {value:5d}\n" for name, value in
                              (("HugePages_Total", pages), ("HugePages_Free", free), ("HugePages_Surp", 0)))


def meminfo(nodes, vmalloc=gib(0.3), percpu=gib(0.1)):
    """/proc/meminfo of all nodes together."""
    s = lambda get: sum(get(n) for n in nodes)
    values = {"MemTotal": s(lambda n: n.total), "MemFree": s(lambda n: n.free),
              "MemAvailable": s(lambda n: n.free + n.cache), "Buffers": 0,
              "Cached": s(lambda n: n.cache + n.dirty + n.shmem + n.locked), "SwapCached": 0,
              "Active(file)": s(lambda n: n.cache // 2), "Inactive(file)": s(lambda n: (n.cache + 1) // 2 + n.dirty),
              "Mlocked": s(lambda n: n.locked), "Dirty": s(lambda n: n.dirty), "Writeback": 0,
              "AnonPages": s(lambda n: n.anon), "Shmem": s(lambda n: n.shmem), "Slab": s(lambda n: n.slab),
              "KernelStack": s(lambda n: n.stacks), "PageTables": s(lambda n: n.tables), "VmallocUsed": vmalloc,
              "Percpu": percpu}
    text = "".join(f"{name + ':':<16} {value:10d} kB\n" for name, value in values.items())
    return text + "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n"


def zoneinfo(nodes, low_kb, page_kb):
    text = ""
    for n in nodes:
        if n.total == 0:
            continue
        text += (f"Node {n.number}, zone   Normal\n  pages free     {n.free // page_kb}\n        min      "
                 f"{low_kb // page_kb * 4 // 5}\n        low      {low_kb // page_kb}\n        high     "
                 f"{low_kb // page_kb * 6 // 5}\n        spanned  {n.total // page_kb}\n        present  "
                 f"{n.total // page_kb}\n        managed  {n.total // page_kb}\n")
    return text


def tree(name, nodes, cpus_allowed, mems_allowed, cgroup="0::/\n", online=None, low=gib(0.1), page=4, hidden=False,
         empty=()):
    """A whole node: proc, and sys unless it is hidden. `empty`: NUMA nodes without CPUs and memory."""
    write(name, "proc/meminfo", meminfo(nodes))
    write(name, "proc/zoneinfo", zoneinfo(nodes, low, page))
    write(name, "proc/self/cgroup", cgroup)
    write(name, "proc/self/status", f"Name:\tananke\nCpus_allowed_list:\t{cpus_allowed}\n"
          f"Mems_allowed_list:\t{mems_allowed}\n")
    if hidden:
        return
    folder = "sys/devices/system/node"
    numbers = sorted([n.number for n in nodes] + list(empty))
    write(name, f"{folder}/online", (online or ",".join(map(str, numbers))) + "\n")
    for n in nodes:
        write(name, f"{folder}/node{n.number}/cpulist", n.cpus + "\n")
        write(name, f"{folder}/node{n.number}/meminfo", n.meminfo())
        for size, pages, free in n.huge:
            huge = f"{folder}/node{n.number}/hugepages/hugepages-{size}kB"
            write(name, f"{huge}/nr_hugepages", f"{pages}\n")
            write(name, f"{huge}/free_hugepages", f"{free}\n")
    for number in empty:
        write(name, f"{folder}/node{number}/cpulist", "\n")
        write(name, f"{folder}/node{number}/meminfo",
              "".join(f"Node {number} {field:<16}        0 kB\n" for field in ("MemTotal:", "MemFree:", "FilePages:")))


def process(name, pid, command, user, anon, shmem=0):
    write(name, f"proc/{pid}/status", f"Name:\t{command}\nUid:\t{user}\t{user}\t{user}\t{user}\nRssAnon:\t{anon} kB\n"
          f"RssShmem:\t{shmem} kB\n")


# Sizes of the CPU nodes as numactl -H shows them on a JUPITER node (MB); 64 KiB pages.
JUPITER = [121677 * 1024, 122586 * 1024, 122632 * 1024, 122518 * 1024]
JUPITER_CPUS = ["0-71", "72-143", "144-215", "216-287"]
HBM = [4, 12, 20, 28]


def jupiter(name, change=None, hbm_cache=0, cpus_allowed="0-287", cgroup="0::/\n", cdmm=False):
    """A healthy idle node, but for what `change` says of a CPU node: {number: {...}}. With CDMM the GPUs' memory is no
    NUMA node."""
    nodes = []
    for i, total in enumerate(JUPITER):
        known = dict(anon=gib(0.6), slab=gib(1.2), tables=gib(0.05), stacks=gib(0.1), cache=gib(1.5),
                     shmem=gib(0.05), leak=gib(4))
        known.update((change or {}).get(i, {}))
        nodes.append(Numa(i, JUPITER_CPUS[i], total, 0, rest="free", **known))
    for number in [] if cdmm else HBM:
        nodes.append(Numa(number, "", gib(95), 0, rest="free", cache=hbm_cache, leak=gib(0.5)))
    empty = [n for n in range(36) if n > 3 and n not in HBM and not cdmm]
    tree(name, nodes, cpus_allowed, "0-35", cgroup=cgroup, low=gib(0.1), page=64, empty=empty)


def main():
    jupiter("gh200_healthy")
    jupiter("gh200_bound", cpus_allowed="72-143")
    jupiter("gh200_leak", {2: dict(leak=gib(60))})
    jupiter("gh200_cache_hog", {1: dict(cache=gib(80))})
    jupiter("gh200_cache_on_devices", hbm_cache=gib(20))
    jupiter("gh200_cdmm", cdmm=True)
    jupiter("gh200_cgroup", cgroup="0::/system.slice/slurmstepd.scope/job_77/step_0\n")
    base = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_77"
    write("gh200_cgroup", f"{base}/memory.max", f"{gib(100) * 1024}\n")
    write("gh200_cgroup", f"{base}/memory.high", "max\n")
    write("gh200_cgroup", f"{base}/memory.current", f"{gib(2) * 1024}\n")
    write("gh200_cgroup", f"{base}/memory.stat", "anon 0\nfile_dirty 0\nfile_writeback 0\ninactive_file 0\nactive_file 0\n")

    # Two sockets of EPYC, NPS4: eight NUMA nodes of 64 GiB.
    epyc = [Numa(i, f"{i * 16}-{i * 16 + 15},{128 + i * 16}-{128 + i * 16 + 15}", gib(63), 0, rest="free",
                 anon=gib(0.5), slab=gib(0.8), cache=gib(10), leak=gib(1)) for i in range(8)]
    tree("epyc_nps4", epyc, "0-255", "0-7")

    # 150 GiB on a node of 1 TiB that nobody accounts for.
    big = [Numa(i, f"{i * 64}-{i * 64 + 63}", gib(503), 0, rest="free", anon=gib(1), slab=gib(3), cache=gib(20),
                leak=gib(150) if i == 0 else gib(4)) for i in range(2)]
    tree("leak_150", big, "0-127", "0-1")

    # What other jobs left: files in /dev/shm, a process, huge pages of two sizes, cache that is dirty or locked.
    shmem = [Numa(0, "0-31", gib(251), 0, rest="free", shmem=gib(180), anon=gib(1), slab=gib(1), cache=gib(4),
                  leak=gib(0.5))]
    tree("shmem_hog", shmem, "0-31", "0")
    huge = [Numa(0, "0-31", gib(251), 0, rest="free", huge=[(2048, 40960, 40000), (1048576, 64, 64)], anon=gib(1),
                 slab=gib(1), leak=gib(0.5))]
    tree("huge_pages", huge, "0-31", "0")
    stuck = [Numa(0, "0-31", gib(125), 0, rest="free", dirty=gib(30), locked=gib(40), cache=gib(20), anon=gib(2),
                  leak=gib(0.5))]
    tree("dirty_cache", stuck, "0-31", "0")
    busy = [Numa(0, "0-31", gib(125), 0, rest="free", anon=gib(90), cache=gib(5), slab=gib(1), leak=gib(0.5))]
    tree("leftover_process", busy, "0-31", "0")
    process("leftover_process", 4711, "python3", 1234, gib(85), gib(0.5))
    process("leftover_process", 4712, "sshd", 0, gib(0.01))

    # A virtual machine whose memory grows as it is touched.
    vm = [Numa(0, "0-15", gib(23.5), 0, rest="free", anon=gib(0.8), cache=gib(8), slab=gib(0.5),
               leak=gib(0.5))]
    tree("virtual_machine", vm, "0-15", "0")

    # A NUMA node that is offline, and one with CPUs and no memory.
    some = [Numa(0, "0-15", gib(125), 0, rest="free", cache=gib(2)), Numa(2, "32-47", 0, 0)]
    tree("offline_node", some, "32-47", "0,2", online="0,2")
    folder = "sys/devices/system/node/node1"
    write("offline_node", f"{folder}/cpulist", "\n")

    # Files that are damaged or not there.
    tree("damaged", [Numa(0, "0-15", gib(125), 0, rest="free"), Numa(1, "16-31", gib(125), 0, rest="free")], "0-31",
         "0-1")
    write("damaged", "sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       abc kB\n\0\0Node 1 MemF")
    write("no_meminfo", "proc/self/status", "Name:\tananke\n")

    # A container that shows no NUMA nodes.
    plain = [Numa(0, "0-7", gib(62), 0, rest="free", anon=gib(1), cache=gib(3), slab=gib(0.5), leak=gib(0.6))]
    tree("container", plain, "0-7", "0", hidden=True)

    # Control groups, versions 2 and 1.
    one = [Numa(0, "0-31", gib(251), 0, rest="free", anon=gib(1), slab=gib(1), cache=gib(30), leak=gib(0.5))]
    v2 = "0::/system.slice/slurmstepd.scope/job_77/step_0\n"
    tree("cgroup_v2", one, "0-31", "0", cgroup=v2)
    base = "sys/fs/cgroup/system.slice/slurmstepd.scope"
    write("cgroup_v2", f"{base}/memory.max", "max\n")
    write("cgroup_v2", f"{base}/job_77/memory.max", f"{gib(100) * 1024}\n")
    write("cgroup_v2", f"{base}/job_77/memory.high", "max\n")
    write("cgroup_v2", f"{base}/job_77/memory.current", f"{gib(30) * 1024}\n")
    write("cgroup_v2", f"{base}/job_77/memory.stat", f"anon {gib(4) * 1024}\nfile {gib(26) * 1024}\nfile_dirty "
          f"{gib(1) * 1024}\nfile_writeback 0\ninactive_file {gib(20) * 1024}\nactive_file {gib(5) * 1024}\n")
    write("cgroup_v2", f"{base}/job_77/step_0/memory.max", "max\n")
    tree("cgroup_v1", one, "0-31", "0", cgroup="11:cpuset:/slurm/job_78\n4:memory:/slurm/uid_1000/job_78/step_0\n"
         "0::/\n")
    base = "sys/fs/cgroup/memory/slurm/uid_1000"
    for path, limit in (("", 9223372036854771712), ("/job_78", gib(64) * 1024), ("/job_78/step_0", gib(60) * 1024)):
        write("cgroup_v1", f"{base}{path}/memory.limit_in_bytes", f"{limit}\n")
        write("cgroup_v1", f"{base}{path}/memory.usage_in_bytes", f"{gib(12) * 1024}\n")
        write("cgroup_v1", f"{base}{path}/memory.stat", f"cache {gib(8) * 1024}\ntotal_inactive_file {gib(6) * 1024}\n"
              f"total_active_file {gib(2) * 1024}\ntotal_dirty 0\ntotal_writeback 0\n")

    ROOT.mkdir(exist_ok=True)
    for name, files in TREES.items():
        (ROOT / f"{name}.txt").write_text("\n".join(f"==> /{path} <==\n{text}" for path, text in files.items()))


if __name__ == "__main__":
    main()
