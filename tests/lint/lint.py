"""Structural lint: include direction, preprocessor use, sizes, and that every op is tested.

Prints one line per fault and exits 1 when there are any.
"""
import pathlib
import re
import subprocess
import sys

ORDER = ["kernels", "parallel", "io", "models", "engine", "apps", "tests"]
MAY_INCLUDE = {
    "kernels": {"kernels"},
    "parallel": {"parallel", "kernels"},
    "io": {"io", "kernels"},
    "models": {"models", "parallel", "io", "kernels"},
    "engine": {"engine", "models", "parallel", "io", "kernels"},
    "apps": {"apps", "engine", "models", "parallel", "io", "kernels"},
    "tests": set(ORDER),
}
# Features are chosen by which file is built; only these may ask the preprocessor.
MAY_USE_IF = {"kernels/ops.cc", "parallel/bootstrap.cc", "kernels/check.h", "kernels/arena.cc"}
# Highway sources are compiled once per SIMD target, which only the preprocessor can arrange.
HIGHWAY = re.compile(r"kernels/cpu/.*|tests/kernels/.*")
MAX_LINES, MAX_HEADER, MAX_README = 600, 260, 60
TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "LICENSE", "NOTICE", "README.md", *ORDER}


def tracked():
    out = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout
    return [pathlib.PurePosixPath(line) for line in out.splitlines()]


def op_names():
    text = pathlib.Path("kernels/ops.h").read_text()
    return re.findall(r"decltype\(&weft::(\w+)\)", text)


def main():
    faults = []
    files = tracked()
    for path in files:
        top = path.parts[0]
        if top not in TOP_LEVEL and not top.startswith("."):
            faults.append(f"{path}: the top level holds only {sorted(TOP_LEVEL)}")
        if path.suffix in {".h", ".cc", ".cu", ".cuh"}:
            text = pathlib.Path(path).read_text()
            lines = text.splitlines()
            highway = '#include "hwy/' in text and HIGHWAY.fullmatch(str(path))
            for number, line in enumerate(lines, 1):
                include = re.match(r'\s*#\s*include "([^"/]+)/', line)
                if include and include[1] not in MAY_INCLUDE.get(top, set()) | (
                        {"hwy"} if highway else set()):
                    faults.append(f"{path}:{number}: {top} may not include {include[1]}")
                if re.match(r"\s*#\s*if", line) and not (
                        str(path) in MAY_USE_IF or highway):
                    faults.append(f"{path}:{number}: #if outside {sorted(MAY_USE_IF)}")
            per_target = highway and path.name.endswith("-inl.h")
            if path.suffix == ".h" and not per_target and not lines[0].startswith("#pragma once"):
                faults.append(f"{path}:1: headers begin with #pragma once")
            limit = MAX_HEADER if path.suffix == ".h" else MAX_LINES
            if len(lines) > limit:
                faults.append(f"{path}: {len(lines)} lines, limit {limit}: look for the second idea")
        if path.name == "README.md" and len(path.parts) > 1:
            count = len(pathlib.Path(path).read_text().splitlines())
            if count > MAX_README:
                faults.append(f"{path}: {count} lines, limit {MAX_README}")
    for folder in ORDER[:-1]:
        if not pathlib.Path(folder, "README.md").exists():
            faults.append(f"{folder}/README.md is missing")
    tests = "".join(p.read_text() for p in pathlib.Path("tests/kernels").glob("*.cc"))
    for op in op_names():
        if not re.search(rf"\b{op}\b", tests):
            faults.append(f"kernels/ops.h: op {op} has no test in tests/kernels")
    for fault in faults:
        print(fault)
    print(f"lint: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
