"""Lint of structure and wording: include direction of folders and of the rooms of engine/, preprocessor use, sizes of
files, functions and folders, a test for every op, names of model families below models/, comments that begin as
fragments, old names, and names in anonymous namespaces that a room has twice.

Prints one line per fault and exits 1 when there are any.
"""
import collections
import pathlib
import re
import subprocess
import sys

import cpp_functions

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
MAX_LINES, MAX_HEADER, MAX_README, MAX_README_WORDS = 600, 260, 60, 1200
MAX_FUNCTION, MAX_PARAMETERS = 60, 6
# A folder with more sources than this has rooms. The rooms of kernels/ have a file per op family and
# implementation, and those of tests/ mirror the tree.
MAX_SOURCES = 24
MAY_HAVE_MORE_SOURCES = {"kernels", "tests"}
# At most five functions may be longer or have more parameters, each for a reason that shortening cannot meet.
MAX_EXCEPTIONS = 5
EXCEPTIONS = {
    "rms_scale": "an op: its contract is its parameters, and every table repeats them",
    "group_norm": "an op, too",
    "add_tile": "the inner loop of flash_sm90: all it touches is in registers, which a struct might spill",
}
# Only models/ knows families of models: those of the registry, which have a family.cc, and text models.
TEXT_MODELS = "[Qq]wen|[Uu][Mm][Tt]5"
NAMES_NO_FAMILY = {"engine", "parallel", "kernels"}
TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "LICENSE", "NOTICE", "README.md", *ORDER}


def repository_files():
    """The files of the repository, and new ones that git does not ignore."""
    list_files = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    out = subprocess.run(list_files, capture_output=True, text=True, check=True).stdout
    return [pathlib.PurePosixPath(line) for line in out.splitlines()]


def op_names():
    text = pathlib.Path("kernels/ops.h").read_text()
    return re.findall(r"decltype\(&weft::(\w+)\)", text)


# A comment is a sentence. One that begins with these words is a fragment without subject and verb.
CPP = (".h", ".cc", ".cu", ".cuh")
COMMENT = {**dict.fromkeys(CPP, "//"),
           **dict.fromkeys([".py", ".sh", ".cmake"], "#")}
FRAGMENT = re.compile(r"(Of|What|Whether|How|With)\b")
# Names that were replaced because only insiders understood them, and the names to use instead.
OLD_NAMES = {
    "time_waves": "timestep_embedding", "flash_group": "flash_sm90", "few_rows": "gemv",
    "attention_few": "attention_decode", "soften": "online_softmax", "left_out": "is_dry_run",
    "settle": "wait_for_send or skip_to_visible_tile", "sharers": "ranks_per_device",
    "device_words": "device_description", "linear_numbers": "linear_quantized",
    "knock": "connect", "Knock": "PeerConnection", "Guest": "Peer", "MessageBoard": "Matchmaker",
    "message_board": "matchmaker", "TensorFile::made": "TensorFile::generated",
    "kStepWord": "Topic::kStep", "kStartWord": "Topic::kStart",
    "kDecodeWord": "Topic::kDecode", "kJobWord": "Topic::kJob",
    "Replica": "RankPlacement", "Keeper": "CheckpointPolicy", "StreamedWeights": "WeightOffload",
    "VaeStream": "VaeDecoder or VaeEncoder", "QwenDecoder": "CausalDecoder", "Traffic": "Payload",
    "StreamDecoder": "VideoDecoder", "stream_decoder": "video_decoder", "Drawer": "JobRunner",
    "SoundClips": "SpeechChunks", "sound_clips": "speech_chunks", "NextBlock": "NextSegment",
    "SessionBlock": "SessionSegment", "BlockFrames": "SegmentFrames", "block_queue": "segment_queue",
    "clip_pictures": "chunk_pictures", "pass.clip": "pass.segment", "pass.request": "pass.prompt",
    "Pass::clip": "Pass::segment", "Pass::request": "Pass::prompt", "BlockQueue": "SegmentQueue",
}
# Words of the glossary (apps/guide/contributing.md) in another sense than it gives them, and the words to use.
OTHER_SENSES = {re.compile(sense): word for sense, word in (
    (r"[Bb]locks? of (?:a|the) (?:queue|stream)\b", "a queue and a stream have segments"),
    (r"[Cc]lips? of (?:a|the) (?:sound|speech)\b", "a sound is drawn in chunks"),
    (r"\b(?:queue|stream)'s blocks?\b", "a queue and a stream have segments"))}
