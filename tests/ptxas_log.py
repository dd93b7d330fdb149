#!/usr/bin/env python3
"""Reads the log of a build with -Xptxas=-v, and fails where a kernel spills registers, but for the few bytes below, or
ptxas runs the wgmmas of a kernel one after the other.

    ptxas_log.py LOG [ARCHITECTURE...]    each named architecture ("90a") must have kernels in the log

Prints a line per architecture, and one per fault.
"""
import collections
import re
import sys

KERNEL = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
# The kernels that spill, in some architectures, and the most bytes that each stores or loads: a few registers of the
# caches' first level. A kernel that no longer does may be struck off.
KNOWN_SPILLS = [(re.compile(name), most) for name, most in (
    ("map_rows.*GeluErf", 16), ("gemv_kernel", 24), ("flash_bf16.*FlashShapeILi(64ELi4ELi1ELi4|128ELi4ELi1ELi3)E", 32))]
SERIAL = re.compile(r"wgmma.* serialized.* function '(\w+)'")


def read(lines):
    """Returns the registers of each architecture's kernels, and the faults."""
    registers, faults = collections.defaultdict(dict), []
    kernel = architecture = None
    for line in lines:
        if found := KERNEL.search(line):
            kernel, architecture = found.groups()
        elif found := SPILL.search(line):
            most = next((most for name, most in KNOWN_SPILLS if name.search(kernel)), 0)
            if max(map(int, found.groups())) > most:
                faults.append(f"sm_{architecture} {kernel}: {found.group(0)}")
        elif found := USED.search(line):
            registers[architecture][kernel] = int(found.group(1))
        elif found := SERIAL.search(line):
            faults.append(f"{found.group(1)}: its wgmmas are serialized: {line.strip()}")
    return registers, faults


def main(log, *wanted):
    with open(log, encoding="utf-8", errors="replace") as lines:
        registers, faults = read(lines)
    for architecture, kernels in sorted(registers.items()):
        print(f"sm_{architecture}: {len(kernels)} kernels, at most {max(kernels.values())} registers")
    faults += [f"sm_{name}: no kernel in {log}" for name in wanted if name not in registers]
    print("\n".join(faults) or "no new spills, no serialized wgmma")
    return 1 if faults or not registers else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
