"""The steps of tests/gpu.sh: runs them, several at once where they measure nothing, and writes a row for each."""
import concurrent.futures
import csv
import glob
import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import threading
import time

BEGUN = time.monotonic()
TINY = bool(os.environ.get("TINY"))
OUT = os.environ.get("OUT", "build-gpu/results")
PACK = "build-gpu/unpacked"
WEFT = os.environ.get("WEFT", f"{PACK}/bin/weft")
CUDA_TEST = os.environ.get("CUDA_TEST", f"{PACK}/bin/cuda_test")
OPS_BENCH = f"{PACK}/bin/weft_ops_bench"
EACH = 5 if TINY else 75  # seconds of one process of tests
AT_ONCE = 2 if TINY else 8
LONGEST = 400  # characters of a message
LARGEST = 2 << 20  # bytes of the rows, and of the log


def tool(name):
    """The path of one of the toolkit's profilers, or None."""
    found = [shutil.which(name)] + sorted(glob.glob(f"/opt/nvidia/**/{name}", recursive=True)) + \
        sorted(glob.glob(f"/usr/local/cuda*/**/{name}", recursive=True))
    return next((path for path in found if path and os.path.isfile(path) and os.access(path, os.X_OK)), None)


def ask(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def unpack():
    """Unpacks what was brought, once."""
    if not os.path.isdir(PACK):
        for archive in sorted(glob.glob("gpu/*.tar.xz")):
            with tarfile.open(archive) as tar:
                tar.extractall(PACK)


def library_path():
    """Names the wheels' CUDA libraries, and our own, as our binaries ask for them. Python itself keeps its own."""
    links = os.path.abspath("build-gpu/cuda")
    os.makedirs(links, exist_ok=True)
    for place in site.getsitepackages():
        for kind in ("cublas", "cudnn", "nccl", "nvrtc", "nvJitLink"):
            for file in glob.glob(f"{place}/nvidia/*/lib/lib{kind}*.so*"):
                link = os.path.join(links, os.path.basename(file))
                if not os.path.lexists(link):
                    os.symlink(file, link)
    places = [os.path.abspath(f"{PACK}/lib"), links]
    places += [folder for folder in ("/usr/local/cuda/lib64", "/usr/local/cuda/lib") if os.path.isdir(folder)]
    return ":".join(places + [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else places)


class Rows:
    """Keeps a row per test, case or measurement, in a file that holds whatever was done when time ran out."""

    def __init__(self, name):
        os.makedirs(OUT, exist_ok=True)
        self.file = open(f"{OUT}/{name}.jsonl", "w")
        self.log_file = open(f"{OUT}/{name}.log", "w")
        self.lock = threading.Lock()
        self.counts = {}
        self.bad = []

    def about(self, **what):
        self.file.write(json.dumps(what) + "\n")
        self.file.flush()

    def add(self, suite, test, verdict, seconds, message="", **more):
        row = {"suite": suite, "test": test, "verdict": verdict, "seconds": round(seconds, 2),
               "message": message[:LONGEST], **more}
        with self.lock:
            self.counts[verdict] = self.counts.get(verdict, 0) + 1
            if self.file.tell() < LARGEST:
                self.file.write(json.dumps(row) + "\n")
                self.file.flush()
            if verdict != "ok":
                self.bad.append(row)
                print(f"{verdict:7} {suite} {test} {seconds:.1f} s: {message[:150]}")

    def log(self, title, text):
        with self.lock:
            if self.log_file.tell() < LARGEST:
                self.log_file.write(f"==== {title}\n{text[-60000:]}\n")
                self.log_file.flush()


def run(command, limit, environment):
    """Runs a command in a process group of its own, at most until the limit. Returns (how it ended, output, seconds)."""
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                               env=environment, start_new_session=True, text=True, errors="replace")
    try:
        output, _ = process.communicate(timeout=max(1, limit))
        ended = "ok" if process.returncode == 0 else "FAILED" if process.returncode > 0 else "CRASH"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        ended = "TIME"
    return ended, output, time.monotonic() - begun


def first_line(output, pattern="error|Error|Failure|FAIL|weft:|Aborted|what"):
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if re.search(pattern, line)), lines[-1] if lines else "")