OLD_NAME = re.compile(rf"(?<![A-Za-z])({'|'.join(OLD_NAMES)})(?![A-Za-z])")
TEXT = {*COMMENT, ".md", ".txt"}


def wording_faults(path, lines):
    """Comments that begin as fragments, and old names, in one file."""
    mark = COMMENT.get(path.suffix)
    in_comment = False
    for number, line in enumerate(lines, 1):
        line = line.strip()
        was_comment, in_comment = in_comment, bool(mark) and line.startswith(mark)
        if in_comment and not was_comment:
            fragment = FRAGMENT.match(line.removeprefix(mark).lstrip())
            if fragment:
                yield f"{path}:{number}: a comment is a sentence, it may not begin with '{fragment[1]}'"
        comment = line.partition(mark)[2] if mark else ""
        for sense, word in OTHER_SENSES.items():
            if found := sense.search(comment):
                yield f"{path}:{number}: '{found[0]}': {word} (apps/guide/contributing.md)"
        for old in OLD_NAME.findall(line):
            yield f"{path}:{number}: '{old}' is an old name, use {OLD_NAMES[old]}"


def function_faults(path, text):
    """Functions that are too long or have too many parameters."""
    for function in cpp_functions.functions(text):
        if function.name in EXCEPTIONS:
            continue
        lines = function.last - function.first + 1
        if lines > MAX_FUNCTION:
            yield f"{path}:{function.first}: {function.name} has {lines} lines, limit {MAX_FUNCTION}"
        if function.parameters > MAX_PARAMETERS:
            yield (f"{path}:{function.first}: {function.name} has {function.parameters} parameters, "
                   f"limit {MAX_PARAMETERS}")


def family_pattern(files):
    """A pattern of z_image, zImage, ZImage or makeZImage for a room z_image."""
    names = [TEXT_MODELS]
    for words in (path.parts[1].split("_") for path in files if path.match("models/*/family.cc")):
        capital = "_?".join(word.capitalize() for word in words)
        either = "_?".join(f"[{word[0].upper()}{word[0]}]{word[1:]}" for word in words)
        names.append(f"(?<![A-Za-z]){either}(?![a-z])|(?<=[A-Za-z]){capital}(?![a-z])")
    return re.compile("|".join(names))


def family_faults(path, lines, family):
    if path.parts[0] in NAMES_NO_FAMILY:
        for number, line in enumerate(lines, 1):
            if family.search(line):
                yield f"{path}:{number}: only models/ names families of models"


def folder_warnings(files):
    """Folders with so many sources that rooms might help."""
    sources = collections.Counter(
        path.parent for path in files if path.suffix in CPP and path.parts[0] not in MAY_HAVE_MORE_SOURCES)
    for folder, count in sources.items():
        if count > MAX_SOURCES:
            yield f"{folder}: {count} sources: a folder with more than {MAX_SOURCES} may want rooms"


# What an anonymous namespace defines. clang-format begins each definition at the left margin.
ANONYMOUS = re.compile(r"^namespace \{\n([^\n]*\n(?=\}$)|.*?^\}  // namespace$)", re.M | re.S)
TYPE = re.compile(r"^(?:struct|class|union|enum(?: class)?) (\w+)[^;{]*\{", re.M)
ALIAS = re.compile(r"^using ((\w+) = [^;]+);", re.M)
DECLARED = re.compile(r"^using (?!namespace)[^;=]+;", re.M)
QUALIFIED = re.compile(r"([\w:]+::(\w+))")
VARIABLES = re.compile(r"^(?:const|inline|static|thread_local)\w* [^;]*;", re.M)
CONSTANT = re.compile(r"\b(k[A-Z]\w*)(?:\[[^\]]*\])*(?: =|\{)")
FUNCTION = re.compile(r"^(?!TEST|using|return)\w[^;(){}=]*[ &*](\w+)(?=\([^;]*?\{)", re.M)
# Argument-dependent lookup finds these by their parameters' types.
OVERLOADED = {"PrintTo", "to_json", "from_json"}


