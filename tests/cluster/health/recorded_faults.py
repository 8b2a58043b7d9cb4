# ruff: noqa: E501 - lines as drivers write them
"""Lines as kernels and drivers write them, with what each calls for; and the lines of a healthy node."""

from collections.abc import Iterator

from weft.core.seeds import Seed

GPUS = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0", "0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0",
        "0000:df:00.0")  # fmt: skip
"""The GPUs of an HGX H100 board in the order of the bus."""

FAULTS: tuple[tuple[str, str, int | None], ...] = (
    ("NVRM: Xid (PCI:0000:43:00): 46, pid=2310, name=python, Ch 00000010, GPU stopped processing", "reset", 1),
    ("NVRM: Xid (PCI:0000:1b:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer", "reset", 0),
    ("NVRM: Xid (PCI:0000:52:00): 54, Auxiliary power is not connected", "replace", 2),
    ("NVRM: Xid (PCI:0000:61:00): 62, pid='<unknown>', name=<unknown>, 2087a0d6 00008dfe 00000000", "reset", 3),
    ("NVRM: Xid (PCI:0000:9d:00): 63, pid='<unknown>', Row Remapper: New row marked for remapping, reset gpu to activate.", "cordon", 4),
    ("NVRM: Xid (PCI:0000:c3:00): 64, pid='<unknown>', Row Remapper Error: (0x00000005d28c03a0) - All reserved rows for bank are remapped", "degrade", 5),
    ("NVRM: Xid (PCI:0000:d1:00): 74, pid='<unknown>', NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0)", "reset", 6),
    ("NVRM: Xid (PCI:0000:df:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "reboot", 7),
    ("NVRM: Xid (PCI:0000:1b:00): 92, High single-bit ECC error rate", "cordon", 0),
    ("NVRM: Xid (PCI:0000:1b:00): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No", "cordon", 0),
    ("NVRM: Xid (PCI:0000:43:00 GPU-I:05): 95, pid=7194, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No", "reset", 1),
    ("NVRM: Xid (PCI:0000:43:00): 109, pid=2280636, name=python, Ch 0000000a, errorString CTX SWITCH TIMEOUT, Info 0x3c046", "reset", 1),
    ("NVRM: Xid (PCI:0000:43:00): 110, pid=1, Security fault", "reset", 1),
    ("NVRM: Xid (PCI:0000:9d:00): 119, pid=1219, name=nvidia-smi, Timeout after 45s of waiting for RPC response from GPU4 GSP!", "reset", 4),
    ("NVRM: Xid (PCI:0000:9d:00): 120, pid=1, GSP task exception: supervisor mode trap", "reset", 4),
    ("NVRM: Xid (PCI:0000:9d:00): 121, C2C link error", "cordon", 4),
    ("NVRM: Xid (PCI:0000:9d:00): 136, NVLink link training failed", "reset", 4),
    ("NVRM: Xid (PCI:0000:c3:00): 140, pid='<unknown>', name=<unknown>, An uncorrectable ECC error detected (possible firmware handling failure) DRAM:-1, LTC:0, MMU:0", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 143, GPU initialization error", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 144, pid=1, SAW_MVB        Fatal       XC0 i0 Link 03 (0x00000021 0x00000002 0x00000000)", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 145, RLW_REMAP      Fatal       XC0 i1 Link 12 (0x00000044 0x00000040 0x00000000)", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 10 (0x004505c6 0x00000000 0x00000000)", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 151, Key rotation error", "reboot", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "reboot", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", "reboot", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "drain", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 155, NVLink software defined error", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 156, Resource retirement event", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 157, Resource retirement failure", "degrade", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 158, GPU fatal timeout", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 167, PCIE_FATAL_TIMEOUT", "reboot", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 168, Errors found in WPR (write protected region)", "degrade", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 169, SEC2 halt", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 171, Uncorrectable DRAM error", "reset", 5),
    ("NVRM: Xid (PCI:0000:c3:00): 9999, something new", "cordon", 5),
    ("NVRM: Xid (PCI:0000:77:00): 64, Row Remapper Error", "drain", None),
    ("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up", "reboot", None),
    ("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 23001, Always Fatal, fabric", "reboot", None),
    ("NVRM: GPU 0000:df:00.0: GPU has fallen off the bus.", "reboot", 7),
    ("NVRM: The NVIDIA GPU 0000:df:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and is not responding to commands.", "reboot", 7),
    ("NVRM: GPU 0000:df:00.0: RmInitAdapter failed! (0x62:0x40:1860)", "reset", 7),
    ("NVRM: rm_init_adapter failed, device minor number 7", "reset", None),
    ("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:", "reboot", None),
    ("NVRM: API mismatch: the client has the version 535.86.10, but", "cordon", None),
    ("amdgpu 0000:c1:00.0: amdgpu: GPU reset(2) failed", "reboot", None),
    ("amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 0 2 new uncorrectable hardware errors detected in umc block", "reset", None),
    ("pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error received: 0000:1b:00.0", "reboot", None),
    ("pcieport 0000:15:01.0: AER: Uncorrectable (Fatal) error message received from 0000:1b:00.0", "reboot", None),
    ("nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)", "reboot", 0),
    ("pcieport 0000:15:01.0: AER: device recovery failed", "reboot", None),
    ("pcieport 0000:15:01.0: DPC: containment event, status:0x1f01 source:0x0000", "reboot", None),
    ("pcieport 0000:15:01.0: pciehp: Slot(4): Link Down", "reboot", None),
    ("pcieport 0000:15:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:5e:00.0", "cordon", None),
    ("mlx5_core 0000:5e:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Requester ID)", "cordon", None),
    ("mlx5_core 0000:5e:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count", "drain", None),
    ("mlx5_core 0000:5e:00.0: mlx5_health_try_recover:335:(pid 9): health recovery failed", "drain", None),
    ("mlx5_core 0000:5e:00.0: poll_health:812:(pid 0): Fatal error 3 detected", "drain", None),
    ("mlx5_core 0000:5e:00.0: wait_func:1161:(pid 1967): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource", "drain", None),
    ("mlx5_core 0000:5e:00.0: print_health_info:431:(pid 0): Health issue observed, ICM fetch PCI error, severity(2) CRITICAL:", "drain", None),
    ("mlx5_core 0000:5e:00.0: print_health_info:431:(pid 0): Health issue observed, High temperature, severity(3) ERROR:", "cordon", None),
    ("mlx5_core 0000:5e:00.0: mlx5_pcie_event:299:(pid 268): Detected insufficient power on the PCIe slot (27W).", "cordon", None),
    ("mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)", "cordon", None),
    ("mlx5_core 0000:5e:00.0 eth4: TX timeout detected", "cordon", None),
    ("NETDEV WATCHDOG: eth4 (mlx5_core): transmit queue 3 timed out", "cordon", None),
    ("neighbour: arp_cache: neighbor table overflow!", "cordon", None),
    ("nf_conntrack: nf_conntrack: table full, dropping packet", "cordon", None),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0", "drain", None),
    ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400", "drain", None),
    ("{1}[Hardware Error]: event severity: fatal", "drain", None),
    ("{1}[Hardware Error]: event severity: recoverable", "cordon", None),
    ("Memory failure: 0x12345: recovery action for dirty LRU page: Recovered", "cordon", None),
    ("Memory failure: 0x12345: recovery action for reserved kernel page: Ignored", "drain", None),
    ("BUG: Bad page state in process python  pfn:12345", "reboot", None),
    ("thermal thermal_zone0: critical temperature reached (105 C), shutting down", "drain", None),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff", "drain", None),
    ("nvme nvme0: Device not ready; aborting reset, CSTS=0x1", "drain", None),
    ("nvme nvme1: I/O 12 QID 3 timeout, aborting", "cordon", None),
    ("nvme nvme1: I/O tag 258 (7102) opcode 0x1 (I/O Cmd) QID 5 timeout, aborting req_op:WRITE(1) size:131072", "cordon", None),
    ("blk_update_request: I/O error, dev nvme0n1, sector 2 op 0x0:(READ) flags 0x80700", "cordon", None),
    ("critical medium error, dev sda, sector 1234 op 0x0:(READ)", "drain", None),
    ("Buffer I/O error on dev sda1, logical block 0, async page read", "cordon", None),
    ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", "drain", None),
    ("EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0", "cordon", None),
    ("XFS (md0): Corruption detected. Unmount and run xfs_repair", "cordon", None),
    ("XFS (md0): I/O Error Detected. Shutting down filesystem", "drain", None),
    ("md/raid1:md0: Disk failure on nvme1n1p1, disabling device.", "cordon", None),
    ("INFO: task python:12345 blocked for more than 120 seconds.", "cordon", None),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]", "cordon", None),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 12", "reboot", None),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "cordon", None),
    ("BUG: unable to handle page fault for address: ffffa0d4c0000000", "reboot", None),
    ("Oops: 0000 [#1] SMP NOPTI", "reboot", None),
    ("kernel BUG at mm/slub.c:321!", "reboot", None),
    ("Kernel panic - not syncing: Fatal exception", "reboot", None),
)  # fmt: skip