class Runner:
    def __init__(self, name, limit):
        self.name = name
        self.end = BEGUN + min(limit, int(os.environ.get("LIMIT", limit)))
        self.rows = Rows(name)
        self.environment = dict(os.environ, OMP_NUM_THREADS="2", GOMP_SPINCOUNT="2000", TEST_TMPDIR="/tmp")
        self.environment["LD_LIBRARY_PATH"] = library_path()
        device = ask("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
        self.device, _, self.driver = (device or "emulated, none").partition(", ")
        self.about = {"device_name": self.device, "driver": self.driver, "commit": self.commit()}
        self.rows.about(**self.about, toolkit=ask("nvcc", "--version")[-40:], kernel=ask("uname", "-r"))
        print(json.dumps(self.about))
        self.rows.log("machine", "\n".join([ask("nvidia-smi", "-q", "-d", "CLOCK,POWER,MEMORY"), ask("lscpu"), ask("free", "-g"),
                                            *sorted(os.listdir("build-gpu/cuda"))]))

    @staticmethod
    def commit():
        try:
            return open("gpu/commit").read().strip()
        except OSError:
            return ask("git", "rev-parse", "--short", "HEAD")

    def left(self):
        return self.end - time.monotonic()

    def together(self, work):
        """Calls every function of `work`, several at once."""
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(one) for one in work]:
                done.result()

    def suite(self, suite, tests):
        """Runs a suite's tests in one process. One that fails, crashes or hangs ends it: the rest get a process anew."""
        while tests:
            if self.left() < 3:
                for test in tests:
                    self.rows.add(suite, test, "TIME", 0, "no time left")
                return
            names = ":".join(f"{suite}.{test}" for test in tests)
            ended, output, seconds = run(
                [CUDA_TEST, f"--gtest_filter={names}", "--gtest_fail_fast", "--gtest_also_run_disabled_tests",
                 "--gtest_color=no", "--gtest_brief=0"], min(EACH, self.left()), self.environment)
            told = output.partition(f"\n[  FAILED  ] {suite}.")[0]  # after the first failure the rest is skipped
            begun = re.findall(rf"^\[ RUN      \] {re.escape(suite)}\.(.+)$", told, re.M)
            ends = {m[2]: (m[1], int(m[3]) / 1e3) for m in re.finditer(
                rf"^\[ +(OK|SKIPPED) \] {re.escape(suite)}\.(.+?) \((\d+) ms\)$", told, re.M)}
            for test, (verdict, took) in ends.items():
                self.rows.add(suite, test, verdict.lower(), took)
            tests = [test for test in tests if test not in ends]
            culprit = next((test for test in reversed(begun) if test in tests), None)
            if ended == "ok":
                for test in tests:  # the binary does not know them
                    self.rows.add(suite, test, "FAILED", 0, "did not run")
                return
            self.rows.log(f"{suite}.{culprit}: {ended}", output)
            if culprit is None:
                for test in tests:
                    self.rows.add(suite, test, ended, seconds, first_line(output))
                return
            how = "" if ended == "FAILED" else f"ended {'at its limit' if ended == 'TIME' else 'by a signal'}"
            message = output.rpartition(f"[ RUN      ] {suite}.{culprit}")[2]
            self.rows.add(suite, culprit, ended, seconds - sum(took for _, took in ends.values()), first_line(message) or how)
            tests.remove(culprit)

    def tests(self, only=None):
        listed = {}
        _, output, _ = run([CUDA_TEST, "--gtest_list_tests"], 60, self.environment)
        for line in output.splitlines():
            line = line.partition("#")[0].rstrip()
            if line.startswith("  ") and listed:
                listed[next(reversed(listed))].append(line.strip())
            elif line.endswith("."):
                listed[line[:-1]] = []
        wanted = {suite: [test for test in tests if only is None or (suite, test) in only]
                  for suite, tests in listed.items() if TINY or not suite.startswith("DISABLED")}
        pieces = []
        for suite, tests in wanted.items():  # a large suite runs as several processes
            for i in range(0, len(tests), 12):
                pieces.append((suite, tests[i:i + 12]))
        if TINY:
            pieces = [piece for piece in pieces if re.match("DISABLED|Graph|Rope", piece[0])]
        if not listed:
            self.rows.add("tests", "list", "CRASH", 0, first_line(output))
        self.together([lambda piece=piece: self.suite(*piece) for piece in pieces])

    def case(self, folder, *flags):
        name = os.path.basename(folder.rstrip("/"))
        limit = min(EACH, self.left())
        if limit < 3:
            return self.rows.add("verify " + " ".join(flags), name, "TIME", 0, "no time left")
        ended, output, seconds = run([WEFT, "verify", "--device", "cuda", "--threads", "2", *flags, folder], limit,
                                     self.environment)
        if ended == "FAILED" and re.search("no legal layout|cannot be split|legal", output) and "--layout" in flags:
            ended = "refused"
        if ended not in ("ok", "refused"):
            self.rows.log(f"verify {' '.join(flags)} {name}: {ended}", output)
        if ended == "refused":
            return None
        worst = max((float(x) for x in re.findall(r"rel_l2 ([0-9.e+-]+)", output)), default=None)
        return self.rows.add("verify " + " ".join(flags), name, ended, seconds,
                             "" if ended == "ok" else first_line(output), rel_l2=worst)

    def cases(self, pattern, *flags):
        folders = [folder for folder in cases() if re.search(pattern, folder)]
        return [lambda folder=folder: self.case(folder, *flags) for folder in folders]

    def measure(self, name, limit, *command, keep=True):
        """Runs a measurement alone. Its JSON lines become rows."""
        limit = min(limit, self.left())
        if limit < 5:
            return self.rows.add("bench", name, "TIME", 0, "no time left")
        environment = dict(self.environment, OMP_NUM_THREADS=str(os.cpu_count()))
        if command[0] == "python3":
            environment = dict(os.environ)
        ended, output, seconds = run(list(command), limit, environment)
        self.rows.log(f"{name}: {ended}", output)
        lines = []
        for line in output.splitlines():
            if line.startswith("{"):
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    pass
        for line in lines:
            self.rows.add("bench", name, "ok", seconds, figures=line, command=" ".join(command))
            if keep:
                print(name, figures(line))
        if ended != "ok":
            self.rows.add("bench", name, ended, seconds, first_line(output))
        return None

    def ours(self, name, limit, *arguments):
        model = ["--model", "models/pocket"] if TINY and arguments[0] in ("dit",) else []
        self.measure(name, limit, WEFT, "bench", *arguments, "--device", "cuda", "--json", *model)

    def kernels(self, name, limit, *arguments):
        """Tells which kernels a bench's time goes to, by Nsight Compute: those of all its runs together."""
        ncu, limit = tool("ncu"), min(limit, self.left())
        if not ncu or limit < 5:
            return self.rows.add("kernels", name, "TIME" if ncu else "skipped", 0, "no time left" if ncu else "no ncu")
        ended, output, seconds = run(
            [ncu, "--clock-control", "none", "--metrics", "gpu__time_duration.sum", "--csv", "--print-units", "base",
             WEFT, "bench", *arguments, "--device", "cuda", "--json"], limit, self.environment)
        self.rows.log(f"{name}: {ended}", output if ended != "ok" else "")
        totals = {}
        lines = [line for line in output.splitlines() if line.startswith('"')]
        for row in csv.DictReader(lines):
            if row.get("Metric Name") == "gpu__time_duration.sum":
                kernel = re.sub(r"\(.*", "", row["Kernel Name"])[:90] + " " + row.get("Grid Size", "")
                count, total = totals.get(kernel, (0, 0))
                totals[kernel] = (count + 1, total + float(row["Metric Value"].replace(",", "")) / 1e3)
        largest = sorted(totals.items(), key=lambda item: -item[1][1])[:40]
        self.rows.add("kernels", name, ended, seconds, "" if ended == "ok" else first_line(output),
                      us={kernel: [count, round(total, 1)] for kernel, (count, total) in largest})
        for kernel, (count, total) in largest[:16]:
            print(f"{name:12} {count:5} x {total / count:9.1f} us  {kernel}")
        return None

    def check(self, name, limit, *command):
        """Runs a command that tells by its end whether it passed."""
        limit = min(limit, self.left())
        if limit < 5:
            return self.rows.add("check", name, "TIME", 0, "no time left")
        ended, output, seconds = run(list(command), limit, self.environment)
        self.rows.log(f"{name}: {ended}", output)
        tail = output.strip().splitlines()[-1:] or [""]
        self.rows.add("check", name, ended, seconds, tail[0] if ended == "ok" else first_line(output))
        if name == "doctor":
            print(output[-3000:])
        return ended == "ok"

    def finish(self):
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.rows.counts.items()))
        print(f"{self.name}: {counts}; {time.monotonic() - BEGUN:.0f} s")
        bad = {row["verdict"] for row in self.rows.bad} - {"skipped"}
        return 1 if bad - {"TIME"} else 3 if bad else 0


