"""How often a language model's folder keeps to the grammar and to the prompt, on prompts it was never trained on."""
import argparse, collections, os
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM
import clips, language as L, prompts as P

ap = argparse.ArgumentParser()
ap.add_argument("--model", default="../language")
ap.add_argument("--n", type=int, default=1000, help="prompts of a row")
ap.add_argument("--seed", type=int, default=1)
ap.add_argument("--dtype", default="float32")
ap.add_argument("--threads", type=int, default=1)
ap.add_argument("--wrong", type=int, default=0, help="show that many failures of each row")
ap.add_argument("--show", nargs="*", help="only expand these prompts")
args = ap.parse_args()
torch.set_num_threads(args.threads)
model = Qwen3ForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
tok = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
SYSTEM = L.system_text()


def expand(texts, system=SYSTEM, no_thought=False, **how):
    return L.answers(model, tok, [L.question(t, system, no_thought) for t in texts], **how)


def row(name, which, say=expand, **how):
    ps = P.prompts(np.random.default_rng(args.seed), args.n, which, noise=P.NEW_NOISE, **how)
    got = say([p.text for p in ps])
    count = lambda test: f"{100 * sum(map(test, ps, got)) / len(ps):.1f} %"
    print(f"| {name} | {len(ps)} | {count(lambda p, g: P.parse(g) is not None)} | {count(lambda p, g: P.full(P.parse(g)))} "
          f"| {count(lambda p, g: p.kept(g))} |", flush=True)
    bad = [(p, g) for p, g in zip(ps, got) if not p.kept(g)]
    for p, g in bad[:args.wrong]:
        print(f"    {p.text!r} -> {g!r}")
    return [(p, g) for p, g in zip(ps, got) if P.full(P.parse(g))]


if args.show is not None:
    for text, caption in zip(args.show, expand(args.show)):
        print(f"{text!r:50} {caption}")
    raise SystemExit

whole = lambda p: P.full(P.parse(p.text.strip().lower()))
print("| prompts never trained on | number | a sentence | that says all five | all that was given kept |")
print("|---|---|---|---|---|")
new = lambda p: p.held_wording() and not p.typo
row("other wordings", new, clean=True)
row("the same with capitals, strange words, odd spaces and stops", new)
row("the same, one word misspelt", lambda p: p.held_wording() and p.typo)
row("held-out combinations, all said", lambda p: p.held_combination() and len(p.said) == 5 and not whole(p), clean=True)
row("full captions of other wordings or combinations: unchanged",
    lambda p: whole(p) and (p.held_wording() or p.held_combination()), clean=True)
row("other wordings, no system turn", new, lambda t: expand(t, None), clean=True)
row("other wordings, after an empty thought", new, lambda t: expand(t, no_thought=True), clean=True)
drawn = row("other wordings, drawn at temperature 1", new, lambda t: expand(t, temperature=1.0, seed=args.seed), clean=True)
some = [P.parse(g) for p, g in drawn if not set(p.said) >= {"colour", "shape", "motion", "ground"}]
print(f"{100 * sum(clips.held_out(*P.combo(g)) for g in some) / max(1, len(some)):.1f} % of the combinations chosen then "
      "are held-out ones, of which there are 10 %")
print("chosen freely, drawn at temperature 1:")
for kind in P.KINDS:
    free = collections.Counter(P.parse(g)[kind] for p, g in drawn if kind not in p.said and not whole(p))
    n = sum(free.values())
    print(f"  {kind}: " + ", ".join(f"{v} {100 * free[v] / max(n, 1):.0f} %" for v in P.VALUES[kind]))
