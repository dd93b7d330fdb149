#!/usr/bin/env python3
"""Reads apps/deploy/Containerfile, and says what a builder of images does with it, for tests/image.sh.

usage: containerfile.py STAGE CONTEXT   prints the stage's RUN and COPY as commands of bash, one a line; they find the
                                        sources in CONTEXT, and what comes from an earlier stage in its outputs/
       containerfile.py --start         prints the command that starts the image, with its user, folder and variables
       containerfile.py --health        prints the command of HEALTHCHECK
"""
import json
import pathlib
import posixpath
import re
import shlex
import sys

PATH = pathlib.Path(__file__).parent.parent / "apps/deploy/Containerfile"
KNOWN = set("FROM WORKDIR COPY RUN USER ENV VOLUME EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD".split())


def stages(text):
    """The instructions of each stage, as pairs of a name and its words."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    found = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, words = line.split(None, 1)
        assert name in KNOWN, line
        if name == "FROM":
            found.append([])
        found[-1].append((name, re.sub(r" +", " ", words)))
    return found


def last(stage, name):
    return [words for one, words in stage if one == name][-1]


def copy(words, context, folder):
    """Folders are copied as what they hold, as builders do."""
    sources = words.split()
    given = context + "/outputs/" if sources[0].startswith("--from=") else context + "/"
    *sources, target = [word for word in sources if not word.startswith("--")]
    goal = posixpath.join(folder, target)
    if given.endswith("/outputs/"):
        sources = [posixpath.basename(source) for source in sources]
    if goal.endswith("/"):
        return f"mkdir -p {goal} && cp {' '.join(given + source for source in sources)} {goal}"
    (source,) = sources
    return f"mkdir -p {posixpath.dirname(goal)} && cp -rT {given}{source} {goal}"


def commands(stage, context):
    folder = "/"
    for name, words in stage:
        if name == "WORKDIR":
            folder = words
            yield f"mkdir -p {folder}"
        elif name == "COPY":
            yield copy(words, context, folder)
        elif name == "RUN":
            yield f"cd {folder} && {words}"


def start(stage):
    """The words of the command, without what `setpriv` and `env` add."""
    return json.loads(last(stage, "ENTRYPOINT")) + json.loads(last(stage, "CMD"))


def start_line(stage):
    user, group = last(stage, "USER").split(":")
    return (f"cd {last(stage, 'WORKDIR')} && exec setpriv --reuid={user} --regid={group} --clear-groups --no-new-privs "
            f"--inh-caps=-all --bounding-set=-all env {last(stage, 'ENV')} {shlex.join(start(stage))}")


def health(stage):
    return last(stage, "HEALTHCHECK").split("CMD ", 1)[1]


def main():
    found = stages(PATH.read_text())
    if sys.argv[1] == "--start":
        print(start_line(found[-1]))
    elif sys.argv[1] == "--health":
        print(health(found[-1]))
    else:
        print(*commands(found[int(sys.argv[1])], sys.argv[2]), sep="\n")


if __name__ == "__main__":
    main()