def figures(line):
    """The figures of a measurement that a reader of the terminal wants."""
    keys = ("op", "shape", "dtype", "path", "tokens", "blocks", "method", "seconds", "seconds_per_latent_frame", "graph_seconds",
            "host_seconds", "us", "share", "rel_l2", "gflops", "gb_s", "gflop_s", "gemm_gflops", "copy_gbs", "ratio",
            "planned_over_taken")
    said = [f"{key} {line[key]:.4g}" if isinstance(line[key], float) else f"{key} {line[key]}"
            for key in keys if key in line]
    families = line.get("families")
    if families:
        said.append("| " + " ".join(f"{name} {family['seconds']:.3f}" for name, family in families.items()))
    return " ".join(said)


# Conformance cases that run there: all that are small, and of the large ones one of each kind, and those whose model
# small ones share.
LARGEST_CASE = 1 << 20
LARGE = ("dit_zimage", "pipeline_flux_dev", "pipeline_flux_schnell", "s2v_first_clip", "s2v_stream", "vae21_mult_decode2",
         "vae_kl_decode", "vae_patch2_decode3", "weights_fp8_plain")
# These have the operations of others, under other names or with other settings.
LEFT_OUT = ("dit_flux2_original_names", "dit_krea2_original_names", "dit_krea2_twelve_taps", "pipeline_krea2_raw",
            "wav2vec2_bare_names")