OFTEN: tuple[tuple[str, int, str], ...] = (
    ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0", 101, "cordon"),
    ("{1}[Hardware Error]: event severity: corrected", 101, "cordon"),
    ("mce: [Hardware Error]: Machine check events logged", 21, "cordon"),
    ("pcieport 0000:15:01.0: AER: Corrected error received: 0000:1b:00.0", 101, "cordon"),
    ("pcieport 0000:15:01.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)", 101, "cordon"),
    ("mlx5_core 0000:5e:00.0 eth4: Link down", 3, "cordon"),
    ("eth0: NIC Link is Down", 3, "cordon"),
    ("CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)", 61, "cordon"),
    ("nvidia-nvswitch4: SXid (PCI:0000:c6:00.0): 19084, Non-fatal, Link 29 AN1 Heartbeat Timeout Error (First)", 21, "cordon"),
    ("NVRM: Xid (PCI:0000:c3:00): 149, NETIR_LINK_EVT  Nonfatal   XC0 i0 Link 10 (0x004505c6 0x00000000)", 11, "cordon"),
)  # fmt: skip
"""What is healthy now and then: a line, how many of it within an hour are a fault, and the action then."""

OF_PROGRAMS = tuple(
    f"NVRM: Xid (PCI:0000:1b:00): {number}, pid=2310, name=python, Ch 00000010"
    for number in (13, 31, 43, 45, 68, 69, 32)
)
"""XIDs that a program causes."""

