#!/usr/bin/env python3
"""Fits the polynomial of TeaCache for a model, which is "teacache" in its weft.json.

    tests/bench/teacache_fit.py --model models/pocket "a red ball moving left" "a big blue ring"

Every prompt is drawn once with --cache teacache:0, which skips nothing and reports for every step
the relative L1 change of the time embedding and that of the model's output. The polynomial of
degree 4 turns the first into the second (least squares over all steps of all prompts).
"""
import argparse
import json
import os
import subprocess
import tempfile

DEGREE = 4


def changes(weft, model, prompt, seed, flags):
    """(change of the embedding, change of the output) of every step but the first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [weft, "generate", "--model", model, "--prompt", prompt, "--seed", str(seed),
                   "--cache", "teacache:0", "--json", "--output", os.path.join(folder, "clip.mp4")]
        out = subprocess.run(command + flags, check=True, stdout=subprocess.PIPE, text=True).stdout
    steps = json.loads(out.splitlines()[-1])["cache"]["steps"]
    return [(s["embedding_change"], s["output_change"]) for s in steps[1:]]


def solve(matrix, right):
    """Gauss with pivots."""
    n = len(right)
    rows = [list(matrix[i]) + [right[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, n):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i])]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (rows[i][n] - sum(rows[i][k] * x[k] for k in range(i + 1, n))) / rows[i][i]
    return x


def fit(points):
    """The coefficients, highest power first. Changes are scaled to 1, which keeps the sums apart."""
    scale = max(x for x, _ in points)
    powers = [[(x / scale) ** (DEGREE - k) for k in range(DEGREE + 1)] for x, _ in points]
    normal = [[sum(p[i] * p[k] for p in powers) for k in range(DEGREE + 1)]
              for i in range(DEGREE + 1)]
    right = [sum(p[i] * y for p, (_, y) in zip(powers, points)) for i in range(DEGREE + 1)]
    return [c / scale ** (DEGREE - k) for k, c in enumerate(solve(normal, right))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--model", required=True)
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--flags", default="", help="more flags of weft generate")
    options = parser.parse_args()
    points = []
    for seed, prompt in enumerate(options.prompts):
        points += changes(options.weft, options.model, prompt, seed, options.flags.split())
    coefficients = fit(points)
    print(json.dumps({"teacache": [float(f"{c:.9g}") for c in coefficients]}))
    value = lambda x: sum(c * x ** (DEGREE - k) for k, c in enumerate(coefficients))
    wrong = sum(abs(value(x) - y) for x, y in points) / sum(y for _, y in points)
    print(f"{len(points)} steps, mean error {100 * wrong:.1f} % of the mean change")


if __name__ == "__main__":
    main()