def cases():
    for description in sorted(glob.glob("tests/golden/*/case.json")):
        case = os.path.dirname(description) + "/"
        files = glob.glob(f"{case}**", recursive=True)
        if os.path.basename(case[:-1]) in LEFT_OUT:
            continue
        if os.path.basename(case[:-1]) in LARGE or sum(map(os.path.getsize, files)) < LARGEST_CASE:
            yield case


def first():
    runner = Runner("first", 400)
    if not runner.check("starts", 60, WEFT, "--version"):
        print(open(f"{OUT}/first.log").read()[-3000:])
        return runner.finish()
    if TINY:
        runner.tests()
        runner.together(runner.cases("/dit_wan_tiny/", "--dtype", "bf16"))
        runner.ours("dit", 60, "dit", "--dtype", "bf16", "--tokens", "32", "--blocks", "2", "--repeat", "1")
        return runner.finish()
    runner.check("doctor", 60, WEFT, "doctor", "--device", "cuda")
    runner.tests()
    runner.together(runner.cases("", "--dtype", "f32") + runner.cases("", "--dtype", "bf16"))
    print(f"tests and cases: {time.monotonic() - BEGUN:.0f} s")
    work = []
    for path in ("wgmma", "library"):  # auto takes neither for calls as small as these
        work += runner.cases("/(dit|pipeline)", "--dtype", "bf16", "--attention-path", path)
    runner.together(work)
    bf16 = ("--dtype", "bf16", "--repeat")
    runner.ours("attention", 60, "attention", *bf16, "3")
    runner.ours("dit_1.3b_480p", 60, "dit", "--arch", "wan2.1-1.3b", "--tokens", "32760", *bf16, "3")
    runner.ours("dit_14b_720p", 60, "dit", "--arch", "wan2.1-14b", "--tokens", "75600", "--blocks", "4", *bf16, "3")
    runner.ours("attention_fp8", 40, "attention", *bf16, "3", "--attention", "fp8")
    runner.ours("dit_flux", 90, "dit", "--arch", "flux.1-dev", "--tokens", "4096", *bf16, "5")
    runner.measure("ops", 60, OPS_BENCH, "", "0", "cuda", keep=False)
    runner.ours("vae_bf16", 60, "vae", "--dtype", "bf16", "--size", "1280x720", "--num-frames", "17")
    runner.ours("dit_1.3b_as_generated", 60, "dit", "--arch", "wan2.1-1.3b", "--tokens", "32760", *bf16, "3", "--as-generated")
    runner.ours("text", 40, "text", *bf16, "2")
    runner.ours("llm", 40, "llm", *bf16, "2")
    runner.ours("load", 60, "load", *bf16, "1")
    return runner.finish()