_QUIET = (
    "usb 1-1: new high-speed USB device number {n} using xhci_hcd",
    "mlx5_core 0000:5e:00.0 eth4: Link up",
    "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
    "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:808:(pid {n}): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3)",
    "mlx5_core 0000:5e:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
    "nvidia-nvswitch0: open (major=509)",
    "NVRM: Xid (PCI:0000:1b:00): 31, pid={n}, name=python, Ch 00000010, intr 00000000. MMU Fault",
    "NVRM: Xid (PCI:0000:1b:00): 43, pid={n}, name=python, Ch 00000008",
    "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth4: link becomes ready",
    "cni0: port {n}(vethd6c1) entered forwarding state",
    "Memory cgroup out of memory: Killed process {n} (python) total-vm:1234kB, anon-rss:1kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid={n},uid=0",
    "python[{n}]: segfault at 0 ip 00007f1c sp 00007ffd error 4 in libc.so.6[7f1c+1]",
    "traps: python[{n}] general protection fault ip:7f1c sp:7ffd error:0 in libc.so.6[7f1c+1]",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
    "XFS (md0): Ending clean mount",
    "nvme nvme0: 64/0/0 default/read/poll queues",
    "blk_update_request: I/O error, dev loop7, sector {n} op 0x0:(READ)",
    "TCP: request_sock_TCP: Possible SYN flooding on port 8080. Sending cookies.",
    "audit: type=1400 audit(1700000000.123:{n}): apparmor=\"ALLOWED\" operation=\"open\"",
    "perf: interrupt took too long ({n} > 2500), lowering kernel.perf_event_max_sample_rate to 50000",
    "systemd[1]: Started NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
    "docker0: port 1(veth0) entered disabled state",
    "hrtimer: interrupt took {n} ns",
)  # fmt: skip
_NOW_AND_THEN = ("CPU3: Core temperature above threshold, cpu clock throttled (total events = {n})",
                 "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
                 "pcieport 0000:15:01.0: AER: Corrected error received: 0000:1b:00.0",
                 "mlx5_core 0000:5e:00.0 eth4: Link down",
                 "mce: [Hardware Error]: Machine check events logged")  # fmt: skip


def healthy_lines(seed: int, days: int, a_day: int) -> Iterator[tuple[int, str]]:
    """Yield the time in milliseconds and the message of every line that a healthy node's kernel says."""
    draw = Seed(seed).stream("healthy", days)
    day_ms = 86_400_000
    for day in range(days):
        # Once a day one of what is healthy now and then.
        chosen = [_QUIET[at] for at in draw.integers(0, len(_QUIET), a_day)] + [_NOW_AND_THEN[day % len(_NOW_AND_THEN)]]
        for at_ms, text in zip(sorted(draw.integers(0, day_ms, len(chosen)).tolist()), chosen, strict=True):
            yield day * day_ms + at_ms, text.replace("{n}", str(int(draw.integers(1, 99_999))))