def room_faults(files):
    """The arrows between the rooms of engine/: each includes itself and those above it in the README's table."""
    readme = pathlib.Path("engine/README.md").read_text()
    order = [room for line in readme.splitlines() if line.startswith("| `")
             for room in re.findall(r"`(\w+)/`", line.split("|")[1])]
    faults = []
    for path in files:
        if path.suffix not in CPP or path.parts[0] != "engine":
            continue
        room = path.parts[1]
        if room not in order:
            faults.append(f"{path}: engine/README.md has no row of {room}/")
            continue
        for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
            include = re.match(r'#include "engine/(\w+)/', line)
            if include and include[1] not in order[:order.index(room) + 1]:
                faults.append(f"{path}:{number}: {room}/ may not include {include[1]}/, which is not above it "
                              "in engine/README.md")
    return faults


def unity_room(path, text):
    """The files that may be compiled as one with this one, or None if it is compiled alone."""
    if path.parts[0] == "tests":  # tests/cuda runs sources of tests/kernels
        return "tests/kernels" if path.parts[1] == "cuda" else "/".join(path.parts[:2])
    if path.is_relative_to("kernels/cuda") or path.stem.endswith("_simd") or "foreach_target.h" in text:
        return None
    return f"{path.parent}{' of references' if path.match('kernels/cpu/*') and '_' not in path.stem else ''}"


def anonymous_faults(sources):
    """Names in anonymous namespaces that two files of a room define."""
    seen = {}
    for path, text in sources:
        room = unity_room(path, text)
        hidden = "\n".join(ANONYMOUS.findall(text)) if room else ""
        names = {name: name for name in TYPE.findall(hidden) + FUNCTION.findall(hidden) + [
            name for variables in VARIABLES.findall(hidden) for name in CONSTANT.findall(variables)]}
        # These may be repeated as they are.
        names |= {name: target for target, name in ALIAS.findall(hidden) + [
            found for declared in DECLARED.findall(hidden) for found in QUALIFIED.findall(declared)]}
        for name, meaning in names.items():
            first, first_meaning = seen.setdefault((room, name), (path, meaning))
            if first != path and name not in OVERLOADED and not (first_meaning == meaning != name):
                yield (f"{path}: {first} defines '{name}' in an anonymous namespace too, "
                       "and a unity build compiles a room as one unit")


def self_check():
    """Planted lines of another sense are found, and the words in their own sense are not."""
    path = pathlib.PurePosixPath("planted.cc")
    for line in ("// The blocks of the queue.", "// A clip of the speech ends.", "f(pass.clip);"):
        assert len(list(wording_faults(path, [line]))) == 1, line
    assert not list(wording_faults(path, ["// The blocks of the transformer.", "// A clip of dual scope."]))


def main():
    cpp_functions.self_check()
    self_check()
    faults, warnings = [], []
    if len(EXCEPTIONS) > MAX_EXCEPTIONS:
        faults.append(f"tests/lint/lint.py: {len(EXCEPTIONS)} exceptions, limit {MAX_EXCEPTIONS}")
    files = repository_files()
    sources = []
    family = family_pattern(files)
    for path in files:
        top = path.parts[0]
        if top not in TOP_LEVEL and not top.startswith("."):
            faults.append(f"{path}: the top level holds only {sorted(TOP_LEVEL)}")
        if path.suffix in TEXT and str(path) != "tests/lint/lint.py":
            lines = pathlib.Path(path).read_text().splitlines()
            faults += wording_faults(path, lines)
            faults += family_faults(path, lines, family)
        if path.suffix in CPP:
            text = pathlib.Path(path).read_text()
            lines = text.splitlines()
            if path.suffix == ".cc":
                sources.append((path, text))
            if top != "tests":
                faults += function_faults(path, text)
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
                warnings.append(f"{path}: {count} lines: more than {MAX_README} may want a guide")
    warnings += folder_warnings(files)
    faults += room_faults(files)
    faults += anonymous_faults(sources)
    words = len(pathlib.Path("README.md").read_text().split())
    if words > MAX_README_WORDS:
        warnings.append(f"README.md: {words} words: more than {MAX_README_WORDS} may want a guide")
    for folder in ORDER[:-1]:
        if not pathlib.Path(folder, "README.md").exists():
            faults.append(f"{folder}/README.md is missing")
    tests = "".join(p.read_text() for p in pathlib.Path("tests/kernels").glob("*.cc"))
    for op in op_names():
        if not re.search(rf"\b{op}\b", tests):
            faults.append(f"kernels/ops.h: op {op} has no test in tests/kernels")
    for warning in warnings:
        print(f"warning: {warning}")
    for fault in faults:
        print(fault)
    print(f"lint: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