def failed_before():
    """The tests and cases that failed in an earlier run."""
    path = os.environ.get("FAILED", f"gpu/first.jsonl")
    if not os.path.exists(path):
        return set(), []
    rows = [json.loads(line) for line in open(path)]
    rows = [row for row in rows if row.get("verdict") in ("FAILED", "CRASH", "TIME")]
    return ({(row["suite"], row["test"]) for row in rows},
            [(row["suite"].split()[1:], row["test"]) for row in rows if row["suite"].startswith("verify")])


def second():
    runner = Runner("second", 260)
    if not runner.check("starts", 60, WEFT, "--version"):
        print(open(f"{OUT}/second.log").read()[-3000:])
        return runner.finish()
    tests, cases = failed_before()
    runner.tests(tests)
    runner.together([lambda flags=flags, case=case: runner.case(f"tests/golden/{case}", *flags)
                     for flags, case in cases])
    sanitizer = tool("compute-sanitizer")
    for check, tests in (("racecheck", "AttentionSm90*"), ("memcheck", "Norm*:Rope*:Conv*:Linear.*:AttentionSm90*")):
        if sanitizer:
            runner.check(check, 50, sanitizer, "--tool", check, "--error-exitcode", "7", CUDA_TEST, f"--gtest_filter={tests}")
    bf16 = ("--dtype", "bf16", "--repeat")
    runner.ours("attention", 60, "attention", *bf16, "3")
    small, large = ("--arch", "wan2.1-1.3b", "--tokens", "32760"), ("--arch", "wan2.1-14b", "--tokens", "75600")
    runner.ours("dit_1.3b_480p", 60, "dit", *small, *bf16, "3")
    runner.measure("torch_1.3b_480p", 90, "python3", "tests/bench/torch_step.py", *small, "--repeat", "3")
    runner.ours("dit_14b_720p", 60, "dit", *large, "--blocks", "4", *bf16, "3")
    runner.measure("torch_14b_720p", 60, "python3", "tests/bench/torch_step.py", *large, "--blocks", "4", "--repeat", "3")
    runner.kernels("attention", 30, "attention", *bf16, "1", "--tokens", "32760", "--attention-path", "wgmma")
    runner.kernels("1.3b", 40, "dit", *small, "--blocks", "2", *bf16, "1")
    runner.kernels("flux", 40, "dit", "--arch", "flux.1-dev", "--tokens", "4096", "--blocks", "4", *bf16, "1")
    runner.kernels("vae", 40, "vae", "--dtype", "bf16", "--size", "1280x720", "--num-frames", "5")
    runner.ours("streamed", 60, "dit", "--arch", "wan2.1-14b", "--tokens", "32760", "--blocks", "12",
                "--resident-layers", "4", *bf16, "3")
    for dtype in ("bf16", "f32"):
        runner.ours(f"vae_{dtype}", 60, "vae", "--dtype", dtype, "--size", "1280x720", "--num-frames", "17")
    work = []
    for layout in ("ulysses=2", "cfg=2", "ring=2", "layers=2"):
        work += runner.cases("/(dit_wan_tiny_sharded|dit_flux|pipeline_t2v|pipeline_flux_dev|llm_qwen3_tied|dit_qwen_image)/",
                             "--dtype", "bf16", "--ranks", "2", "--layout", layout)
    runner.together(work)
    return runner.finish()


def main():
    if sys.argv[1:] == ["cases"]:  # for tests/gpu_pack.sh
        print("\n".join(cases()))
        return 0
    steps = {"first": first, "second": second}
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        print("".join(line[2:] for line in open("tests/gpu.sh").readlines()[1:10]), file=sys.stderr)
        return 2
    unpack()
    return steps[sys.argv[1]]()


if __name__ == "__main__":
    sys.exit(main())
